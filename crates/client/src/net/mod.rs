//! Sockets around [`crate::core`]: the calling thread does the I/O, on connections that are its own
//! during the call.
//!
//! A call takes a connection per server from the pool, sends all its requests, then reads all
//! answers. So a calling thread shares only two short locks with other threads, and the servers
//! work for it in parallel. (Requests of many threads on one connection would need a reading
//! thread, and two thread switches per call.)

mod connection;
mod local;
mod pool;
mod stream;
mod tcp;

use crate::core::{Batch, CoordinatorRequest, Core, Next, Send, Settled, Work};
use crate::error::Error;
use crate::options::Options;
use connection::Connection;
pub(crate) use connection::{LOGIN_PATIENCE, Unopened, logged_in, login_unanswered, unopened};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, PEER_FRAME_BYTES_MAX, Reply, Trouble, encode_to_coordinator,
};
use duramen_wire::native::message::{CoordinatorAnswer, Refusal, ToCoordinator};
use pool::{Pool, Timeouts};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State that all handles of a client share.
pub(crate) struct Shared {
    pub options: Options,
    core: Mutex<Core>,
    /// Signalled when the coordinator has answered, or a call has ended.
    news: Condvar,
    pool: Pool,
    origin: Instant,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// # Errors
    /// [`Error::Options`]: the certificates cannot be used.
    pub fn new(options: Options, seed: u64) -> Result<Shared, Error> {
        let ask_timeout_us = options.attempt.as_micros() as u64;
        let coordinators = options.coordinators.clone();
        let core = Core::new(coordinators, options.exactly_once, ask_timeout_us, seed);
        Ok(Shared {
            core: Mutex::new(core),
            news: Condvar::new(),
            pool: Pool::new(&options)?,
            origin: Instant::now(),
            options,
        })
    }

    pub fn now_us(&self) -> u64 {
        self.origin.elapsed().as_micros() as u64
    }

    pub fn core(&self) -> MutexGuard<'_, Core> {
        // A poisoned lock is used on: no panic that a caller could have caught leaves the state
        // half changed.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, deadline_us: u64) -> Duration {
        Duration::from_micros(deadline_us.saturating_sub(self.now_us()))
    }

    fn timeouts(&self, deadline_us: u64) -> Timeouts {
        let call = self.until(deadline_us);
        Timeouts {
            attempt: call.min(self.options.attempt),
            call,
        }
    }

    /// A call that begins now.
    pub fn batch<'a>(&self, work: impl IntoIterator<Item = Work<'a>>) -> Batch<Work<'a>> {
        Batch::new(self.now_us(), self.options.deadline, work)
    }

    /// Executes a call's operations; returns the results in their order.
    pub fn run<'a>(
        &self,
        mut batch: Batch<Work<'a>>,
    ) -> impl Iterator<Item = Result<Settled, Error>> + use<'a> {
        loop {
            let mut core = self.core();
            match core.next(self.now_us(), &mut batch) {
                Next::Send(sends) => {
                    drop(core);
                    self.send(&mut batch, &sends);
                }
                Next::Ask(ask) => {
                    drop(core);
                    self.ask(&ask, batch.deadline_us());
                    self.news.notify_all();
                }
                Next::Wait { until_us } => {
                    let timeout = self.until(until_us);
                    drop(self.news.wait_timeout(core, timeout));
                }
                Next::Done => break,
            }
        }
        batch.into_results()
    }

    /// Sends all requests, then reads all answers.
    fn send(&self, batch: &mut Batch<Work<'_>>, sends: &[Send]) {
        let deadline_us = batch.deadline_us();
        let mut under_way: Vec<(&Send, Connection)> = Vec::with_capacity(sends.len());
        for send in sends {
            match self.transmit(batch, send, deadline_us) {
                Ok(connection) => under_way.push((send, connection)),
                Err(Unopened::Denied(why)) => {
                    self.core().denied(self.now_us(), batch, send, &why);
                }
                Err(Unopened::Unanswered(why)) => {
                    self.core()
                        .login_unanswered(self.now_us(), batch, send, &why);
                }
                Err(Unopened::Failed(why) | Unopened::Foreign(why)) => {
                    self.core().failed(self.now_us(), batch, send, &why);
                }
            }
        }
        for (send, mut connection) in under_way {
            let timeout = self.until(deadline_us).min(self.options.attempt);
            let now = || self.now_us();
            match connection.receive(timeout, CLIENT_FRAME_BYTES_MAX) {
                Ok(reply) => {
                    self.core().answered(now(), batch, send, reply);
                    connection.consumed();
                    self.pool.put(&send.address, connection);
                }
                // The connection is dropped: a late answer must not be taken for the answer to the
                // next request.
                Err(why) => self.core().failed(now(), batch, send, &why),
            }
        }
    }

    /// See [`Client::why_not_local`](crate::Client::why_not_local).
    pub fn why_not_local(&self) -> Option<String> {
        self.pool.why_not_local()
    }

    fn transmit(
        &self,
        batch: &Batch<Work<'_>>,
        send: &Send,
        deadline_us: u64,
    ) -> Result<Connection, Unopened> {
        let timeouts = self.timeouts(deadline_us);
        let mut connection = self.pool.take(&send.address, timeouts)?;
        let timeout = self.timeouts(deadline_us).attempt;
        let request = connection.next_request();
        batch.encode(send, request, connection.out());
        connection.transmit(timeout)?;
        Ok(connection)
    }

    fn ask(&self, ask: &CoordinatorRequest, deadline_us: u64) {
        let answer = self.exchange(&ask.address, &ask.question, deadline_us);
        let now_us = self.now_us();
        let mut core = self.core();
        match answer {
            Ok(answer) => core.coordinator_answered(now_us, ask, answer),
            Err(Failure::NotSent(why) | Failure::Again(why)) => {
                core.coordinator_failed(now_us, ask, &why);
            }
            Err(Failure::Login(error) | Failure::Denied(error)) => {
                core.deny_question(now_us, ask, error);
            }
            Err(Failure::Never(error)) => core.refuse(error),
        }
    }

    /// Sends one question to a coordinator.
    fn exchange(
        &self,
        address: &str,
        question: &ToCoordinator,
        deadline_us: u64,
    ) -> Result<CoordinatorAnswer, Failure> {
        let timeouts = self.timeouts(deadline_us);
        let taken = self.pool.take_of_coordinator(address, timeouts);
        let mut connection = taken.map_err(|unopened| match unopened {
            Unopened::Failed(why) | Unopened::Unanswered(why) => Failure::NotSent(why),
            Unopened::Foreign(why) => Failure::Never(Error::Refused(format!("{address}: {why}"))),
            Unopened::Denied(why) => Failure::Login(Error::Refused(format!("{address}: {why}"))),
        })?;
        let timeout = self.timeouts(deadline_us).attempt;
        let envelope = Envelope {
            request: connection.next_request(),
            ..Envelope::default()
        };
        encode_to_coordinator(connection.out(), &envelope, question);
        connection.transmit(timeout).map_err(Failure::Again)?;
        let answer = match connection.receive(timeout, PEER_FRAME_BYTES_MAX) {
            Ok(Reply::Coordinator(answer)) => answer,
            Ok(Reply::Trouble(trouble)) => return Err(Failure::of(address, &trouble)),
            Ok(_) => return Err(Failure::Again("an answer that does not fit".to_owned())),
            Err(why) => return Err(Failure::Again(why)),
        };
        connection.consumed();
        self.pool.put(address, connection);
        Ok(answer)
    }

    /// Asks the leading coordinator until it accepts or refuses, or the deadline passes.
    pub fn ask_leader(
        &self,
        deadline: Duration,
        question: &ToCoordinator,
    ) -> Result<CoordinatorAnswer, Error> {
        let deadline_us = self.now_us().saturating_add(deadline.as_micros() as u64);
        let mut failures = 0;
        let mut may_be_done = false;
        let mut waits_for = None;
        loop {
            if failures > 0 && self.until(deadline_us).is_zero() {
                let last = self.core().coordinators().troubles();
                return Err(match waits_for {
                    _ if may_be_done => Error::OutcomeUnknown { deadline, last },
                    Some(reason) => Error::NotReady { deadline, reason },
                    None => Error::Deadline { deadline, last },
                });
            }
            waits_for = None;
            let address = {
                let mut core = self.core();
                let address = core.coordinators().current();
                if let Some(error) = core.refused(self.now_us(), &address) {
                    return Err(refused_again(may_be_done, error.clone()));
                }
                address
            };
            match self.exchange(&address, question, deadline_us) {
                Err(Failure::Login(error)) => {
                    self.core().deny(self.now_us(), &address, error.clone());
                    return Err(refused_again(may_be_done, error));
                }
                Err(Failure::Denied(error) | Failure::Never(error)) => {
                    return Err(refused_again(may_be_done, error));
                }
                Err(Failure::NotSent(why)) => {
                    self.core().coordinators().failed(&address, &why);
                }
                Err(Failure::Again(why)) => {
                    may_be_done = true;
                    self.core().coordinators().failed(&address, &why);
                }
                Ok(CoordinatorAnswer::Refused(Refusal::NotLeader { leader })) => {
                    let mut core = self.core();
                    core.coordinators().redirected(&address, leader.as_deref());
                }
                Ok(CoordinatorAnswer::Refused(refusal @ Refusal::NotReady { .. })) => {
                    let why = refusal.to_string();
                    self.core().coordinators().postponed(&address, &why);
                    if let Refusal::NotReady { reason, .. } = refusal {
                        waits_for = Some(reason);
                    }
                }
                Ok(CoordinatorAnswer::Refused(refusal @ Refusal::Store(_))) => {
                    // A coordinator's store that reported a failure may have stored the change
                    // nevertheless.
                    may_be_done = true;
                    let why = refusal.to_string();
                    self.core().coordinators().failed(&address, &why);
                }
                Ok(CoordinatorAnswer::Refused(refusal)) => {
                    let error = Error::Refused(refusal.to_string());
                    return Err(refused_again(may_be_done, error));
                }
                Ok(answer) => return Ok(answer),
            }
            failures += 1;
            let pause = Duration::from_micros(self.core().pause_us(failures));
            std::thread::sleep(pause.min(self.until(deadline_us)));
        }
    }
}

/// The refusal of a question of which an earlier copy may have been carried out.
fn refused_again(may_be_done: bool, error: Error) -> Error {
    match error {
        Error::Refused(why) if may_be_done => Error::RefusedAgain(why),
        error => error,
    }
}

/// Reason why a coordinator gave no answer.
pub(crate) enum Failure {
    /// The question was not sent. Another coordinator may answer, or this one later.
    NotSent(String),
    /// As `NotSent`, but the question may have arrived.
    Again(String),
    /// The login is refused.
    Login(Error),
    /// The user may not do this, or the client has not logged in. The user's rights may change.
    Denied(Error),
    Never(Error),
}

impl Failure {
    pub fn of(address: &str, trouble: &Trouble<'_>) -> Failure {
        match trouble {
            Trouble::WrongCluster { .. } => {
                Failure::Never(Error::Refused(format!("{address}: {trouble}")))
            }
            Trouble::NotPermitted { .. } => {
                Failure::Denied(Error::Refused(format!("{address}: {trouble}")))
            }
            Trouble::Malformed { .. } | Trouble::WrongProtocol { .. } => {
                Failure::Never(Error::Protocol {
                    address: address.to_owned(),
                    reason: trouble.to_string(),
                })
            }
            Trouble::WrongServer { .. } | Trouble::NotServing { .. } | Trouble::Busy { .. } => {
                Failure::Again(trouble.to_string())
            }
        }
    }
}
