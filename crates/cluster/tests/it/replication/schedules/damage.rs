//! Backups find what they are sent damaged.

use super::config;
use super::scenarios::{end, polled};
use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::control::State;
use duramen_cluster::replication::{BackupId, Config, Effect, Master, Rejection, Send};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, BTreeSet};

const SEGMENT: SegmentId = SegmentId(100);

fn master(backups: u64, coordinated: bool) -> Master {
    let config = Config {
        replicas: 2,
        coordinated,
        ..config(false)
    };
    let backups: Vec<BackupId> = (1..=backups).map(BackupId).collect();
    Master::new(config, State::default(), &backups, &[])
}

/// The network card of a master changes bits, or its certificate of an open segment did: all
/// backups find all that is new damaged. One after the other lost its replica, and dropped it, with
/// the acknowledged bytes that no other one had.
pub fn a_fault_of_the_master_frees_nothing() {
    let mut master = master(3, false);
    let mut next = 0;
    let mut held: BTreeMap<BackupId, u32> = BTreeMap::new();
    master.opened(SEGMENT, Kind::Head, 0);
    master.appended(SEGMENT, Certificate::of(&[7; 100]));
    for _ in 0..10 {
        for effect in polled(&mut master, &mut next) {
            if let Effect::Send(send) = effect {
                if send.segment == SEGMENT {
                    held.insert(send.backup, send.certificate.length);
                }
                master.replicas_mut().acked(send.ticket, Level::Synced);
            }
        }
    }
    assert_eq!(master.durable_bytes(SEGMENT, Level::Synced), 100);
    let slow = *held.keys().next().expect("a holder");
    master.appended(SEGMENT, Certificate::of(&[7; 200]));
    let mut late: Vec<Send> = Vec::new();
    for round in 0..30 {
        for _ in 0..5 {
            for effect in polled(&mut master, &mut next) {
                match effect {
                    Effect::Send(send) if send.segment != SEGMENT => {
                        master.replicas_mut().acked(send.ticket, Level::Synced);
                    }
                    Effect::Send(send) if send.from == send.certificate.length => {
                        master.replicas_mut().acked(send.ticket, Level::Synced);
                    }
                    Effect::Send(send) if send.backup == slow && round < 5 => late.push(send),
                    Effect::Send(send) => master.rejected(send.ticket, Rejection::Damaged),
                    Effect::Free { backup, segment } => {
                        assert_ne!(segment, SEGMENT, "{backup:?} frees acknowledged bytes");
                        master.replicas_mut().freed(backup, segment);
                    }
                    _ => {}
                }
            }
        }
        if round == 5 {
            let late = late.drain(..);
            late.for_each(|send| master.rejected(send.ticket, Rejection::Damaged));
        }
        master.replicas_mut().forgive();
    }
    assert!(master.fault().is_some(), "{}", master.describe());
    assert!(
        polled(&mut master, &mut next).is_empty(),
        "nobody else is blamed"
    );
}

#[test]
fn backups_that_refuse_the_same_bytes_free_nothing() {
    a_fault_of_the_master_frees_nothing();
}

/// A link changes a bit now and then. That is no reason to blame anybody.
#[test]
fn what_is_damaged_now_and_then_is_sent_again() {
    let mut master = master(3, false);
    let (mut next, mut calls, mut holders) = (0, 0, BTreeSet::new());
    master.opened(SEGMENT, Kind::Head, 0);
    for length in 1..100 {
        master.appended(SEGMENT, Certificate::of(&vec![7; length]));
        for _ in 0..6 {
            for effect in polled(&mut master, &mut next) {
                match effect {
                    Effect::Send(send) if send.from != send.certificate.length => {
                        calls += 1;
                        holders.extend((send.segment == SEGMENT).then_some(send.backup));
                        match calls % 3 {
                            0 => master.rejected(send.ticket, Rejection::Damaged),
                            _ => master.replicas_mut().acked(send.ticket, Level::Synced),
                        }
                    }
                    effect => end(&mut master, vec![effect]),
                }
            }
        }
        let durable = master.durable_bytes(SEGMENT, Level::Synced);
        assert_eq!(durable, length as u32, "{}", master.describe());
    }
    assert_eq!((master.fault(), holders.len()), (None, 2));
}

/// The bytes of an open segment exist nowhere any more. Its head waited for ever, while the member
/// counted as well.
#[test]
fn an_open_segment_without_bytes_ends_this_life() {
    let mut master = master(3, false);
    let mut next = 0;
    master.opened(SEGMENT, Kind::Head, 0);
    master.appended(SEGMENT, Certificate::of(&[7; 100]));
    let mut is_given_up = false;
    for _ in 0..10 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send) if send.segment == SEGMENT && send.certificate.length > 0 => {
                    is_given_up = true;
                    master.give_up(send.ticket);
                }
                effect => end(&mut master, vec![effect]),
            }
        }
    }
    assert!(is_given_up && master.is_fenced());
    assert!(master.fault().is_some_and(|why| why.contains("100")));
}

/// A backup finds the opening of a control segment damaged each time, and then a repetition of it
/// arrives undamaged. This replica may be taken for the log: so its backup's lease is needed, and
/// the coordinator has to note the next control segment.
#[test]
fn o10_a_damaged_opening_of_a_control_segment_may_be_there() {
    let mut master = master(4, true);
    let mut next = 0;
    for _ in 0..10 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::ControlHead { min_open } => master.control_head_noted(min_open),
                effect => end(&mut master, vec![effect]),
            }
        }
    }
    assert!(master.is_idle() && next == 1);
    master.renew_control();
    let mut bad = None;
    for _ in 0..20 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send)
                    if send.segment == SegmentId(2)
                        && *bad.get_or_insert(send.backup) == send.backup =>
                {
                    assert!(send.open);
                    master.rejected(send.ticket, Rejection::Damaged);
                    let needed = master.control_holders();
                    assert!(needed.contains(&send.backup), "a repetition may be there");
                }
                // The coordinator does not answer yet.
                Effect::ControlHead { min_open } => assert_eq!(min_open, SegmentId(3)),
                effect => end(&mut master, vec![effect]),
            }
        }
        master.replicas_mut().forgive();
    }
    let bad = bad.expect("two backups get the second control segment");
    assert_eq!(next, 3, "the log continues in a third one");
    assert!(master.control_holders().contains(&bad));
    assert!(!master.is_idle(), "the coordinator has to note it");
    master.control_head_noted(SegmentId(3));
    for _ in 0..10 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert!(master.is_idle(), "{}", master.describe());
    assert!(!master.control_holders().contains(&bad) || master.segments().holds(bad, SegmentId(3)));
}
