//! Segments of which no replica is whole: the recovery waits for the operator, who accepts exactly
//! what is lost.

use super::*;
use duramen_cluster::coordinator::store::MetaStore as _;
use duramen_wire::native::message::{AdminAnswer, SegmentLoss};

fn lost(token: u32) -> PartitionOutcome {
    let losses = vec![SegmentLoss {
        segment: SegmentId(1),
        token,
        lines: vec!["segment 1, bytes 64..128 held:".to_owned()],
    }];
    PartitionOutcome::Lost { losses }
}

impl Case {
    /// The token of all that is lost, as the coordinator tells it.
    fn token(&mut self) -> Option<u32> {
        let server = self.dead;
        match self.rig.admin(Admin::Losses { server }) {
            CoordinatorAnswer::Admin(AdminAnswer::Losses { losses, token }) => {
                (!losses.is_empty()).then_some(token)
            }
            CoordinatorAnswer::Refused(Refusal::Invalid(why)) => {
                assert!(why.contains("looked for again"), "{why}");
                None
            }
            other => panic!("{other:?}"),
        }
    }

    fn accepts(&mut self, token: u32) -> bool {
        let server = self.dead;
        let answer = self.rig.admin(Admin::AcceptLoss { server, token });
        answer == CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    /// An attempt that finds the loss with this token.
    fn fails(&mut self, shelves: &Shelves, token: u32) -> PendingCall {
        self.show(shelves);
        let asked = self.start_one();
        self.report(&asked, lost(token));
        self.show(shelves);
        asked
    }
}

#[test]
fn a_recovery_goes_on_without_what_an_operator_accepts_over_a_failover() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    assert_eq!(case.token(), None);
    assert!(!case.accepts(0), "nothing is lost");
    let asked = case.fails(&shelves, 7);
    assert!(order(&asked).accepted.is_empty());
    let waits = case.waits_for().expect("it waits");
    assert!(waits.contains("duramen accept-loss"), "{waits}");
    case.rig.live(20_000_000);
    assert!(case.rig.orders().is_empty(), "O3");
    let token = case.token().expect("it is told");
    assert!(!case.accepts(token ^ 1), "O2");
    assert!(case.accepts(token));
    case.rig.fail_over();
    case.show(&shelves);
    case.rig.live(300_000);
    let asked = case.start_one();
    assert_eq!(order(&asked).accepted, [7], "O1");
    // More is lost by now: it is asked again, and the first acceptance stays.
    case.report(&asked, lost(9));
    let token = case.token().expect("it is told");
    assert!(case.accepts(token));
    case.show(&shelves);
    case.rig.live(300_000);
    let asked = case.start_one();
    assert_eq!(order(&asked).accepted, [7, 9]);
    case.report(&asked, REPLAYED);
    assert!(case.waits_for_end());
    let left: Vec<Vec<u8>> = case.rig.leader.store.load().unwrap().into_keys().collect();
    assert!(
        !left.iter().any(|key| key.starts_with(b"~a")),
        "it ends with the server"
    );
}

impl Case {
    /// The next order, started.
    fn order_within(&mut self, most_us: u64) -> PendingCall {
        for _ in 0..most_us / 100_000 {
            self.rig.live(100_000);
            if let Some(asked) = self.rig.orders().pop() {
                self.rig.reply(&asked, ServerAnswer::Started);
                return asked;
            }
        }
        panic!("no order within {most_us} us");
    }

    fn waits_for_end(&mut self) -> bool {
        self.rig.live(2_000_000);
        self.rig
            .status()
            .servers
            .iter()
            .all(|of| of.server != self.dead)
    }
}

#[test]
fn a_recovery_without_a_whole_replica_looks_again_by_itself() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    let first = case.fails(&shelves, 7);
    case.rig.live(30_000_000);
    assert!(case.rig.orders().is_empty());
    let again = case.order_within(40_000_000);
    assert_ne!(order(&again).recovery, order(&first).recovery);
    case.report(&again, REPLAYED);
    assert!(case.waits_for_end());
}

/// A whole replica may be on a server that is just starting.
#[test]
fn damaged_replicas_have_to_do_if_no_other_comes() {
    let mut case = crashed(3);
    let shelves: Shelves = whole(&case)
        .into_iter()
        .map(|(id, shelf)| (id, shelf.damaged()))
        .collect();
    case.show(&shelves);
    case.rig.live(5_000_000);
    case.show(&shelves);
    assert!(case.rig.orders().is_empty());
    let waits = case.waits_for().expect("it waits");
    assert!(
        waits.contains("no backup that answered has segment"),
        "{waits}"
    );
    let asked = case.order_within(12_000_000);
    let segments = &order(&asked).segments;
    assert_eq!(segments.len(), 2);
    assert!(segments.iter().all(|segment| segment.sources.len() == 2));
}

/// A server with a sound replica comes back after an attempt had told of a loss, and the next one
/// fails for another reason. The loss was still shown, each attempt rested a minute, and an
/// operator who did as he was told stored an acceptance of what was there.
#[test]
fn a_loss_that_the_last_attempt_did_not_find_is_none() {
    let mut case = crashed(3);
    let shelves = whole(&case);
    case.fails(&shelves, 7);
    let token = case.token().expect("it is told");
    let again = case.order_within(70_000_000);
    assert_eq!(case.token(), None, "it is looked for");
    assert!(!case.accepts(token));
    let waits = case.waits_for().unwrap_or_default();
    assert!(!waits.contains("accept-loss"), "{waits}");
    let failed = PartitionOutcome::Failed {
        retry_elsewhere: false,
        reason: "another reason".to_owned(),
    };
    case.report(&again, failed);
    case.show(&shelves);
    assert_eq!(case.token(), None);
    assert!(!case.accepts(token));
    let waits = case.waits_for().unwrap_or_default();
    assert!(!waits.contains("accept-loss"), "{waits}");
    let last = case.order_within(20_000_000);
    assert!(order(&last).accepted.is_empty());
    case.report(&last, REPLAYED);
    assert!(case.waits_for_end());
}

/// Rooms grow whenever a member cleans something: each such report ended the rest, and the whole
/// log was read and replayed again every few seconds.
#[test]
fn room_that_grows_ends_no_rest_after_a_loss() {
    let mut case = crashed(3);
    let say = |case: &mut Case, free: u64| {
        for server in case.left.clone() {
            let room = ServerRoom {
                used_bytes: 1 << 20,
                limit_bytes: (1 << 30) + free,
                replicas: 0,
                segments_sharing_rack: 0,
            };
            case.rig.ask(server, ToCoordinator::Room { server, room });
        }
    };
    say(&mut case, 0);
    let shelves = whole(&case);
    case.fails(&shelves, 7);
    let token = case.token().expect("it is told");
    for free in 1..20 {
        say(&mut case, free << 20);
        case.rig.live(1_000_000);
        assert!(case.rig.orders().is_empty(), "O3");
        assert_eq!(case.token(), Some(token));
    }
    let again = case.order_within(60_000_000);
    assert_eq!(case.token(), None, "it is looked for again");
    case.report(&again, lost(7));
    case.show(&shelves);
    assert_eq!(case.token(), Some(token));
}
