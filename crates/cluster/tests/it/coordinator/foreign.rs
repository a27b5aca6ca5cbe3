//! Requests from members of another cluster, to a store that is new by mistake and to others.

use crate::coordinator::rig::{Rig, enlist};
use duramen_base::ids::{ClusterId, ListVersion, SegmentId, ServerId, TabletsVersion};
use duramen_cluster::coordinator::store::MetaStore as _;
use duramen_cluster::coordinator::{Config, Coordinator, Input, OpenError};
use duramen_wire::native::message::{Admin, CoordinatorAnswer, Refusal, ToCoordinator};

const THEIRS: ClusterId = ClusterId(0xabc << 100);

fn confirm(server: ServerId) -> ToCoordinator {
    ToCoordinator::Confirm {
        server,
        list_version: ListVersion(1),
        tablets_version: TabletsVersion(1),
    }
}

/// The reason of a `NotReady` refusal.
fn not_ready(answer: Option<CoordinatorAnswer>) -> String {
    match answer {
        Some(CoordinatorAnswer::Refused(Refusal::NotReady { reason, .. })) => reason,
        other => panic!("{other:?}"),
    }
}

/// The story: a coordinator was started with an empty directory. It refused all members of the
/// cluster as not UP, and each of them ended itself.
#[test]
fn a_new_store_tells_no_member_that_it_is_none() {
    let mut rig = Rig::new();
    let member = ServerId::new(2, 1);
    let heads = ToCoordinator::ControlHead {
        server: member,
        min_open: SegmentId(3),
    };
    // Also requests that are not about the member itself: a backup drops the replicas of a log
    // whose server is not listed.
    for question in [confirm(member), heads, ToCoordinator::Servers] {
        let why = not_ready(rig.ask(member, question));
        assert!(why.contains("members of another cluster ask here"), "{why}");
    }
    // The member has begun another life meanwhile.
    let back = rig.ask(ServerId::NONE, enlist(1, 1, Some(member)));
    assert!(not_ready(back).contains("remove the directories"));
}

/// A store with other members answers that it never had this one, but does not deny its life.
#[test]
fn whose_id_was_never_given_is_not_denied_but_kept_waiting() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    for stranger in [ServerId::new(7, 1), ServerId::new(0, 2)] {
        let why = not_ready(rig.ask(stranger, confirm(stranger)));
        assert!(
            why.contains(&format!("never had a server {stranger}")) && why.contains("id 0000"),
            "{why}"
        );
    }
    // It answers its own members, and denies those that it has as crashed.
    let noted = rig.ask(servers[0], confirm(servers[0]));
    assert_eq!(noted, Some(CoordinatorAnswer::Noted));
    rig.crash(servers[1]);
    let refusal = Refusal::NotUp(servers[1]);
    let denied = rig.ask(servers[1], confirm(servers[1]));
    assert_eq!(denied, Some(CoordinatorAnswer::Refused(refusal)));
}

#[test]
fn a_new_store_begins_nothing_while_members_of_another_cluster_ask() {
    let mut rig = Rig::new();
    rig.handle(Input::Foreign { cluster_id: THEIRS });
    let why = not_ready(rig.ask(ServerId::NONE, enlist(1, 1, None)));
    let (theirs, ours) = (
        THEIRS.to_string(),
        rig.leader.coordinator.cluster_id().to_string(),
    );
    assert!(why.contains(&theirs) && why.contains(&ours), "{why}");
    for admin in [Admin::Overview, Admin::Settings] {
        not_ready(rig.ask(ServerId::NONE, ToCoordinator::Admin(admin)));
    }
    assert_eq!(
        rig.leader.coordinator.mistaken(rig.now_us),
        Some(why.clone())
    );
    // A foreign member that sends no cluster id does not hide the known one.
    let old = ServerId::new(0, 1);
    assert_eq!(not_ready(rig.ask(old, confirm(old))), why);
    // The refusals last while foreign members send requests.
    rig.pass(9_000_000);
    rig.handle(Input::Foreign { cluster_id: THEIRS });
    rig.pass(9_000_000);
    not_ready(rig.ask(ServerId::NONE, enlist(1, 1, None)));
    rig.pass(2_000_000);
    assert_eq!(rig.leader.coordinator.mistaken(rig.now_us), None);
    rig.enlist(1, None);
    // A cluster that has begun does not wait because of foreign members.
    rig.handle(Input::Foreign { cluster_id: THEIRS });
    assert_eq!(rig.leader.coordinator.mistaken(rig.now_us), None);
    rig.enlist(2, None);
}

#[test]
fn the_id_is_made_once_and_stores_of_before_get_one() {
    let mut rig = Rig::new();
    let id = rig.leader.coordinator.cluster_id();
    assert_ne!(id, ClusterId::NONE);
    rig.enlist(1, None);
    let open =
        |rig: &mut Rig, change: &dyn Fn(&mut duramen_cluster::coordinator::store::Contents)| {
            let mut contents = rig.leader.store.load().unwrap();
            change(&mut contents);
            let config = Config {
                new_id: THEIRS,
                ..duramen_harness::config()
            };
            Coordinator::open(0, &contents, config)
        };
    let (again, _) = open(&mut rig, &|_| {}).expect("the same store");
    assert_eq!(again.cluster_id(), id);
    // Layout 1, the first number of "m", had no id.
    let (old, outputs) = open(&mut rig, &|contents| {
        contents.remove(&b"i"[..]);
        contents.get_mut(&b"m"[..]).unwrap()[0] = 1;
    })
    .expect("an older store");
    assert_eq!(old.cluster_id(), THEIRS);
    let stored = outputs.iter().find_map(|output| match output {
        duramen_cluster::coordinator::Output::Persist { batch, .. } => Some(batch),
        _ => None,
    });
    let stored: Vec<_> = stored.expect("a batch").changes().collect();
    // postcard's form of a 128-bit number: seven bits per byte.
    let mut bytes = vec![0x80; 14];
    bytes.extend([0xf0, 0x55]);
    let found = stored.iter().find(|(key, _)| *key == b"i");
    assert_eq!(found, Some(&(&b"i"[..], Some(&bytes[..]))));
    let meta = stored.iter().find(|(key, _)| *key == b"m");
    assert_eq!(
        meta.and_then(|(_, value)| value.map(|bytes| bytes[0])),
        Some(2)
    );
    // A store of layout 2 without an id is damaged; a store of a later layout is refused.
    let damaged = open(&mut rig, &|contents| drop(contents.remove(&b"i"[..])));
    assert!(matches!(damaged.err(), Some(OpenError::Damaged { what }) if what == "key i"));
    let newer = open(&mut rig, &|contents| {
        contents.get_mut(&b"m"[..]).unwrap()[0] = 5
    });
    let newer = newer.err();
    assert_eq!(newer, Some(OpenError::Newer { found: 5, known: 4 }));
}
