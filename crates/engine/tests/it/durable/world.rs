//! A store with a log, sessions on different heads, a consumer, and the history of every key: the
//! states that may exist after a crash, and those that must.

use crate::durable::disk::{Commit, Disk, Heads, Name, Recovered, replay};
use duramen_base::expiry::is_expired;
use duramen_base::ids::Level;
use duramen_base::ids::SegmentId;
use duramen_base::random::Random;
use duramen_engine::{
    Clock, Collected, LogOptions, Options, Position, Session, Store, Swap, TableChange, TableId,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub const TABLE: TableId = TableId::DEFAULT;

/// The state of a key at one moment of its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub value: Vec<u8>,
    pub expires_at_ms: Option<u64>,
}

impl State {
    fn of(found: &Recovered) -> State {
        State {
            value: found.value.clone(),
            expires_at_ms: (found.expires_at_ms != 0).then_some(found.expires_at_ms),
        }
    }
}

/// Compares two states. An expired object may have been removed.
fn is_as_found(state: &Option<State>, found: &Option<State>, now_ms: u64) -> bool {
    let has_expired = |state: &State| state.expires_at_ms.is_some_and(|at| is_expired(at, now_ms));
    let found = found.as_ref().filter(|found| !has_expired(found));
    state.as_ref().filter(|state| !has_expired(state)) == found
}

/// Loads a store from the disk, segments in any order.
pub fn load(store: &Arc<Store>, disk: &Disk, random: &mut Random) {
    let mut floors = BTreeMap::new();
    for change in &disk.changes {
        match change {
            TableChange::Create {
                table, floor, name, ..
            } => {
                floors.insert(*table, (name.clone(), *floor));
            }
            TableChange::Clear { table, floor } => {
                let (_, known) = floors
                    .entry(*table)
                    .or_insert_with(|| ("default".to_owned(), 0));
                *known = *floor;
            }
            TableChange::Drop { table, .. } => {
                floors.remove(table);
            }
            TableChange::SetLevel { .. } => {}
        }
    }
    for (table, (name, floor)) in floors {
        store.tables().restore(table, &name, floor, None).unwrap();
    }
    let mut listed: Vec<SegmentId> = disk.listed.iter().copied().map(SegmentId).collect();
    let loader = store.loader(&listed, &disk.passes);
    for left in (1..listed.len()).rev() {
        listed.swap(left, random.below(left as u64 + 1) as usize);
    }
    for segment in listed {
        let (bytes, _) = &disk.segments[&segment.0];
        loader
            .adopt(segment, bytes.len() as u32, &mut |into| {
                into.copy_from_slice(bytes);
                Ok::<(), ()>(())
            })
            .unwrap();
    }
    loader.finish().unwrap();
}

/// The writer of the log, and the disk.
#[derive(Default)]
pub struct Consumer {
    heads: Heads,
    pub disk: Disk,
    /// Collected and not completed, oldest first.
    pending: VecDeque<(Collected, Commit)>,
    /// Recorded on the disk, and not yet reported to the engine.
    swap: Option<Swap>,
    pub swaps: u64,
    /// It does nothing when the engine requests a commit.
    pub sleeps: bool,
}

impl Consumer {
    pub fn collect(&mut self, store: &Store) {
        let log = store.log().expect("a log");
        let mut collected = Collected::default();
        log.collect(&mut collected);
        if !collected.is_empty() {
            let commit = self.heads.commit_of(log, &collected);
            self.pending.push_back((collected, commit));
        }
    }

    /// Completes the oldest collection, with `in_steps` by way of `buffered`.
    pub fn complete_one(&mut self, store: &Store, in_steps: bool) {
        let log = store.log().expect("a log");
        if let Some((mut collected, commit)) = self.pending.pop_front() {
            self.disk.apply(&commit, |_| true);
            if in_steps {
                log.complete(&mut collected, Level::Buffered);
                log.complete_all(Level::Synced);
            } else {
                log.complete(&mut collected, Level::Synced);
            }
        }
    }

    pub fn complete_everything(&mut self, store: &Store) {
        loop {
            self.collect(store);
            let mut worked = self.clean_one(store);
            while !self.pending.is_empty() {
                self.complete_one(store, false);
                worked = true;
            }
            if !worked {
                return;
            }
        }
    }

    /// One step for the cleaner: a frame, the record of a Swap, or its report. False: there was
    /// nothing to do.
    pub fn clean_one(&mut self, store: &Store) -> bool {
        let log = store.log().expect("a log");
        if let Some(swap) = self.swap.take() {
            log.swaps().swapped(&swap);
            self.disk.free(&swap);
            self.swaps += 1;
        } else if let Some(ready) = log.next_survivor() {
            self.disk.write_survivor(ready.segment, ready.bytes);
            log.swaps().survivor_durable(ready.segment);
        } else if let Some(swap) = log.next_swap() {
            self.disk.swap(&swap);
            self.swap = Some(swap);
        } else {
            return false;
        }
        true
    }

    /// The disk after a crash: of the pending commits each head keeps a prefix; with `whole`
    /// commits, all keep the same.
    pub fn crash(&self, random: &mut Random, whole: bool) -> Disk {
        let mut disk = self.disk.clone();
        let mut prefix = || random.below(self.pending.len() as u64 + 1);
        let first = prefix();
        let kept: Vec<u64> = (0..64)
            .map(|_| if whole { first } else { prefix() })
            .collect();
        let changes = kept.iter().copied().max().unwrap_or(0);
        for (n, (_, commit)) in self.pending.iter().enumerate() {
            if (n as u64) < changes {
                disk.apply(commit, |head| (n as u64) < kept[usize::from(head)]);
            }
        }
        disk
    }
}

/// A reply that was given, or waits to be, and the key states in it.
struct Reply {
    position: Position,
    /// Key, and the place in its history that was shown or made.
    shown: Vec<(Name, usize)>,
    /// The version that was given to a key, or its last one.
    version: Option<(Name, u64)>,
}

pub fn start(
    seed: u64,
    heads: usize,
    clock: &Arc<AtomicU64>,
    log: LogOptions,
) -> (Arc<Store>, Arc<Mutex<Consumer>>) {
    let mut options = Options::new(64 << 20);
    options.huge_pages = false;
    options.clock = Clock::Manual(clock.clone());
    options.heads = heads;
    options.cleaners = 0;
    options.hash_seed = Some(seed);
    options.log = Some(log);
    let store = Store::new(options).unwrap();
    (store, Arc::default())
}

/// When the engine requests a commit, it is made on the spot.
pub fn hook_up(store: &Arc<Store>, consumer: &Arc<Mutex<Consumer>>) {
    let (weak, hook) = (Arc::downgrade(store), consumer.clone());
    store.log().unwrap().on_demand(move || {
        if let Some(store) = weak.upgrade() {
            let mut consumer = hook.lock().unwrap();
            if !consumer.sleeps {
                consumer.complete_everything(&store);
            }
        }
    });
}

pub struct World {
    pub store: Arc<Store>,
    pub sessions: Vec<Session>,
    pub clock: Arc<AtomicU64>,
    pub consumer: Arc<Mutex<Consumer>>,
    pub random: Random,
    histories: BTreeMap<Name, Vec<Option<State>>>,
    waiting: Vec<Reply>,
    /// States in replies that were sent.
    promised: BTreeMap<Name, usize>,
    groups: Vec<Vec<(Name, usize)>>,
    seed: u64,
    /// The highest version of a key in any reply.
    versions: BTreeMap<Name, u64>,
    /// Makes values unique.
    next_value: u64,
}

impl World {
    pub fn new(seed: u64, heads: usize) -> World {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let log = LogOptions::new(7);
        let (store, consumer) = start(seed, heads, &clock, log);
        let sessions = (0..heads).map(|_| store.session().unwrap()).collect();
        hook_up(&store, &consumer);
        World {
            store,
            sessions,
            clock,
            consumer,
            seed,
            versions: BTreeMap::new(),
            random: Random::new(seed),
            histories: BTreeMap::new(),
            waiting: Vec::new(),
            promised: BTreeMap::new(),
            groups: Vec::new(),
            next_value: 0,
        }
    }

    /// A value that no other write has.
    pub fn value(&mut self, bytes: usize) -> Vec<u8> {
        self.next_value += 1;
        let mut value = self.next_value.to_le_bytes().to_vec();
        value.resize(bytes.max(8), self.next_value as u8);
        value
    }

    /// The key's history, which starts with its absence.
    pub fn history(&mut self, name: &Name) -> &mut Vec<Option<State>> {
        self.histories
            .entry(name.clone())
            .or_insert_with(|| vec![None])
    }

    /// True if the key exists, even if it has expired.
    pub fn exists(&mut self, name: &Name) -> bool {
        self.history(name).last().is_some_and(Option::is_some)
    }

    pub fn push(&mut self, name: &Name, state: Option<State>) -> usize {
        let history = self.history(name);
        history.push(state);
        history.len() - 1
    }

    /// The key's latest place in history, and the state that a reader must see now.
    pub fn now(&mut self, name: &Name) -> (usize, Option<State>) {
        let now_ms = self.clock.load(Ordering::Relaxed);
        let history = self.history(name);
        let state = history.last().cloned().flatten();
        let alive = |state: &State| state.expires_at_ms.is_none_or(|at| !is_expired(at, now_ms));
        (history.len() - 1, state.filter(alive))
    }

    pub fn names(&self) -> Vec<Name> {
        self.histories.keys().cloned().collect()
    }

    pub fn note_group(&mut self, group: Vec<(Name, usize)>) {
        self.groups.push(group);
    }

    /// Notes a reply with this position and these key states. It is sent when the position is
    /// reached.
    pub fn reply(&mut self, position: Position, shown: Vec<(Name, usize)>) {
        self.waiting.push(Reply {
            position,
            shown,
            version: None,
        });
        self.send_replies();
    }

    /// As `reply`, for a write or removal that returns a version; `is_new`: it was given just now.
    pub fn reply_with_version(
        &mut self,
        position: Position,
        shown: (Name, usize),
        version: u64,
        is_new: bool,
    ) {
        let known = self.versions.get(&shown.0).copied().unwrap_or(0);
        assert!(
            version > known || !is_new && version == known,
            "{:?}: {version} after {known}, new {is_new}",
            shown.0
        );
        let version = Some((shown.0.clone(), version));
        let shown = vec![shown];
        self.waiting.push(Reply {
            position,
            shown,
            version,
        });
        self.send_replies();
    }

    pub fn send_replies(&mut self) {
        let log = self.store.log().unwrap();
        let (sent, waiting): (Vec<Reply>, Vec<Reply>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|reply| log.reached(&reply.position) == Level::Synced);
        self.waiting = waiting;
        for reply in sent {
            for (name, place) in reply.shown {
                let known = self.promised.entry(name).or_default();
                *known = (*known).max(place);
            }
            if let Some((name, version)) = reply.version {
                let known = self.versions.entry(name).or_default();
                *known = (*known).max(version);
            }
        }
    }

    /// One step of the cleaner, or of the consumer's work for it.
    pub fn clean(&mut self) {
        if self.random.below(2) == 0 {
            self.store.clean_step(1 << 20);
        } else {
            self.consumer.lock().unwrap().clean_one(&self.store);
            self.send_replies();
        }
    }

    /// Crashes and starts again from the rest. `Err`: the result is wrong.
    pub fn restart(&mut self) -> Result<(), String> {
        self.send_replies();
        let whole = self.random.below(2) == 0;
        let consumer = self.consumer.clone();
        let mut disk = consumer.lock().unwrap().crash(&mut self.random, whole);
        let (recovered, version_max) = replay(&disk);
        self.judge(&recovered, whole).map_err(|wrong| {
            let names = self.histories.keys();
            let all = names.map(|name| format!("\n{name:?}{}", disk.tell(name)));
            format!(
                "{wrong}\npasses {:?}{}",
                disk.passes,
                all.collect::<String>()
            )
        })?;
        disk.restart();
        let highest = disk.segments.keys().next_back().copied().unwrap_or(0);
        let mut log = LogOptions::new(7);
        log.first_segment = highest + 1;
        log.version_floor = disk.version_floor + 1;
        let heads = self.sessions.len();
        self.sessions.clear();
        let (store, consumer) = start(self.seed, heads, &self.clock, log);
        load(&store, &disk, &mut self.random);
        if store.version_floor() <= version_max {
            return Err("versions could be given again".to_owned());
        }
        hook_up(&store, &consumer);
        consumer.lock().unwrap().disk = disk;
        self.sessions = (0..heads).map(|_| store.session().unwrap()).collect();
        (self.store, self.consumer) = (store, consumer);
        for name in self
            .histories
            .keys()
            .filter(|name| TableId(name.0).is_parts())
        {
            // Perhaps no part of this table was loaded, and then it has no index of parts.
            self.sessions[0].pin().make_parts(TableId(name.0)).unwrap();
        }
        self.waiting.clear();
        self.groups.clear();
        let now_ms = self.clock.load(Ordering::Relaxed);
        for (name, history) in &mut self.histories {
            let found = recovered.get(name).map(State::of);
            let last = history
                .iter()
                .rposition(|state| is_as_found(state, &found, now_ms));
            history.truncate(last.expect("judged") + 1);
        }
        self.check_all(&recovered)
    }

    /// Checks that the loader has found the same as the plain replay.
    fn check_all(&mut self, recovered: &BTreeMap<Name, Recovered>) -> Result<(), String> {
        let now_ms = self.clock.load(Ordering::Relaxed);
        let guard = self.sessions[0].pin();
        for name in self.histories.keys() {
            let expected = recovered.get(name).filter(|found| {
                found.expires_at_ms == 0 || !is_expired(found.expires_at_ms, now_ms)
            });
            let found = guard
                .read(TableId(name.0), guard.hash(&name.1), &name.1)
                .unwrap();
            if found.map(|object| (object.value.to_vec(), object.version))
                != expected.map(|object| (object.value.clone(), object.version))
            {
                return Err(format!("{name:?} was not loaded as it is on disk"));
            }
            if guard.order().has_position() {
                return Err("what was loaded is durable".to_owned());
            }
        }
        Ok(())
    }

    pub fn collect(&mut self) {
        self.consumer.lock().unwrap().collect(&self.store);
    }

    pub fn complete_one(&mut self) {
        let in_steps = self.random.below(2) == 0;
        self.consumer
            .lock()
            .unwrap()
            .complete_one(&self.store, in_steps);
        self.send_replies();
    }

    /// Crashes, replays, and reports an error in the outcome.
    pub fn crash(&mut self) -> Result<(), String> {
        self.send_replies();
        let whole = self.random.below(2) == 0;
        let disk = {
            let consumer = self.consumer.lock().unwrap();
            consumer.crash(&mut self.random, whole)
        };
        let (recovered, _) = replay(&disk);
        self.judge(&recovered, whole)
    }

    /// Compares the state after a restart with the promises. Unless commits are `whole`, a table
    /// may have been cleared although an earlier write is lost, so an absence proves nothing about
    /// the group that made it.
    pub fn judge(&self, recovered: &BTreeMap<Name, Recovered>, whole: bool) -> Result<(), String> {
        let now_ms = self.clock.load(Ordering::Relaxed);
        let mut places = BTreeMap::new();
        for (name, history) in &self.histories {
            let found = recovered.get(name).map(State::of);
            let matching: Vec<usize> = (0..history.len())
                .filter(|place| is_as_found(&history[*place], &found, now_ms))
                .collect();
            let (Some(first), Some(last)) = (matching.first(), matching.last()) else {
                return Err(format!("{name:?} has a value it never had: {found:?}"));
            };
            let promised = self.promised.get(name).copied().unwrap_or(0);
            if *last < promised {
                return Err(format!(
                    "{name:?} fell back to {last} ({:?}), {promised} ({:?}) of {} was promised",
                    history[*last].as_ref().map(|s| s.value.len()),
                    history[promised]
                        .as_ref()
                        .map(|s| (s.value.len(), s.expires_at_ms)),
                    history.len()
                ));
            }
            places.insert(name, (*first, *last));
        }
        if let Some(name) = recovered.keys().find(|name| !places.contains_key(name)) {
            return Err(format!("{name:?} was never written"));
        }
        for group in &self.groups {
            let is_there = group.iter().any(|(name, place)| {
                places[name].0 >= *place && (whole || recovered.contains_key(name))
            });
            let torn = group.iter().find(|(name, place)| places[name].1 < *place);
            if let (true, Some(torn)) = (is_there, torn) {
                let found: Vec<_> = group
                    .iter()
                    .map(|(name, place)| {
                        let length =
                            |state: &Option<State>| state.as_ref().map(|state| state.value.len());
                        let history = &self.histories[name];
                        let made = length(&history[*place]);
                        (
                            name,
                            place,
                            made,
                            places[name],
                            history.len(),
                            recovered.get(name).map(|f| f.version),
                        )
                    })
                    .collect();
                return Err(format!(
                    "there is no {torn:?} of the group {found:?}, whole {whole}"
                ));
            }
        }
        Ok(())
    }
}
