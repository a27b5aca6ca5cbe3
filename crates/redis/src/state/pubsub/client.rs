//! The subscriptions of a client, if it has some, and the number of changes of them.

use super::subscribers::Subscriptions;
use crate::threads::publication::Kind;
use duramen_acl::User;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct ClientSubscriptions {
    own: Option<Box<Subscriptions>>,
    changes: u64,
}

impl ClientSubscriptions {
    pub fn len(&self) -> usize {
        self.own.as_ref().map_or(0, |own| own.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of subscriptions, in the order of [`Kind::ALL`].
    pub(crate) fn counts(&self) -> [usize; 3] {
        self.own.as_ref().map_or([0; 3], |own| own.counts())
    }

    pub(crate) fn get(&self) -> Option<&Subscriptions> {
        self.own.as_deref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut Subscriptions> {
        self.own.as_deref_mut()
    }

    /// The client's subscriptions, to add more; they are created if there are none.
    pub(crate) fn begin(&mut self) -> &mut Subscriptions {
        self.own.get_or_insert_default()
    }

    pub(crate) fn take(&mut self) -> Option<Box<Subscriptions>> {
        self.own.take()
    }

    /// Frees the memory of the subscriptions if there are none.
    pub(in crate::state) fn settle(&mut self) {
        if self.is_empty() {
            self.own = None;
        }
    }

    /// Notes that a request of the client has changed one of its subscriptions, or all of them
    /// together.
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Number of changes of its subscriptions by its own requests.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether this user has the right to all of the subscriptions.
    pub(crate) fn are_allowed_to(&self, user: &User) -> bool {
        let own = self.own.as_deref();
        own.is_none_or(|own| {
            Kind::ALL.into_iter().all(|kind| {
                let mut names = own.names(kind);
                names.all(|name| user.has_channel(name, kind == Kind::Pattern))
            })
        })
    }
}
