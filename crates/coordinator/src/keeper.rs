//! The keeper: the thread that campaigns and commits to the store. Each leadership has a thread of
//! its own that renews the lease ([`Renewing`]): loading, applying and storing may take longer than
//! a lease.
//!
//! **Invariants**
//! - R1: the driver's end of the lease is counted from before the renewal was sent.
//! - R2: one leadership at a time: `Lost` is the last news of an epoch, `Leads` the first of the
//!   next. Nothing renews the lease of the last leadership when the next begins.
//! - R3: a leader whose store is not at its place any more ends within [`LOOK`], and before its
//!   next commit: a change that it acknowledged would be lost at the next start.

use crate::news::{Leads, News};
use duramen_cluster::coordinator::Token;
use duramen_cluster::coordinator::store::{Batch, Error, MetaStore, Renewal};
use duramen_net::Handle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two campaigns.
const CAMPAIGN: Duration = Duration::from_millis(100);
/// Shortest pause after the store could not be reached; it doubles up to [`REST_MAX`].
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(1);
/// Renewals per lease.
const RENEWALS: u32 = 5;
/// Interval at which a leader looks whether its store is at its place.
const LOOK: Duration = Duration::from_secs(1);

/// Orders of the driver to the keeper.
pub(crate) enum Order {
    /// coordinator::D1: dropped if the leadership of this epoch is over.
    Commit {
        epoch: u64,
        token: Token,
        batch: Batch,
    },
    /// The driver has ended the leadership of this epoch by itself.
    Drop {
        epoch: u64,
    },
    /// As `Drop`, so that another coordinator leads: this one does not campaign for `rest`.
    Resign {
        epoch: u64,
        rest: Duration,
    },
    Stop,
}

/// End of the lease, in microseconds since the origin; `u64::MAX`: it never ends.
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

/// The keeper's state; see the module.
pub(crate) struct Keeper {
    pub store: Box<dyn MetaStore>,
    pub orders: Receiver<Order>,
    pub news: Handle<News>,
    pub lease_end: LeaseEnd,
    pub origin: Instant,
    /// Epoch of the last leadership.
    pub epoch: u64,
    /// The keeper does not campaign until this time.
    pub rests_until: Option<Instant>,
}

/// The thread that renews the lease; its drop ends and joins the thread.
struct Renewing {
    period: Duration,
    failure: Arc<Mutex<Option<String>>>,
    /// Its drop ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Renewing {
    /// Begins to renew the lease of a leadership; `None`: the store has no lease.
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

    /// The reason why the lease is not renewed any more.
    fn failure(&self) -> Option<String> {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // R2; its result is not needed
        }
    }
}

/// Renews until it is told to stop. A renewal that fails because the store cannot be reached does
/// not lose the leadership before the lease has ended.
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

/// The reason for which a leadership ended.
enum End {
    Lost(String),
    Unusable(Error),
    Stop,
}

impl Keeper {
    /// Runs until it is told to stop, or the store can't be used.
    pub(crate) fn run(mut self) {
        let mut rest = REST_MIN;
        loop {
            let pause = match self.campaign() {
                Ok(Some((leads, renewing))) => {
                    rest = REST_MIN;
                    self.news.tell(News::Leads(leads));
                    match self.lead(renewing.as_ref()) {
                        End::Stop => break,
                        End::Unusable(error) => return self.unusable(error),
                        End::Lost(reason) => {
                            let epoch = self.epoch;
                            self.news.tell(News::Lost { epoch, reason });
                            Duration::ZERO
                        }
                    }
                }
                Ok(None) => {
                    rest = REST_MIN;
                    CAMPAIGN
                }
                Err(error @ Error::Unusable { .. }) => return self.unusable(error),
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

    fn unusable(&self, error: Error) {
        let reason = match error {
            Error::Unusable { reason } => reason,
            other => other.to_string(),
        };
        self.news.tell(News::Unusable(reason));
    }

    fn now_us(&self) -> u64 {
        self.origin.elapsed().as_micros() as u64
    }

    /// Tries to lead: a new leadership with everything that is stored, or `None` if another
    /// coordinator leads.
    fn campaign(&mut self) -> Result<Option<(Leads, Option<Renewing>)>, Error> {
        let asked_us = self.now_us();
        let rests = self.rests_until.is_some_and(|until| Instant::now() < until);
        let term = if rests { None } else { self.store.acquire()? };
        let Some(term) = term else {
            let leader = self.store.leader()?;
            self.news.tell(News::Follows(leader));
            return Ok(None);
        };
        // R1: the request whose answer gave the lease was sent after `asked_us`.
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
        let period = renewing.map_or(LOOK, |renewing| renewing.period.min(LOOK));
        loop {
            if let Some(reason) = renewing.and_then(Renewing::failure) {
                return End::Lost(reason);
            }
            let order = self.orders.recv_timeout(period);
            if let Err(error) = self.store.check_place()
                && !matches!(order, Ok(Order::Stop))
            {
                return End::Unusable(error); // R3
            }
            match order {
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
