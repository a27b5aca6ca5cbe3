//! Survivors that a backup builds from its own replicas (builds::BU1 to builds::BU3).

use crate::disk::{ME, SEGMENT_BYTES, backup_on, disk_in};
use duramen_backup::{Backup, ReplicaId};
use duramen_base::ids::{Level, SegmentId, ServerId};
use duramen_base::planted::{Bug, with_bug};
use duramen_format::certificate::Certificate;
use duramen_format::entry::NewObject;
use duramen_format::recipe::{Fate, Parts};
use duramen_format::segment::{Header, Kind};
use duramen_node::{Asked, BackupService, Reply};
use duramen_wire::native::message::{Peer, PeerAnswer, Refusal, WriteReplica};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tempfile::TempDir;

const MASTER: ServerId = ServerId::new(7, 2);
const NOW_US: u64 = 1_000_000;

struct Rig {
    service: BackupService<u32>,
    backup: Arc<Backup>,
    next: u32,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let (backup, service) = backup_on(disk_in(&dir), 32);
        Rig {
            service,
            backup,
            next: 0,
            _dir: dir,
        }
    }

    /// Sends a request; returns the answers that are there at once.
    fn ask(&mut self, question: &Peer, payload: &[u8]) -> Vec<PeerAnswer> {
        let mut out = Vec::new();
        self.next += 1;
        let service = &mut self.service;
        let asked = Asked {
            tag: self.next,
            sender: MASTER,
            target: ME,
            question,
            payload,
        };
        service.asked(NOW_US, asked, &mut out);
        answers(out)
    }

    /// Reads and builds what waits; returns the answers that are there before the next commit.
    fn build(&mut self) -> Vec<PeerAnswer> {
        let mut out = Vec::new();
        while self.service.read_step(NOW_US, &mut out) {}
        answers(out)
    }

    fn commit(&mut self) -> Vec<PeerAnswer> {
        let mut out = Vec::new();
        self.service.run(&|| NOW_US, &mut out).unwrap();
        answers(out)
    }

    fn store(&mut self, bytes: &[u8], close: bool) {
        let write = WriteReplica {
            close,
            ..write(bytes, segment_in(bytes))
        };
        assert_eq!(self.ask(&Peer::WriteReplica(write), bytes), []);
        assert_eq!(self.commit(), [stored()]);
    }

    fn stored_bytes(&self, segment: SegmentId) -> Option<Vec<u8>> {
        let mut bytes = vec![0; SEGMENT_BYTES as usize];
        let log = MASTER.number();
        let read = self.backup.read_of(ReplicaId { log, segment }, &mut bytes);
        bytes.truncate(read.ok()?.length as usize);
        Some(bytes)
    }
}

fn answers(out: Vec<Reply<u32>>) -> Vec<PeerAnswer> {
    out.into_iter().map(|reply| reply.answer).collect()
}

fn stored() -> PeerAnswer {
    PeerAnswer::Stored {
        level: Level::Synced,
        leased: false,
    }
}

fn segment_in(bytes: &[u8]) -> Kind {
    Header::decode(bytes).unwrap().kind
}

fn write(bytes: &[u8], kind: Kind) -> WriteReplica {
    WriteReplica {
        log: MASTER,
        segment: Header::decode(bytes).unwrap().segment,
        kind,
        epoch: 0,
        offset: 0,
        certificate: Some(Certificate::of(bytes)),
        open: true,
        close: true,
        primary: false,
        level: Level::Synced,
        capacity: SEGMENT_BYTES,
    }
}

/// A segment with objects of these versions.
fn segment(id: u64, kind: Kind, versions: &[u64]) -> Vec<u8> {
    let header = Header {
        kind,
        segment: SegmentId(id),
        log: MASTER.number(),
        head: 0,
        capacity: SEGMENT_BYTES,
    };
    let mut bytes = header.encode().to_vec();
    for version in versions {
        let object = NewObject {
            table: 3,
            key: &version.to_le_bytes(),
            value: b"value",
            version: *version,
            expires_at_ms: None,
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let at = bytes.len();
        bytes.resize(at + object.padded_bytes(), 0);
        object.write_to(&mut bytes[at..]);
    }
    bytes
}

/// Two victims, and a survivor of some of their entries, with its recipe.
struct Case {
    victims: [Vec<u8>; 2],
    survivor: Vec<u8>,
    recipe: Vec<u8>,
}

fn case() -> Case {
    let victims = [
        segment(1, Kind::Head, &[10, 11, 12, 13]),
        segment(2, Kind::Head, &[20, 21, 22]),
    ];
    let mut parts = Parts::default();
    for (victim, n) in [(1, 1), (1, 3), (2, 0)] {
        parts.add(SegmentId(victim), n, Fate::Kept);
    }
    let certificate = |id: SegmentId| Some(Certificate::of(&victims[id.0 as usize - 1]));
    Case {
        recipe: parts.encode(certificate).unwrap(),
        survivor: segment(9, Kind::Survivor, &[11, 13, 20]),
        victims,
    }
}

impl Case {
    fn order(&self) -> Peer {
        Peer::BuildReplica(write(&self.survivor, Kind::Survivor))
    }
}

/// Scenario 38: whatever the backup has instead of a victim, it builds nothing from it.
fn stale_victims_are_not_used() {
    let case = case();
    let shorter = segment(2, Kind::Head, &[20, 21]);
    let other = segment(2, Kind::Head, &[29, 21, 22]);
    // The second victim is missing, open, shorter, or another one.
    for (second, close) in [
        (None, true),
        (Some(&case.victims[1]), false),
        (Some(&shorter), true),
        (Some(&other), true),
    ] {
        let mut rig = Rig::new();
        rig.store(&case.victims[0], true);
        if let Some(bytes) = second {
            rig.store(bytes, close);
        }
        assert_eq!(rig.ask(&case.order(), &case.recipe), []);
        let answers = rig.build();
        let is_refused =
            matches!(&answers[..], [PeerAnswer::Bad { reason }] if !reason.contains("survivor"));
        assert!(is_refused, "{answers:?}");
        assert_eq!(rig.stored_bytes(SegmentId(9)), None);
        // The bytes are taken as ever.
        rig.store(&case.survivor, true);
        assert_eq!(rig.stored_bytes(SegmentId(9)), Some(case.survivor.clone()));
    }
}

fn a_survivor_with_another_certificate_does_not_count() {
    let case = case();
    let mut rig = Rig::new();
    case.victims.iter().for_each(|bytes| rig.store(bytes, true));
    let mut wanted = write(&case.survivor, Kind::Survivor);
    wanted.certificate = Some(Certificate::of(&case.survivor[..64]));
    assert_eq!(rig.ask(&Peer::BuildReplica(wanted), &case.recipe), []);
    let answers = rig.build();
    assert!(
        matches!(&answers[..], [PeerAnswer::Bad { .. }]),
        "{answers:?}"
    );
    assert_eq!(rig.commit(), []);
    assert_eq!(rig.stored_bytes(SegmentId(9)), None);
}

fn a_built_survivor_is_stored_before_it_counts() {
    let case = case();
    let mut rig = Rig::new();
    case.victims.iter().for_each(|bytes| rig.store(bytes, true));
    assert_eq!(rig.ask(&case.order(), &case.recipe), []);
    assert_eq!(rig.build(), [], "not before the commit");
    assert_eq!(rig.commit(), [stored()]);
    assert_eq!(rig.stored_bytes(SegmentId(9)), Some(case.survivor.clone()));
    // A copy of the request comes late: it is a repetition.
    assert_eq!(rig.ask(&case.order(), &case.recipe), []);
    assert_eq!(rig.build(), []);
    assert_eq!(rig.commit(), [stored()]);
}

#[test]
fn scenario_38_survivors_are_built_of_the_victims_that_the_master_named() {
    stale_victims_are_not_used();
    a_survivor_with_another_certificate_does_not_count();
    a_built_survivor_is_stored_before_it_counts();
}

#[test]
fn planted_bugs_of_builds_are_found() {
    let finds = |bug, check: fn()| {
        let found = catch_unwind(AssertUnwindSafe(|| with_bug(bug, check)));
        assert!(found.is_err(), "{bug:?} is not found");
    };
    finds(Bug::BuildsFromStale, stale_victims_are_not_used);
    finds(
        Bug::BuildsUnverified,
        a_survivor_with_another_certificate_does_not_count,
    );
    finds(
        Bug::BuiltNotStored,
        a_built_survivor_is_stored_before_it_counts,
    );
}

#[test]
fn repeated_orders_build_once_and_freed_survivors_are_not_stored() {
    let case = case();
    let mut rig = Rig::new();
    case.victims.iter().for_each(|bytes| rig.store(bytes, true));
    assert_eq!(rig.ask(&case.order(), &case.recipe), []);
    let again = rig.ask(&case.order(), &case.recipe);
    let is_later = matches!(&again[..], [PeerAnswer::Refused(Refusal::NotReady { .. })]);
    assert!(is_later, "{again:?}");
    let free = Peer::FreeReplicas {
        log: MASTER,
        segments: vec![SegmentId(9)],
    };
    assert_eq!(rig.ask(&free, &[]), [PeerAnswer::Freed]);
    assert!(matches!(&rig.build()[..], [PeerAnswer::Bad { .. }]), "BU3");
    assert_eq!(rig.commit(), []);
    assert_eq!(rig.stored_bytes(SegmentId(9)), None);
}

/// backup_service::B2: the fence comes while the survivor is being built.
#[test]
fn a_fence_stops_survivors_too() {
    let case = case();
    let mut rig = Rig::new();
    case.victims.iter().for_each(|bytes| rig.store(bytes, true));
    assert_eq!(rig.ask(&case.order(), &case.recipe), []);
    rig.backup.fence(MASTER.number()).unwrap();
    assert_eq!(rig.build(), [PeerAnswer::Fenced]);
    assert_eq!(rig.ask(&case.order(), &case.recipe), [PeerAnswer::Fenced]);
}

#[test]
fn bytes_that_are_no_recipe_are_refused() {
    let case = case();
    let mut rig = Rig::new();
    rig.store(&case.victims[0], true);
    for recipe in [&case.recipe[..case.recipe.len() - 1], b"x", &[0xff; 40]] {
        assert_eq!(rig.ask(&case.order(), recipe), []);
        assert!(matches!(&rig.build()[..], [PeerAnswer::Bad { .. }]));
    }
}

/// The size of a survivor, and the number and size of the recipes that wait, are bounded whatever a
/// master sends (builds::BU4).
#[test]
fn only_whole_survivors_are_built_and_recipes_that_wait_are_bounded() {
    let case = case();
    let mut rig = Rig::new();
    let whole = write(&case.survivor, Kind::Survivor);
    for parted in [
        WriteReplica {
            open: false,
            capacity: u32::MAX,
            ..whole
        },
        WriteReplica {
            close: false,
            ..whole
        },
        WriteReplica { offset: 8, ..whole },
        WriteReplica {
            certificate: None,
            ..whole
        },
    ] {
        let answers = rig.ask(&Peer::BuildReplica(parted), &case.recipe);
        let is_refused = matches!(&answers[..], [PeerAnswer::Bad { .. }]);
        assert!(is_refused, "{answers:?}");
    }
    let order = |n: u64| {
        Peer::BuildReplica(WriteReplica {
            segment: SegmentId(1_000 + n),
            ..whole
        })
    };
    let long = vec![0; 3 << 20];
    let accepted = (0..9).filter(|n| rig.ask(&order(*n), &long).is_empty());
    assert_eq!(accepted.count(), 2, "8 MiB of recipes");
    let accepted = (100..500).filter(|n| rig.ask(&order(*n), b"x").is_empty());
    assert_eq!(accepted.count(), 254, "256 recipes");
    assert_eq!(rig.build().len(), 256, "each is answered");
}

/// The master did not wait any longer, and sent the bytes.
#[test]
fn a_survivor_whose_bytes_have_come_is_not_built() {
    let case = case();
    let mut rig = Rig::new();
    case.victims.iter().for_each(|bytes| rig.store(bytes, true));
    assert_eq!(rig.ask(&case.order(), &case.recipe), []);
    rig.store(&case.survivor, true);
    assert!(matches!(&rig.build()[..], [PeerAnswer::Bad { .. }]), "BU3");
    assert_eq!(rig.stored_bytes(SegmentId(9)), Some(case.survivor.clone()));
}
