//! Drafts: what their steps see, what a commit finds, and what a dropped one leaves behind.

use duramen_base::expiry::is_expired;
use duramen_base::random::Random;
use duramen_engine::{
    Clock, Decision, Draft, Error, Guard, Options, Outcome, Session, Stamp, Store, TableId,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;
const DRAFT_BYTES: usize = 1 << 20;

struct World {
    store: Arc<Store>,
    now_ms: Arc<AtomicU64>,
}

fn world() -> World {
    let now_ms = Arc::new(AtomicU64::new(1_000));
    let mut options = Options::new(64 * MIB);
    options.clock = Clock::Manual(Arc::clone(&now_ms));
    // They would take expired keys out between a step and its commit, which then finds a change.
    options.cleaners = 0;
    World {
        store: Store::new(options).expect("a store"),
        now_ms,
    }
}

type Values = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

fn read(guard: &Guard<'_>, key: &[u8]) -> Option<(Vec<u8>, Option<u64>)> {
    let found = guard.read(TABLE, guard.hash(key), key).expect("a read");
    found.map(|object| (object.value.to_vec(), object.expires_at_ms))
}

fn write(guard: &mut Guard<'_>, key: &[u8], value: &[u8], expires_at_ms: Option<u64>) -> Outcome {
    let hash = guard.hash(key);
    let done = guard.write(TABLE, hash, key, value, expires_at_ms);
    done.expect("a write")
}

fn remove(guard: &mut Guard<'_>, key: &[u8]) -> Outcome {
    let hash = guard.hash(key);
    guard.remove(TABLE, hash, key).expect("a removal")
}

fn begin<'s>(session: &'s mut Session) -> Guard<'s> {
    let mut guard = session.pin();
    guard.begin_draft(Box::new(Draft::new(DRAFT_BYTES)));
    guard
}

/// Locks the draft's keys, and applies it if they are as it has met them.
fn commit(guard: &mut Guard<'_>) -> bool {
    let draft = guard.end_draft().expect("a draft");
    let keys = draft.keys();
    if !keys.is_empty() {
        guard.lock_keys(&keys).expect("locks");
    }
    let holds = draft.still_holds(guard).expect("stamps");
    if holds {
        guard.set_aside(draft.room()).expect("room");
        draft.apply(guard);
    }
    guard.unlock_keys();
    holds
}

fn all(session: &mut Session) -> Values {
    let guard = session.pin();
    let mut values = Values::new();
    let mut cursor = 0;
    loop {
        let (next, _) = guard
            .walk()
            .scan_as(TABLE, cursor, usize::MAX, false, |object| {
                values.insert(
                    object.key.to_vec(),
                    (object.value.to_vec(), object.expires_at_ms),
                );
            })
            .expect("a walk");
        cursor = next;
        if cursor == 0 {
            return values;
        }
    }
}

/// One random operation on a guard and on the model; their results are compared.
fn step(random: &mut Random, guard: &mut Guard<'_>, model: &mut Values, now_ms: u64) {
    let key = format!("key{}", random.below(30)).into_bytes();
    let known = model.get(&key).cloned();
    match random.below(5) {
        0 => assert_eq!(read(guard, &key), known),
        1 => {
            let outcome = remove(guard, &key);
            assert_eq!(outcome.before.is_some(), model.remove(&key).is_some());
            assert_eq!(outcome.after, None);
        }
        2 => {
            let hash = guard.hash(&key);
            let mut seen = None;
            let outcome = guard.update(TABLE, hash, &key, |found, scratch| {
                seen = found.map(|object| object.value.to_vec());
                scratch.extend_from_slice(found.map_or(&[][..], |object| object.value));
                scratch.push(b'+');
                Decision::PutScratch {
                    expires_at_ms: found.and_then(|object| object.expires_at_ms),
                }
            });
            assert_eq!(seen, known.as_ref().map(|(value, _)| value.clone()));
            let outcome = outcome.expect("an update");
            assert!(outcome.after > outcome.before);
            let (mut value, expires_at_ms) = known.unwrap_or_default();
            value.push(b'+');
            model.insert(key, (value, expires_at_ms));
        }
        kind => {
            let value = format!("value{}", random.below(1_000_000)).into_bytes();
            let expires_at_ms = (kind == 3).then(|| now_ms - 2 + random.below(4_000));
            write(guard, &key, &value, expires_at_ms);
            match expires_at_ms {
                Some(at_ms) if is_expired(at_ms, now_ms) => drop(model.remove(&key)),
                _ => drop(model.insert(key, (value, expires_at_ms))),
            }
        }
    }
}

#[test]
fn a_draft_is_seen_by_its_step_alone_until_it_is_applied_whole() {
    let world = world();
    let (mut ours, mut other) = (
        world.store.session().expect("a session"),
        world.store.session().expect("a session"),
    );
    let mut random = Random::new(7);
    let mut model = Values::new();
    for _ in 0..400 {
        let now_ms = world.now_ms.fetch_add(random.below(700), Ordering::Relaxed);
        let now_ms = now_ms.max(world.now_ms.load(Ordering::Relaxed));
        model.retain(|_, (_, expires_at_ms)| {
            expires_at_ms.is_none_or(|at_ms| !is_expired(at_ms, now_ms))
        });
        assert_eq!(all(&mut other), model);
        let mut drafted = model.clone();
        let mut guard = begin(&mut ours);
        for _ in 0..random.below(40) {
            step(&mut random, &mut guard, &mut drafted, now_ms);
        }
        let shown = {
            let mut values = Values::new();
            let (next, _) = guard
                .walk()
                .scan_as(TABLE, 0, usize::MAX, false, |object| {
                    let value = (object.value.to_vec(), object.expires_at_ms);
                    let twice = values.insert(object.key.to_vec(), value);
                    assert_eq!(twice, None, "each key is shown once");
                })
                .expect("a walk");
            assert_eq!(next, 0);
            values
        };
        assert_eq!(shown, drafted);
        assert_eq!(all(&mut other), model, "nobody else sees a draft");
        match random.below(3) {
            0 => drop(guard.end_draft()),
            _ => {
                assert!(commit(&mut guard), "nobody else has written");
                model = drafted;
            }
        }
    }
}

/// Whether a draft that has done this can be applied after another session has done that.
fn holds(
    prepare: impl FnOnce(&mut Guard<'_>),
    drafted: impl FnOnce(&mut Guard<'_>),
    meanwhile: impl FnOnce(&mut Guard<'_>),
) -> bool {
    let world = world();
    let mut ours = world.store.session().expect("a session");
    let mut other = world.store.session().expect("a session");
    prepare(&mut other.pin());
    let mut guard = begin(&mut ours);
    drafted(&mut guard);
    meanwhile(&mut other.pin());
    let before = read(&other.pin(), b"result");
    let holds = commit(&mut guard);
    drop(guard);
    if !holds {
        assert_eq!(read(&other.pin(), b"result"), before, "nothing was done");
    }
    holds
}

#[test]
fn a_draft_whose_keys_have_changed_is_refused() {
    let put = |key: &'static [u8]| {
        move |guard: &mut Guard<'_>| {
            write(guard, key, b"v", None);
        }
    };
    let reads = |guard: &mut Guard<'_>| {
        read(guard, b"a");
        write(guard, b"result", b"v", None);
    };
    let none = |_: &mut Guard<'_>| {};
    assert!(holds(none, reads, none));
    assert!(holds(put(b"a"), reads, none));
    assert!(holds(none, reads, put(b"b")));
    assert!(!holds(none, reads, put(b"a")), "it was created");
    assert!(!holds(put(b"a"), reads, put(b"a")), "it was overwritten");
    assert!(!holds(none, reads, put(b"result")), "its target has come");
    let removed = |guard: &mut Guard<'_>| {
        remove(guard, b"a");
    };
    assert!(!holds(put(b"a"), reads, removed));
    let created_and_removed = |guard: &mut Guard<'_>| {
        write(guard, b"a", b"v", None);
        remove(guard, b"a");
    };
    assert!(!holds(none, reads, created_and_removed));
    assert!(!holds(put(b"a"), reads, |guard: &mut Guard<'_>| {
        remove(guard, b"a");
        write(guard, b"a", b"v", None);
    }));
}

#[test]
fn a_key_that_expires_between_a_draft_and_its_commit_counts_as_changed() {
    let world = world();
    let mut session = world.store.session().expect("a session");
    write(&mut session.pin(), b"a", b"v", Some(2_000));
    let mut guard = begin(&mut session);
    assert!(read(&guard, b"a").is_some());
    write(&mut guard, b"b", b"v", None);
    let draft = guard.end_draft().expect("a draft");
    drop(guard);
    world.now_ms.store(2_001, Ordering::Relaxed);
    let mut guard = session.pin();
    guard.begin_draft(draft);
    assert!(!commit(&mut guard));
    assert_eq!(read(&guard, b"b"), None);
}

/// As in Redis.
#[test]
fn a_key_exists_in_the_millisecond_of_its_expiry() {
    let world = world();
    let mut session = world.store.session().expect("a session");
    let with = |value: &[u8]| Some((value.to_vec(), Some(2_000)));
    write(&mut session.pin(), b"a", b"v", Some(2_000));
    world.now_ms.store(2_000, Ordering::Relaxed);
    assert_eq!(read(&session.pin(), b"a"), with(b"v"));
    // Writes may have this time as well.
    write(&mut session.pin(), b"a", b"w", Some(2_000));
    assert_eq!(read(&session.pin(), b"a"), with(b"w"));
    let mut guard = begin(&mut session);
    write(&mut guard, b"a", b"x", Some(2_000));
    write(&mut guard, b"b", b"y", Some(2_000));
    assert_eq!(read(&guard, b"a"), with(b"x"));
    assert!(commit(&mut guard));
    drop(guard);
    assert_eq!(read(&session.pin(), b"b"), with(b"y"));
    let mut guard = begin(&mut session);
    write(&mut guard, b"c", b"z", Some(2_000));
    let draft = guard.end_draft().expect("a draft");
    drop(guard);
    world.now_ms.store(2_001, Ordering::Relaxed);
    let mut guard = session.pin();
    assert_eq!((read(&guard, b"a"), read(&guard, b"b")), (None, None));
    guard.begin_draft(draft);
    assert_eq!(read(&guard, b"c"), None);
}

#[test]
fn a_draft_has_a_limit_and_changes_nothing_beyond_it() {
    let world = world();
    let mut session = world.store.session().expect("a session");
    let mut guard = begin(&mut session);
    let value = vec![1; 100_000];
    let mut written = 0;
    let refused = loop {
        let key = format!("key{written}").into_bytes();
        let hash = guard.hash(&key);
        match guard.write(TABLE, hash, &key, &value, None) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::GroupTooLarge { .. }), "{refused}");
    assert!((8..=10).contains(&written), "{written}");
    drop(guard);
    // Values that are overwritten do not count.
    let mut guard = begin(&mut session);
    for _ in 0..1_000 {
        write(&mut guard, b"key", &value, None);
    }
    assert!(commit(&mut guard));
}

#[test]
fn stamps_tell_of_the_draft() {
    let world = world();
    let mut session = world.store.session().expect("a session");
    write(&mut session.pin(), b"a", b"v", None);
    let mut guard = begin(&mut session);
    let hash = guard.hash(b"a");
    let stamp = |guard: &Guard<'_>| guard.stamp(TABLE, hash, b"a").expect("a stamp");
    let first = stamp(&guard);
    assert!(first.still_holds(&stamp(&guard)));
    remove(&mut guard, b"a");
    assert!(matches!(stamp(&guard), Stamp::Absent { .. }));
    write(&mut guard, b"a", b"w", None);
    assert!(!first.still_holds(&stamp(&guard)));
}

/// `IFVERSION` of a client that was told a version in a step: another object must not have it.
#[test]
fn versions_that_a_draft_has_told_are_those_of_the_store_and_do_not_come_again() {
    let world = world();
    let mut session = world.store.session().expect("a session");
    let told = |outcome: Outcome| outcome.after.expect("it is written");
    {
        let mut guard = begin(&mut session);
        write(&mut guard, b"stays", b"1", None);
        let last = told(write(&mut guard, b"stays", b"2", None));
        write(&mut guard, b"goes", b"1", None);
        write(&mut guard, b"goes", b"2", None);
        let gone = told(write(&mut guard, b"goes", b"3", None));
        remove(&mut guard, b"goes");
        assert!(commit(&mut guard));
        let found = guard
            .read(TABLE, guard.hash(b"stays"), b"stays")
            .expect("a read");
        assert_eq!(found.map(|object| object.version), Some(last));
        assert!(told(write(&mut guard, b"goes", b"new", None)) > gone);
    }
    // The same for a key that was there, and for one that was not.
    for key in [&b"goes"[..], b"was never"] {
        let mut guard = begin(&mut session);
        let gone = told(write(&mut guard, key, b"3", None));
        remove(&mut guard, key);
        assert!(commit(&mut guard));
        assert!(told(write(&mut guard, key, b"new", None)) > gone);
        guard.end_draft();
    }
    // An expired object that is still there counts.
    write(&mut session.pin(), b"expired", b"1", Some(4_000));
    world.now_ms.store(5_000, Ordering::Relaxed);
    let mut guard = begin(&mut session);
    let last = told(write(&mut guard, b"expired", b"2", None));
    assert!(commit(&mut guard));
    let found = guard.read(TABLE, guard.hash(b"expired"), b"expired");
    assert_eq!(
        found.expect("a read").map(|object| object.version),
        Some(last)
    );
}
