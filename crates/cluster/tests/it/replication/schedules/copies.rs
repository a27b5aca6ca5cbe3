//! Copies of closed segments, in place of those that a lost backup had.

use super::config;
use super::scenarios::{close_all, end, polled};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_cluster::control::State;
use duramen_cluster::replication::{BackupId, Config, Effect, Found, Master, Send};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;

/// A lost backup had replicas of all closed segments, whose copies are on their way. Returns their
/// number, the bytes of a head that are durable in the poll after each write, and whether all is
/// whole once the copies are answered.
fn writes_beside_copies() -> (usize, Vec<u32>, bool) {
    let config = Config {
        replicas: 2,
        writes_max: 16,
        copies_max: 2,
        ..config(false)
    };
    let backups = [1, 2, 3].map(BackupId);
    let mut master = Master::new(config, State::default(), &backups, &[]);
    let (mut next, certificate) = (0, Certificate::of(&[7; 500]));
    let closed: Vec<SegmentId> = (100..140).map(SegmentId).collect();
    for segment in &closed {
        master.opened(*segment, Kind::Head, segment.0 as u32);
        master.appended(*segment, certificate);
        master.closed(*segment);
    }
    let head = SegmentId(200);
    master.opened(head, Kind::Head, 0);
    master.appended(head, Certificate::of(&[7; 100]));
    for _ in 0..60 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert!(master.is_idle(), "{}", master.describe());
    master.backup_lost(backups[0]);
    let mut copies = Vec::new();
    let mut turn = |master: &mut Master, copies: &mut Vec<Send>| {
        for effect in polled(master, &mut next) {
            match effect {
                Effect::Send(send) if closed.contains(&send.segment) => copies.push(send),
                effect => end(master, vec![effect]),
            }
        }
    };
    for _ in 0..20 {
        turn(&mut master, &mut copies);
    }
    let under_way = copies.len();
    let missing = closed.iter().filter(|segment| !master.is_safe(**segment));
    let waiting = format!(" {} copies wait", missing.count() - under_way);
    assert!(master.describe().contains(&waiting), "{waiting}");
    let mut durable = Vec::new();
    for length in 101..=103 {
        master.appended(head, Certificate::of(&vec![7; length]));
        turn(&mut master, &mut copies);
        durable.push(master.durable_bytes(head, Level::Synced));
    }
    for _ in 0..closed.len() {
        let answered = copies.drain(..).map(|send| send.ticket);
        answered.for_each(|ticket| master.acked(ticket, Level::Synced));
        turn(&mut master, &mut copies);
    }
    let is_whole = copies.is_empty() && closed.iter().all(|segment| master.is_safe(*segment));
    (under_way, durable, is_whole)
}

/// One copy at a time was carried, and each write waited for its turn behind them.
#[test]
fn copies_of_closed_segments_delay_no_write() {
    assert_eq!(writes_beside_copies(), (2, vec![101, 102, 103], true));
}

#[test]
fn copies_that_take_all_calls_are_found() {
    let (copies, durable, _) = with_bug(Bug::CopiesCrowdWrites, writes_beside_copies);
    assert_eq!(copies, 16);
    assert!(durable.iter().all(|bytes| *bytes <= 100), "{durable:?}");
}

/// A backup is restarted and still has whole replicas. Copies of all of them were planned on
/// another backup when it went, and one was sent: nearly everything was copied after a short
/// restart.
#[test]
fn replicas_count_again_where_copies_are_only_planned() {
    let (crashed, one, two, back) = (BackupId(1), BackupId(2), BackupId(3), BackupId(11));
    let config = Config {
        replicas: 2,
        copies_max: 1,
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &[crashed, one], &[]);
    let (mut next, certificate) = (0, Certificate::of(&[7; 500]));
    let segments = [100, 101, 102].map(SegmentId);
    close_all(&mut master, &mut next, segments, certificate);
    master.backup_up(two);
    master.backup_lost(crashed);
    let mut copies = Vec::new();
    for _ in 0..10 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send) if segments.contains(&send.segment) => copies.push(send),
                effect => end(&mut master, vec![effect]),
            }
        }
    }
    let [copy] = &copies[..] else {
        panic!("{copies:?}");
    };
    master.backup_up(back);
    let found = segments.map(|segment| Found {
        backup: back,
        segment,
        epoch: 0,
        certificate,
        closed: true,
    });
    assert_eq!(master.hand_back(back, &found), []);
    for segment in segments {
        assert_eq!(master.is_safe(segment), segment != copy.segment);
        assert_eq!(master.holds(back, segment), segment != copy.segment);
    }
    master.acked(copy.ticket, Level::Synced);
    for effect in polled(&mut master, &mut next) {
        assert!(!matches!(effect, Effect::Send(send) if segments.contains(&send.segment)));
        end(&mut master, vec![effect]);
    }
    // The others have this one by now.
    assert_eq!(master.hand_back(back, &found), [copy.segment]);
    assert!(segments.iter().all(|segment| master.is_safe(*segment)));
}

/// Copies wait for a call when the last backup with their bytes is lost. Such a segment was among
/// those that wait and among the others too: it came back after it was given up.
#[test]
fn copies_without_a_source_are_given_up_once() {
    let config = Config {
        replicas: 2,
        copies_max: 1,
        ..config(false)
    };
    let (crashed, last) = (BackupId(1), BackupId(2));
    let mut master = Master::new(config, State::default(), &[crashed, last], &[]);
    let mut next = 0;
    let segments = [100, 101, 102].map(SegmentId);
    close_all(&mut master, &mut next, segments, Certificate::of(&[7; 500]));
    master.backup_up(BackupId(3));
    master.backup_up(BackupId(4));
    master.backup_lost(crashed);
    let mut turn = |master: &mut Master| {
        let mut copies = Vec::new();
        for effect in polled(master, &mut next) {
            match effect {
                Effect::Send(send) if segments.contains(&send.segment) => copies.push(send),
                effect => end(master, vec![effect]),
            }
        }
        copies
    };
    let mut copies: Vec<Send> = (0..20).flat_map(|_| turn(&mut master)).collect();
    let described = master.describe();
    assert!(described.contains(" 2 copies wait"), "{described}");
    master.backup_lost(last);
    let mut given_up = Vec::new();
    for _ in 0..20 {
        for copy in copies.drain(..) {
            given_up.push(copy.segment);
            master.give_up(copy.ticket);
        }
        copies = turn(&mut master);
    }
    given_up.sort_unstable();
    assert_eq!(given_up, segments);
    let described = master.describe();
    for segment in segments {
        let line = format!(" segment {segment},");
        assert!(!described.contains(&line), "{described}");
    }
}
