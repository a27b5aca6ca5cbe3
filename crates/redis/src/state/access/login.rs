//! The user as whom a client has logged in.

use super::users::AclState;
use duramen_acl::User;
use duramen_config::clock;
use std::sync::Arc;

/// See the head of this file.
pub struct Login {
    /// The user; `None`: the client has not logged in.
    user: Option<Arc<User>>,
    /// The generation of the user (users::V1).
    generation: u64,
    /// The time from which the client must give a password, in milliseconds of the server's clock:
    /// when it connected, or when a `RESET` ended its login.
    stranger_since_ms: u64,
}

impl Login {
    /// The login of a client that has just connected.
    pub(in crate::state) fn new() -> Login {
        Login {
            user: None,
            generation: 0,
            stranger_since_ms: clock::coarse_ms(),
        }
    }

    #[inline]
    pub fn user(&self) -> Option<&Arc<User>> {
        self.user.as_ref()
    }

    /// The name of its user; Redis shows `default` for a client that has not logged in.
    pub fn user_name(&self) -> &str {
        let name = self.user.as_ref().map(|user| user.name());
        name.unwrap_or(duramen_acl::DEFAULT_USER)
    }

    /// Its user as it is now; `None` if it has no user, or if the user was removed.
    pub fn present_user(&self, acl: &AclState) -> Option<Arc<User>> {
        let (user, users) = (self.user.as_ref()?, acl.users());
        let known = users.get(user.name()).filter(|now| now.id() == user.id());
        known.cloned()
    }

    #[inline]
    pub(in crate::state) fn generation(&self) -> u64 {
        self.generation
    }

    /// As [`AclState::must_wait`], for its user.
    pub(crate) fn must_wait(&self, acl: &AclState) -> bool {
        acl.must_wait(self.user.as_deref(), self.generation)
    }

    pub fn stranger_since_ms(&self) -> u64 {
        self.stranger_since_ms
    }

    pub(in crate::state) fn set_user(&mut self, user: &Arc<User>) {
        self.user = Some(Arc::clone(user));
    }

    pub(in crate::state) fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Notes that its user is gone.
    pub(in crate::state) fn lose_user(&mut self) {
        self.user = None;
    }

    /// Ends the login. The client is a stranger from now on, unless it was one before.
    pub(in crate::state) fn log_out(&mut self) {
        if self.user.take().is_some() {
            self.stranger_since_ms = clock::coarse_ms();
        }
    }

    /// Called when the users have changed since the generation `before`: returns the client's user
    /// as it is now.
    ///
    /// # Errors
    /// The user is gone, so the client's connection must be closed.
    #[cold]
    pub(in crate::state) fn renewed(
        &self,
        acl: &AclState,
        before: u64,
    ) -> Result<Option<Arc<User>>, Gone> {
        if self.user.is_none() {
            return Ok(None);
        }
        let known = self.present_user(acl);
        match known.filter(|_| !acl.has_ended(before)) {
            Some(user) => Ok(Some(user)),
            None => Err(Gone),
        }
    }
}

/// The user of a client is gone.
pub(in crate::state) struct Gone;
