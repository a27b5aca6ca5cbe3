//! Passes with victims that the control log does not list yet (replication::O15).

use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_cluster::control::State;
use duramen_cluster::replication::{BackupId, Config, Effect, Master};
use duramen_format::certificate::Certificate;
use duramen_format::control::{Pass, Record};
use duramen_format::segment::Kind;

const BACKUP: BackupId = BackupId(1);
const TOKEN: SegmentId = SegmentId(50);

/// One commit. In each part of the control log that it sends, a listed segment of `announced` is a
/// victim of the token's passes.
fn commit(master: &mut Master, next: &mut u64, announced: &[u64]) {
    let mut effects = Vec::new();
    let mut next_id = || {
        *next += 1;
        SegmentId(*next)
    };
    master.poll(&mut next_id, &mut effects);
    for effect in effects {
        let Effect::Send(send) = effect else { continue };
        if send.kind != Kind::Control {
            continue;
        }
        let bytes = &master.control().bytes(send.segment)[..send.certificate.length as usize];
        let state = State::replay(send.segment, bytes).expect("a whole control segment");
        for id in announced.iter().map(|id| SegmentId(*id)) {
            let is_announced = victims(&state).contains(&id);
            assert_eq!(state.segments.contains_key(&id), is_announced, "{id}");
        }
    }
    master.replicas_mut().acked_all(BACKUP, Level::Synced);
}

fn victims(state: &State) -> Vec<SegmentId> {
    let passes = state.passes.iter().filter(|pass| pass.first == TOKEN);
    passes.flat_map(|pass| pass.victims.clone()).collect()
}

fn announce(master: &mut Master, victims: &[u64]) {
    master.record(Record::Pass(Pass {
        first: TOKEN,
        count: 1,
        victims: victims.iter().map(|id| SegmentId(*id)).collect(),
    }));
}

#[test]
fn o15_a_victim_that_is_forgotten_is_found() {
    let is_announced = || {
        let config = Config::one_backup(7, 1 << 20, 1 << 18);
        let mut master = Master::new(config, State::default(), &[BACKUP], &[]);
        announce(&mut master, &[1]);
        master.opened(SegmentId(1), Kind::Head, 0);
        commit(&mut master, &mut 100, &[]);
        !victims(master.control().state()).is_empty()
    };
    assert!(is_announced());
    assert!(!with_bug(Bug::LaterVictimsForgotten, is_announced));
}

/// A swap whose survivor was lost is taken back; one whose record is written is not.
#[test]
fn a_swap_is_withdrawn_before_its_record_is_written() {
    let config = Config::one_backup(7, 1 << 20, 1 << 18);
    let mut master = Master::new(config, State::default(), &[BACKUP], &[]);
    let mut next = 100;
    let whole = Certificate::of(&[1; 100]);
    commit(&mut master, &mut next, &[]);
    master
        .segments_mut()
        .survivor_durable(SegmentId(9), BACKUP, whole);
    let add = vec![(SegmentId(9), whole)];
    let first = master.swap(add.clone(), Vec::new(), 0);
    assert_eq!(master.withdraw(first), Some(add.clone()));
    commit(&mut master, &mut next, &[]);
    assert!(
        !master
            .control()
            .state()
            .segments
            .contains_key(&SegmentId(9))
    );
    let second = master.swap(add, Vec::new(), 0);
    commit(&mut master, &mut next, &[]);
    assert!(
        master
            .control()
            .state()
            .segments
            .contains_key(&SegmentId(9))
    );
    assert_eq!(master.withdraw(second), None);
}

/// A pass that named a head's new segment, a survivor before its Swap, or a segment that had left,
/// ended the process: "a pass record cleans what is not listed".
#[test]
fn a_pass_waits_until_its_victims_are_listed() {
    let config = Config::one_backup(7, 1 << 20, 1 << 18);
    let mut master = Master::new(config, State::default(), &[BACKUP], &[]);
    let mut next = 100;
    commit(&mut master, &mut next, &[]);
    announce(&mut master, &[1]);
    assert!(victims(master.control().state()).is_empty());
    let whole = Certificate::of(&[1; 100]);
    master.opened(SegmentId(1), Kind::Head, 0);
    master.appended(SegmentId(1), whole);
    master.closed(SegmentId(1));
    commit(&mut master, &mut next, &[1]);
    commit(&mut master, &mut next, &[1]);
    assert_eq!(victims(master.control().state()), [SegmentId(1)]);
    announce(&mut master, &[8, 9]);
    assert_eq!(victims(master.control().state()), [SegmentId(1)]);
    master.forget_victims(|id| id != SegmentId(8));
    master
        .segments_mut()
        .survivor_durable(SegmentId(9), BACKUP, whole);
    master.swap(vec![(SegmentId(9), whole)], vec![SegmentId(1)], 0);
    commit(&mut master, &mut next, &[1, 8, 9]);
    assert_eq!(victims(master.control().state()), [SegmentId(9)]);
    // It has left: nothing is to be announced.
    announce(&mut master, &[1]);
    master.forget_victims(|_| false);
    commit(&mut master, &mut next, &[9]);
    assert_eq!(victims(master.control().state()), [SegmentId(9)]);
}
