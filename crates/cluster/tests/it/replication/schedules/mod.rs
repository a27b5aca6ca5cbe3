//! The rules of replication under random schedules, losses and crashes: acknowledged data are
//! recovered, freed segments are not needed, and the segments that recovery would replay are
//! complete. With three replicas on five backups, and with one stream.
//!
//! Backups are simulated: messages are delivered in any order, acknowledgements too; a sync makes a
//! backup's earlier acknowledgements synced. After a crash some of the messages in flight have
//! arrived; after a power cut each backup has its synced data and some of the later ones, in order.
//! Lost backups come back with their old replicas. Recovery finds the disks of some backups: either
//! it detects that something is missing, or everything promised is there.

mod copies;
mod damage;
mod planted;
mod scenarios;

use crate::replication::disk::{Disk, Message, Stored, Synced};
use crate::replication::writer::Writer;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::random::Random;
use duramen_base::test_tier;
use duramen_cluster::control::State;
use duramen_cluster::placement::Layout;
use duramen_cluster::replication::{BackupId, Config, Effect, Found, Master};
use duramen_format::control::Record;
use duramen_format::segment::Kind;
use std::collections::BTreeSet;

struct Backup {
    up: bool,
    replicas: Synced,
}

struct World {
    random: Random,
    writer: Writer,
    backups: Vec<Backup>,
    wire: Vec<Message>,
    losses: usize,
    /// Some schedules lose no backup: then replicas stay on many backups for long.
    losses_max: usize,
    /// The floors that a coordinator was told: no older control segment counts, after a kill and
    /// after a power cut. It is told only after a loss: otherwise an old control segment is
    /// identified by being closed.
    floors: [Option<SegmentId>; 2],
    /// The control segment at the last loss, until the coordinator knows a later one.
    told_from: Option<SegmentId>,
    /// Backups to which nothing is delivered for a while.
    slow: BTreeSet<usize>,
    /// Three replicas of everything: so two more disks may go.
    complete: bool,
    pinned: BTreeSet<SegmentId>,
}

impl World {
    fn new(seed: u64, config: Config) -> World {
        let count = if config.one_stream { 1 } else { 5 };
        let ids: Vec<BackupId> = (0..count).map(BackupId).collect();
        let backup = |_| Backup {
            up: true,
            replicas: Synced::default(),
        };
        World {
            random: Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5EED),
            writer: Writer::new(config, &ids),
            backups: ids.iter().map(backup).collect(),
            wire: Vec::new(),
            losses: 0,
            losses_max: (seed % 3) as usize,
            floors: [None; 2],
            told_from: None,
            complete: true,
            slow: BTreeSet::new(),
            pinned: BTreeSet::new(),
        }
    }

    /// The master's engine takes a step.
    fn work(&mut self) {
        let (writer, random) = (&mut self.writer, &mut self.random);
        let head = random.index(writer.heads.len());
        match random.index(10) {
            0..=5 => writer.append(head, random),
            6 => writer.roll_head(head),
            7 => self.clean(),
            8 => {
                let version = writer.next_id;
                writer.master.record(Record::SafeVersion { version });
            }
            _ => {
                if self.pinned.is_empty() {
                    writer.master.pin();
                    self.pinned = writer
                        .master
                        .control()
                        .state()
                        .segments
                        .keys()
                        .copied()
                        .collect();
                } else {
                    let copied = random.index(self.pinned.len());
                    let copied = *self.pinned.iter().nth(copied).expect("one of them");
                    self.pinned.remove(&copied);
                    writer.master.replicas_mut().unpin(copied);
                }
            }
        }
    }

    fn clean(&mut self) {
        let Synced { disk, synced, .. } = &mut self.backups[0].replicas;
        let disks = &mut [disk, synced];
        let one_stream = self.writer.config.one_stream;
        let beside = one_stream.then_some(&mut disks[..]);
        self.writer.clean(beside, &mut self.random);
    }

    fn poll(&mut self) {
        self.tell_coordinator();
        self.complete |= self.writer.master.is_idle();
        for effect in self.writer.poll() {
            match effect {
                Effect::Send(send) => {
                    assert!(send.from <= send.certificate.length);
                    self.wire.push(self.writer.message(send));
                }
                Effect::Free { backup, segment } => {
                    assert!(!self.pinned.contains(&segment), "O9");
                    self.writer.master.replicas_mut().freed(backup, segment);
                    self.backups[backup.0 as usize].replicas.free(segment);
                }
                Effect::ControlHead { .. } => unreachable!("nobody asked for it"),
                Effect::Swapped { .. } => {}
            }
        }
    }

    fn store(disk: &mut Disk, message: &Message) {
        let send = &message.send;
        if send.open {
            disk.insert(send.segment, Stored::new(send));
        }
        let stored = disk
            .get_mut(&send.segment)
            .unwrap_or_else(|| panic!("opened before: {send:?}"));
        // After a loss a closed replica is sent its new epoch, and stays closed.
        let is_told = send.epoch > stored.epoch && send.certificate == stored.certificate;
        assert!(!stored.closed || is_told, "nothing follows a close");
        assert!(send.epoch >= stored.epoch);
        assert!(
            send.from <= stored.certificate.length,
            "no gaps: {} of {}",
            send.from,
            stored.certificate.length
        );
        stored.epoch = send.epoch;
        if send.certificate.length > stored.certificate.length {
            stored.certificate = send.certificate;
        }
        stored.bytes.truncate(send.from as usize);
        stored.bytes.extend(&message.bytes);
        stored.closed |= send.close;
    }

    /// A message arrives and is acknowledged, at once or at the next sync.
    fn deliver(&mut self) {
        if self.writer.config.one_stream {
            return self.commit();
        }
        let quick: Vec<usize> = (0..self.wire.len())
            .filter(|n| !self.slow.contains(&(self.wire[*n].send.backup.0 as usize)))
            .collect();
        if quick.is_empty() {
            return;
        }
        let n = quick[self.random.index(quick.len())];
        let message = self.wire.remove(n);
        let backup = &mut self.backups[message.send.backup.0 as usize];
        if !backup.up {
            return;
        }
        World::store(&mut backup.replicas.disk, &message);
        let ticket = message.send.ticket;
        if self.random.percent(50) {
            backup.replicas.sync();
            self.writer
                .master
                .replicas_mut()
                .acked(ticket, Level::Synced);
        } else {
            backup.replicas.journal.push(vec![message]);
            self.writer
                .master
                .replicas_mut()
                .acked(ticket, Level::Buffered);
        }
    }

    /// One stream: everything on the wire in one atomic step.
    fn commit(&mut self) {
        let wire = std::mem::take(&mut self.wire);
        for message in &wire {
            World::store(&mut self.backups[0].replicas.disk, message);
        }
        self.backups[0].replicas.journal.push(wire);
        let level = if self.random.percent(60) {
            self.backups[0].replicas.sync();
            Level::Synced
        } else {
            Level::Buffered
        };
        self.writer
            .master
            .replicas_mut()
            .acked_all(BackupId(0), level);
    }

    fn promise(&mut self) {
        self.tell_coordinator();
        self.writer.promise();
    }

    fn tell_coordinator(&mut self) {
        let Some(from) = self.told_from else { return };
        for (n, level) in [Level::Buffered, Level::Synced].into_iter().enumerate() {
            let master = &self.writer.master;
            let floor = master.control().floor(master.segments(), level);
            if floor >= Some(from) {
                self.floors[n] = self.floors[n].max(floor);
            }
        }
        if self.floors[1] > Some(from) {
            self.told_from = None;
        }
    }

    fn lose_backup(&mut self) {
        let up: Vec<usize> = (0..self.backups.len())
            .filter(|n| self.backups[*n].up)
            .collect();
        // With three replicas there must be three backups, and the last loss must be repaired
        // first.
        if up.len() <= 3 || self.losses >= self.losses_max {
            return;
        }
        finish(self);
        self.promise();
        let lost = up[self.random.index(up.len())];
        self.lose(lost);
    }

    fn lose(&mut self, lost: usize) {
        self.backups[lost].up = false;
        self.losses += 1;
        self.complete = false;
        self.told_from = self.told_from.max(self.writer.master.control().head());
        self.wire
            .retain(|message| message.send.backup.0 as usize != lost);
        self.writer.master.backup_lost(BackupId(lost as u64));
    }

    /// All servers crash, by a kill or by a power cut. Checks whether a recovery is possible, and
    /// its result.
    fn check_recovery(&mut self) {
        let power_cut = self.random.percent(50);
        let mut disks = self.disks_after(power_cut);
        let promised = self.writer.promised[usize::from(power_cut)].clone();
        self.tell_coordinator();
        let floor = self.floors[usize::from(power_cut)];
        // Some backups are missing at first: recovery may have to wait, but must not take a stale
        // log for the whole one.
        if !self.writer.config.one_stream {
            let some = if self.random.percent(40) {
                without_newest(&disks)
            } else {
                let present = disks.iter().filter(|_| self.random.percent(50));
                present.cloned().collect()
            };
            self.writer.check_recovery(&some, &promised, floor, false);
            // Two are gone for good, or one while another one is being replaced.
            for _ in 0..if self.complete { 2 } else { 1 } {
                let gone = self.random.index(disks.len());
                disks[gone].clear();
            }
        }
        self.writer.check_recovery(&disks, &promised, floor, true);
    }

    fn disks_after(&mut self, power_cut: bool) -> Vec<Disk> {
        let random = &mut self.random;
        let after = |backup: &Backup| backup.replicas.after(power_cut, random, World::store);
        let mut disks: Vec<Disk> = self.backups.iter().map(after).collect();
        // Messages on the wire may have arrived, replica by replica in order.
        let mut cut: BTreeSet<(BackupId, SegmentId)> = BTreeSet::new();
        for message in &self.wire {
            let place = (message.send.backup, message.send.segment);
            let arrives = !self.writer.config.one_stream && !power_cut && self.random.percent(50);
            if !cut.contains(&place) && arrives {
                World::store(&mut disks[message.send.backup.0 as usize], message);
            } else {
                cut.insert(place);
            }
        }
        disks
    }
}

/// All disks, but without readable replicas of the newest control segment and of older ones that
/// name a successor.
fn without_newest(disks: &[Disk]) -> Vec<Disk> {
    let all = disks.iter().flatten();
    let controls = all.filter(|(_, stored)| stored.kind == Kind::Control);
    let newest = controls.map(|(id, _)| *id).max();
    let mut left = disks.to_vec();
    for disk in &mut left {
        disk.retain(|id, stored| {
            stored.kind != Kind::Control || Some(*id) != newest && !stored.closed
        });
    }
    left
}

fn config(one_stream: bool) -> Config {
    Config {
        replicas: if one_stream { 1 } else { 3 },
        one_stream,
        server: 7,
        control_capacity: 1 << 16,
        control_roll_bytes: 1 << 9,
        writes_max: usize::MAX,
        copies_max: usize::MAX,
        frees_max: usize::MAX,
        coordinated: false,
        layout: Layout::Scatter,
    }
}

fn seeds() -> std::ops::Range<u64> {
    crate::replication::seeds(test_tier::runs(1_000, 10_000))
}

fn run(seed: u64, config: Config) -> World {
    let one_stream = config.one_stream;
    // replication::O14: in some schedules records do not fit.
    let control_capacity = if seed.is_multiple_of(3) {
        3 << 8
    } else {
        1 << 16
    };
    let mut world = World::new(
        seed,
        Config {
            control_capacity,
            ..config
        },
    );
    for _ in 0..500 {
        if world.random.percent(3) {
            let count = world.backups.len();
            world.slow = (0..world.random.index(3))
                .map(|n| (n * 7 + world.random.index(count)) % count)
                .collect();
        }
        match world.random.index(24) {
            0..=4 => world.work(),
            5..=9 => world.poll(),
            10..=18 => world.deliver(),
            19 | 20 => {
                let n = world.random.index(world.backups.len());
                world.backups[n].replicas.sync();
                world
                    .writer
                    .master
                    .replicas_mut()
                    .acked_all_buffered(BackupId(n as u64));
            }
            21 if !one_stream => world.lose_backup(),
            _ => {
                world.promise();
                world.check_recovery();
            }
        }
    }
    world
}

/// Delivers all messages, until no work is left.
fn finish(world: &mut World) {
    world.writer.master.replicas_mut().unpin_all();
    world.pinned.clear();
    world.slow.clear();
    for _ in 0..10_000 {
        world.poll();
        if world.wire.is_empty() && world.writer.master.is_idle() {
            return;
        }
        world.deliver();
        for n in 0..world.backups.len() {
            if world.backups[n].up {
                world.backups[n].replicas.sync();
                world
                    .writer
                    .master
                    .replicas_mut()
                    .acked_all_buffered(BackupId(n as u64));
            }
        }
    }
    panic!("the rules do not come to an end");
}

/// One schedule, and its end; returns the numbers of segments swapped out, backups lost, and
/// segments promised.
fn live(seed: u64, config: Config) -> (usize, usize, usize) {
    let mut world = run(seed, config);
    finish(&mut world);
    world.promise();
    world.check_recovery();
    // Liveness: all sent data are durable, and no unneeded replica is left.
    for (segment, length) in world.writer.heads.iter().flatten() {
        let durable = world.writer.master.durable_bytes(*segment, Level::Synced);
        assert_eq!(durable, *length, "segment {segment}");
    }
    assert!(world.writer.swaps.is_empty(), "swaps end");
    let listed = &world.writer.master.control().state().segments;
    for backup in world.backups.iter().filter(|backup| backup.up) {
        for (id, stored) in &backup.replicas.disk {
            let needed = listed.contains_key(id) || stored.kind == Kind::Control;
            assert!(needed, "segment {id} was never freed");
        }
        let controls = backup
            .replicas
            .disk
            .values()
            .filter(|s| s.kind == Kind::Control);
        assert!(controls.count() <= 1, "old control segments are freed");
    }
    let promised = world.writer.promised[1].values();
    (
        world.writer.swapped_out.len(),
        world.losses,
        promised.filter(|length| **length > 0).count(),
    )
}

fn check(one_stream: bool) {
    let (mut swapped, mut losses, mut promised) = (0, 0, 0);
    // Seed 8479 failed once: the tail of a segment got lost although the next one had data.
    for seed in seeds().chain([8479]) {
        match std::panic::catch_unwind(|| live(seed, config(one_stream))) {
            Ok((s, l, p)) => {
                swapped += s;
                losses += l;
                promised += p;
            }
            Err(_) => panic!(
                "seed {seed}: DURAMEN_SEEDS={seed}..{} cargo test -p duramen-cluster",
                seed + 1
            ),
        }
    }
    // The schedules cover swaps, promises and losses.
    assert!(swapped > 0 && promised > 0 && (one_stream || losses > 0));
}

#[test]
fn three_replicas_survive_any_schedule() {
    check(false);
}

#[test]
fn one_stream_survives_any_schedule() {
    check(true);
}

/// A restart continues from the existing replicas: open segments are closed where they end,
/// unlisted ones are freed.
#[test]
fn restart_closes_what_was_open_and_frees_what_is_not_listed() {
    for seed in seeds().take(100) {
        let mut world = run(seed, config(true));
        world.commit();
        let control = world.writer.master.control().head();
        let Some(control) = control.filter(|id| world.backups[0].replicas.disk.contains_key(id))
        else {
            continue;
        };
        let disk = world.backups[0].replicas.disk.clone();
        let state = State::replay(control, &disk[&control].bytes).expect("eligible");
        let found: Vec<Found> = disk
            .iter()
            .map(|(id, stored)| Found {
                backup: BackupId(0),
                segment: *id,
                epoch: stored.epoch,
                certificate: stored.certificate,
                closed: stored.closed,
            })
            .collect();
        world.writer.master = Master::new(config(true), state, &[BackupId(0)], &found);
        world.pinned.clear();
        finish(&mut world);
        let state = world.writer.master.control().state();
        assert!(
            state
                .segments
                .values()
                .all(|listed| listed.closed.is_some())
        );
        let head = world.writer.master.control().head();
        for (id, stored) in &world.backups[0].replicas.disk {
            assert!(stored.closed || Some(*id) == head, "segment {id}");
            assert!(state.segments.contains_key(id) || Some(*id) == head);
        }
    }
}
