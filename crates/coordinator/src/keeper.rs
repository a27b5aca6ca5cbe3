//! The thread of the store: campaigns and stores. The lease is renewed by a thread of its own for
//! each leadership ([`Renewing`]): loading, applying and storing may take longer than a lease.
//!
//! **Invariants**
//! - R1: the lease's end, as the driver sees it, is counted from before the renewal was sent.
//! - R2: one leadership at a time: `Lost` is the last news of an epoch, `Leads` the first of the
//!   next. Nothing renews the lease of the one when the next begins.

use crate::driver::News;
use duramen_cluster::coordinator::Token;
use duramen_cluster::coordinator::store::{Batch, Contents, Error, MetaStore, Renewal, Term};
use duramen_net::Handle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two campaigns.
const CAMPAIGN: Duration = Duration::from_millis(100);
/// After the store could not be reached; doubles up to the second one.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(1);
/// Renewals per lease.
const RENEWALS: u32 = 5;
/// How often it is looked whether a renewal has failed, if there are any.
const IDLE: Duration = Duration::from_secs(60);

/// What the driver wants.
pub(crate) enum Order {
    /// coordinator::D1: dropped unless the leadership of this epoch goes on.
    Commit {
        epoch: u64,
        token: Token,
        batch: Batch,
    },
    /// The driver has ended the leadership of this epoch by itself.
    Drop {
        epoch: u64,
    },
    /// So it has, and others are to lead: this one does not campaign for so long.
    Resign {
        epoch: u64,
        rest: Duration,
    },
    Stop,
}

/// A leadership that begins.
pub(crate) struct Leads {
    pub epoch: u64,
    pub term: Term,
    pub contents: Contents,
}

/// When the lease ends, in microseconds since the origin; `u64::MAX`: it does not.
#[derive(Clone, Default)]
pub(crate) struct LeaseEnd(Arc<AtomicU64>);

impl LeaseEnd {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, end_us: u64) {
        self.0.store(end_us, Ordering::Release);
    }
}

/// See the file's head.
pub(crate) struct Keeper {
    pub store: Box<dyn MetaStore>,
    pub orders: Receiver<Order>,
    pub news: Handle<News>,
    pub lease_end: LeaseEnd,
    pub origin: Instant,
    /// Of the last leadership.
    pub epoch: u64,
    /// Others are to lead until then.
    pub rests_until: Option<Instant>,
}

/// The thread that renews the lease, for as long as this is kept.
struct Renewing {
    period: Duration,
    failure: Arc<Mutex<Option<String>>>,
    /// Dropped: it ends.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewing {
    /// `None` if there is nothing to be renewed.
    fn begin(
        store: &dyn MetaStore,
        lease_end: &LeaseEnd,
        origin: Instant,
    ) -> std::io::Result<Option<Renewing>> {
        let lease = Duration::from_millis(store.lease_ms());
        let Some(renewal) = store.renewal().filter(|_| !lease.is_zero()) else {
            return Ok(None);
        };
        let failure = Arc::<Mutex<Option<String>>>::default();
        let (stop, stopped) = mpsc::channel();
        let period = lease / RENEWALS;
        let (lease_end, says) = (lease_end.clone(), Arc::clone(&failure));
        let work = move || {
            if let Err(reason) = keep_renewing(renewal, lease, origin, &lease_end, &stopped) {
                *says.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            }
        };
        let thread = std::thread::Builder::new().name("lease".to_owned());
        Ok(Some(Renewing {
            period,
            failure,
            stop: Some(stop),
            thread: Some(thread.spawn(work)?),
        }))
    }

    /// Why the lease is not renewed any more.
    fn failure(&self) -> Option<String> {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // R2; it has nothing to say any more
        }
    }
}

/// Until it is told to stop. Leadership is not lost by a renewal that fails for want of a
/// connection: the lease's end decides that.
fn keep_renewing(
    mut renewal: Box<dyn Renewal>,
    lease: Duration,
    origin: Instant,
    lease_end: &LeaseEnd,
    stopped: &Receiver<()>,
) -> Result<(), String> {
    let now_us = || origin.elapsed().as_micros() as u64;
    loop {
        let sent_us = now_us();
        match renewal.renew() {
            Ok(()) => lease_end.set(sent_us + lease.as_micros() as u64), // R1
            Err(error @ Error::Unavailable { .. }) if now_us() < lease_end.get() => {
                tracing::warn!("the lease could not be renewed yet: {error}");
            }
            Err(error) => return Err(error.to_string()),
        }
        if let Err(error) = renewal.tidy() {
            tracing::warn!("the store was not compacted, it will be tried again: {error}");
        }
        match stopped.recv_timeout(lease / RENEWALS) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Why a leadership ended.
enum End {
    Lost(String),
    Stop,
}

impl Keeper {
    /// Until it is told to stop, or the store can't be used.
    pub(crate) fn run(mut self) {
        let mut rest = REST_MIN;
        loop {
            let pause = match self.campaign() {
                Ok(Some((leads, renewing))) => {
                    rest = REST_MIN;
                    self.news.tell(News::Leads(leads));
                    match self.lead(renewing.as_ref()) {
                        End::Stop => break,
                        End::Lost(reason) => {
                            let epoch = self.epoch;
                            self.news.tell(News::Lost { epoch, reason });
                        }
                    }
                    Duration::ZERO
                }
                Ok(None) => {
                    rest = REST_MIN;
                    CAMPAIGN
                }
                Err(Error::Unusable { reason }) => {
                    self.news.tell(News::Unusable(reason));
                    return;
                }
                Err(error) => {
                    self.news.tell(News::Away(error.to_string()));
                    rest = (rest * 2).min(REST_MAX);
                    rest
                }
            };
            if self.is_stopped_within(pause) {
                break;
            }
        }
        self.store.resign();
        self.news.tell(News::Resigned);
    }

    fn now_us(&self) -> u64 {
        self.origin.elapsed().as_micros() as u64
    }

    /// Leads, with everything that is stored; or says who does.
    fn campaign(&mut self) -> Result<Option<(Leads, Option<Renewing>)>, Error> {
        let asked_us = self.now_us();
        let rests = self.rests_until.is_some_and(|until| Instant::now() < until);
        let term = if rests { None } else { self.store.acquire()? };
        let Some(term) = term else {
            let leader = self.store.leader()?;
            self.news.tell(News::Follows(leader));
            return Ok(None);
        };
        // R1: the lease was given by an answer to what was sent at that time.
        self.lease_end.set(match self.store.lease_ms() {
            0 => u64::MAX,
            ms => asked_us + ms * 1000,
        });
        let renewing = Renewing::begin(self.store.as_ref(), &self.lease_end, self.origin);
        let renewing = renewing.map_err(|error| Error::Unavailable {
            reason: format!("no thread for its lease: {error}"),
        })?;
        let contents = self.store.load()?;
        self.epoch += 1;
        let leads = Leads {
            epoch: self.epoch,
            term,
            contents,
        };
        Ok(Some((leads, renewing)))
    }

    fn lead(&mut self, renewing: Option<&Renewing>) -> End {
        let period = renewing.map_or(IDLE, |renewing| renewing.period);
        loop {
            if let Some(reason) = renewing.and_then(Renewing::failure) {
                return End::Lost(reason);
            }
            match self.orders.recv_timeout(period) {
                Ok(Order::Commit { epoch, .. }) if epoch != self.epoch => {}
                Ok(Order::Commit { token, batch, .. }) => {
                    if let Err(error) = self.store.commit(&batch) {
                        return End::Lost(error.to_string());
                    }
                    let epoch = self.epoch;
                    self.news.tell(News::Stored { epoch, token });
                }
                Ok(Order::Drop { epoch }) if epoch == self.epoch => {
                    return End::Lost("its lease has run out".to_owned());
                }
                Ok(Order::Resign { epoch, rest }) if epoch == self.epoch => {
                    self.rests_until = Some(Instant::now() + rest);
                    self.store.resign();
                    return End::Lost("it has left the leadership to others".to_owned());
                }
                Ok(Order::Drop { .. } | Order::Resign { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return End::Stop,
            }
        }
    }

    fn is_stopped_within(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.orders.recv_timeout(left) {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
                Ok(Order::Commit { .. } | Order::Drop { .. } | Order::Resign { .. }) => {}
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}
