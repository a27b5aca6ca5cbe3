//! A backup answers its peers and the coordinator: groups, fences, leases, filtered reads, and
//! invalid requests.

use crate::disk::{LEASE_MS, ME, SEED, SEGMENT_BYTES, backup_on, disk_in, service_of};
use duramen_backup::Backup;
use duramen_base::ids::{KeyRange, Level, RecoveryId, RouteHash, SegmentId, ServerId, TableId};
use duramen_format::certificate::Certificate;
use duramen_format::entry::{self, NewObject};
use duramen_format::hash::KeyHasher;
use duramen_format::segment::{Header, Kind};
use duramen_node::{Asked, BackupService, Reply};
use duramen_wire::native::message::{
    Peer, PeerAnswer, ReadReplica, RecoverTablet, Refusal, ReplicaEntry, Replicas, ServerAnswer,
    WriteReplica,
};
use std::sync::Arc;
use tempfile::TempDir;

const FRAMES: u32 = 16;
const MASTER: ServerId = ServerId::new(3, 7);
const TABLE: TableId = TableId(2);

struct Rig {
    service: BackupService<u32>,
    backup: Arc<Backup>,
    now_us: u64,
    next: u32,
    /// Answers of [`read_step`](Self::read_step).
    read: Vec<Reply<u32>>,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let (backup, service) = backup_on(disk_in(&dir), FRAMES);
        // After the lease that a restarted backup is assumed to have given.
        Rig {
            service,
            backup,
            now_us: 1_000_000,
            next: 0,
            read: Vec::new(),
            _dir: dir,
        }
    }

    /// Sends a request; returns the answers that are there at once.
    fn ask_as(&mut self, sender: ServerId, question: &Peer, payload: &[u8]) -> Vec<Reply<u32>> {
        let mut out = Vec::new();
        self.next += 1;
        let tag = self.next;
        let asked = Asked {
            tag,
            sender,
            target: ME,
            question,
            payload,
        };
        self.service.asked(self.now_us, asked, &mut out);
        assert!(out.iter().all(|reply| reply.tag == tag));
        out
    }

    fn run(&mut self) -> Vec<(u32, PeerAnswer)> {
        let mut out = Vec::new();
        let now_us = self.now_us;
        self.service.run(&|| now_us, &mut out).unwrap();
        out.into_iter()
            .map(|reply| (reply.tag, reply.answer))
            .collect()
    }

    /// Sends a request as the master; returns the answer, after a commit if necessary.
    fn ask(&mut self, question: &Peer, payload: &[u8]) -> PeerAnswer {
        match self.ask_as(MASTER, question, payload).pop() {
            Some(reply) => reply.answer,
            None => self.run().pop().expect("an answer").1,
        }
    }

    /// Reads a replica or builds a survivor; the answers wait in `read`.
    fn read_step(&mut self) -> bool {
        self.service.read_step(self.now_us, &mut self.read)
    }

    fn start_read(&mut self, min_open: u64) -> (Replicas, Vec<u8>) {
        let min_open = SegmentId(min_open);
        match self
            .service
            .start_read(self.now_us, RecoveryId(1), MASTER, min_open)
        {
            (ServerAnswer::Replicas(replicas), payload) => (*replicas, payload),
            other => panic!("{other:?}"),
        }
    }
}

fn header(segment: u64, kind: Kind) -> Vec<u8> {
    let header = Header {
        kind,
        segment: SegmentId(segment),
        log: MASTER.number(),
        head: 0,
        capacity: SEGMENT_BYTES,
    };
    header.encode().to_vec()
}

fn write(segment: u64, kind: Kind, bytes: &[u8]) -> Peer {
    Peer::WriteReplica(WriteReplica {
        log: MASTER,
        segment: SegmentId(segment),
        kind,
        epoch: 1,
        offset: 0,
        certificate: Some(Certificate::of(bytes)),
        open: true,
        close: false,
        primary: segment == 2,
        level: Level::Synced,
        capacity: SEGMENT_BYTES,
    })
}

fn stored(leased: bool) -> PeerAnswer {
    PeerAnswer::Stored {
        level: Level::Synced,
        leased,
    }
}

/// A segment with objects of these keys.
fn segment_of(segment: u64, keys: &[&str]) -> Vec<u8> {
    let mut bytes = header(segment, Kind::Head);
    for (n, key) in keys.iter().enumerate() {
        let object = NewObject {
            table: TABLE.0,
            key: key.as_bytes(),
            value: b"value",
            version: n as u64 + 1,
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

fn invalid(answer: &PeerAnswer) -> bool {
    matches!(answer, PeerAnswer::Refused(Refusal::Invalid(_)))
}

#[test]
fn a_group_is_answered_after_one_commit_and_not_before() {
    let mut rig = Rig::new();
    let other = ServerId::new(4, 1);
    let commits = rig.backup.stats().commits;
    let bytes = header(1, Kind::Head);
    assert!(
        rig.ask_as(MASTER, &write(1, Kind::Head, &bytes), &bytes)
            .is_empty()
    );
    let mut theirs = Header::decode(&bytes).unwrap();
    theirs.log = other.number();
    let theirs = theirs.encode();
    let Peer::WriteReplica(question) = write(1, Kind::Head, &theirs) else {
        panic!();
    };
    let question = Peer::WriteReplica(WriteReplica {
        log: other,
        ..question
    });
    assert!(rig.ask_as(other, &question, &theirs).is_empty());
    assert!(
        rig.ask_as(other, &Peer::SyncReplicas { log: other }, &[])
            .is_empty()
    );
    assert!(rig.service.due_us().is_some());
    assert_eq!(rig.backup.stats().commits, commits);
    assert!(rig.backup.replicas().is_empty(), "B1");
    assert_eq!(
        rig.run(),
        [
            (1, stored(false)),
            (2, stored(false)),
            (3, PeerAnswer::Synced)
        ]
    );
    assert_eq!(rig.backup.stats().commits, commits + 1);
    assert_eq!(rig.backup.logs(), [other.number(), MASTER.number()]);
    assert!(rig.run().is_empty() && rig.service.due_us().is_none());
    // Lost answer, same request: the same answer.
    assert_eq!(
        rig.ask(&write(1, Kind::Head, &bytes), &bytes),
        stored(false)
    );
}

#[test]
fn a_fenced_log_is_acknowledged_no_more_not_even_what_was_staged() {
    let mut rig = Rig::new();
    let bytes = header(1, Kind::Control);
    assert_eq!(
        rig.ask(&write(1, Kind::Control, &bytes), &bytes),
        stored(true)
    );
    let data = header(2, Kind::Head);
    assert!(
        rig.ask_as(MASTER, &write(2, Kind::Head, &data), &data)
            .is_empty()
    );
    assert!(
        rig.ask_as(MASTER, &Peer::SyncReplicas { log: MASTER }, &[])
            .is_empty()
    );
    let (before, control) = rig.start_read(0);
    assert_eq!(
        before.segments.len(),
        2,
        "what was staged may count, and is told"
    );
    assert_eq!(
        (before.control, control),
        (Some(SegmentId(1)), bytes.clone())
    );
    let primaries: Vec<bool> = before.segments.iter().map(|entry| entry.primary).collect();
    assert_eq!(primaries, [false, true]);
    assert_eq!(
        rig.run(),
        [(2, PeerAnswer::Fenced), (3, PeerAnswer::Fenced)],
        "B2"
    );
    let segments = vec![SegmentId(2)];
    for question in [
        write(2, Kind::Head, &data),
        write(9, Kind::Head, &data),
        Peer::SyncReplicas { log: MASTER },
        Peer::FreeReplicas {
            log: MASTER,
            segments,
        },
        Peer::RenewLease {
            log: MASTER,
            control: SegmentId(1),
        },
    ] {
        assert_eq!(
            rig.ask(&question, &data),
            PeerAnswer::Fenced,
            "{question:?}"
        );
    }
    assert_eq!(rig.start_read(0).0.segments, before.segments);
}

/// backup_service::B0: the address of a server stays when its life ends.
#[test]
fn a_question_to_another_life_has_no_effect() {
    let mut rig = Rig::new();
    let (mut out, bytes) = (Vec::new(), header(1, Kind::Control));
    let before = ServerId::new(4, 0);
    let asked = Asked {
        tag: 1,
        sender: MASTER,
        target: before,
        question: &write(1, Kind::Control, &bytes),
        payload: &bytes,
    };
    rig.service.asked(rig.now_us, asked, &mut out);
    let answers: Vec<PeerAnswer> = out.into_iter().map(|reply| reply.answer).collect();
    assert_eq!(answers, [PeerAnswer::Refused(Refusal::NotUp(before))]);
    assert_eq!((rig.run(), rig.start_read(0).0.segments), (vec![], vec![]));
}

#[test]
fn a_lease_runs_from_when_the_question_came() {
    let mut rig = Rig::new();
    let bytes = header(1, Kind::Control);
    assert!(
        rig.ask_as(MASTER, &write(1, Kind::Control, &bytes), &bytes)
            .is_empty()
    );
    rig.now_us += 30_000; // the device is slow
    assert_eq!(rig.run(), [(1, stored(true))]);
    let renew = |control| Peer::RenewLease {
        log: MASTER,
        control: SegmentId(control),
    };
    assert_eq!(rig.ask(&renew(4), &[]), PeerAnswer::Unknown);
    assert_eq!(
        rig.service
            .start_read(rig.now_us, RecoveryId(1), ServerId::new(8, 8), SegmentId(0))
            .1,
        []
    );
    assert_eq!(rig.start_read(0).0.lease_left_ms, LEASE_MS - 30, "B4");

    let mut rig = Rig::new();
    assert_eq!(
        rig.ask(&write(1, Kind::Control, &bytes), &bytes),
        stored(true)
    );
    rig.now_us += 90_000;
    assert_eq!(rig.ask(&renew(1), &[]), PeerAnswer::Leased);
    rig.now_us += 90_000;
    assert_eq!(rig.start_read(0).0.lease_left_ms, LEASE_MS - 90);
    // A holder of data alone grants no lease.
    let mut rig = Rig::new();
    let data = header(2, Kind::Head);
    assert_eq!(rig.ask(&write(2, Kind::Head, &data), &data), stored(false));
    assert_eq!(rig.start_read(0).0.lease_left_ms, 0);
}

#[test]
fn an_open_control_segment_below_the_bound_does_not_count() {
    let mut rig = Rig::new();
    for segment in [1, 4] {
        let bytes = header(segment, Kind::Control);
        assert_eq!(
            rig.ask(&write(segment, Kind::Control, &bytes), &bytes),
            stored(true)
        );
    }
    assert_eq!(rig.start_read(0).0.control, Some(SegmentId(4)));
    assert_eq!(rig.start_read(4).0.control, Some(SegmentId(4)));
    let (replicas, payload) = rig.start_read(5);
    assert_eq!((replicas.control, replicas.segments.len()), (None, 2));
    assert!(payload.is_empty());
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    let mut rig = Rig::new();
    let bytes = header(1, Kind::Head);
    let question = write(1, Kind::Head, &bytes);
    let Peer::WriteReplica(good) = question else {
        panic!();
    };
    let other = ServerId::new(4, 1);
    for sender in [other, ServerId::NONE, ServerId::coordinator(1)] {
        let answer = rig
            .ask_as(sender, &question, &bytes)
            .pop()
            .expect("at once")
            .answer;
        assert!(invalid(&answer), "B3: {answer:?}");
    }
    let mut damaged = bytes.clone();
    damaged[5] ^= 1;
    let too_long = vec![0; SEGMENT_BYTES as usize + 1];
    let cases = [
        (good, &damaged[..], "certificate"),
        (
            WriteReplica {
                certificate: None,
                ..good
            },
            &too_long[..],
            "long",
        ),
        (
            WriteReplica {
                capacity: SEGMENT_BYTES * 2,
                ..good
            },
            &bytes[..],
            "capacity",
        ),
        (
            WriteReplica {
                offset: u32::MAX,
                ..good
            },
            &bytes[..],
            "offset",
        ),
    ];
    for (write, payload, what) in cases {
        let answer = rig.ask(&Peer::WriteReplica(write), payload);
        let is_refused = match what {
            "certificate" => matches!(answer, PeerAnswer::Bad { .. }), // remote::Q11
            _ => invalid(&answer),
        };
        assert!(is_refused, "{what}: {answer:?}");
    }
    let gap = Peer::WriteReplica(WriteReplica {
        open: false,
        offset: 64,
        ..good
    });
    assert_eq!(rig.ask(&gap, &bytes), PeerAnswer::Unknown);
    assert!(invalid(&rig.ask(&Peer::Ping { nonce: 1 }, &[])));
    assert!(
        rig.run().is_empty() && rig.backup.replicas().is_empty() && rig.service.due_us().is_none()
    );
    // An older epoch.
    assert_eq!(rig.ask(&question, &bytes), stored(false));
    let newer = Peer::WriteReplica(WriteReplica { epoch: 3, ..good });
    assert_eq!(rig.ask(&newer, &bytes), stored(false));
    assert_eq!(rig.ask(&question, &bytes), PeerAnswer::OldEpoch { has: 3 });
}

fn ask_read(rig: &mut Rig, read: &ReadReplica) -> (PeerAnswer, Vec<u8>) {
    let question = Peer::ReadReplica(read.clone());
    let mut replies = rig.ask_as(ServerId::new(5, 1), &question, &[]);
    let reply = replies.pop().expect("at once");
    (reply.answer, reply.payload.to_vec())
}

/// The keys of the entries of all answers, and the number of answers.
fn read_all(rig: &mut Rig, read: &ReadReplica) -> (Vec<String>, usize) {
    let mut read = read.clone();
    let (mut found, mut answers) = (Vec::new(), 0);
    loop {
        let (answer, payload) = ask_read(rig, &read);
        let PeerAnswer::Entries { next, entries } = answer else {
            panic!("{answer:?}");
        };
        let mut rest = &payload[..];
        for _ in 0..entries {
            let entry = entry::parse(rest).unwrap();
            found.push(String::from_utf8(entry.key.to_vec()).unwrap());
            rest = &rest[entry.padded_bytes..];
        }
        assert!(rest.is_empty() && (payload.len() <= 300 || entries == 1));
        answers += 1;
        match next {
            Some(next) => read.offset = next,
            None => return (found, answers),
        }
    }
}

/// Reads at places where no entry begins, and of replicas that differ from the requester's record.
fn refuses_other_reads(rig: &mut Rig, read: &ReadReplica, bytes: &[u8]) {
    for offset in [3, u32::MAX] {
        let read = ReadReplica {
            offset,
            ..read.clone()
        };
        assert!(invalid(&ask_read(rig, &read).0));
    }
    let shorter = Certificate::of(&bytes[..64]);
    let other = ReadReplica {
        certificate: shorter,
        ..read.clone()
    };
    assert!(
        matches!(ask_read(rig, &other).0, PeerAnswer::Bad { .. }),
        "B5"
    );
    let missing = ReadReplica {
        segment: SegmentId(77),
        ..read.clone()
    };
    assert!(matches!(
        ask_read(rig, &missing).0,
        PeerAnswer::NotYet { .. }
    ));
    assert!(rig.read_step());
    assert!(matches!(ask_read(rig, &missing).0, PeerAnswer::Bad { .. }));
}

#[test]
fn a_recovery_reads_its_partition_whole_and_nothing_else() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let bytes = segment_of(2, &keys);
    assert_eq!(
        rig.ask(&write(2, Kind::Head, &bytes), &bytes),
        stored(false)
    );
    let middle = RouteHash(u64::MAX / 2);
    let tablet = |table, range, creation| RecoverTablet {
        table,
        range,
        creation,
    };
    let low = KeyRange::new(RouteHash::MIN, middle);
    let read = ReadReplica {
        recovery: RecoveryId(1),
        partition: 0,
        log: MASTER,
        segment: SegmentId(2),
        certificate: Certificate::of(&bytes),
        tablets: vec![
            tablet(TABLE, low, SegmentId(2)),
            tablet(
                TABLE,
                KeyRange::new(middle.next().unwrap(), RouteHash::MAX),
                SegmentId(3),
            ),
            tablet(TableId(9), KeyRange::ALL, SegmentId::NONE),
        ],
        offset: 0,
        bytes_max: 300,
    };
    assert!(invalid(&ask_read(&mut rig, &read).0), "nobody recovers it");
    rig.start_read(0);
    assert!(matches!(
        ask_read(&mut rig, &read).0,
        PeerAnswer::NotYet { .. }
    ));
    assert!(rig.read_step() && !rig.read_step());
    let (mut found, answers) = read_all(&mut rig, &read);
    let hasher = KeyHasher::new(SEED);
    let mut expected = names.clone();
    expected.retain(|key| low.contains(hasher.route(key.as_bytes())));
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    assert!(answers > 10 && expected.len() > 50);
    refuses_other_reads(&mut rig, &read, &bytes);
}

/// The disk's replicas of the master's log, in the form of a message to the master.
fn held(rig: &Rig) -> Vec<ReplicaEntry> {
    let replicas = rig.backup.replicas_of(MASTER.number());
    let entry = |replica: &duramen_backup::ReplicaInfo| ReplicaEntry {
        segment: replica.segment,
        kind: replica.kind,
        epoch: replica.epoch,
        certificate: replica.certificate(),
        closed: replica.closed,
        primary: false,
    };
    replicas.iter().map(entry).collect()
}

#[test]
fn what_its_master_does_not_need_goes_if_it_still_is_what_was_asked_about() {
    let mut rig = Rig::new();
    for segment in [1, 2, 3, 4] {
        let bytes = header(segment, Kind::Head);
        assert_eq!(
            rig.ask(&write(segment, Kind::Head, &bytes), &bytes),
            stored(false)
        );
    }
    let mut asked = held(&rig);
    asked.truncate(3);
    // While the answer was in flight, segment 3 was begun anew here, at a higher epoch.
    let bytes = header(3, Kind::Head);
    let Peer::WriteReplica(anew) = write(3, Kind::Head, &bytes) else {
        unreachable!("it is a write");
    };
    let anew = Peer::WriteReplica(WriteReplica { epoch: 5, ..anew });
    let waiting = rig.ask_as(MASTER, &anew, &bytes);
    assert!(waiting.is_empty(), "it is only staged");
    assert_eq!(
        rig.service.not_needed(MASTER, &asked[2..]).unwrap(),
        0,
        "B8"
    );
    rig.run();
    assert_eq!(rig.service.not_needed(MASTER, &asked).unwrap(), 2, "B8");
    let left: Vec<u64> = held(&rig).iter().map(|r| r.segment.0).collect();
    assert_eq!(left, [3, 4]);
    rig.start_read(0);
    let asked = held(&rig);
    assert!(rig.service.not_needed(MASTER, &asked).is_err());
    assert_eq!(rig.service.removed(MASTER).unwrap(), 2);
    assert!(rig.backup.replicas().is_empty());
    let late = header(9, Kind::Head);
    assert_eq!(
        rig.ask(&write(9, Kind::Head, &late), &late),
        PeerAnswer::Fenced,
        "B9"
    );
}

/// A fence commits the staged chunks, and they are reported: so their lease must have begun,
/// although no master was answered.
#[test]
fn a_control_segment_that_was_only_staged_is_told_of_with_its_lease() {
    let mut rig = Rig::new();
    let bytes = header(1, Kind::Control);
    let question = write(1, Kind::Control, &bytes);
    assert!(rig.ask_as(MASTER, &question, &bytes).is_empty());
    let (replicas, _) = rig.start_read(0);
    assert_eq!(replicas.control, Some(SegmentId(1)));
    assert_eq!(replicas.lease_left_ms, LEASE_MS, "B6");
}

#[test]
fn a_control_segment_that_was_freed_does_not_come_back_by_a_late_copy() {
    let mut rig = Rig::new();
    let bytes = header(1, Kind::Control);
    let opening = write(1, Kind::Control, &bytes);
    assert_eq!(rig.ask(&opening, &bytes), stored(true));
    let segments = vec![SegmentId(1)];
    let free = Peer::FreeReplicas {
        log: MASTER,
        segments,
    };
    assert_eq!(rig.ask(&free, &[]), PeerAnswer::Freed);
    assert_eq!(rig.ask(&opening, &bytes), PeerAnswer::Unknown, "B7");
    assert_eq!(rig.backup.replicas_of(MASTER.number()).len(), 0);
    let bytes = header(2, Kind::Control);
    let next = write(2, Kind::Control, &bytes);
    assert_eq!(rig.ask(&next, &bytes), stored(true));
}

/// Its master may have chosen another backup since: all later requests of the same opening are
/// refused, also when there is room again.
#[test]
fn an_opening_of_a_control_segment_that_was_refused_is_not_taken_later() {
    let mut rig = Rig::new();
    let opening_of = |segment, kind| {
        (
            write(segment, kind, &header(segment, kind)),
            header(segment, kind),
        )
    };
    let mut taken = Vec::new();
    for segment in 10..10 + u64::from(FRAMES) {
        let (opening, bytes) = opening_of(segment, Kind::Head);
        match rig.ask(&opening, &bytes) {
            PeerAnswer::Busy => break,
            _ => taken.push(SegmentId(segment)),
        }
    }
    assert!(taken.len() < FRAMES as usize, "there is always room");
    // A full backup was not visible while its masters' writes waited.
    let (_, why) = rig.service.lacks_room().expect("it tells");
    assert!(why.contains("takes no new segments now"), "{why}");
    let (opening, bytes) = opening_of(1, Kind::Control);
    assert_eq!(rig.ask(&opening, &bytes), PeerAnswer::Busy);
    let free = Peer::FreeReplicas {
        log: MASTER,
        segments: taken,
    };
    assert_eq!(rig.ask(&free, &[]), PeerAnswer::Freed);
    assert_eq!(rig.ask(&opening, &bytes), PeerAnswer::Busy, "B10");
    assert_eq!(rig.backup.replicas_of(MASTER.number()).len(), 0);
    let (next, next_bytes) = opening_of(2, Kind::Control);
    assert_eq!(rig.ask(&next, &next_bytes), stored(true), "another segment");
    assert_eq!(rig.service.lacks_room(), None);
    let Peer::WriteReplica(again) = opening else {
        unreachable!("it is a write");
    };
    let again = Peer::WriteReplica(WriteReplica { epoch: 2, ..again });
    assert_eq!(rig.ask(&again, &bytes), stored(true), "another opening");
}

#[test]
fn a_master_gets_a_whole_closed_segment_and_nothing_else() {
    let mut rig = Rig::new();
    let bytes = header(2, Kind::Head);
    assert_eq!(
        rig.ask(&write(2, Kind::Head, &bytes), &bytes),
        stored(false)
    );
    let read = |segment, bytes: &[u8]| Peer::ReadSegment {
        log: MASTER,
        segment: SegmentId(segment),
        certificate: Certificate::of(bytes),
    };
    let is_bad = |answer| matches!(answer, PeerAnswer::Bad { .. });
    assert!(is_bad(rig.ask(&read(2, &bytes), &[])), "it is open");
    let Peer::WriteReplica(opening) = write(2, Kind::Head, &bytes) else {
        unreachable!("it is one")
    };
    let close = Peer::WriteReplica(WriteReplica {
        open: false,
        close: true,
        offset: bytes.len() as u32,
        ..opening
    });
    assert_eq!(rig.ask(&close, &[]), stored(false));
    let reply = rig.ask_as(MASTER, &read(2, &bytes), &[]).pop().unwrap();
    assert_eq!(
        (reply.answer, reply.payload.to_vec()),
        (PeerAnswer::Segment, bytes)
    );
    assert!(is_bad(rig.ask(&read(2, b"other"), &[])));
    assert!(is_bad(rig.ask(&read(3, b"none"), &[])));
    let other = ServerId::new(4, 7);
    let reply = rig.ask_as(other, &read(2, b"other"), &[]).pop().unwrap();
    assert!(matches!(
        reply.answer,
        PeerAnswer::Refused(Refusal::Invalid(_))
    ));
    rig.start_read(0);
    assert_eq!(rig.ask(&read(2, b""), &[]), PeerAnswer::Fenced);
}

mod bugs {
    use super::*;
    use duramen_base::planted::{Bug, with_bug};

    fn is_found(bug: Bug, scenario: fn()) {
        assert!(std::panic::catch_unwind(|| with_bug(bug, scenario)).is_err());
    }

    #[test]
    fn a_lease_that_begins_with_the_answer_is_found() {
        is_found(
            Bug::LeaseWithAnswer,
            a_control_segment_that_was_only_staged_is_told_of_with_its_lease,
        );
    }

    #[test]
    fn a_freed_control_segment_that_opens_again_is_found() {
        is_found(
            Bug::FreedControlOpens,
            a_control_segment_that_was_freed_does_not_come_back_by_a_late_copy,
        );
    }

    #[test]
    fn a_refused_opening_that_is_taken_later_is_found() {
        is_found(
            Bug::RefusedOpeningTaken,
            an_opening_of_a_control_segment_that_was_refused_is_not_taken_later,
        );
    }

    #[test]
    fn a_hand_back_that_is_not_compared_is_found() {
        is_found(
            Bug::HandBackUncompared,
            what_its_master_does_not_need_goes_if_it_still_is_what_was_asked_about,
        );
    }

    #[test]
    fn a_fence_that_goes_with_its_log_is_found() {
        is_found(
            Bug::FenceForgotten,
            what_its_master_does_not_need_goes_if_it_still_is_what_was_asked_about,
        );
    }
}

/// `backup_service::B11`: after a restart.
#[test]
fn an_open_replica_of_an_earlier_process_is_reported_as_such() {
    let mut rig = Rig::new();
    for segment in [2, 3, 4] {
        let bytes = header(segment, Kind::Head);
        let mut open = write(segment, Kind::Head, &bytes);
        if let Peer::WriteReplica(write) = &mut open {
            write.close = segment == 4;
        }
        assert_eq!(rig.ask(&open, &bytes), stored(false));
    }
    rig.service = service_of(rig.backup.clone());
    let bytes = header(3, Kind::Head);
    let mut again = write(3, Kind::Head, &bytes);
    if let Peer::WriteReplica(write) = &mut again {
        write.epoch = 2;
    }
    assert_eq!(rig.ask(&again, &bytes), stored(false));
    assert_eq!(rig.start_read(0).0.inherited, [SegmentId(2)]);
}
