//! Random histories with crashes, checked against the states that each key may have.

use crate::two_levels::disk::{Device, Mistake, Running, Setup};
use duramen_base::expiry::is_expired;
use duramen_base::ids::Level;
use duramen_base::random::Random;
use duramen_base::test_tier;
use duramen_engine::{Guard, Position, Session, TableId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const TABLE: TableId = TableId::DEFAULT;

/// The state of a key at one moment: the value's number, and the time of its expiry.
type State = Option<(u64, u64)>;

/// The states of a key since the last one that was certainly durable.
#[derive(Default)]
struct Key {
    /// The durable state first; then every state written since, with the position that covers it.
    /// Without a position: it is not known whether the last crash lost it.
    states: Vec<(State, Option<Position>)>,
    /// The highest version given up to each of these states.
    versions: Vec<u64>,
}

impl Key {
    fn push(&mut self, state: State, position: Position, version: Option<u64>) {
        let last = self.versions.last().copied().unwrap_or(0);
        if let Some(version) = version {
            assert!(version > last, "version {version} after {last}"); // scenario 18
        }
        self.states.push((state, Some(position)));
        self.versions.push(version.unwrap_or(last));
    }
}

pub struct History {
    keys: BTreeMap<u64, Key>,
    next_value: u64,
    value_bytes: u64,
    /// Objects may be evicted.
    is_cache: bool,
}

fn name_of(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

fn value_of(number: u64, bytes: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + Random::new(number).below(bytes) as usize, number as u8);
    value
}

impl History {
    pub fn new(keys: u64, value_bytes: u64, is_cache: bool) -> History {
        let keys = (0..keys).map(|key| {
            let mut known = Key::default();
            known.push(None, Position::default(), None);
            (key, known)
        });
        History {
            keys: keys.collect(),
            next_value: 1,
            value_bytes,
            is_cache,
        }
    }

    fn now(&self, key: u64) -> State {
        self.keys[&key].states.last().expect("a state").0
    }

    fn write(&mut self, session: &mut Session, key: u64, expires_at_ms: Option<u64>) {
        let number = self.next_value;
        let value = value_of(number, self.value_bytes);
        let mut guard = session.pin();
        let name = name_of(key);
        let hash = guard.hash(&name);
        match guard.write(TABLE, hash, &name, &value, expires_at_ms) {
            Ok(outcome) => {
                self.next_value += 1;
                let known = self.keys.get_mut(&key).unwrap();
                let state = Some((number, expires_at_ms.unwrap_or(u64::MAX)));
                known.push(state, guard.order().take_position(), outcome.after);
            }
            Err(error) => panic!("a write of key {key}: {error}"),
        }
    }

    fn remove(&mut self, session: &mut Session, key: u64) {
        let mut guard = session.pin();
        let name = name_of(key);
        let hash = guard.hash(&name);
        guard.remove(TABLE, hash, &name).unwrap();
        let position = guard.order().take_position();
        let known = self.keys.get_mut(&key).unwrap();
        known.push(None, position, None);
    }

    fn shown(&self, guard: &Guard<'_>, key: u64) -> Option<u64> {
        let name = name_of(key);
        let object = guard.read(TABLE, guard.hash(&name), &name).unwrap()?;
        let number = u64::from_le_bytes(object.value[..8].try_into().unwrap());
        assert_eq!(object.value, value_of(number, self.value_bytes));
        Some(number)
    }

    fn alive(state: State, now_ms: u64) -> Option<u64> {
        state
            .filter(|(_, expires_at_ms)| !is_expired(*expires_at_ms, now_ms))
            .map(|(number, _)| number)
    }

    /// The running store shows the last state of every key.
    pub fn check(&self, session: &mut Session) {
        let guard = session.pin();
        for key in self.keys.keys().copied() {
            let expected = Self::alive(self.now(key), guard.now_ms());
            let shown = self.shown(&guard, key);
            if shown.is_some() || !self.is_cache {
                assert_eq!(shown, expected, "key {key}");
            }
        }
    }

    /// Acknowledged states may not be lost any more: forgets the states before them.
    fn acknowledge(&mut self, running: &Running) {
        let log = running.store.log().unwrap();
        for known in self.keys.values_mut() {
            let mut states = known.states.iter();
            let durable = states
                .rposition(|(_, position)| {
                    let position = position.as_ref();
                    position.is_some_and(|position| log.reached(position) >= Level::Synced)
                })
                .unwrap_or(0);
            known.states.drain(..durable);
            known.versions.drain(..durable);
        }
    }

    /// True if fewer keys are there than all durable states have.
    fn is_evicted(&self, running: &Running) -> bool {
        let certain = self.keys.values().filter(|known| {
            let mut states = known.states.iter();
            states.all(|(state, _)| state.is_some_and(|(_, expires)| expires == u64::MAX))
        });
        self.is_cache && running.store.tables().objects(TABLE) < certain.count() as u64
    }

    /// After a restart every key is in one of the states since the last acknowledged one; that is
    /// its state from now on.
    fn recover(&mut self, session: &mut Session) {
        let guard = session.pin();
        let now_ms = guard.now_ms();
        let keys: Vec<u64> = self.keys.keys().copied().collect();
        for key in keys {
            let shown = self.shown(&guard, key);
            if self.is_cache && shown.is_none() {
                // It may have been evicted, and its last state may still come back. Versions of
                // writes that were not durable may be given again.
                let known = self.keys.get_mut(&key).unwrap();
                known.versions = vec![known.versions[0]; known.versions.len()];
                // Positions of the last run mean nothing in this one.
                let states = known.states.iter_mut();
                states.for_each(|(_, position)| *position = None);
                continue;
            }
            let known = self.keys.get_mut(&key).unwrap();
            // The first of those that look alike: later ones may be lost, and with them the
            // versions given.
            let found = known
                .states
                .iter()
                .position(|(state, _)| Self::alive(*state, now_ms) == shown);
            let Some(found) = found else {
                panic!(
                    "key {key} is {shown:?} after the restart, which it was not since {:?}",
                    known
                        .states
                        .iter()
                        .map(|(state, _)| state)
                        .collect::<Vec<_>>()
                );
            };
            let (state, _) = known.states[found];
            known.states = vec![(state, Some(Position::default()))];
            known.versions = vec![known.versions[found]];
        }
    }
}

/// Events of a run.
#[derive(Debug, Default)]
pub struct Went {
    pub swaps: u64,
    /// As in [`Device`].
    pub built: u64,
    pub sent: u64,
    pub compactions: u64,
    pub crashes: u64,
    pub crashes_in_pass: u64,
    pub evictions: u64,
    /// Starts without some object that was there before.
    pub evictions_at_load: u64,
}

/// The parameters of a history.
#[derive(Clone)]
pub struct Plan {
    pub setup: Setup,
    pub mistake: Mistake,
    pub steps: u64,
    pub keys: u64,
    pub value_bytes: u64,
    /// Number of power losses per 1000 steps.
    pub crashes: u64,
    pub expiry: bool,
    /// Live bytes, in multiples of values, beyond which some loads evict.
    pub kept_values: Option<u64>,
}

impl Plan {
    pub fn new() -> Plan {
        Plan {
            setup: Setup::small(),
            mistake: Mistake::None,
            steps: 1500,
            keys: 24,
            value_bytes: 900,
            crashes: 10,
            expiry: false,
            kept_values: None,
        }
    }

    /// The setup of the next start: it keeps everything, or some values, or none.
    fn next_setup(&self, random: &mut Random) -> Setup {
        let mut setup = self.setup.clone();
        if let Some(most) = self.kept_values
            && random.below(3) > 0
        {
            let kept = random.below(most + 1) * (self.value_bytes / 2 + 32);
            setup.kept_part = Some(kept as f64 / setup.memory_bytes as f64);
        }
        setup
    }
}

/// Runs one history; panics if data were lost or came back.
pub fn run(seed: u64, plan: &Plan) -> Went {
    let mut random = Random::new(seed);
    let mut went = Went::default();
    let mut history = History::new(
        plan.keys,
        plan.value_bytes,
        plan.setup.mode == duramen_engine::Mode::Cache,
    );
    let mut running = plan.setup.start(Device::default(), plan.mistake, 1);
    let mut step = 0;
    while step < plan.steps {
        let mut sessions: Vec<Session> = (0..plan.setup.heads)
            .map(|_| running.store.session().unwrap())
            .collect();
        let mut crash = false;
        while step < plan.steps && !crash {
            step += 1;
            act(&mut random, &running, &mut sessions, &mut history, plan);
            crash = random.below(1000) < plan.crashes;
        }
        history.check(&mut sessions[0]);
        history.acknowledge(&running);
        let stats = running.store.stats();
        went.compactions += stats.cleaner.compactions;
        went.evictions += stats.entries_evicted;
        drop(sessions);
        let device = running.crash();
        went.crashes += 1;
        went.crashes_in_pass += u64::from(!device.passes.is_empty());
        (went.swaps, went.built, went.sent) = (device.swaps, device.built, device.sent);
        let setup = plan.next_setup(&mut random);
        running = setup.start(device, plan.mistake, 1 + (seed % 3) as usize);
        went.evictions_at_load += u64::from(history.is_evicted(&running));
        history.recover(&mut running.store.session().unwrap());
        check_counters(&running);
    }
    went
}

fn act(
    random: &mut Random,
    running: &Running,
    sessions: &mut [Session],
    history: &mut History,
    plan: &Plan,
) {
    let session = random.below(sessions.len() as u64) as usize;
    let session = &mut sessions[session];
    // A few keys are written all the time, the others now and then: so segments of all ages keep
    // some live data.
    let key = random.below(plan.keys).min(random.below(plan.keys));
    match random.below(100) {
        0..38 => {
            let ttl = plan.expiry && random.below(3) == 0;
            let expires = plan.setup.now_ms.load(Ordering::Relaxed) + 1 + random.below(200);
            history.write(session, key, ttl.then_some(expires));
        }
        38..52 => history.remove(session, key),
        52..60 => running.store.heads().close_all(),
        60..76 => {
            running
                .store
                .clean_step(1 + random.below(40) * random.below(40) * 16);
        }
        76..82 => running.writer(|writer, log| writer.stage(log)),
        82..86 => running.writer(|writer, log| writer.commit(log)),
        86..91 => {
            running.writer(|writer, log| writer.frame(log));
        }
        91..97 => {
            running.writer(|writer, log| writer.swap(log));
        }
        97 => history.acknowledge(running),
        98 if plan.expiry => {
            let by = random.below(60);
            plan.setup.now_ms.fetch_add(by, Ordering::Relaxed);
        }
        _ => history.check(session),
    }
}

/// load::R4: after a restart, the counters equal the content.
fn check_counters(running: &Running) {
    let mut session = running.store.session().unwrap();
    let guard = session.pin();
    let (mut objects, mut bytes) = (0, 0);
    let mut cursor = 0;
    loop {
        cursor = guard
            .walk()
            .scan(TABLE, cursor, 1000, |object| {
                objects += 1;
                let header = if object.expires_at_ms.is_some() {
                    24
                } else {
                    16
                };
                bytes +=
                    (header + object.key.len() + object.value.len()).next_multiple_of(8) as u64;
            })
            .unwrap();
        if cursor == 0 {
            break;
        }
    }
    let counted = running.store.tables().objects(TABLE);
    // Expired objects are counted until a thread meets them.
    assert!(counted >= objects, "{counted} counted, {objects} there");
    let stats = running.store.stats();
    // Each may have 8 bytes for its victim, and 8 for lengths that are large.
    assert!(
        stats.live_bytes >= bytes,
        "{} live, {bytes} there",
        stats.live_bytes
    );
    if counted == objects {
        assert!(
            stats.live_bytes <= bytes + 16 * objects,
            "{} live, {bytes} there",
            stats.live_bytes
        );
    }
    let report = running.store.memory_report();
    assert_eq!(report.total_bytes, stats.committed_bytes);
}

/// Expired objects leave no tombstone of their own: older versions must stay away all the same.
#[test]
fn random_histories_with_expiry() {
    for seed in 0..test_tier::runs(15, 60) {
        let plan = Plan {
            expiry: true,
            ..Plan::new()
        };
        run(seed, &plan);
    }
}

/// A cache may forget a key, but never show a state before its last one.
#[test]
fn random_histories_of_a_cache() {
    let mut evictions = 0;
    for seed in 0..3 {
        let mut plan = Plan {
            steps: 3000,
            keys: 200,
            value_bytes: 1_000_000,
            crashes: 4,
            ..Plan::new()
        };
        plan.setup.mode = duramen_engine::Mode::Cache;
        plan.setup.disk_segments_max = 60;
        evictions += run(seed, &plan).evictions;
    }
    assert!(evictions > 100, "{evictions}");
}

/// A load that evicts some objects, or all: none of them comes back once it was replaced or
/// removed, and none shows an older version of itself.
#[test]
fn evicted_objects_never_come_back_in_place_of_newer_ones() {
    let mut total = Went::default();
    let seeds = test_tier::runs(25, 100);
    for seed in 0..seeds {
        let mut plan = Plan {
            kept_values: Some(24),
            // A tombstone may be longer than a small object.
            value_bytes: if seed % 3 == 0 { 1 } else { 900 },
            expiry: seed % 4 == 0,
            ..Plan::new()
        };
        plan.setup.mode = duramen_engine::Mode::Cache;
        plan.setup.newest_first = seed % 2 == 0;
        let went = run(seed, &plan);
        total.swaps += went.swaps;
        total.crashes += went.crashes;
        total.evictions_at_load += went.evictions_at_load;
    }
    println!("{total:?}");
    assert!(
        total.swaps > seeds && total.evictions_at_load > 3 * seeds,
        "{total:?}"
    );
}

/// Values of many sizes fill the memory, so that writers wait for the cleaner, and the cleaner for
/// the disk.
#[test]
fn random_histories_under_memory_pressure() {
    for seed in 0..test_tier::runs(2, 6) {
        let plan = Plan {
            steps: 4000,
            value_bytes: 400_000,
            crashes: 2,
            ..Plan::new()
        };
        run(seed, &plan);
    }
}

#[test]
fn random_histories_survive_crashes() {
    let mut total = Went::default();
    let seeds = test_tier::runs(25, 100);
    for seed in 0..seeds {
        let went = run(seed, &Plan::new());
        total.swaps += went.swaps;
        total.compactions += went.compactions;
        total.crashes += went.crashes;
        total.crashes_in_pass += went.crashes_in_pass;
    }
    println!("{total:?}");
    assert!(
        total.swaps > 2 * seeds && total.compactions > 2 * seeds && total.crashes_in_pass > seeds,
        "{total:?}"
    );
}
