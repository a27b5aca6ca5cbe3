//! The coordinator's role, and the listener that is told of its changes.

use super::chronicle::Chronicle;
use crate::Role;
use duramen_base::ids::ServerId;
use duramen_cluster::coordinator::Coordinator;
use duramen_wire::native::message::Refusal;
use std::sync::mpsc::Sender;

/// A leadership.
pub(super) struct Leading {
    pub epoch: u64,
    pub term: u32,
    pub machine: Coordinator,
    pub wake_at_us: u64,
    pub chronicle: Chronicle,
}

enum State {
    /// The leader is not known yet, or the store can't be reached.
    Away {
        reason: String,
    },
    Standby {
        leader: Option<String>,
    },
    Leading(Box<Leading>),
}

/// The present role.
pub(super) struct Roles {
    state: State,
    told: Option<Role>,
    listener: Sender<Role>,
}

impl Roles {
    pub(super) fn new(listener: Sender<Role>) -> Roles {
        Roles {
            state: State::Away {
                reason: "it has just begun".to_owned(),
            },
            told: None,
            listener,
        }
    }

    pub(super) fn leading(&self) -> Option<&Leading> {
        match &self.state {
            State::Leading(leading) => Some(leading),
            _ => None,
        }
    }

    pub(super) fn leading_mut(&mut self) -> Option<&mut Leading> {
        match &mut self.state {
            State::Leading(leading) => Some(leading),
            _ => None,
        }
    }

    pub(super) fn epoch(&self) -> Option<u64> {
        self.leading().map(|leading| leading.epoch)
    }

    /// Sender id of this leadership.
    pub(super) fn me(&self) -> ServerId {
        let leading = self.leading();
        leading.map_or(ServerId::NONE, |leading| {
            ServerId::coordinator(leading.term)
        })
    }

    pub(super) fn present(&self) -> Role {
        match &self.state {
            State::Leading(_) => Role::Leader,
            State::Standby { leader } => Role::Standby(leader.clone()),
            State::Away { .. } => Role::Standby(None),
        }
    }

    /// The answer to requests for a leader; `None`: it leads.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match &self.state {
            State::Leading(_) => None,
            State::Standby { leader } => Some(Refusal::NotLeader {
                leader: leader.clone(),
            }),
            State::Away { reason } => Some(Refusal::Store(reason.clone())),
        }
    }

    pub(super) fn lead(&mut self, leading: Leading) {
        self.state = State::Leading(Box::new(leading));
        self.tell(Role::Leader);
    }

    pub(super) fn stand_by(&mut self, leader: Option<String>) {
        self.state = State::Standby { leader };
    }

    pub(super) fn away(&mut self, reason: String) {
        if !matches!(&self.state, State::Away { reason: old } if *old == reason) {
            tracing::warn!("{reason}; asking again");
        }
        self.state = State::Away { reason };
    }

    pub(super) fn is_news(&self, role: &Role) -> bool {
        self.told.as_ref() != Some(role)
    }

    pub(super) fn tell(&mut self, role: Role) {
        if self.is_news(&role) {
            self.told = Some(role.clone());
            // The receiver may be gone.
            let _ = self.listener.send(role);
        }
    }
}
