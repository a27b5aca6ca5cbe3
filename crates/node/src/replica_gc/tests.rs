//! A disk with replicas of two logs: one of a server that is UP, one that is not in the list here.

use super::*;
use crate::servers::members;
use duramen_backup::os::OsDisk;
use duramen_backup::{Chunk, Geometry, Identity, Mode, Options};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_format::certificate::Certificate;
use duramen_format::segment::{Header, Kind};
use std::sync::Arc;

const ME: ServerId = ServerId::new(0, 1);
const MASTER: ServerId = ServerId::new(1, 1);
const NEW: ServerId = ServerId::new(2, 1);

struct Rig {
    gc: ReplicaGc,
    backup: Backup,
    members: Members,
    now_us: u64,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(OsDisk::new(&dir.path().join("store"), Mode::Buffered));
        let geometry = Geometry {
            segment_bytes: 1 << 16,
            wal_bytes: 1 << 20,
            frames: 16,
        };
        let identity = Identity {
            cluster: "home".to_owned(),
            server: 99,
            hash_seed: 1,
        };
        let backup = Backup::create(disk, &Options::default(), &geometry, &identity).unwrap();
        Rig {
            gc: ReplicaGc::default(),
            backup,
            members: members(&[ME, MASTER]),
            now_us: 0,
            dir,
        }
    }

    fn header(log: ServerId, segment: u64) -> Header {
        Header {
            kind: Kind::Head,
            segment: SegmentId(segment),
            log: log.number(),
            head: 0,
            capacity: 1 << 16,
        }
    }

    fn hold(&self, log: ServerId, segment: u64) {
        self.write(log, segment, false);
    }

    /// Changes a byte of a replica on the disk, and lets the backup find it.
    fn damage(&self, log: ServerId, segment: u64) {
        self.write(log, segment, true);
        while self.backup.flush_step().unwrap() {}
        let path = self.dir.path().join("store/frames");
        let mut bytes = std::fs::read(&path).unwrap();
        let header = Rig::header(log, segment).encode();
        let mut places = bytes.windows(header.len());
        let at = places.position(|place| place == header).expect("its frame");
        bytes[at + header.len() - 1] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        for _ in 0..100 {
            let _ = self.backup.scrubber().step();
        }
        assert_eq!(self.backup.reader().take_damaged().len(), 1);
    }

    fn write(&self, log: ServerId, segment: u64, close: bool) {
        let bytes = Rig::header(log, segment).encode();
        let chunk = Chunk {
            segment: SegmentId(segment),
            epoch: 0,
            kind: Kind::Head,
            offset: 0,
            bytes: &bytes,
            certificate: Some(Certificate::of(&bytes)),
            open: true,
            close,
        };
        self.backup.stage_of(log.number(), chunk).unwrap();
        self.backup.commit(Level::Synced).unwrap();
    }

    fn poll(&mut self, after_us: u64) -> Effects {
        self.now_us += after_us;
        let mut out = Effects::default();
        self.gc
            .poll(self.now_us, ME, &self.backup, &self.members, &mut out);
        out
    }
}

/// The answer to a request that was given up arrives after the next one was sent.
fn late_answers() {
    let mut rig = Rig::new();
    rig.hold(MASTER, 7);
    let first = rig.poll(0).requests.pop().unwrap();
    assert_eq!(first.to, MASTER);
    let second = rig.poll(PATIENCE_US).requests.pop().unwrap();
    let answer = || {
        Some(PeerAnswer::NotNeeded {
            segments: vec![SegmentId(7)],
            counted: Vec::new(),
        })
    };
    let late = rig.gc.answered(rig.now_us, first.call, answer());
    assert!(late.is_none(), "U1");
    let Some(Task::NotNeeded { log, replicas }) =
        rig.gc.answered(rig.now_us, second.call, answer())
    else {
        panic!("it may go");
    };
    assert_eq!((log, replicas.len()), (MASTER, 1));
    assert!(rig.poll(LOOK_US).requests.is_empty());
    assert_eq!(rig.poll(SOON_US).requests.len(), 1, "U3");
}

/// The master is told of a damaged replica at once, and again until it is freed (replica_gc::U4).
fn damaged() {
    let mut rig = Rig::new();
    rig.hold(MASTER, 7);
    rig.hold(MASTER, 8);
    let is_told = |out: &Effects| {
        let mut requests = out.requests.iter();
        requests.any(|request| {
            let segments = vec![SegmentId(7)];
            request.question
                == Peer::Damaged {
                    log: MASTER,
                    segments,
                }
                && request.to == MASTER
        })
    };
    assert!(!is_told(&rig.poll(0)));
    rig.damage(MASTER, 7);
    assert!(is_told(&rig.poll(LOOK_US)));
    assert!(!is_told(&rig.poll(LOOK_US)), "the answer may come");
    assert!(is_told(&rig.poll(SOON_US)));
    let id = duramen_backup::ReplicaId {
        log: MASTER.number(),
        segment: SegmentId(7),
    };
    rig.backup.free_of(id).unwrap();
    assert!(!is_told(&rig.poll(SOON_US)));
}

/// A server writes here before this one is told of it; another one is gone.
fn strangers() {
    let mut rig = Rig::new();
    let gone = ServerId::new(3, 1);
    rig.hold(gone, 5);
    rig.hold(NEW, 6);
    let out = rig.poll(0);
    assert!(out.tasks.is_empty() && out.requests.is_empty(), "U2");
    let [(token, ToCoordinator::AreGone { logs })] = &out.reports[..] else {
        panic!("{:?}", out.reports);
    };
    assert!(logs.contains(&gone) && logs.contains(&NEW));
    // A replica of yet another server arrives after the request: the answer does not cover it.
    let later = ServerId::new(4, 1);
    rig.hold(later, 9);
    let logs = vec![gone, later];
    let answer = CoordinatorAnswer::Gone { logs };
    let tasks = rig.gc.listed(*token, Some(&answer), &rig.members);
    let [Task::Removed(log)] = tasks[..] else {
        panic!("{tasks:?}");
    };
    assert_eq!(log, gone, "U2");
    assert!(
        rig.gc
            .listed(*token, Some(&answer), &rig.members)
            .is_empty()
    );
}

/// The story: a coordinator was given an older copy of its store. The other members dropped what
/// had been written since by a member that its list lacked.
#[test]
fn a_log_that_the_coordinators_store_never_knew_stays() {
    let mut rig = Rig::new();
    rig.hold(ServerId::new(1, 2), 5);
    for _ in 0..3 {
        let out = rig.poll(PATIENCE_US);
        let [(token, ToCoordinator::AreGone { .. })] = &out.reports[..] else {
            panic!("{:?}", out.reports);
        };
        let logs = Vec::new();
        let none = CoordinatorAnswer::Gone { logs };
        let tasks = rig.gc.listed(*token, Some(&none), &rig.members);
        assert!(tasks.is_empty(), "U2: {tasks:?}");
    }
}

#[test]
fn only_the_answer_to_the_last_question_counts() {
    late_answers();
}

#[test]
fn who_is_newer_than_the_list_here_loses_nothing() {
    strangers();
}

#[test]
fn a_late_answer_that_counts_is_found() {
    assert!(std::panic::catch_unwind(|| with_bug(Bug::LateAnswerCounts, late_answers)).is_err());
}

#[test]
fn damage_is_told_again_and_again() {
    damaged();
}

#[test]
fn damage_that_is_not_told_is_found() {
    assert!(std::panic::catch_unwind(|| with_bug(Bug::DamageStays, damaged)).is_err());
}

#[test]
fn a_stranger_that_is_dropped_is_found() {
    assert!(std::panic::catch_unwind(|| with_bug(Bug::UnknownIsGone, strangers)).is_err());
}
