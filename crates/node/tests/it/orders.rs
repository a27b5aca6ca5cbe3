//! One member that receives messages chosen by a test, in the chosen order.

use duramen_base::ids::{
    KeyRange, ListVersion, MapVersion, RouteHash, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_node::{Candidate, Input, Member, Output, Purge, Reconciliation, RequestId, Token};
use duramen_wire::native::message::{
    Addresses, CoordinatorAnswer, Enlist, Enlisted, FromCoordinator, Refusal, Roles, ServerAnswer,
    ServerEntry, ServerList, ServerListUpdate, ServerStatus, TabletEntry, TabletMap, TabletState,
    Tablets, ToCoordinator,
};

const ME: ServerId = ServerId::new(4, 2);
const OLD: ServerId = ServerId::new(4, 1);
const TABLE: TableId = TableId(1);
fn handle(member: &mut Member, input: Input) -> Vec<Output> {
    handle_at(member, 0, input)
}

fn handle_at(member: &mut Member, now_us: u64, input: Input) -> Vec<Output> {
    let mut out = Vec::new();
    member.handle(now_us, input, &mut out);
    out
}

fn told(term: u32, target: ServerId, question: FromCoordinator) -> Input {
    Input::Order {
        request: RequestId(1),
        sender: ServerId::coordinator(term),
        target,
        question,
    }
}

/// A member that has its id, not yet stored.
fn enlisted() -> Member {
    let enlist = Enlist {
        replaces: Some(OLD),
        ..duramen_harness::enlist(1, "0".to_owned())
    };
    let coordinators = vec!["coordinator:1".to_owned()];
    let mut member = Member::new(
        0,
        Candidate {
            enlist,
            coordinators,
            seed: 1,
        },
    );
    let ping = |target| told(1, target, FromCoordinator::Ping { nonce: 1 });
    assert!(matches!(
        answer(&handle(&mut member, ping(OLD))),
        ServerAnswer::Refused(_)
    ));
    let asked = handle(&mut member, Input::Tick);
    let [Output::AskCoordinator { token, .. }] = &asked[..] else {
        panic!("{asked:?}");
    };
    let entry = ServerEntry {
        server: ME,
        addresses: Addresses::default(),
        rack: None,
        roles: Roles {
            master: true,
            backup: true,
        },
        disk: 1,
        read_bytes_per_s: 0,
        status: ServerStatus::Up,
        draining: false,
        unused: None,
    };
    let list = ServerList {
        version: ListVersion(3),
        servers: vec![entry],
    };
    let enlisted = Box::new(Enlisted {
        server: ME,
        list: list.into(),
        settings: duramen_harness::settings(),
    });
    let answer = CoordinatorAnswer::Enlisted(enlisted);
    let out = handle(
        &mut member,
        Input::Answered {
            token: *token,
            answer,
        },
    );
    assert!(
        matches!(out[..], [Output::StoreId { server: ME }]),
        "{out:?}"
    );
    member
}

fn joined() -> Member {
    let mut member = enlisted();
    handle(&mut member, Input::IdStored { server: ME });
    assert_eq!(member.id(), ME);
    member
}

fn answer(out: &[Output]) -> &ServerAnswer {
    let answer = out.iter().find_map(|output| match output {
        Output::Answer { answer, .. } => Some(answer),
        _ => None,
    });
    answer.expect("an answer")
}

fn tablets(version: u64, ranges: &[KeyRange]) -> FromCoordinator {
    let state = TabletState::Normal {
        creation: SegmentId::NONE,
    };
    let tablets = ranges.iter().map(|range| TabletEntry {
        table: TABLE,
        range: *range,
        state,
    });
    FromCoordinator::Tablets(Tablets {
        version: TabletsVersion(version),
        tables: Vec::new(),
        tablets: tablets.collect(),
    })
}

fn tell(member: &mut Member, version: u64, ranges: &[KeyRange]) -> Vec<Output> {
    handle(member, told(1, ME, tablets(version, ranges)))
}

fn order(out: &[Output]) -> Option<&Reconciliation> {
    out.iter().find_map(|output| match output {
        Output::Obey(order) => Some(order),
        _ => None,
    })
}

fn purge(out: &[Output]) -> Option<&Purge> {
    out.iter().find_map(|output| match output {
        Output::Purge(purge) => Some(purge),
        _ => None,
    })
}

fn obeyed(member: &mut Member, version: u64) -> Vec<Output> {
    handle(
        member,
        Input::Obeyed {
            version: TabletsVersion(version),
        },
    )
}

/// The ranges of the newest view.
fn served(out: &[Output]) -> Option<Vec<KeyRange>> {
    out.iter().rev().find_map(|output| match output {
        Output::View(view) => Some(view.served().iter().map(|(_, range)| range).collect()),
        _ => None,
    })
}

fn halves() -> (KeyRange, KeyRange) {
    KeyRange::ALL.split(RouteHash(1 << 63)).unwrap()
}

#[test]
fn nothing_is_done_under_an_id_that_is_not_stored() {
    let mut member = enlisted();
    assert_eq!(member.id(), ServerId::NONE);
    let out = tell(&mut member, 5, &[KeyRange::ALL]);
    assert!(
        matches!(
            answer(&out),
            ServerAnswer::Refused(Refusal::NotReady { .. })
        ),
        "N1"
    );
    assert!(order(&out).is_none());
    handle(&mut member, Input::IdStored { server: OLD });
    assert_eq!(member.id(), ServerId::NONE);
}

fn a_tablet_goes_and_comes_back() {
    let (low, high) = halves();
    let mut member = joined();
    let out = tell(&mut member, 5, &[low, high]);
    assert_eq!(served(&out), Some(vec![]), "N3");
    assert!(order(&out).is_some() && purge(&out).is_none());
    assert_eq!(served(&obeyed(&mut member, 5)), Some(vec![low, high]));
    // While this order runs, the low half goes away and comes back.
    let out = tell(&mut member, 6, &[low, high]);
    assert!(order(&out).is_some());
    let out = tell(&mut member, 7, &[high]);
    assert_eq!(
        (served(&out), order(&out)),
        (Some(vec![high]), None),
        "N2: at once"
    );
    let doomed = Purge {
        table: TABLE,
        ranges: vec![low],
    };
    assert_eq!(purge(&out), Some(&doomed), "N2");
    let out = tell(&mut member, 8, &[low, high]);
    assert_eq!((served(&out), order(&out)), (Some(vec![high]), None), "N3");
    let out = obeyed(&mut member, 6);
    assert_eq!((served(&out), order(&out)), (None, None), "N9");
    let out = handle(&mut member, Input::Purged);
    let next = order(&out).expect("the next order");
    assert_eq!(next.version, TabletsVersion(8));
    assert_eq!(served(&out), None);
    assert!(obeyed(&mut member, 6).is_empty(), "a repetition");
    let out = obeyed(&mut member, 8);
    assert_eq!(served(&out), Some(vec![low, high]));
    let done = TabletsVersion(8);
    assert!(
        matches!(answer(&out), ServerAnswer::Confirmed { tablets_version, .. } if *tablets_version == done)
    );
    // member::N4: a late one changes nothing.
    let out = tell(&mut member, 7, &[high]);
    assert!(
        matches!(answer(&out), ServerAnswer::Confirmed { tablets_version, .. } if *tablets_version == done)
    );
    assert!(served(&out).is_none() && order(&out).is_none());
}

fn an_earlier_leader_speaks() {
    let (low, high) = halves();
    let mut member = joined();
    let out = tell(&mut member, 5, &[low, KeyRange::ALL]);
    assert!(matches!(
        answer(&out),
        ServerAnswer::Refused(Refusal::Invalid(_))
    ));
    handle(&mut member, told(3, ME, tablets(6, &[low])));
    let out = handle(&mut member, told(2, ME, tablets(7, &[high])));
    assert!(
        matches!(
            answer(&out),
            ServerAnswer::Refused(Refusal::NotLeader { .. })
        ),
        "N6"
    );
    let out = handle(&mut member, told(3, OLD, tablets(7, &[high])));
    assert_eq!(answer(&out), &ServerAnswer::Refused(Refusal::NotUp(OLD)));
    assert_eq!(served(&obeyed(&mut member, 6)), Some(vec![low]));
}

/// While it serves, it is told that it is no member any more.
fn a_member_ends() {
    let mut member = joined();
    tell(&mut member, 5, &[KeyRange::ALL]);
    assert_eq!(served(&obeyed(&mut member, 5)), Some(vec![KeyRange::ALL]));
    let list = ServerList {
        version: ListVersion(4),
        servers: Vec::new(),
    };
    let update = FromCoordinator::Servers(ServerListUpdate::Full(list.into()));
    let out = handle(&mut member, told(1, ME, update));
    assert_eq!(served(&out), Some(vec![]), "N5");
    let ended = out
        .iter()
        .any(|output| matches!(output, Output::Ended { again: true, .. }));
    assert!(ended);
    let out = tell(&mut member, 9, &[KeyRange::ALL]);
    assert!(
        matches!(answer(&out), ServerAnswer::Refused(Refusal::NotUp(ME))),
        "N5"
    );
    assert!(order(&out).is_none() && served(&out).is_none());
}

/// The requests for the map that these outputs have.
fn maps(out: &[Output]) -> Vec<Token> {
    let asked = out.iter().filter_map(|output| match output {
        Output::AskCoordinator {
            token,
            question: ToCoordinator::Map { .. },
            ..
        } => Some(*token),
        _ => None,
    });
    asked.collect()
}

/// Runs a member whose request's connection moves every 100 ms, until a time in seconds. Returns
/// the requests for the map that it has sent meanwhile.
fn moves_until(member: &mut Member, seconds: u64, token: Token) -> Vec<Token> {
    let mut out = Vec::new();
    for now_us in (0..seconds * 1_000_000).step_by(100_000) {
        member.handle(now_us, Input::Moving(vec![token]), &mut out);
        member.handle(now_us, Input::Tick, &mut out);
    }
    maps(&out)
}

/// The map of a large cluster over a slow link: it was requested again every half a second, and no
/// answer came in time.
#[test]
fn a_request_whose_connection_moves_is_not_repeated() {
    let mut member = enlisted();
    let asked = maps(&handle(&mut member, Input::IdStored { server: ME }));
    let [token] = asked[..] else {
        panic!("{asked:?}");
    };
    assert!(moves_until(&mut member, 10, token).is_empty(), "N11");
    let mut out = Vec::new();
    let answer = CoordinatorAnswer::Map(TabletMap::default());
    member.handle(10_000_000, Input::Answered { token, answer }, &mut out);
    member.handle(10_600_000, Input::Tick, &mut out);
    assert!(maps(&out).is_empty(), "its answer counts: {out:?}");
}

/// A map that took more than 30 s was dropped when it came, and a second one was under way.
#[test]
fn a_map_that_is_asked_for_again_counts_when_it_comes() {
    let mut member = enlisted();
    let asked = maps(&handle(&mut member, Input::IdStored { server: ME }));
    assert!(!moves_until(&mut member, 31, asked[0]).is_empty());
    let (token, map) = (
        asked[0],
        TabletMap {
            version: MapVersion(7),
            ..TabletMap::default()
        },
    );
    let mut out = Vec::new();
    let answer = CoordinatorAnswer::Map(map);
    member.handle(40_000_000, Input::Answered { token, answer }, &mut out);
    let views = out.iter().filter_map(|output| match output {
        Output::View(view) => Some(view.map_version()),
        _ => None,
    });
    assert_eq!(Vec::from_iter(views), [MapVersion(7)], "N11");
}

/// A firewall dropped what a member sent to the coordinator, which still reached the member: its
/// pings counted as answers, so the alert about silent coordinators could not fire.
#[test]
fn only_answers_tell_that_the_coordinator_is_heard() {
    let mut member = enlisted();
    let mut out = handle(&mut member, Input::IdStored { server: ME });
    for now_us in (0..=40_000_000).step_by(1_000_000) {
        let ping = told(1, ME, FromCoordinator::Ping { nonce: now_us });
        member.handle(now_us, ping, &mut out);
    }
    assert_eq!(member.coordinator_silent_us(40_000_000), 40_000_000);
    let token = *maps(&out).last().expect("it asks again and again");
    let answer = CoordinatorAnswer::Refused(Refusal::NotLeader { leader: None });
    member.handle(40_000_000, Input::Answered { token, answer }, &mut out);
    assert_eq!(member.coordinator_silent_us(41_000_000), 41_000_000);
    let asked = maps(&handle_at(&mut member, 42_000_000, Input::Tick));
    let (token, answer) = (asked[0], CoordinatorAnswer::MapIsCurrent);
    member.handle(42_000_000, Input::Answered { token, answer }, &mut out);
    assert_eq!(member.coordinator_silent_us(43_000_000), 1_000_000);
}

#[test]
fn a_request_is_repeated_when_nothing_moves_or_only_others_do() {
    let mut member = enlisted();
    let asked = maps(&handle(&mut member, Input::IdStored { server: ME }));
    moves_until(&mut member, 2, asked[0]);
    let mut out = Vec::new();
    member.handle(2_300_000, Input::Tick, &mut out);
    assert!(maps(&out).is_empty(), "too early");
    member.handle(2_400_000, Input::Tick, &mut out);
    assert_eq!(maps(&out).len(), 1, "nothing moves");
    let mut member = enlisted();
    let asked = maps(&handle(&mut member, Input::IdStored { server: ME }));
    assert!(!moves_until(&mut member, 31, asked[0]).is_empty());
}

#[test]
fn a_tablet_that_went_and_came_back_is_purged_between() {
    a_tablet_goes_and_comes_back();
}

#[test]
fn an_earlier_leader_and_a_list_that_overlaps_are_refused() {
    an_earlier_leader_speaks();
}

#[test]
fn who_is_not_listed_as_up_serves_nothing_any_more() {
    a_member_ends();
}

mod bugs {
    use super::*;
    use duramen_base::planted::{Bug, with_bug};

    fn is_found(bug: Bug, scenario: fn()) {
        assert!(std::panic::catch_unwind(|| with_bug(bug, scenario)).is_err());
    }

    #[test]
    fn what_is_not_purged_is_found() {
        is_found(Bug::NoPurge, a_tablet_goes_and_comes_back);
    }

    #[test]
    fn what_comes_back_before_its_purge_is_found() {
        is_found(Bug::PurgedComesBack, a_tablet_goes_and_comes_back);
    }

    #[test]
    fn what_is_served_too_early_is_found() {
        is_found(Bug::EarlyServing, a_tablet_goes_and_comes_back);
    }

    #[test]
    fn an_old_leader_that_is_obeyed_is_found() {
        is_found(Bug::OldLeaderObeyed, an_earlier_leader_speaks);
    }

    #[test]
    fn who_serves_after_its_end_is_found() {
        is_found(Bug::ServesAfterEnd, a_member_ends);
    }
}
