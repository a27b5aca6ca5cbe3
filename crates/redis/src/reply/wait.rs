//! Conditions for sending the replies of a turn.
//!
//! **Invariants**
//! - W1: everything that a request wrote, and everything it saw that a crash could still undo,
//!   joins its client's wait, at the level of that moment, before the next request of another
//!   client runs under the same guard, and before a request that may change the level (`RESET`,
//!   `CONFIG SET`).
//!   So no client waits for another's writes, and no reply shows data that can vanish
//!   (docs/traps.md, trap 4).
//! - W2: a request at level `memory` waits for nothing: its client accepts that data it sees may
//!   vanish.

use crate::durability::Job;
use crate::threads::clients::ClientRecord;
use duramen_base::ids::Level;
use duramen_config::finish::Finish;
use duramen_engine::{Guard, Position};
use duramen_wire::resp::{Encoder, Protocol};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The conditions that replies wait for. The default is none.
#[derive(Default)]
pub struct Wait {
    /// The position that must be reached, at its level.
    position: Position,
    more: Option<Box<OwnWait>>,
    /// Whether the replies depend on data of a cluster's member, which must still be allowed to
    /// answer (membership::M2).
    leased: bool,
}

/// A command's own wait, beyond that for its writes. The command's reply is the last one of the
/// turn.
pub struct OwnWait {
    pub(crate) until: Until,
    /// The reply as written, for the case that the wait succeeds. `None`: the command is silent
    /// (`CLIENT REPLY`), and no reply is replaced.
    pub(crate) hoped: Option<Vec<u8>>,
}

/// The event that a command waits for.
pub enum Until {
    /// WAIT, WAITAOF: all writes of any client before it have this level, or the time is over.
    /// `deadline_ms` in milliseconds of the server's clock, 0 = none.
    Reached {
        position: Position,
        level: Level,
        deadline_ms: u64,
        /// The reply if the time is over first.
        late: &'static [u8],
    },
    /// SAVE: the snapshot is complete, or has failed.
    Job(Arc<Job>),
    /// A failed login: it is this time, in milliseconds of the server's clock.
    Time(u64),
    /// CLIENT KILL: these clients, by id, are gone.
    Gone(BTreeMap<u64, Arc<ClientRecord>>),
    /// SHUTDOWN: everything is on disk and the server stops, without a reply; or it runs on, with a
    /// reason.
    Stop(Arc<Finish>),
    /// CONFIG REWRITE: the file is written, or cannot be.
    Rewritten(Arc<Finish>),
    /// Work on a thread of its own: it has returned its reply, or the text of an error.
    Reply(Arc<OnceLock<Result<Vec<u8>, String>>>),
}

/// The state of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Hold the replies; check again at `deadline_ms` at the latest, 0 = no need.
    Waiting { deadline_ms: u64 },
    /// Send them.
    Over,
    /// Send them, but with this reply in place of the last one, which was written as `hoped`.
    Instead { hoped: Vec<u8>, reply: Vec<u8> },
    /// No reply is true: each becomes this error.
    Failed(String),
}

impl Wait {
    #[inline]
    pub fn is_none(&self) -> bool {
        self.is_durable() && !self.leased
    }

    /// Whether the replies wait for nothing of the log.
    #[inline]
    pub fn is_durable(&self) -> bool {
        self.position.is_none() && self.more.is_none()
    }

    /// Whether the replies need this member's right to answer.
    #[inline]
    pub fn is_leased(&self) -> bool {
        self.leased
    }

    /// Whether a command has its own wait, with its own end.
    pub fn has_own_end(&self) -> bool {
        self.more.is_some()
    }

    /// The wait for data alone, without a command's own.
    pub fn of_data(&self) -> Wait {
        Wait {
            position: self.position.clone(),
            more: None,
            leased: self.leased,
        }
    }

    #[inline]
    pub(crate) fn lease(&mut self, needed: bool) {
        self.leased |= needed;
    }

    pub fn level(&self) -> Level {
        let own = self.position.level();
        match self.more.as_deref().map(|more| &more.until) {
            Some(Until::Reached { level, .. }) => own.max(*level),
            Some(_) | None => own,
        }
    }

    #[cold]
    pub(crate) fn join(&mut self, position: &Position, level: Level) {
        if level > Level::Memory {
            self.position.join(&position.clone().with_level(level));
        }
    }

    /// Takes the conditions and leaves none.
    #[inline]
    pub fn take(&mut self) -> Wait {
        std::mem::take(self)
    }

    /// Adds everything that was written and seen under `guard` since the last call.
    #[inline]
    pub(crate) fn settle(&mut self, guard: &mut Guard<'_>, level: Level) {
        if guard.order().has_position() {
            self.join(&guard.order().take_position(), level);
        }
    }

    /// As `settle`, for a position with its own level.
    #[inline]
    pub fn settle_native(&mut self, position: &Position, tells_of_data: bool) {
        self.lease(tells_of_data);
        if !position.is_none() {
            self.join(position, position.level());
        }
    }

    pub fn then(&mut self, until: Until, hoped: &[u8]) {
        let hoped = Some(hoped.to_vec());
        self.more = Some(Box::new(OwnWait { until, hoped }));
    }

    /// Makes the replies wait until this client is gone, too.
    pub(crate) fn until_gone(&mut self, client: Arc<ClientRecord>) {
        if self.killed().is_none() {
            self.then(Until::Gone(BTreeMap::new()), &[]);
        }
        if let Some(OwnWait {
            until: Until::Gone(killed),
            ..
        }) = self.more.as_deref_mut()
        {
            killed.insert(client.id, client);
        }
    }

    /// The clients that must be gone first.
    pub(crate) fn killed(&self) -> Option<&BTreeMap<u64, Arc<ClientRecord>>> {
        match &self.more.as_deref()?.until {
            Until::Gone(killed) => Some(killed),
            _ => None,
        }
    }

    /// Notes that the command's reply is not sent.
    pub(crate) fn make_silent(&mut self) {
        if let Some(more) = &mut self.more {
            more.hoped = None;
        }
    }

    /// The state of the wait. `reached` returns the level that a position has; `failure` is the
    /// reason for which no level is reached now.
    pub fn state(
        &self,
        reached: impl Fn(&Position) -> Level,
        failure: Option<&str>,
        now_ms: u64,
    ) -> State {
        let holds = |position: &Position, level| position.is_none() || reached(position) >= level;
        if !holds(&self.position, self.position.level()) {
            return match failure {
                Some(why) => State::Failed(format!(
                    "MISCONF {why}: this request is not acknowledged, and it is not known whether its effect will last"
                )),
                None => State::Waiting { deadline_ms: 0 },
            };
        }
        let Some(more) = &self.more else {
            return State::Over;
        };
        let instead = |reply: Vec<u8>| match more.hoped.clone() {
            Some(hoped) => State::Instead { hoped, reply },
            None => State::Over,
        };
        let done = |result: Option<Result<(), String>>| match result {
            None => State::Waiting { deadline_ms: 0 },
            Some(Ok(())) => State::Over,
            Some(Err(why)) => instead(error(&why)),
        };
        match &more.until {
            Until::Reached {
                position, level, ..
            } if holds(position, *level) => State::Over,
            Until::Reached {
                deadline_ms, late, ..
            } => {
                if failure.is_some() || (*deadline_ms > 0 && now_ms >= *deadline_ms) {
                    return instead(late.to_vec());
                }
                State::Waiting {
                    deadline_ms: *deadline_ms,
                }
            }
            Until::Time(until_ms) if now_ms >= *until_ms => State::Over,
            Until::Time(until_ms) => State::Waiting {
                deadline_ms: *until_ms,
            },
            Until::Job(job) => done(job.result()),
            Until::Rewritten(finish) => done(finish.result()),
            Until::Reply(given) => match given.get() {
                None => State::Waiting { deadline_ms: 0 },
                Some(Ok(reply)) => instead(reply.clone()),
                Some(Err(why)) => instead(error(why)),
            },
            Until::Gone(killed) if killed.values().all(|client| client.is_gone()) => State::Over,
            Until::Gone(_) => State::Waiting { deadline_ms: 0 },
            Until::Stop(stopping) => match stopping.result() {
                None => State::Waiting { deadline_ms: 0 },
                Some(Ok(())) => instead(Vec::new()),
                Some(Err(_)) => State::Over,
            },
        }
    }
}

/// An error reply: line ends in the text become spaces.
fn error(why: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    Encoder::new(&mut reply, Protocol::default()).error(format!("ERR {why}"));
    reply
}
