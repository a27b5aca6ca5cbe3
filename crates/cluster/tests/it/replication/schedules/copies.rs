//! Copies of closed segments, in place of those that a lost backup had.

use super::config;
use super::scenarios::{close_all, end, polled};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_cluster::control::State;
use duramen_cluster::replication::{BackupId, Config, Effect, Found, Master, Rejection, Send};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::ops::Range;

/// The replicas of closed segments that a backup has when it is up again.
fn found_on(backup: BackupId, segments: [SegmentId; 3], certificate: Certificate) -> [Found; 3] {
    segments.map(|segment| Found {
        backup,
        segment,
        epoch: 0,
        certificate,
        closed: true,
    })
}

/// A master among so many backups, which lacks one of two replicas of many of its closed segments,
/// because the first of them was lost; the id of its last control segment; the closed segments. An
/// open one is 200.
fn with_one_lost(backups: u64) -> (Master, u64, Vec<SegmentId>) {
    with_lost(backups, 100..140)
}

/// As [`with_one_lost`], with these closed segments.
fn with_lost(backups: u64, closed: Range<u64>) -> (Master, u64, Vec<SegmentId>) {
    let config = Config {
        replicas: 2,
        writes_max: 16,
        copies_max: 2,
        ..config(false)
    };
    let backups: Vec<BackupId> = (1..=backups).map(BackupId).collect();
    let mut master = Master::new(config, State::default(), &backups, &[]);
    let (mut next, certificate) = (0, Certificate::of(&[7; 500]));
    let closed: Vec<SegmentId> = closed.map(SegmentId).collect();
    for segment in &closed {
        master.opened(*segment, Kind::Head, segment.0 as u32);
        master.appended(*segment, certificate);
        master.closed(*segment);
    }
    let head = SegmentId(200);
    master.opened(head, Kind::Head, 0);
    master.appended(head, Certificate::of(&[7; 100]));
    for _ in 0..closed.len() + 20 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert!(master.is_idle(), "{}", master.describe());
    master.backup_lost(backups[0]);
    (master, next, closed)
}

/// Number of the segments that are not on all their backups.
fn missing(master: &Master, closed: &[SegmentId]) -> usize {
    let missing = closed.iter().filter(|segment| !master.is_safe(**segment));
    missing.count()
}

/// A lost backup had replicas of all closed segments, whose copies are on their way. Returns their
/// number, the bytes of a head that are durable in the poll after each write, and whether all is
/// whole once the copies are answered.
fn writes_beside_copies() -> (usize, Vec<u32>, bool) {
    let (mut master, mut next, closed) = with_one_lost(3);
    let head = SegmentId(200);
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
    let waiting = format!(" {} copies wait", missing(&master, &closed) - under_way);
    assert!(master.describe().contains(&waiting), "{waiting}");
    let mut durable = Vec::new();
    for length in 101..=103 {
        master.appended(head, Certificate::of(&vec![7; length]));
        turn(&mut master, &mut copies);
        durable.push(master.durable_bytes(head, Level::Synced));
    }
    for _ in 0..closed.len() {
        let answered = copies.drain(..).map(|send| send.ticket);
        answered.for_each(|ticket| master.replicas_mut().acked(ticket, Level::Synced));
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

/// A lost backup had replicas of many closed segments, and the others refuse copies. Each poll
/// walked all of these segments, and asked for a sync, until the lost backup was back.
#[test]
fn copies_that_all_backups_refuse_are_parked() {
    let (mut master, mut next, closed) = with_one_lost(3);
    let short = missing(&master, &closed);
    assert!(short > 10, "{short}");
    for _ in 0..3 {
        let mut asked = 0;
        for _ in 0..20 {
            for effect in polled(&mut master, &mut next) {
                match effect {
                    Effect::Send(send) if closed.contains(&send.segment) => {
                        asked += 1;
                        master.rejected(send.ticket, Rejection::Busy);
                    }
                    effect => end(&mut master, vec![effect]),
                }
            }
        }
        assert!((2..=4).contains(&asked), "{asked}");
        let described = master.describe();
        let parked = format!(" 0 copies wait, {short} find no backup,");
        assert!(described.contains(&parked), "{described}");
        assert!(!master.wants_sync() && !master.is_idle(), "{described}");
        for _ in 0..20 {
            master.replicas_mut().forgive();
        }
        let described = master.describe();
        let waiting = format!(" {short} copies wait, 0 find no backup,");
        assert!(described.contains(&waiting), "{described}");
    }
    for _ in 0..60 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert_eq!(missing(&master, &closed), 0);
    assert!(master.is_idle(), "{}", master.describe());
}

/// When backups were forgiven, the next poll looked at all segments that had found no backup for a
/// copy, while writes waited for it.
#[test]
fn one_poll_looks_at_some_of_the_parked_copies() {
    let (mut master, mut next, closed) = with_lost(3, 1_000..1_300);
    let short = missing(&master, &closed);
    assert!(short > 150, "{short}");
    let parked = |master: &Master| {
        let described = master.describe();
        let before = described.split(" find no backup").next();
        let number = before.and_then(|text| text.rsplit(' ').next());
        let number = number.and_then(|number| number.parse::<usize>().ok());
        number.expect("a number")
    };
    for _ in 0..2 {
        let (mut before, mut polls) = (0, 0);
        for _ in 0..20 {
            for effect in polled(&mut master, &mut next) {
                match effect {
                    Effect::Send(send) if closed.contains(&send.segment) => {
                        master.rejected(send.ticket, Rejection::Busy);
                    }
                    effect => end(&mut master, vec![effect]),
                }
            }
            let now = parked(&master);
            // Those that were refused themselves are looked at too.
            assert!(now <= before + 128 + 4, "{now} after {before}");
            polls += usize::from(now > before);
            before = now;
        }
        assert!(before == short && polls > 1, "{before} of {short}");
        for _ in 0..20 {
            master.replicas_mut().forgive();
        }
        assert_eq!(parked(&master), 0);
    }
    for _ in 0..2 * closed.len() {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert_eq!(missing(&master, &closed), 0);
    assert!(master.is_idle(), "{}", master.describe());
}

/// Segments that find no backup for a copy give it to one that joins.
#[test]
fn parked_copies_go_to_a_backup_that_joins() {
    let (mut master, mut next, closed) = with_one_lost(2);
    for _ in 0..20 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    let described = master.describe();
    let parked = format!(" 0 copies wait, {} find no backup,", closed.len());
    assert!(described.contains(&parked), "{described}");
    master.backup_up(BackupId(3));
    for _ in 0..60 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert_eq!(missing(&master, &closed), 0);
    assert!(master.is_idle(), "{}", master.describe());
}

/// Number of segments that lack a copy, at first and after a while: one of three backups refuses
/// copies.
fn missing_beside_one_that_refuses() -> (usize, usize) {
    let (mut master, mut next, closed) = with_one_lost(4);
    let short = missing(&master, &closed);
    for _ in 0..60 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send)
                    if send.backup == BackupId(2) && closed.contains(&send.segment) =>
                {
                    master.rejected(send.ticket, Rejection::Busy);
                }
                effect => end(&mut master, vec![effect]),
            }
        }
    }
    (short, missing(&master, &closed))
}

/// When a backup was lost, copies were planned on all others. One that refused two of them kept
/// all that were planned there, two every two seconds excepted, though another one took them.
#[test]
fn copies_go_where_they_are_not_refused() {
    let (short, left) = missing_beside_one_that_refuses();
    assert!(short > 10, "{short}");
    assert_eq!(left, 0);
}

#[test]
fn copies_that_stay_planned_where_they_are_refused_are_found() {
    let (_, left) = with_bug(Bug::RefusedPlansStay, missing_beside_one_that_refuses);
    assert!(left > 0, "not found");
}

/// A backup is restarted and still has whole replicas. Copies of all of them were planned on
/// another backup when it went, and one was sent: nearly everything was copied after a short
/// restart. Or its disk was silent for four seconds, and it is back under the same name.
#[test]
fn replicas_count_again_where_copies_are_only_planned() {
    for back in [BackupId(11), BackupId(1)] {
        count_again_at(back);
    }
}

/// The backup 1 is lost, and `back` has its replicas.
fn count_again_at(back: BackupId) {
    let (crashed, one, two) = (BackupId(1), BackupId(2), BackupId(3));
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
    let found = found_on(back, segments, certificate);
    assert_eq!(master.hand_back(back, &found), []);
    for segment in segments {
        assert_eq!(master.is_safe(segment), segment != copy.segment);
        assert_eq!(
            master.segments().holds(back, segment),
            segment != copy.segment
        );
    }
    master.replicas_mut().acked(copy.ticket, Level::Synced);
    for effect in polled(&mut master, &mut next) {
        assert!(!matches!(effect, Effect::Send(send) if segments.contains(&send.segment)));
        end(&mut master, vec![effect]);
    }
    // The others have this one by now.
    assert_eq!(master.hand_back(back, &found), [copy.segment]);
    assert!(segments.iter().all(|segment| master.is_safe(*segment)));
}

/// A backup with whole replicas is silent, twice in a row if `twice`. It comes back under its
/// name, and is sent copies of `sent` of three segments, which are under way when it is silent
/// again. Returns the number of its old replicas that count in the end.
fn counted_after_silence(twice: bool, sent: usize) -> usize {
    let (silent, other) = (BackupId(1), BackupId(2));
    let config = Config {
        replicas: 2,
        copies_max: sent.max(1),
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &[silent, other], &[]);
    let (mut next, certificate) = (0, Certificate::of(&[7; 500]));
    let segments = [100, 101, 102].map(SegmentId);
    close_all(&mut master, &mut next, segments, certificate);
    let found = found_on(silent, segments, certificate);
    master.backup_lost(silent);
    assert_eq!(master.hand_back(silent, &found), [], "it is not known");
    assert!(
        !segments
            .iter()
            .any(|segment| master.segments().holds(silent, *segment))
    );
    master.backup_up(silent);
    if sent > 0 {
        // The control log needs another backup first.
        let mut copies = 0;
        for _ in 0..10 {
            for effect in polled(&mut master, &mut next) {
                match effect {
                    Effect::Send(send) if segments.contains(&send.segment) => copies += 1,
                    effect => end(&mut master, vec![effect]),
                }
            }
        }
        assert_eq!(copies, sent);
    } else {
        assert_eq!(master.hand_back(silent, &found), []);
    }
    if twice {
        master.backup_lost(silent);
        master.backup_up(silent);
    }
    assert_eq!(master.hand_back(silent, &found), []);
    let counted = segments.iter().filter(|segment| master.is_safe(**segment));
    counted.count()
}

/// All replicas on a backup whose disk hung for four seconds were lost for good, and all data was
/// copied. A copy that was sent there meanwhile may still arrive, and take an old one's place.
#[test]
fn replicas_of_a_silent_backup_count_unless_they_were_sent_anew() {
    for (sent, counted) in [(0, 3), (1, 2), (3, 0)] {
        for twice in [false, true] {
            let found = counted_after_silence(twice, sent);
            assert_eq!(found, counted, "{sent} sent anew, twice: {twice}");
        }
    }
}

#[test]
fn replicas_that_count_beside_those_sent_anew_are_found() {
    let counted = with_bug(Bug::SentAnewCounts, || counted_after_silence(true, 3));
    assert_eq!(counted, 3, "not found");
}

/// A backup has found its replicas damaged, and drops them if others are there. They do not count
/// again when it was silent.
#[test]
fn replicas_that_are_lost_for_another_reason_do_not_count_again() {
    let (silent, one, two) = (BackupId(1), BackupId(2), BackupId(3));
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    for are_freed in [false, true] {
        let mut master = Master::new(config, State::default(), &[silent, one], &[]);
        let (mut next, certificate) = (0, Certificate::of(&[7; 500]));
        let segments = [100, 101, 102].map(SegmentId);
        close_all(&mut master, &mut next, segments, certificate);
        master.backup_up(two);
        master.replica_damaged(silent, &segments);
        for _ in 0..10 {
            let effects = polled(&mut master, &mut next);
            if are_freed {
                end(&mut master, effects);
            }
        }
        master.backup_lost(silent);
        master.backup_up(silent);
        master.backup_lost(two);
        let found = found_on(silent, segments, certificate);
        assert_eq!(master.hand_back(silent, &found), []);
        for segment in segments {
            assert!(
                !master.segments().holds(silent, segment),
                "freed: {are_freed}"
            );
        }
    }
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
