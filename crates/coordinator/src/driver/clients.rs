//! The connections of clients and tools: their logins, and the check of what they ask (guard::U1).
//!
//! A login that cannot be checked, because this coordinator does not lead or the cluster has no
//! users, is accepted and gives no rights. Such connections are closed when users are in force, so
//! that their clients log in again.

use super::Driver;
use super::requests::Asker;
use crate::guard::{Guard, Refused, is_for_clients};
use duramen_acl::{User, Users};
use duramen_net::{ConnectionId, Payload};
use duramen_wire::native::codec::{Envelope, Kind, Trouble, encode_logged_in};
use duramen_wire::native::message::{Login, ToCoordinator};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Time after which a client asks again while the users are being read.
const READING_MS: u32 = 20;

/// A connected client.
struct Client {
    peer: SocketAddr,
    login: LoggedIn,
}

enum LoggedIn {
    Not,
    Unchecked,
    /// Name and id of its user.
    As(String, u64),
}

/// The connected clients.
#[derive(Default)]
pub(super) struct Clients {
    clients: HashMap<ConnectionId, Client>,
}

impl Clients {
    pub(super) fn connected(&mut self, connection: ConnectionId, peer: SocketAddr) {
        let login = LoggedIn::Not;
        self.clients.insert(connection, Client { peer, login });
    }

    pub(super) fn closed(&mut self, connection: ConnectionId) {
        self.clients.remove(&connection);
    }

    /// The address of a client; `None`: the connection is no client's.
    fn peer(&self, connection: ConnectionId) -> Option<SocketAddr> {
        self.clients.get(&connection).map(|client| client.peer)
    }

    /// Checks a login, and keeps its user. `users`: those of the cluster, if it has any.
    fn log_in(
        &mut self,
        connection: ConnectionId,
        peer: SocketAddr,
        login: &Login<'_>,
        (guard, users): (&Guard, Option<Arc<Users>>),
    ) -> Result<(), Refused> {
        let login = match users {
            None => LoggedIn::Unchecked,
            Some(users) => {
                let user = guard.log_in(&users, peer, (login.user, login.password))?;
                LoggedIn::As(user.name().to_owned(), user.id())
            }
        };
        self.clients.insert(connection, Client { peer, login });
        Ok(())
    }

    /// Whether a client may ask this of a leader.
    fn check(
        &self,
        connection: ConnectionId,
        question: &ToCoordinator,
        guard: &Guard,
    ) -> Result<(), Refused> {
        if !is_for_clients(question) {
            let why = "only members of the cluster ask this";
            return Err(Refused::Denied(why.to_owned()));
        }
        let Some(users) = guard.users()? else {
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
        guard.may_ask(user, question)
    }

    /// Connections of users that are gone, and of clients whose logins could not be checked.
    fn stale(&self, users: &Users) -> Vec<ConnectionId> {
        let is_stale = |client: &Client| match &client.login {
            LoggedIn::Not => false,
            LoggedIn::Unchecked => true,
            LoggedIn::As(name, id) => users.get(name).is_none_or(|user| user.id() != *id),
        };
        let stale = self.clients.iter().filter(|(_, client)| is_stale(client));
        stale.map(|(connection, _)| *connection).collect()
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
        let Some(peer) = self.clients.peer(connection) else {
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
        let users = match self.roles.leading() {
            Some(_) => self.guard.users(),
            None => Ok(None),
        };
        let checked = users.and_then(|users| {
            let by = (&*self.guard, users);
            self.clients.log_in(connection, peer, login, by)
        });
        match checked {
            Ok(()) => {
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
        // Others only name the leader.
        if self.roles.leading().is_none() {
            return true;
        }
        let checked = self.clients.check(connection, question, &self.guard);
        let Err(refused) = checked else {
            return true;
        };
        if let Refused::Denied(why) = &refused {
            self.complaints.denied(self.clients.peer(connection), why);
        }
        self.send_refused(connection, envelope, Kind::ToCoordinator, &refused);
        false
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
        if self.roles.leading().is_none() {
            return;
        }
        let Ok(Some(users)) = self.guard.users() else {
            return;
        };
        let stale = self.clients.stale(&users);
        for connection in stale {
            self.hub.close(connection);
        }
    }
}
