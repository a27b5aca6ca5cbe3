//! A master among backups that come and go: they are lost at any time, come back under new names
//! with their old replicas, refuse, answer late, twice or never. A coordinator notes control heads
//! at any time. At any crash of all servers, a recovery by the rules of docs/protocols.md finds
//! every acknowledged byte, though R-1 disks are gone for good (as well as disks that were away
//! when all their replicas had been replaced). If only some backups are there, it may wait instead;
//! and it never takes a stale log for the whole one.
//! Scenarios by their numbers in docs/traps.md, "Scenarios".

mod planted;

use crate::replication::disk::{Disk, Message, Stored, Synced};
use crate::replication::writer::{Promised, Writer};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::random::Random;
use duramen_cluster::placement::Layout;
use duramen_cluster::replication::{BackupId, Config, Effect, Found, Rejection, Ticket};
use duramen_format::control::Record;
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const MACHINES: usize = 7;

struct Machine {
    /// This life's name; `None` while it is down.
    id: Option<BackupId>,
    generation: u64,
    replicas: Synced,
    /// The master knows its new name, and it has to ask what it may drop.
    asks: bool,
    /// It was away when all its replicas had been replaced: they are not needed.
    is_replaced: bool,
    /// Control segments with a refused opening, and its epoch: later openings up to that epoch are
    /// refused too (replication::O13).
    refused: BTreeMap<SegmentId, u64>,
}

enum Answer {
    Reached(Ticket, Level),
    Busy(Ticket),
    /// No backup could provide the bytes to be sent.
    NotFetched(Ticket),
    Synced(BackupId),
}

struct World {
    random: Random,
    writer: Writer,
    machines: Vec<Machine>,
    wire: Vec<Message>,
    answers: Vec<Answer>,
    /// Backups that came (true) or went, which the master has not been told yet.
    news: VecDeque<(BackupId, bool)>,
    /// Calls with data that are not answered.
    under_way: BTreeMap<Ticket, BackupId>,
    /// The value requested from the coordinator, and the one that it has noted.
    asked: Option<SegmentId>,
    floor: SegmentId,
    /// The share of writes that are synced at once, in percent.
    synced_at_once: u64,
    /// Segments of which a power cut took bytes from a replica since everything was on R replicas.
    /// A backup whose power was cut comes back with its synced bytes, fewer than were promised at
    /// level buffered: the others keep that promise, if they are there.
    cut: BTreeSet<SegmentId>,
    losses: usize,
    returns: usize,
    handed_back: usize,
    kept: usize,
}

fn config() -> Config {
    Config {
        replicas: 3,
        one_stream: false,
        server: 7,
        control_capacity: 1 << 16,
        control_roll_bytes: 1 << 9,
        writes_max: 8,
        copies_max: 2,
        frees_max: 3,
        coordinated: true,
        layout: Layout::Scatter,
    }
}

impl World {
    fn new(seed: u64, config: Config) -> World {
        let machine = |slot| Machine {
            id: Some(BackupId(slot)),
            generation: 0,
            replicas: Synced::default(),
            asks: false,
            is_replaced: false,
            refused: BTreeMap::new(),
        };
        let ids: Vec<BackupId> = (0..MACHINES as u64).map(BackupId).collect();
        World {
            random: Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xC0FFEE),
            writer: Writer::new(config, &ids),
            machines: (0..MACHINES as u64).map(machine).collect(),
            wire: Vec::new(),
            answers: Vec::new(),
            news: VecDeque::new(),
            under_way: BTreeMap::new(),
            asked: None,
            floor: SegmentId::NONE,
            synced_at_once: [5, 50, 80][seed as usize % 3],
            cut: BTreeSet::new(),
            losses: 0,
            returns: 0,
            handed_back: 0,
            kept: 0,
        }
    }

    fn machine(&mut self, id: BackupId) -> Option<&mut Machine> {
        self.machines.iter_mut().find(|m| m.id == Some(id))
    }

    fn work(&mut self) {
        let (writer, random) = (&mut self.writer, &mut self.random);
        let head = random.index(writer.heads.len());
        match random.index(10) {
            0..=5 => writer.append(head, random),
            6 | 7 => writer.roll_head(head),
            8 => writer.clean(None, random),
            _ => {
                let version = writer.next_id;
                writer.master.record(Record::SafeVersion { version });
            }
        }
    }

    fn poll(&mut self) {
        if self.writer.master.is_idle() && self.wire.is_empty() && self.news.is_empty() {
            self.all_is_mended();
        }
        for effect in self.writer.poll() {
            match effect {
                Effect::Send(send) => {
                    if send.kind != Kind::Control {
                        self.under_way.insert(send.ticket, send.backup);
                        if send.open && send.close && self.random.percent(4) {
                            // Its bytes are elsewhere, and are not found.
                            self.answers.push(Answer::NotFetched(send.ticket));
                            continue;
                        }
                    }
                    self.wire.push(self.writer.message(send));
                }
                Effect::Free { backup, segment } => {
                    if let Some(machine) = self.machine(backup) {
                        machine.replicas.free(segment);
                    }
                    self.writer.master.replicas_mut().freed(backup, segment);
                }
                Effect::ControlHead { min_open } => self.asked = Some(min_open),
                Effect::Swapped { .. } => {}
            }
        }
        let config = &self.writer.config;
        let most = config.writes_max + config.copies_max;
        assert!(self.under_way.len() <= most, "flow control");
    }

    fn all_is_mended(&mut self) {
        self.cut.clear();
        for machine in &mut self.machines {
            machine.is_replaced = machine.id.is_none();
        }
    }

    /// The coordinator notes the requested value, and confirms it. The confirmation may be lost:
    /// then the request is repeated.
    fn note(&mut self) {
        let Some(asked) = self.asked else { return };
        self.floor = self.floor.max(asked);
        if self.random.percent(70) {
            self.writer.master.control_head_noted(asked);
            self.asked = None;
        }
    }

    /// A message arrives, perhaps once more than it was sent; its answer is in flight.
    fn deliver(&mut self) {
        if self.wire.is_empty() {
            return;
        }
        let n = self.random.index(self.wire.len());
        let message = if self.random.percent(10) {
            self.wire[n].clone() // the answer will be lost: it is sent again
        } else {
            self.wire.remove(n)
        };
        let busy = message.send.open && self.random.percent(6);
        let synced = self.random.percent(self.synced_at_once);
        let Some(machine) = self.machine(message.send.backup) else {
            return;
        };
        let ticket = message.send.ticket;
        let (segment, epoch) = (message.send.segment, message.send.epoch);
        let was_refused = machine.refused.get(&segment) >= Some(&epoch);
        // A replica from an earlier life, of a lower epoch, does not make it accept another.
        let has = machine.replicas.disk.get(&segment);
        let is_new = has.is_none_or(|has| has.kind != Kind::Control && has.epoch < epoch);
        if was_refused || busy && is_new {
            if message.send.kind == Kind::Control && !was_refused {
                machine.refused.insert(segment, epoch);
            }
            self.answers.push(Answer::Busy(ticket));
            return;
        }
        store(&mut machine.replicas.disk, &message);
        let level = if synced {
            machine.replicas.sync();
            Level::Synced
        } else {
            machine.replicas.journal.push(vec![message]);
            Level::Buffered
        };
        self.answers.push(Answer::Reached(ticket, level));
        if self.random.percent(5) {
            self.answers.push(Answer::Reached(ticket, level));
        }
    }

    fn answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let n = self.random.index(self.answers.len());
        match self.answers.remove(n) {
            Answer::Reached(ticket, level) => {
                self.under_way.remove(&ticket);
                self.writer.master.replicas_mut().acked(ticket, level);
            }
            Answer::Busy(ticket) => {
                self.wire.retain(|message| message.send.ticket != ticket);
                self.under_way.remove(&ticket);
                self.writer.master.rejected(ticket, Rejection::Busy);
            }
            Answer::NotFetched(ticket) => {
                self.under_way.remove(&ticket);
                self.writer.master.not_fetched(ticket, &[]);
            }
            Answer::Synced(backup) => self.writer.master.segments_mut().sync_ends(backup),
        }
    }

    fn sync(&mut self) {
        let n = self.random.index(self.machines.len());
        let machine = &mut self.machines[n];
        let waits =
            |answer: &Answer| matches!(answer, Answer::Synced(id) if machine.id == Some(*id));
        if let Some(id) = machine.id.filter(|_| !self.answers.iter().any(waits)) {
            self.writer.master.segments_mut().sync_begins(id);
            machine.replicas.sync();
            self.answers.push(Answer::Synced(id));
        }
    }

    fn up(&self) -> usize {
        self.machines.iter().filter(|m| m.id.is_some()).count()
    }

    fn lose(&mut self, power_cut: bool) {
        let up: Vec<usize> = (0..MACHINES)
            .filter(|n| self.machines[*n].id.is_some())
            .collect();
        if up.len() <= 4 {
            return;
        }
        let n = up[self.random.index(up.len())];
        self.lose_machine(n, power_cut);
    }

    fn lose_machine(&mut self, n: usize, power_cut: bool) {
        self.writer.promise();
        let machine = &mut self.machines[n];
        let disk = machine.replicas.after(power_cut, &mut self.random, store);
        let whole =
            |(id, had): &(&SegmentId, &Stored)| disk.get(id).is_some_and(|has| is(has, had));
        let cut = machine
            .replicas
            .disk
            .iter()
            .filter(|replica| !whole(replica));
        self.cut.extend(cut.map(|(id, _)| *id));
        let id = machine.id.take().expect("it is up");
        machine.replicas.disk = disk;
        machine.replicas.sync();
        machine.asks = false;
        machine.refused.clear();
        self.losses += 1;
        self.news.push_back((id, false));
    }

    /// A machine comes back under a new name, with its old replicas.
    fn come_back(&mut self) {
        let down: Vec<usize> = (0..MACHINES)
            .filter(|n| self.machines[*n].id.is_none())
            .collect();
        if down.is_empty() {
            return;
        }
        let n = down[self.random.index(down.len())];
        let machine = &mut self.machines[n];
        machine.generation += 1;
        let id = BackupId(machine.generation << 32 | n as u64);
        (machine.id, machine.asks, machine.is_replaced) = (Some(id), true, false);
        self.returns += 1;
        self.news.push_back((id, true));
        self.ask_what_is_needed(n);
    }

    /// The master is told about its backups, in order.
    fn hear(&mut self) {
        match self.news.pop_front() {
            Some((id, true)) => self.writer.master.backup_up(id),
            Some((id, false)) => {
                self.wire.retain(|message| message.send.backup != id);
                self.under_way.retain(|_, backup| *backup != id);
                self.writer.master.backup_lost(id); // answers in flight arrive late
            }
            None => {}
        }
    }

    /// It asks the master what it may drop; perhaps before the master knows it.
    fn ask_what_is_needed(&mut self, n: usize) {
        let machine = &mut self.machines[n];
        let (Some(id), true) = (machine.id, machine.asks) else {
            return;
        };
        let found = |(segment, stored): (&SegmentId, &Stored)| Found {
            backup: id,
            segment: *segment,
            epoch: stored.epoch,
            certificate: stored.certificate,
            closed: stored.closed,
        };
        let found: Vec<Found> = machine.replicas.disk.iter().map(found).collect();
        let not_needed = self.writer.master.hand_back(id, &found);
        self.handed_back += not_needed.len();
        self.kept += found.len() - not_needed.len();
        for segment in not_needed {
            self.machines[n].replicas.free(segment);
        }
    }

    /// All servers crash. Checks whether a recovery is possible, and its result.
    fn check_recovery(&mut self) {
        self.writer.promise();
        let power_cut = self.random.percent(50);
        let random = &mut self.random;
        let after = |machine: &Machine| machine.replicas.after(power_cut, random, store);
        let mut disks: Vec<Disk> = self.machines.iter().map(after).collect();
        let promised = self.writer.promised[usize::from(power_cut)].clone();
        // Some are not there: recovery may have to wait, but must not take a stale log for the
        // whole one.
        let of_some = self.promised_of_some(power_cut);
        for percent in [15, 25, 50] {
            let present = disks.iter().filter(|_| self.random.percent(percent));
            let some: Vec<Disk> = present.cloned().collect();
            self.recover(&some, &of_some, false);
        }
        // As many disks as allowed are gone for good.
        if self.random.percent(50) {
            for (disk, machine) in disks.iter_mut().zip(&self.machines) {
                disk.retain(|_, _| !machine.is_replaced);
            }
        }
        for _ in 1..self.writer.config.replicas {
            let gone = self.random.index(disks.len());
            disks[gone].clear();
        }
        self.recover(&disks, &promised, true);
    }

    /// The promise when some backups are missing: for segments that a power cut took bytes from,
    /// only the synced bytes; if one of them is a control segment, this holds for all segments,
    /// since that control segment may be the only one there.
    fn promised_of_some(&self, power_cut: bool) -> Promised {
        let [buffered, synced] = &self.writer.promised;
        let is_data = |id: &SegmentId| buffered.contains_key(id);
        if power_cut || !self.cut.iter().all(is_data) {
            return synced.clone();
        }
        let mut promised = buffered.clone();
        for id in &self.cut {
            promised.insert(*id, synced[id]);
        }
        promised
    }

    fn recover(&self, disks: &[Disk], promised: &Promised, must: bool) {
        if self.floor == SegmentId::NONE {
            // The recovery assumes that there is no log: so nothing of it may have been
            // acknowledged or shown.
            let nothing = promised.values().all(|length| *length == 0);
            assert!(nothing, "promised something before the log was noted");
            let holders = self.writer.master.control_holders();
            assert!(holders.is_empty(), "reads before the log was noted");
            return;
        }
        let floor = Some(self.floor);
        self.writer.check_recovery(disks, promised, floor, must);
    }
}

/// Whether they hold the same.
fn is(one: &Stored, other: &Stored) -> bool {
    let state = |stored: &Stored| (stored.epoch, stored.certificate.length, stored.closed);
    state(one) == state(other)
}

/// Idempotent, like a backup: existing bytes are not written again; an opening at a higher epoch
/// begins anew; a closed replica does not change.
fn store(disk: &mut Disk, message: &Message) {
    let send = &message.send;
    let known = disk.get(&send.segment).map(|stored| stored.epoch);
    if send.open && known.is_none_or(|epoch| epoch < send.epoch) {
        disk.insert(send.segment, Stored::new(send));
    }
    let Some(stored) = disk.get_mut(&send.segment) else {
        return; // freed: a late repetition
    };
    if stored.closed || send.epoch < stored.epoch {
        return;
    }
    let held = stored.certificate.length;
    assert!(send.from <= held, "a gap: {} of {held}", send.from);
    stored.epoch = send.epoch;
    if send.certificate.length > held {
        stored.certificate = send.certificate;
        stored.bytes.truncate(send.from as usize);
        stored.bytes.extend(&message.bytes);
    }
    stored.closed |= send.close;
}

fn run(seed: u64, config: Config) -> World {
    let mut world = World::new(seed, config);
    let losses = 1 + seed % 4;
    for _ in 0..700 {
        match world.random.index(32) {
            0..=5 => world.work(),
            6..=10 => world.poll(),
            11..=18 => world.deliver(),
            19..=24 => world.answer(),
            25 => world.note(),
            26 => world.sync(),
            27 if world.random.percent(30 * losses) => {
                let power_cut = world.random.percent(50);
                world.lose(power_cut);
            }
            28 => world.come_back(),
            29 => {
                let n = world.random.index(MACHINES);
                world.ask_what_is_needed(n);
            }
            30 if world.random.percent(50) => world.hear(),
            30 => world.writer.master.replicas_mut().forgive(),
            _ => world.check_recovery(),
        }
    }
    world
}

/// Delivers all messages, until no work is left.
fn finish(world: &mut World) {
    for _ in 0..20_000 {
        world.hear();
        world.poll();
        let quiet = world.wire.is_empty() && world.asked.is_none() && world.news.is_empty();
        if quiet && world.writer.master.is_idle() {
            return;
        }
        world.deliver();
        world.answer();
        world.note();
        world.sync();
        world.writer.master.replicas_mut().forgive();
    }
    panic!(
        "the rules do not come to an end: {} on the wire, asked {:?}, {}",
        world.wire.len(),
        world.asked,
        world.writer.master.describe()
    );
}

/// Checks that R of the present disks hold, of each segment, a replica that recovery would accept.
fn check_replicas(world: &World) {
    let state = world.writer.master.control().state();
    let up = world.machines.iter().filter(|machine| machine.id.is_some());
    let up: Vec<&Machine> = up.collect();
    for id in state.segments.keys() {
        let length_at = |machine: &&Machine| {
            let stored = machine.replicas.disk.get(id)?;
            world.writer.valid(state, *id, stored)
        };
        let lengths: Vec<u32> = up.iter().filter_map(length_at).collect();
        let longest = lengths.iter().max();
        let held = lengths.iter().filter(|length| Some(*length) == longest);
        let held = held.count();
        assert!(
            held >= world.writer.config.replicas,
            "segment {id}: {held} replicas"
        );
    }
}

fn live(seed: u64, config: Config) -> World {
    let mut world = run(seed, config);
    finish(&mut world);
    world.lose(false);
    finish(&mut world);
    world.all_is_mended();
    world.check_recovery();
    for (segment, length) in world.writer.heads.iter().flatten() {
        let durable = world.writer.master.durable_bytes(*segment, Level::Synced);
        assert_eq!(durable, *length, "segment {segment}");
    }
    assert!(world.writer.swaps.is_empty(), "swaps end");
    check_replicas(&world);
    // Every segment has R replicas, and after all backups have asked, none keeps an unneeded
    // replica.
    while world.up() < MACHINES {
        world.come_back();
    }
    finish(&mut world);
    for n in 0..MACHINES {
        world.ask_what_is_needed(n);
    }
    finish(&mut world);
    let listed = &world.writer.master.control().state().segments;
    let head = world.writer.master.control().head();
    let held = |id: &SegmentId| {
        let holding = world.machines.iter();
        holding
            .filter(|machine| machine.replicas.disk.contains_key(id))
            .count()
    };
    for id in listed.keys().chain(&head) {
        assert_eq!(held(id), config.replicas, "replicas of segment {id}");
    }
    for machine in &world.machines {
        for (id, stored) in &machine.replicas.disk {
            let needed = listed.contains_key(id) || Some(*id) == head;
            assert!(needed, "segment {id} was never freed: {stored:?}");
        }
    }
    world
}

fn seeds() -> std::ops::Range<u64> {
    crate::replication::seeds(400)
}

#[test]
fn acknowledged_bytes_survive_any_losses_and_returns() {
    let (mut losses, mut returns, mut handed_back, mut kept) = (0, 0, 0, 0);
    // Seed 1512 failed once: by a fault of these tests' judge.
    for seed in seeds().chain([1512]) {
        let result = std::panic::catch_unwind(|| live(seed, config()));
        let Ok(world) = result else {
            panic!(
                "seed {seed}: DURAMEN_SEEDS={seed}.. cargo test -p duramen-cluster --test it replication::losses"
            );
        };
        losses += world.losses;
        returns += world.returns;
        handed_back += world.handed_back;
        kept += world.kept;
    }
    println!("{losses} losses, {returns} returns, {handed_back} handed back, {kept} kept");
    if seeds().count() > 100 {
        assert!(losses > 500 && returns > 500 && handed_back > 500 && kept > 500);
    }
}
