//! A member of a cluster, with a view made by the test.

use super::{Server, Session};
use crate::membership::Membership;
use crate::membership::clock::Clock;
use duramen_base::ids::{KeyRange, MapVersion, RouteHash, ServerId, TableId, TabletsVersion};
use duramen_format::hash::slot;
use duramen_node::{Clients, Map, Ranges, ReadUntil, Tenures, View};
use duramen_wire::native::message::{TableEntry, TabletMap, TabletRoute};
use std::sync::Arc;

pub(super) const ME: ServerId = ServerId::new(0, 1);
pub(super) const OTHER: ServerId = ServerId::new(1, 3);
pub(super) const THIRD: ServerId = ServerId::new(2, 1);

pub(super) fn slots(first: u16, last: u16) -> KeyRange {
    KeyRange::new(
        RouteHash::first_of_slot(first),
        RouteHash::last_of_slot(last),
    )
}

/// A member, and the state that the test gives it.
pub(super) struct Member {
    pub(super) session: Session,
    pub(super) membership: Arc<Membership>,
    pub(super) table: TableId,
    pub(super) version: u64,
    /// The port for clients that every member of this cluster announces.
    pub(super) resp_port: u16,
    pub(super) plain_port: Option<u16>,
    pub(super) has_ipv6: bool,
}

type Part = (KeyRange, ServerId, bool);

impl Member {
    pub(super) fn new(threads: usize) -> Member {
        Member::of(Server::session(threads))
    }

    /// Makes a server a member.
    pub(super) fn of(session: Session) -> Member {
        let shared = &session.server.shared;
        let table = shared.store().tables().create("db0").expect("a table");
        let until = Arc::new(ReadUntil::default());
        until.set(u64::MAX);
        let clients = Clients::new(Arc::new(|| {}));
        let membership = Arc::new(Membership::new(
            Clock::start(),
            until,
            clients,
            Box::new(|_| {}),
        ));
        membership.set_status(super::cluster_state::status(3));
        shared.join(Arc::clone(&membership));
        let entry = TableEntry {
            table,
            name: "db0".to_owned(),
            level: None,
        };
        shared.commands.adopt_tables(&[entry]);
        Member {
            session,
            membership,
            table,
            version: 0,
            resp_port: 6379,
            plain_port: None,
            has_ipv6: false,
        }
    }

    /// Publishes new owners. Of `owned`, this member serves `served`, from now on.
    pub(super) fn tell(&mut self, map: &[Part], owned: &[KeyRange], served: &[KeyRange]) {
        self.tell_since(self.version + 1, map, owned, served);
    }

    /// As [`tell`](Self::tell); it has served `served` since the list of version `since`.
    fn tell_since(&mut self, since: u64, map: &[Part], owned: &[KeyRange], served: &[KeyRange]) {
        self.version += 1;
        let view = self.view(since, map, owned, served);
        self.membership.publish(view);
    }

    /// The view of the present list.
    fn view(&self, since: u64, map: &[Part], owned: &[KeyRange], served: &[KeyRange]) -> Arc<View> {
        let route = |(range, owner, served): &Part| TabletRoute {
            table: self.table,
            range: *range,
            owner: *owner,
            served: *served,
            moving_to: None,
        };
        let address = |server| super::cluster_tls::addresses(self, server);
        let map = TabletMap {
            version: MapVersion(self.version),
            tablets: map.iter().map(route).collect(),
            servers: [ME, OTHER, THIRD]
                .map(|server| (server, address(server)))
                .into(),
            ..TabletMap::default()
        };
        let ranges = |ranges: &[KeyRange]| {
            Ranges::new(ranges.iter().map(|range| (self.table, *range))).expect("no overlap")
        };
        Arc::new(View::with_tenures(
            ME,
            TabletsVersion(self.version),
            ranges(owned),
            Tenures::new(ranges(served), TabletsVersion(since)),
            Arc::new(Map::new(&map).expect("no overlap")),
        ))
    }

    /// Slots up to 8191 are served here, the others by another member.
    pub(super) fn tell_halves(&mut self) {
        let (low, high) = (slots(0, 8191), slots(8192, 16_383));
        self.tell(&[(low, ME, true), (high, OTHER, true)], &[low], &[low]);
    }

    /// The lower half belongs to this member, but is not served.
    pub(super) fn lock(&mut self) {
        let (low, high) = (slots(0, 8191), slots(8192, 16_383));
        self.tell(&[(low, ME, true), (high, OTHER, true)], &[low], &[]);
    }

    /// A slot that is cut between two of its keys: the ends of the parts, and the keys.
    pub(super) fn cut_slot(&self) -> ((RouteHash, RouteHash), [&'static str; 2]) {
        let session = self.session.server.shared.store().session();
        let mut session = session.expect("a session");
        let guard = session.pin();
        let route = |key: &str| guard.route(guard.hash(key.as_bytes()), key.as_bytes());
        let mut keys = ["{a}1", "{a}2"].map(|key| (route(key), key));
        keys.sort_unstable();
        let [(first, low), (_, high)] = keys;
        let second = first.next().expect("it is not the last");
        ((first, second), [low, high])
    }

    /// All slots are divided in two parts, the ends of which are adjacent. The second one is
    /// served here or by another member; what stays here was served here from the beginning.
    pub(super) fn tell_divided(&mut self, ends: (RouteHash, RouteHash), is_whole: bool) {
        let first = KeyRange::new(RouteHash::MIN, ends.0);
        let second = KeyRange::new(ends.1, RouteHash::last_of_slot(16_383));
        let owner = if is_whole { ME } else { OTHER };
        let own = [first, second];
        let own = if is_whole { &own[..] } else { &own[..1] };
        self.tell_since(1, &[(first, ME, true), (second, owner, true)], own, own);
    }

    /// Everything belongs to the other member.
    pub(super) fn tell_all_gone(&mut self) {
        self.version += 1;
        self.membership.publish(self.view_without_any());
    }

    /// The view of the present list, as if everything belonged to the other member.
    pub(super) fn view_without_any(&self) -> Arc<View> {
        self.view(self.version, &[(KeyRange::ALL, OTHER, true)], &[], &[])
    }
}

/// A key of a slot of this member, and a key of another member's slot.
pub(super) fn keys() -> (String, String) {
    let of = |ours: bool| {
        (0..)
            .map(|n| format!("key:{n}"))
            .find(|key| (slot(key.as_bytes()) < 8192) == ours)
            .expect("a key")
    };
    (of(true), of(false))
}
