//! The client's leases and the ids of its requests.
//!
//! A client whose calls wait in threads has one session, with one lease. A client with many
//! operations in flight has one per server: in a single session, a server that does not answer
//! would soon hold up the writes of all others (S3).
//!
//! **Invariants**
//! - S1: an id is used once, for one request.
//! - S2: the acknowledged id precedes the first id that is not done. A request is done if its
//!   answer has arrived, or if it was given up and is never sent again.
//! - S3: no id is more than the window above the acknowledged one.
//! - S4: nothing new is sent when the lease may have ended at the coordinator: the last tenth of
//!   the lease is not used.

use super::micros;
use duramen_base::ids::{ClientId, RpcId, ServerId};
use duramen_base::limits::RPC_WINDOW;
use duramen_wire::native::message::Rpc;
use std::collections::{BTreeMap, BTreeSet};

/// Names a session of a client: the slot of its server, or 0 if it is for all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SessionKey(u32);

/// The sessions of a client.
#[derive(Debug)]
pub(super) struct Sessions {
    per_server: bool,
    all: BTreeMap<SessionKey, Session>,
}

impl Sessions {
    pub fn new(per_server: bool) -> Sessions {
        Sessions {
            per_server,
            all: BTreeMap::new(),
        }
    }

    /// The session for requests to this server. A server that has restarted keeps its session.
    pub fn key(&self, server: ServerId) -> SessionKey {
        SessionKey(if self.per_server { server.slot } else { 0 })
    }

    /// The session of all servers, if there is only one.
    pub fn common(&self) -> Option<SessionKey> {
        (!self.per_server).then_some(SessionKey(0))
    }

    pub fn get(&mut self, key: SessionKey) -> &mut Session {
        self.all.entry(key).or_default()
    }
}

/// The lease that a session should request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseNeed {
    /// There is no lease, or it has ended.
    New,
    /// The lease of this client is valid, and its first half is over.
    Renewal(ClientId),
}

impl LeaseNeed {
    /// The client whose lease is to be renewed.
    pub fn renewed(self) -> Option<ClientId> {
        match self {
            LeaseNeed::Renewal(client) => Some(client),
            LeaseNeed::New => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Session {
    client: Option<ClientId>,
    /// Until this time at the latest, a call is asking for the lease (core::K4).
    pub asked_until_us: u64,
    lease_until_us: u64,
    renew_at_us: u64,
    last: u64,
    /// Ids in use and not done (S2).
    open: BTreeSet<u64>,
}

impl Session {
    /// The client's id, if its lease has not ended.
    pub fn client(&self, now_us: u64) -> Option<ClientId> {
        self.client.filter(|_| now_us < self.lease_until_us) // S4
    }

    /// The lease that should be requested at this time; none if the lease is fresh.
    pub fn lease_need(&self, now_us: u64) -> Option<LeaseNeed> {
        match self.client(now_us) {
            None => Some(LeaseNeed::New),
            Some(client) if now_us >= self.renew_at_us => Some(LeaseNeed::Renewal(client)),
            Some(_) => None,
        }
    }

    /// Notes a lease that was granted in answer to a question sent at `sent_us`.
    pub fn leased(&mut self, sent_us: u64, client: ClientId, ttl_ms: u32) {
        if self.client != Some(client) {
            // A new client id starts with new ids; open requests under the old one belong to an
            // ended lease.
            *self = Session {
                client: Some(client),
                asked_until_us: self.asked_until_us,
                ..Session::default()
            };
        }
        let ttl_us = micros(ttl_ms);
        self.lease_until_us = self.lease_until_us.max(sent_us + ttl_us / 10 * 9);
        self.renew_at_us = sent_us + ttl_us / 2;
    }

    /// Notes that renewing failed; the next attempt is at `at_us`.
    pub fn renew_later(&mut self, at_us: u64) {
        self.renew_at_us = self.renew_at_us.max(at_us);
    }

    /// Notes that a server has reported the end of this client's lease.
    pub fn ended(&mut self, client: ClientId) {
        if self.client == Some(client) {
            *self = Session {
                asked_until_us: self.asked_until_us,
                ..Session::default()
            };
        }
    }

    fn acknowledged(&self) -> u64 {
        self.open.first().map_or(self.last, |first| first - 1)
    }

    /// A new RPC id; `None` if too many are open (S3), or there is no lease.
    pub fn begin(&mut self, now_us: u64) -> Option<(ClientId, RpcId)> {
        let client = self.client(now_us)?;
        if self.last + 1 - self.acknowledged() > u64::from(RPC_WINDOW) {
            return None;
        }
        self.last += 1;
        self.open.insert(self.last);
        Some((client, RpcId(self.last)))
    }

    /// The RPC fields of a request with this id that is sent now.
    pub fn rpc(&self, client: ClientId, id: RpcId) -> Rpc {
        // No request of an earlier client id is acknowledged any more.
        let acknowledged = if self.client == Some(client) {
            self.acknowledged().min(id.0 - 1)
        } else {
            0
        };
        Rpc {
            client,
            id,
            acknowledged: RpcId(acknowledged),
        }
    }

    /// Notes that the request with this id is done (S2).
    pub fn done(&mut self, client: ClientId, id: RpcId) {
        if self.client == Some(client) {
            self.open.remove(&id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(7);

    fn session() -> Session {
        let mut session = Session::default();
        assert_eq!(session.lease_need(0), Some(LeaseNeed::New));
        session.leased(1_000, CLIENT, 100);
        session
    }

    #[test]
    fn the_first_open_request_holds_back_the_acknowledgement() {
        let mut session = session();
        let ids: Vec<RpcId> = (0..3)
            .map(|_| session.begin(2_000).expect("leased").1)
            .collect();
        session.done(CLIENT, ids[1]);
        session.done(CLIENT, ids[2]);
        let (_, next) = session.begin(2_000).expect("leased");
        assert_eq!(session.rpc(CLIENT, next).acknowledged, RpcId(0));
        session.done(CLIENT, ids[0]);
        assert_eq!(session.rpc(CLIENT, next).acknowledged, RpcId(3));
    }

    #[test]
    fn the_window_is_kept() {
        let mut session = session();
        for _ in 0..RPC_WINDOW {
            assert!(session.begin(2_000).is_some());
        }
        assert_eq!(session.begin(2_000), None);
        session.done(CLIENT, RpcId(2));
        assert_eq!(session.begin(2_000), None, "the first one is still open");
        session.done(CLIENT, RpcId(1));
        assert!(session.begin(2_000).is_some());
    }

    #[test]
    fn a_lease_is_renewed_at_half_and_not_used_to_its_end() {
        let mut session = session();
        assert_eq!(session.lease_need(50_999), None);
        assert_eq!(session.lease_need(51_000), Some(LeaseNeed::Renewal(CLIENT)));
        session.renew_later(60_000);
        assert_eq!(session.lease_need(51_000), None);
        assert_eq!(session.client(90_999), Some(CLIENT));
        assert_eq!(session.client(91_000), None);
        assert_eq!(session.begin(91_000), None);
        assert_eq!(session.lease_need(91_000), Some(LeaseNeed::New));
        session.leased(91_000, ClientId(8), 100);
        assert_eq!(session.begin(91_001), Some((ClientId(8), RpcId(1))));
        assert_eq!(session.rpc(CLIENT, RpcId(5)).acknowledged, RpcId(0));
    }
}
