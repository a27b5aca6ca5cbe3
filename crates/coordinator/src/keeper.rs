//! The thread of the store: campaigns, stores, renews the lease.
//!
//! **Invariants**
//! - R1: the lease's end, as the driver sees it, is counted from before the renewal was sent.
//! - R2: one leadership at a time: `Lost` is the last news of an epoch, `Leads` the first of the next.

use crate::driver::News;
use duramen_cluster::coordinator::Token;
use duramen_cluster::coordinator::store::{Batch, Contents, Error, MetaStore, Term};
use duramen_net::Handle;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two campaigns.
const CAMPAIGN: Duration = Duration::from_millis(100);
/// After the store could not be reached; doubles up to the second one.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(1);
/// Renewals per lease.
const RENEWALS: u32 = 5;

/// What the driver wants.
pub(crate) enum Order {
    /// D1: dropped unless the leadership of this epoch goes on.
    Commit {
        epoch: u64,
        token: Token,
        batch: Batch,
    },
    /// The driver has ended the leadership of this epoch by itself.
    Drop {
        epoch: u64,
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
                Ok(Some(leads)) => {
                    rest = REST_MIN;
                    self.news.tell(News::Leads(leads));
                    match self.lead() {
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
    fn campaign(&mut self) -> Result<Option<Leads>, Error> {
        let asked_us = self.now_us();
        let Some(term) = self.store.acquire()? else {
            let leader = self.store.leader()?;
            self.news.tell(News::Follows(leader));
            return Ok(None);
        };
        self.extend(asked_us);
        let contents = self.store.load()?;
        self.epoch += 1;
        Ok(Some(Leads {
            epoch: self.epoch,
            term,
            contents,
        }))
    }

    /// R1: the lease was given by an answer to what was sent at that time.
    fn extend(&self, sent_us: u64) {
        self.lease_end.set(match self.store.lease_ms() {
            0 => u64::MAX,
            ms => sent_us + ms * 1000,
        });
    }

    fn lead(&mut self) -> End {
        let lease = Duration::from_millis(self.store.lease_ms());
        let period = match lease.is_zero() {
            true => Duration::from_secs(60),
            false => lease / RENEWALS,
        };
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                due = Instant::now() + period;
                if let Err(reason) = self.renew() {
                    return End::Lost(reason);
                }
            }
            let left = due.saturating_duration_since(Instant::now());
            match self.orders.recv_timeout(left) {
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
                Ok(Order::Drop { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return End::Stop,
            }
        }
    }

    /// Not lost by a renewal that fails for want of a connection: the lease's end decides that.
    fn renew(&mut self) -> Result<(), String> {
        let sent_us = self.now_us();
        match self.store.renew() {
            Ok(()) => {
                self.extend(sent_us);
                Ok(())
            }
            Err(error @ Error::Unavailable { .. }) if self.now_us() < self.lease_end.get() => {
                tracing::warn!("the lease could not be renewed yet: {error}");
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_stopped_within(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.orders.recv_timeout(left) {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
                Ok(Order::Commit { .. } | Order::Drop { .. }) => {}
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}
