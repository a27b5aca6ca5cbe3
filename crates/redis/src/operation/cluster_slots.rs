//! Owners of slots, as `CLUSTER SLOTS`, `SHARDS` and `NODES` report them.
//!
//! **Invariants**
//! - S1: every slot in the map is reported with exactly one server: clients fail at a slot without
//!   a server, but wait if the slot has one.
//! - S2: a slot is reported with the server of its first key. A client that requests another key of
//!   a divided slot there is redirected.
//! - S3: a slot that no server serves at the moment is reported with a stand-in, a server that
//!   serves another slot. There a request waits (routing::R2) and is then redirected to the new
//!   owner, whereas the dead server would not answer. With the same map, all members report the
//!   same stand-in.

use duramen_base::ids::{RouteHash, ServerId, TableId};
use duramen_format::hash::SLOTS;
use duramen_node::View;

/// Consecutive slots `first..=last` of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) server: ServerId,
    /// Whether the server serves the slots; if not, it is a stand-in (S3).
    pub(crate) served: bool,
}

/// The slots of a table, in order.
pub(crate) fn spans(view: &View, table: TableId) -> Vec<Span> {
    let mut slots: Vec<Option<(ServerId, bool)>> = vec![None; usize::from(SLOTS)];
    let mut give = |first: RouteHash, last: RouteHash, to: (ServerId, bool)| {
        // By S2 the span begins with the first slot whose first key is in the range.
        let begins = RouteHash::first_of_slot(first.slot()) == first;
        let from = usize::from(first.slot()) + usize::from(!begins);
        let to_end = slots.get_mut(from..=usize::from(last.slot()));
        to_end.unwrap_or_default().fill(Some(to));
    };
    let stand_ins = stand_ins(view, table);
    for (n, route) in view.map().routes(table).iter().enumerate() {
        let to = if route.served {
            (route.owner, true)
        } else {
            (stand_ins[n % stand_ins.len()], false)
        };
        give(route.range.first, route.range.last, to);
    }
    // This member knows the ranges that it serves before the map has them.
    for (of, range) in view.served().iter() {
        if of == table {
            give(range.first, range.last, (view.me(), true));
        }
    }
    join(&slots)
}

/// Servers that serve a part of the table; at least this member itself.
fn stand_ins(view: &View, table: TableId) -> Vec<ServerId> {
    let routes = view.map().routes(table).iter();
    let mut servers: Vec<ServerId> = routes
        .filter(|route| route.served)
        .map(|route| route.owner)
        .collect();
    servers.sort_unstable();
    servers.dedup();
    if servers.is_empty() {
        servers.push(view.me());
    }
    servers
}

fn join(slots: &[Option<(ServerId, bool)>]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (slot, of) in (0..SLOTS).zip(slots) {
        let Some((server, served)) = *of else {
            continue;
        };
        match spans.last_mut() {
            Some(last)
                if last.last + 1 == slot && (last.server, last.served) == (server, served) =>
            {
                last.last = slot;
            }
            _ => spans.push(Span {
                first: slot,
                last: slot,
                server,
                served,
            }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{KeyRange, MapVersion, TabletsVersion};
    use duramen_node::{Map, Ranges};
    use duramen_wire::native::message::{TabletMap, TabletRoute};
    use std::sync::Arc;

    const ME: ServerId = ServerId::new(0, 1);
    const OTHER: ServerId = ServerId::new(1, 1);
    const DEAD: ServerId = ServerId::new(2, 1);
    const TABLE: TableId = TableId(3);

    fn slots(first: u16, last: u16) -> KeyRange {
        KeyRange::new(
            RouteHash::first_of_slot(first),
            RouteHash::last_of_slot(last),
        )
    }

    fn route(range: KeyRange, owner: ServerId, served: bool) -> TabletRoute {
        TabletRoute {
            table: TABLE,
            range,
            owner,
            served,
            moving_to: None,
        }
    }

    fn view(tablets: Vec<TabletRoute>, served: &[KeyRange]) -> View {
        let map = TabletMap {
            version: MapVersion(1),
            tablets,
            ..TabletMap::default()
        };
        let served = Ranges::new(served.iter().map(|range| (TABLE, *range))).unwrap();
        let map = Arc::new(Map::new(&map).unwrap());
        View::new(ME, TabletsVersion(1), served.clone(), served, map)
    }

    fn told(view: &View) -> Vec<(u16, u16, ServerId, bool)> {
        let spans = spans(view, TABLE);
        spans
            .iter()
            .map(|span| (span.first, span.last, span.server, span.served))
            .collect()
    }

    #[test]
    fn each_slot_is_told_once_and_own_ones_by_the_newest_knowledge() {
        let tablets = vec![
            route(slots(0, 99), ME, true),
            route(slots(100, 199), OTHER, true),
            route(slots(200, 16_383), OTHER, true),
        ];
        // Slots 100 to 149 were just taken over, and the map does not have that yet.
        let view = view(tablets, &[slots(0, 99), slots(100, 149)]);
        assert_eq!(
            told(&view),
            [(0, 149, ME, true), (150, 16_383, OTHER, true)]
        );
    }

    #[test]
    fn a_slot_that_is_cut_belongs_to_the_server_of_its_first_key() {
        let middle = RouteHash(RouteHash::first_of_slot(10).0 + 5);
        let (low, high) = KeyRange::ALL.split(middle).unwrap();
        let view = view(vec![route(low, ME, true), route(high, OTHER, true)], &[low]);
        assert_eq!(told(&view), [(0, 10, ME, true), (11, 16_383, OTHER, true)]);
        // Both ends within one slot: no whole slot.
        let cut = KeyRange::new(middle, RouteHash(middle.0 + 1));
        let tablets = vec![
            route(KeyRange::new(low.first, low.last), ME, true),
            route(cut, OTHER, true),
            route(KeyRange::new(RouteHash(middle.0 + 2), high.last), ME, true),
        ];
        let view = self::view(tablets, &[]);
        assert_eq!(told(&view), [(0, 16_383, ME, true)]);
    }

    #[test]
    fn somebody_stands_in_for_what_is_being_recovered() {
        let tablets = vec![
            route(slots(0, 99), OTHER, true),
            route(slots(100, 199), DEAD, false),
            route(slots(300, 399), DEAD, false),
        ];
        assert_eq!(
            told(&view(tablets, &[])),
            [
                (0, 99, OTHER, true),
                (100, 199, OTHER, false),
                (300, 399, OTHER, false)
            ]
        );
        let nobody = view(vec![route(slots(0, 16_383), DEAD, false)], &[]);
        assert_eq!(told(&nobody), [(0, 16_383, ME, false)]);
        assert!(told(&view(vec![], &[])).is_empty());
    }
}
