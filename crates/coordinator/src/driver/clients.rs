//! The connections of clients and tools: their logins, and the check of what they ask (guard::U1).
//!
//! A login that cannot be checked, because this coordinator does not lead or the cluster has no
//! users, is accepted and gives no rights. Such connections are closed when users are in force, so
//! that their clients log in again.

use super::{Asker, Driver, State, may_log};
use crate::guard::{Refused, is_for_clients};
use duramen_acl::User;
use duramen_net::{ConnectionId, Payload};
use duramen_wire::native::codec::{Envelope, Kind, Trouble, encode_logged_in};
use duramen_wire::native::message::{Login, ToCoordinator};
use std::net::SocketAddr;
use std::sync::Arc;

/// Time after which a client asks again while the users are being read.
const READING_MS: u32 = 20;

/// A connected client.
pub(super) struct Client {
    peer: SocketAddr,
    login: LoggedIn,
}

enum LoggedIn {
    Not,
    Unchecked,
    /// Name and id of its user.
    As(String, u64),
}

impl Client {
    pub(super) fn new(peer: SocketAddr) -> Client {
        Client {
            peer,
            login: LoggedIn::Not,
        }
    }
}

impl Driver {
    /// Answers a login.
    pub(super) fn log_in(
        &mut self,
        connection: ConnectionId,
        envelope: Envelope,
        login: &Login<'_>,
    ) {
        let Some(peer) = self.clients.get(&connection).map(|client| client.peer) else {
            let reason = "only clients log in";
            let asker = Asker {
                connection,
                envelope,
            };
            return self.send_trouble(
                &asker,
                Kind::Login as u16,
                &Trouble::NotPermitted { reason },
            );
        };
        let users = match self.state {
            State::Leading(_) => self.guard.users(),
            _ => Ok(None),
        };
        let checked = users.and_then(|users| {
            let Some(users) = users else {
                return Ok(LoggedIn::Unchecked);
            };
            let pair = (login.user, login.password);
            let user = self.guard.log_in(&users, peer, pair)?;
            Ok(LoggedIn::As(user.name().to_owned(), user.id()))
        });
        match checked {
            Ok(login) => {
                self.clients.insert(connection, Client { peer, login });
                let back = self.back(&envelope);
                let encode = |out: &mut Vec<u8>| encode_logged_in(out, &back);
                self.hub.reply(connection, Payload::None, encode);
            }
            Err(refused) => self.send_refused(connection, envelope, Kind::Login, &refused),
        }
    }

    /// Whether a client may ask this; if not, it gets the reason.
    pub(super) fn admits(
        &mut self,
        connection: ConnectionId,
        envelope: Envelope,
        question: &ToCoordinator,
    ) -> bool {
        let Err(refused) = self.check(connection, question) else {
            return true;
        };
        if let Refused::Denied(why) = &refused
            && may_log(&mut self.logged.denied)
        {
            let peer = self.clients.get(&connection).map(|client| client.peer);
            tracing::warn!(?peer, "a client is refused: {why}");
        }
        self.send_refused(connection, envelope, Kind::ToCoordinator, &refused);
        false
    }

    fn check(&self, connection: ConnectionId, question: &ToCoordinator) -> Result<(), Refused> {
        // Others only name the leader.
        if !matches!(self.state, State::Leading(_)) {
            return Ok(());
        }
        if !is_for_clients(question) {
            let why = "only members of the cluster ask this";
            return Err(Refused::Denied(why.to_owned()));
        }
        let Some(users) = self.guard.users()? else {
            return Ok(());
        };
        let client = self.clients.get(&connection);
        let user: &Arc<User> = match client.map(|client| &client.login) {
            Some(LoggedIn::As(name, id)) => users
                .get(name)
                .filter(|user| user.id() == *id)
                .ok_or(Refused::LogIn)?,
            Some(LoggedIn::Not | LoggedIn::Unchecked) | None => Some(users.default_user())
                .filter(|user| user.is_open())
                .ok_or(Refused::LogIn)?,
        };
        self.guard.may_ask(user, question)
    }

    fn send_refused(
        &mut self,
        connection: ConnectionId,
        envelope: Envelope,
        kind: Kind,
        refused: &Refused,
    ) {
        let asker = Asker {
            connection,
            envelope,
        };
        let trouble = match refused {
            Refused::Reading => Trouble::Busy {
                after_ms: READING_MS,
            },
            Refused::LogIn => Trouble::NotPermitted {
                reason: "the client has to log in as a user, with its password",
            },
            Refused::Denied(reason) => Trouble::NotPermitted { reason },
        };
        self.send_trouble(&asker, kind as u16, &trouble);
    }

    /// Other users are in force, or this coordinator leads from now on: closes the connections of
    /// users that are gone, and of clients whose logins could not be checked.
    pub(super) fn users_changed(&mut self) {
        let State::Leading(_) = self.state else {
            return;
        };
        let Ok(Some(users)) = self.guard.users() else {
            return;
        };
        let is_stale = |client: &Client| match &client.login {
            LoggedIn::Not => false,
            LoggedIn::Unchecked => true,
            LoggedIn::As(name, id) => users.get(name).is_none_or(|user| user.id() != *id),
        };
        let clients = self.clients.iter();
        let stale: Vec<_> = clients.filter(|(_, client)| is_stale(client)).collect();
        let stale: Vec<ConnectionId> = stale.into_iter().map(|(id, _)| *id).collect();
        for connection in stale {
            self.hub.close(connection);
        }
    }
}
