//! Scenarios of docs/traps.md, "Scenarios", that need several backups, by name.

use super::{World, config, finish, seeds};
use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::control::State;
use duramen_cluster::placement::Member;
use duramen_cluster::replication::{BackupId, Config, Effect, Found, Master, Rejection, Send};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// The effects of one poll; `next` is the last segment id that was given.
pub(super) fn polled(master: &mut Master, next: &mut u64) -> Vec<Effect> {
    let mut effects = Vec::new();
    let mut next_id = || {
        *next += 1;
        SegmentId(*next)
    };
    master.poll(&mut next_id, &mut effects);
    effects
}

/// Survivors are in flight when a backup is lost: open segments continue at a higher epoch, the
/// control log in a new segment. At any crash of all servers, the log is complete.
#[test]
fn scenario_12_survivors_are_open_when_the_epochs_grow() {
    let mut on_their_way = 0;
    for seed in seeds() {
        let mut world = World::new(seed, config(false));
        for head in [0, 1, 0, 1] {
            for _ in 0..2 {
                world.writer.append(head, &mut world.random);
            }
            world.writer.roll_head(head);
        }
        finish(&mut world);
        world.promise();
        world.clean();
        world.writer.append(1, &mut world.random);
        for _ in 0..world.random.index(8) {
            world.poll();
            world.deliver();
        }
        on_their_way += world.writer.swaps.len();
        let lost = world.random.index(world.backups.len());
        world.lose(lost);
        for step in 0..60 {
            if step % 8 == 0 {
                world.writer.append(step % 2, &mut world.random);
            }
            world.poll();
            world.deliver();
            world.promise();
            world.check_recovery();
        }
        finish(&mut world);
        world.promise();
        world.check_recovery();
        assert!(world.writer.swaps.is_empty() && world.losses == 1);
    }
    assert!(on_their_way > 50, "{on_their_way}");
}

/// Two backups for two replicas, and one of them has no room: it is asked again and again for the
/// same control segment, and when it has room the log continues. (Each refusal cost a control
/// segment, which the other one had to keep.)
#[test]
fn a_refusal_when_there_is_nobody_else_costs_nothing() {
    let config = Config {
        replicas: 2,
        coordinated: true,
        ..config(false)
    };
    let (good, short) = (BackupId(1), BackupId(2));
    let mut master = Master::new(config, State::default(), &[good, short], &[]);
    let mut next = 0;
    let mut sends = |master: &mut Master| {
        let effects = polled(master, &mut next);
        let sends = effects.into_iter().filter_map(|effect| match effect {
            Effect::Send(send) => Some(send),
            _ => None,
        });
        sends.collect::<Vec<Send>>()
    };
    let mut asked = 0;
    let mut first = None;
    for _ in 0..50 {
        for send in sends(&mut master) {
            assert_eq!(*first.get_or_insert(send.segment), send.segment);
            if send.backup == good {
                master.replicas_mut().acked(send.ticket, Level::Synced);
            } else {
                asked += 1;
                assert!(send.open && send.from == 0);
                master.rejected(send.ticket, Rejection::Busy);
            }
        }
        assert!(sends(&mut master).is_empty(), "it rests");
        master.replicas_mut().forgive();
    }
    assert!(asked > 40, "{asked}");
    assert_eq!(master.control().reached(master.segments()), 0);
    for send in sends(&mut master) {
        master.replicas_mut().acked(send.ticket, Level::Synced);
    }
    sends(&mut master);
    master.control_head_noted(first.expect("it was opened"));
    assert!(master.control().reached(master.segments()) > 0 && master.is_idle());
    // Another backup joins: a refusal moves the replica there.
    let third = BackupId(3);
    master.opened(SegmentId(100), Kind::Head, 0);
    let opening = sends(&mut master);
    let opening = opening.iter().find(|send| send.backup == short);
    let ticket = opening.expect("both get it").ticket;
    master.backup_up(third);
    master.rejected(ticket, Rejection::Busy);
    let moved = sends(&mut master);
    assert!(moved.iter().any(|send| send.backup == third && send.open));
}

/// A backup finds bytes to be damaged: the same are sent there again, and nothing else changes.
#[test]
fn damaged_bytes_are_sent_again_to_the_same_backup() {
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let (first, second) = (BackupId(1), BackupId(2));
    let mut master = Master::new(config, State::default(), &[first, second], &[]);
    let mut next = 0;
    let mut refusals = 0;
    master.opened(SegmentId(100), Kind::Head, 0);
    for _ in 0..50 {
        for effect in polled(&mut master, &mut next) {
            let Effect::Send(send) = effect else {
                continue;
            };
            if send.backup == first && send.segment == SegmentId(100) && refusals < 3 {
                refusals += 1;
                assert!(send.open && send.from == 0);
                assert_eq!(
                    master.replicas().segment_of(send.ticket),
                    Some(send.segment)
                );
                master.rejected(send.ticket, Rejection::Damaged);
                assert_eq!(master.replicas().segment_of(send.ticket), None);
            } else {
                master.replicas_mut().acked(send.ticket, Level::Synced);
            }
        }
    }
    assert_eq!(refusals, 3);
    assert!(master.is_idle());
    assert_eq!(
        master.segments().holders(SegmentId(100)).len(),
        0,
        "it is not closed"
    );
    master.appended(SegmentId(100), Certificate::of(&[7; 100]));
    master.closed(SegmentId(100));
    for _ in 0..50 {
        for effect in polled(&mut master, &mut next) {
            if let Effect::Send(send) = effect {
                master.replicas_mut().acked(send.ticket, Level::Synced);
            }
        }
    }
    let mut holders = master.segments().holders(SegmentId(100));
    holders.sort_unstable();
    assert_eq!(holders, [first, second]);
}

/// The memory of a backup, or the network on the way, changes bits: it finds all bytes damaged.
/// They were sent there for ever, megabytes in each round trip, and the log waited. Another backup
/// gets them, and if there is none, the same one gets them rarely.
#[test]
fn a_backup_that_finds_all_bytes_damaged_is_not_waited_for() {
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let bad = BackupId(1);
    for (others, kind) in [(2, Kind::Head), (2, Kind::Survivor), (1, Kind::Head)] {
        let backups: Vec<BackupId> = (1..=others + 1).map(BackupId).collect();
        let mut master = Master::new(config, State::default(), &backups, &[]);
        let (mut next, mut sent) = (0, 0);
        let mut work = |master: &mut Master, polls: usize| {
            for _ in 0..polls {
                for effect in polled(master, &mut next) {
                    match effect {
                        Effect::Send(send)
                            if send.backup == bad && send.from != send.certificate.length =>
                        {
                            sent += 1;
                            master.rejected(send.ticket, Rejection::Damaged);
                        }
                        effect => end(master, vec![effect]),
                    }
                }
            }
            sent
        };
        work(&mut master, 10);
        let segment = SegmentId(100);
        master.opened(segment, kind, 0);
        master.appended(segment, Certificate::of(&[7; 100]));
        master.closed(segment);
        for _ in 0..20 {
            work(&mut master, 20);
            master.replicas_mut().forgive();
        }
        if others > 1 {
            assert!(master.is_safe(segment), "{}", master.describe());
            assert!(!master.segments().holders(segment).contains(&bad));
        }
        let before = work(&mut master, 1);
        for _ in 0..10 {
            work(&mut master, 20);
            master.replicas_mut().forgive();
        }
        // The control log and the segment, each time that some time has passed.
        let more = work(&mut master, 1) - before;
        assert!(more <= 30, "{more} in a second");
    }
}

/// Three backups for two replicas, two of which have no room: they are asked in turn for the same
/// control segment, each time by another opening, and the one that accepted it is not asked again.
/// (Each refusal cost a control segment, and recoveries in need of room took it from each other for
/// ever.)
#[test]
fn refusals_that_move_a_control_segment_to_and_fro_cost_nothing() {
    let config = Config {
        replicas: 2,
        coordinated: true,
        ..config(false)
    };
    let good = BackupId(1);
    let backups = [good, BackupId(2), BackupId(3)];
    let mut master = Master::new(config, State::default(), &backups, &[]);
    let mut next = 0;
    let mut openings: BTreeMap<BackupId, Vec<u64>> = BTreeMap::new();
    let mut segment = None;
    for round in 0..100 {
        let effects = polled(&mut master, &mut next);
        for effect in effects {
            let Effect::Send(send) = effect else {
                panic!("nothing is freed or noted: {effect:?}");
            };
            assert_eq!(*segment.get_or_insert(send.segment), send.segment);
            assert!(send.open && send.from == 0);
            openings.entry(send.backup).or_default().push(send.epoch);
            if send.backup == good {
                master.replicas_mut().acked(send.ticket, Level::Synced);
            } else {
                master.rejected(send.ticket, Rejection::Busy);
            }
        }
        if round % 3 == 2 {
            master.replicas_mut().forgive();
        }
    }
    for (backup, epochs) in &openings {
        let refused = usize::from(*backup != good) * 20;
        assert!(epochs.len() > refused, "{backup:?}: {epochs:?}");
        assert!(epochs.is_sorted_by(|one, other| one < other), "{epochs:?}");
    }
    assert!(openings.get(&good).is_some_and(|epochs| epochs.len() == 1));
    assert_eq!((next, master.control().reached(master.segments())), (1, 0));
}

/// A backup that keeps its last frames for recoveries refuses a copy of a closed segment. It was
/// sent the whole segment ten times a second, and no open segment was placed there meanwhile: with
/// one server less, writes waited.
#[test]
fn a_refused_copy_keeps_no_open_segment_away() {
    let (crashed, one, other) = (BackupId(1), BackupId(2), BackupId(3));
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &[crashed, one], &[]);
    let mut next = 0;
    let segment = SegmentId(100);
    master.opened(segment, Kind::Head, 0);
    master.appended(
        segment,
        Certificate {
            length: 500,
            crc: 7,
        },
    );
    master.closed(segment);
    for _ in 0..10 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert!(master.is_safe(segment));
    master.backup_lost(crashed);
    master.backup_up(other);
    let mut asked = Vec::new();
    let mut opened = Vec::new();
    for round in 0..100 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send) if send.segment == segment => {
                    assert_eq!(send.backup, other);
                    asked.push(round);
                    master.rejected(send.ticket, Rejection::Busy);
                }
                Effect::Send(send) => {
                    opened.extend(send.open.then_some((send.segment, send.backup)));
                    master.replicas_mut().acked(send.ticket, Level::Synced);
                }
                effect => end(&mut master, vec![effect]),
            }
        }
        if round == 3 {
            master.opened(SegmentId(101), Kind::Head, 1);
        }
        if round == 5 {
            let new: BTreeSet<(SegmentId, BackupId)> = opened.iter().copied().collect();
            for backup in [one, other] {
                assert!(new.contains(&(SegmentId(101), backup)), "{opened:?}");
            }
        }
        if round > 5 {
            master.replicas_mut().forgive();
        }
    }
    assert!((3..=8).contains(&asked.len()), "{asked:?}");
    // It is told: nobody saw that segments had one copy each for days.
    assert_eq!(master.replicas_mut().placed().segments_short, 1);
    for _ in 0..30 {
        master.replicas_mut().forgive();
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    assert_eq!(master.replicas_mut().placed().segments_short, 0);
}

/// Openings of a segment, and whether each closes it, after a backup has refused the first one as
/// often as `refusals` says.
fn openings(kind: Kind, refusals: usize) -> Vec<(u64, bool)> {
    let backups = [1, 2, 3].map(BackupId);
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &backups, &[]);
    let mut next = 0;
    for _ in 0..10 {
        let effects = polled(&mut master, &mut next);
        end(&mut master, effects);
    }
    let segment = SegmentId(100);
    let certificate = Certificate::of(&[7; 100]);
    master.opened(segment, kind, 0);
    if kind == Kind::Head {
        for _ in 0..10 {
            let effects = polled(&mut master, &mut next);
            end(&mut master, effects); // it is listed
        }
    }
    master.appended(segment, certificate);
    master.closed(segment);
    let mut openings = Vec::new();
    let (mut refused, mut is_lost) = (0, false);
    for _ in 0..30 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send) if send.segment == segment && send.open => {
                    openings.push((send.epoch, send.close));
                    if refused < refusals {
                        refused += 1;
                        master.rejected(send.ticket, Rejection::Busy);
                    } else {
                        master.replicas_mut().acked(send.ticket, Level::Synced);
                    }
                }
                Effect::Send(send) if send.segment == segment && !is_lost => {
                    is_lost = true; // before it is whole
                    master.backup_lost(send.backup);
                }
                effect => end(&mut master, vec![effect]),
            }
        }
        master.replicas_mut().forgive();
    }
    assert!(master.is_safe(segment), "{}", master.describe());
    openings
}

/// A recovery's segment that one backup has refused, and a head's that has lost a replica before it
/// was whole, went to the next backup as copies of closed segments do: so they were refused there
/// to keep frames for recoveries. The recovery failed, and the writes waited.
#[test]
fn what_is_not_recorded_as_closed_is_no_copy() {
    for (kind, refusals) in [(Kind::Survivor, 1), (Kind::Survivor, 3), (Kind::Head, 0)] {
        let openings = openings(kind, refusals);
        let is_copy = |(epoch, closes): &(u64, bool)| *epoch > 0 && *closes;
        assert!(openings.iter().any(|(epoch, _)| *epoch > 0), "{openings:?}");
        assert!(!openings.iter().any(is_copy), "{openings:?}");
    }
}

/// A restarted backup still has whole replicas, and refuses new copies. Its master did not count
/// them, because it had chosen that backup for the copies: so a mere restart left them at one
/// replica each for as long as frames were short.
#[test]
fn replicas_count_again_where_copies_were_refused() {
    let (crashed, one, back) = (BackupId(1), BackupId(2), BackupId(11));
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &[crashed, one], &[]);
    let mut next = 0;
    let certificate = Certificate::of(&[7; 500]);
    let segments = [100, 101, 102].map(SegmentId);
    close_all(&mut master, &mut next, segments, certificate);
    master.backup_lost(crashed);
    master.backup_up(back);
    let mut pending = Vec::new();
    for _ in 0..3 {
        for effect in polled(&mut master, &mut next) {
            match effect {
                Effect::Send(send) if send.segment == segments[2] => pending.push(send.ticket),
                Effect::Send(send) if segments.contains(&send.segment) => {
                    master.rejected(send.ticket, Rejection::Busy);
                }
                effect => end(&mut master, vec![effect]),
            }
        }
        master.replicas_mut().forgive();
    }
    let found = segments.map(|segment| Found {
        backup: back,
        segment,
        epoch: 0,
        certificate,
        closed: true,
    });
    assert_eq!(master.hand_back(back, &found), []);
    assert!(master.is_safe(segments[0]) && master.is_safe(segments[1]));
    // This one may be on its way there.
    assert!(!master.is_safe(segments[2]));
    master.rejected(pending[0], Rejection::Busy);
    assert_eq!(master.hand_back(back, &found), []);
    assert!(master.is_safe(segments[2]));
}

/// Segments with these bytes, closed and durable on all their backups.
pub(super) fn close_all(
    master: &mut Master,
    next: &mut u64,
    segments: [SegmentId; 3],
    certificate: Certificate,
) {
    for segment in segments {
        master.opened(segment, Kind::Head, segment.0 as u32);
        master.appended(segment, certificate);
        master.closed(segment);
    }
    for _ in 0..10 {
        let effects = polled(master, next);
        end(master, effects);
    }
}

/// Does as the master requests.
pub(super) fn end(master: &mut Master, effects: Vec<Effect>) {
    for effect in effects {
        match effect {
            Effect::Send(send) => master.replicas_mut().acked(send.ticket, Level::Synced),
            Effect::Free { backup, segment } => master.replicas_mut().freed(backup, segment),
            _ => {}
        }
    }
}

/// The segment's bytes are sought at the holder that has damaged ones, until no holder is left. No
/// replica of the segment is freed meanwhile.
fn seek_in_vain(
    master: &mut Master,
    segment: SegmentId,
    (damaged, back): (BackupId, BackupId),
    effects_of: &mut dyn FnMut(&mut Master) -> Vec<Effect>,
) {
    let (mut is_sought, mut is_first) = (false, true);
    for _ in 0..60 {
        for effect in effects_of(master) {
            match effect {
                Effect::Send(send) if send.segment == segment => {
                    is_sought = true;
                    if send.backup == back && is_first {
                        is_first = false; // a reason other than missing bytes
                        master.rejected(send.ticket, Rejection::Busy);
                        continue;
                    }
                    let holders = master.segments().holders(segment);
                    assert!(holders == [damaged] || holders.is_empty());
                    if holders.is_empty() {
                        master.give_up(send.ticket);
                    } else {
                        master.not_fetched(send.ticket, &holders);
                    }
                }
                Effect::Free {
                    segment: id,
                    backup,
                } => {
                    assert_ne!(id, segment, "the last one is freed, of {backup:?}");
                    master.replicas_mut().freed(backup, id);
                }
                effect => end(master, vec![effect]),
            }
        }
        master.replicas_mut().forgive();
    }
    assert!(is_sought && !is_first, "nobody asked");
}

/// One holder of a closed segment crashes, and the other one cannot read its replica any more. The
/// master asked that one for ever, and each time told the backup that was to be sent the bytes to
/// drop its replica: the crashed holder had come back, and had the last good replica. (Seed 1971 of
/// the simulated cluster.)
pub fn the_last_good_replica_is_kept() {
    let segment = SegmentId(100);
    let (damaged, crashed, back, third) = (BackupId(1), BackupId(2), BackupId(12), BackupId(3));
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &[damaged, crashed], &[]);
    let mut next = 0;
    let mut effects_of = |master: &mut Master| polled(master, &mut next);
    let certificate = Certificate {
        length: 500,
        crc: 7,
    };
    master.opened(segment, Kind::Head, 0);
    master.appended(segment, certificate);
    master.closed(segment);
    for _ in 0..10 {
        let effects = effects_of(&mut master);
        end(&mut master, effects); // its `Closed` record is written, too
    }
    assert!(master.is_safe(segment) && master.is_idle());

    master.backup_lost(crashed);
    master.backup_up(back);
    master.backup_up(third);
    seek_in_vain(&mut master, segment, (damaged, back), &mut effects_of);
    assert_eq!(master.segments().holders(segment), []);

    // The crashed holder's replica counts again, and the damaged one is freed when there are two.
    let found = Found {
        backup: back,
        segment,
        epoch: 0,
        certificate,
        closed: true,
    };
    assert_eq!(master.hand_back(back, &[found]), []);
    assert_eq!(master.segments().holders(segment), [back]);
    let mut freed = Vec::new();
    for _ in 0..20 {
        for effect in effects_of(&mut master) {
            if let Effect::Free {
                backup,
                segment: id,
            } = effect
                && id == segment
            {
                assert!(master.is_safe(segment));
                freed.push(backup);
            }
            end(&mut master, vec![effect]);
        }
    }
    assert!(master.is_safe(segment) && master.is_idle());
    assert!(freed.is_empty() || freed == [damaged], "{freed:?}");
    assert!(freed == [damaged] || master.segments().holds(damaged, segment));
}

#[test]
fn a_replica_that_cannot_be_read_costs_no_other() {
    the_last_good_replica_is_kept();
}

/// A backup finds its replica damaged, which the master counts as whole. Another backup gets the
/// bytes from a sound one; then the damaged replica is freed, and not before. Without another
/// backup, the same one gets them again.
#[test]
fn a_damaged_replica_is_replaced() {
    let (damaged, sound, third) = (BackupId(1), BackupId(2), BackupId(3));
    assert_eq!(replaced(true), (vec![sound, third], vec![damaged]));
    assert_eq!(replaced(false), (vec![sound, damaged], vec![]));
}

/// The holders of a segment after one of two replicas was found damaged, and the backups that have
/// freed theirs.
fn replaced(there_is_another: bool) -> (Vec<BackupId>, Vec<BackupId>) {
    let segment = SegmentId(100);
    let (damaged, sound, third) = (BackupId(1), BackupId(2), BackupId(3));
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let mut master = Master::new(config, State::default(), &[damaged, sound], &[]);
    let mut next = 0;
    let certificate = Certificate {
        length: 500,
        crc: 7,
    };
    master.opened(segment, Kind::Head, 0);
    master.appended(segment, certificate);
    let mut freed = Vec::new();
    let mut round = |master: &mut Master| {
        for effect in polled(master, &mut next) {
            match effect {
                Effect::Send(send) => master.replicas_mut().acked(send.ticket, Level::Synced),
                Effect::Free {
                    backup,
                    segment: id,
                } => {
                    if id == segment {
                        assert!(master.is_safe(segment), "the replacement is not there yet");
                        freed.push(backup);
                    }
                    master.replicas_mut().freed(backup, id);
                }
                _ => {}
            }
        }
    };
    for _ in 0..10 {
        round(&mut master);
    }
    master.replica_damaged(damaged, &[segment, SegmentId(999)]);
    assert!(
        master.segments().holds(damaged, segment),
        "it is told again when the segment is closed"
    );
    master.closed(segment);
    for _ in 0..10 {
        round(&mut master);
    }
    assert!(master.is_safe(segment) && master.is_idle());

    if there_is_another {
        master.backup_up(third);
    }
    master.replica_damaged(damaged, &[segment]);
    master.replica_damaged(damaged, &[segment]);
    assert_eq!(master.segments().holders(segment), [sound]);
    for _ in 0..20 {
        round(&mut master);
    }
    assert!(master.is_safe(segment) && master.is_idle());
    (master.segments().holders(segment), freed)
}

/// Backups in the racks a, a and b, the master in c. When the member in b dies, copies share a
/// rack, which the status shows. When b is back, the control log and new segments are in different
/// racks; data that was written meanwhile stays in place until it is cleaned.
#[test]
fn copies_share_a_rack_while_there_is_no_other_one() {
    let config = Config {
        replicas: 2,
        ..config(false)
    };
    let at = |backup: u64, rack: &str| Member {
        rack: Some(rack.to_owned()),
        ..Member::from(BackupId(backup))
    };
    let mut master = Master::new(config, State::default(), &[], &[]);
    master.replicas_mut().is_at(at(9, "c"));
    for member in [at(1, "a"), at(2, "a"), at(3, "b")] {
        master.backup_up(member);
    }
    let mut next = 0;
    let mut all_arrives = |master: &mut Master| {
        for _ in 0..20 {
            let effects = polled(master, &mut next);
            for effect in effects {
                match effect {
                    Effect::Send(send) => master.replicas_mut().acked(send.ticket, Level::Synced),
                    Effect::Free { backup, segment } => {
                        master.replicas_mut().freed(backup, segment)
                    }
                    _ => {}
                }
            }
        }
        assert!(master.is_idle());
    };
    let write = |master: &mut Master, id: u64| {
        let certificate = Certificate {
            length: 500,
            crc: 7,
        };
        master.opened(SegmentId(id), Kind::Head, 0);
        master.appended(SegmentId(id), certificate);
        master.closed(SegmentId(id));
    };
    let sharing = |master: &mut Master| {
        let placed = master.replicas_mut().placed();
        assert!(placed.has_enough && placed.segments_short == 0);
        placed.segments_sharing_rack
    };
    write(&mut master, 100);
    all_arrives(&mut master);
    assert_eq!(sharing(&mut master), 0);

    master.backup_lost(BackupId(3));
    write(&mut master, 101);
    all_arrives(&mut master);
    assert!(master.is_safe(SegmentId(100)) && master.is_safe(SegmentId(101)));
    let holders = master.control_holders();
    assert_eq!(holders, [BackupId(1), BackupId(2)].into());
    assert_eq!(sharing(&mut master), 3, "two of data, one of control");

    master.backup_up(at(4, "b"));
    write(&mut master, 102);
    all_arrives(&mut master);
    assert!(master.control_holders().contains(&BackupId(4)));
    let holders = master.segments().holders(SegmentId(102));
    assert!(holders.contains(&BackupId(4)));
    assert_eq!(sharing(&mut master), 2, "what was written before");

    master.backup_lost(BackupId(4));
    master.backup_lost(BackupId(1));
    assert!(!master.replicas_mut().placed().has_enough);
}

/// Members that started at once, in racks: the first control segment had copies on fewer backups
/// than `replicas`, all in one rack, when two more backups came in one step. The next control
/// segment began at once, the first one was never whole, and the coordinator never heard of the
/// log: its tablets were not served until an operator ended another member.
#[test]
fn a_control_segment_that_ends_before_it_is_noted_gives_its_place_to_the_next() {
    for polls_between in [0, 1, 2, 3, 20] {
        let config = Config {
            replicas: 3,
            coordinated: true,
            ..config(false)
        };
        let at = |backup: u64, rack: &str| Member {
            rack: Some(rack.to_owned()),
            ..Member::from(BackupId(backup))
        };
        let mut master = Master::new(config, State::default(), &[], &[]);
        master.replicas_mut().is_at(at(99, "a"));
        let (mut next, mut noted) = (0, None);
        let mut work = |master: &mut Master, rounds: usize| {
            for effect in (0..rounds)
                .flat_map(|_| polled(master, &mut next))
                .collect::<Vec<_>>()
            {
                match effect {
                    Effect::Send(send) => master.replicas_mut().acked(send.ticket, Level::Synced),
                    Effect::Free { backup, segment } => {
                        master.replicas_mut().freed(backup, segment)
                    }
                    Effect::ControlHead { min_open } => {
                        noted = Some(min_open);
                        master.control_head_noted(min_open);
                    }
                    _ => {}
                }
            }
        };
        for step in [[(1, "b"), (2, "b")], [(3, "a"), (4, "c")]] {
            for (backup, rack) in step {
                master.backup_up(at(backup, rack));
            }
            work(&mut master, polls_between);
        }
        (0..200).for_each(|_| work(&mut master, 1));
        assert!(noted.is_some() && master.is_idle(), "{}", master.describe());
        assert!(!master.control_holders().is_empty());
    }
}
