//! Bits of entries flip in memory: reads and writes put one back, and believe no more.

use duramen_base::ids::KeyRange;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::{Decision, DirtyKey, Error, Guard, Options, Session, Store, TableId};
use duramen_format::entry;
use std::sync::Arc;

const TABLE: TableId = TableId::DEFAULT;
const IN_A_DAY_MS: u64 = 86_400_000;
/// Bits of an entry with an expiry, a key of 3 bytes and a value of 5.
const ENTRY_BITS: usize = 8 * (16 + 8 + 8);

fn store() -> Arc<Store> {
    let options = Options {
        cleaners: 0,
        ..Options::new(64 << 20)
    };
    Store::new(options).unwrap()
}

fn get(session: &mut Session, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let guard = session.pin();
    let found = guard.read(TABLE, guard.hash(key), key)?;
    Ok(found.map(|object| object.value.to_vec()))
}

/// Returns the version.
fn put(session: &mut Session, key: &[u8], value: &[u8]) -> Result<u64, Error> {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    let at_ms = guard.now_ms() + IN_A_DAY_MS;
    let outcome = guard.write(TABLE, hash, key, value, Some(at_ms))?;
    Ok(outcome.after.unwrap())
}

fn append(session: &mut Session, key: &[u8], more: &[u8]) -> Result<Option<u64>, Error> {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    let outcome = guard.update(TABLE, hash, key, |found, scratch| {
        scratch.extend_from_slice(found.map_or(&[][..], |object| object.value));
        scratch.extend_from_slice(more);
        Decision::PutScratch {
            expires_at_ms: None,
        }
    })?;
    Ok(outcome.after)
}

fn keys(session: &mut Session) -> Result<Vec<Vec<u8>>, Error> {
    let guard = session.pin();
    let (mut keys, mut cursor) = (Vec::new(), 0);
    loop {
        cursor = guard
            .walk()
            .scan(TABLE, cursor, 10, |object| keys.push(object.key.to_vec()))?;
        if cursor == 0 {
            keys.sort_unstable();
            return Ok(keys);
        }
    }
}

#[test]
fn one_flipped_bit_is_never_seen() {
    let store = store();
    let mut session = store.session().unwrap();
    let mut version = put(&mut session, b"key", b"value").unwrap();
    for bit in 0..ENTRY_BITS {
        assert!(store.flips().entry(TABLE, b"key", &[bit]));
        let found = get(&mut session, b"key").unwrap();
        assert_eq!(found.as_deref(), Some(&b"value"[..]), "bit {bit}");
        assert_eq!(keys(&mut session).unwrap(), [b"key"], "bit {bit}");
        assert_eq!(get(&mut session, b"kex"), Ok(None));
        let after = match bit % 2 {
            0 => append(&mut session, b"key", b"!").unwrap().unwrap(),
            _ => put(&mut session, b"key", b"value").unwrap(),
        };
        assert_eq!(after, version + 1, "bit {bit}");
        if bit % 2 == 0 {
            let found = get(&mut session, b"key").unwrap();
            assert_eq!(found.as_deref(), Some(&b"value!"[..]), "bit {bit}");
        }
        version = put(&mut session, b"key", b"value").unwrap();
    }
    assert_eq!(store.stats().flipped_bits, ENTRY_BITS as u64);
    assert_eq!(store.stats().damaged_entries, 0);
    assert_eq!(store.tables().list()[0].objects, 1);
}

#[test]
fn an_entry_with_a_flipped_bit_is_removed_and_counted() {
    let store = store();
    let mut session = store.session().unwrap();
    for bit in 0..ENTRY_BITS {
        put(&mut session, b"key", b"value").unwrap();
        assert!(store.flips().entry(TABLE, b"key", &[bit]));
        let mut guard = session.pin();
        let hash = guard.hash(b"key");
        let outcome = guard.remove(TABLE, hash, b"key").unwrap();
        drop(guard);
        assert!(outcome.before.is_some(), "bit {bit}");
        assert_eq!(get(&mut session, b"key"), Ok(None));
        assert_eq!(store.stats().live_bytes, 0, "bit {bit}");
    }
}

/// A flipped bit of a slot once made its key absent, or showed an older version of it. The next
/// write began its versions anew, and a restart brought the lost value back.
#[test]
fn one_flipped_bit_of_a_slot_is_put_back() {
    let store = store();
    let mut session = store.session().unwrap();
    for n in 0..64 * 4 {
        let (bit, step) = (n / 4, n % 4);
        put(&mut session, b"key", b"older").unwrap();
        let version = put(&mut session, b"key", b"value").unwrap();
        assert!(store.flips().slot(TABLE, b"key", &[bit]), "bit {bit}");
        match step {
            0 => {
                let found = get(&mut session, b"key").unwrap();
                assert_eq!(found.as_deref(), Some(&b"value"[..]), "bit {bit}");
            }
            1 => {
                let after = put(&mut session, b"key", b"value");
                assert_eq!(after, Ok(version + 1), "bit {bit}");
            }
            2 => {
                let mut guard = session.pin();
                let hash = guard.hash(b"key");
                let outcome = guard.remove(TABLE, hash, b"key").unwrap();
                assert_eq!(outcome.before, Some(version), "bit {bit}");
            }
            _ => assert_eq!(keys(&mut session).unwrap(), [b"key"], "bit {bit}"),
        }
        assert_eq!(store.stats().flipped_bits, n as u64 + 1, "bit {bit}");
    }
    assert_eq!(store.stats().damaged_entries, 0);
}

/// bucket::B7: a slot does not go to another home by a wrong tag when its partition grows.
#[test]
fn a_key_with_a_damaged_slot_outlives_the_growth_of_its_partition() {
    for bit in (0..64).step_by(7) {
        let store = store();
        let mut session = store.session().unwrap();
        put(&mut session, b"key", b"value").unwrap();
        assert!(store.flips().slot(TABLE, b"key", &[bit]));
        for n in 0..5000u32 {
            put(&mut session, &n.to_le_bytes(), b"other").unwrap();
        }
        let found = get(&mut session, b"key").unwrap();
        assert_eq!(found.as_deref(), Some(&b"value"[..]), "bit {bit}");
        assert_eq!(store.tables().list()[0].objects, 5001, "bit {bit}");
    }
}

/// verified::V7: three flipped bits of a slot, which no entry explains, are an error.
#[test]
fn a_slot_that_cannot_be_put_back_is_an_error() {
    let store = store();
    let mut session = store.session().unwrap();
    put(&mut session, b"key", b"value").unwrap();
    assert!(store.flips().slot(TABLE, b"key", &[3, 50, 60]));
    for _ in 0..2 {
        assert_eq!(get(&mut session, b"key"), Err(Error::Damaged));
        assert_eq!(put(&mut session, b"key", b"new"), Err(Error::Damaged));
        assert_eq!(keys(&mut session), Err(Error::Damaged));
    }
    assert_eq!(store.stats().damaged_entries, 1);
}

/// bucket::B7: a partition with a slot that cannot be put back does not grow. That was taken for a
/// lack of memory: each new key of it sought some, and a cache would have evicted for it.
#[test]
fn a_partition_that_a_damaged_slot_keeps_from_growing_lacks_no_memory() {
    let store = store();
    let mut session = store.session().unwrap();
    put(&mut session, b"key", b"value").unwrap();
    assert!(store.flips().slot(TABLE, b"key", &[3, 50, 60]));
    let (mut written, mut refused) = (0, 0);
    for n in 0..5000u32 {
        match put(&mut session, &n.to_le_bytes(), b"other") {
            Ok(_) => written += 1,
            Err(error) => {
                assert_eq!(error, Error::Damaged, "{n}");
                refused += 1;
            }
        }
    }
    assert!(written > 3000 && refused > 100, "{written}, {refused}");
    let mut guard = session.pin();
    let keys: Vec<_> = (0..5000u32)
        .map(|n| (TABLE, guard.hash(&n.to_le_bytes())))
        .collect();
    assert_eq!(guard.lock_keys(&keys), Err(Error::Damaged));
}

/// verified::V5: also those of the length, of the key and of the version.
#[test]
fn more_damage_is_an_error_and_changes_nothing() {
    for bits in [
        [3, 40],
        [100, 101],
        [116, 117],
        [130, 200],
        [8, 250],
        [90, 60],
    ] {
        let store = store();
        let mut session = store.session().unwrap();
        put(&mut session, b"key", b"value").unwrap();
        put(&mut session, b"other", b"one").unwrap();
        assert!(store.flips().entry(TABLE, b"key", &bits));
        for _ in 0..2 {
            assert_eq!(get(&mut session, b"key"), Err(Error::Damaged), "{bits:?}");
            assert_eq!(put(&mut session, b"key", b"new"), Err(Error::Damaged));
            assert_eq!(append(&mut session, b"key", b"!"), Err(Error::Damaged));
            let mut guard = session.pin();
            let hash = guard.hash(b"key");
            assert_eq!(guard.remove(TABLE, hash, b"key"), Err(Error::Damaged));
            drop(guard);
            assert_eq!(keys(&mut session), Err(Error::Damaged));
        }
        assert_eq!(get(&mut session, b"other"), Ok(Some(b"one".to_vec())));
        assert_eq!(store.stats().damaged_entries, 1);
        session.pin_exclusive().clear(TABLE).unwrap();
        assert_eq!(get(&mut session, b"key"), Ok(None));
        put(&mut session, b"key", b"new").unwrap();
        assert_eq!(get(&mut session, b"key"), Ok(Some(b"new".to_vec())));
    }
}

/// verified::V6: without verification a read shows what memory has, but no key is lost, and no
/// byte behind the segment is shown.
#[test]
fn reads_that_do_not_verify_show_the_value_as_it_is_and_nothing_else() {
    let store = store();
    store.set_verify_reads(false);
    let mut session = store.session().unwrap();
    for bit in 0..ENTRY_BITS {
        put(&mut session, b"key", b"value").unwrap();
        assert!(store.flips().entry(TABLE, b"key", &[bit]));
        let found = get(&mut session, b"key").unwrap();
        let in_key = 8 * 24..8 * 27;
        let in_value = 8 * 27..8 * 32;
        if in_key.contains(&bit) {
            assert_eq!(found.as_deref(), Some(&b"value"[..]), "bit {bit}");
        } else if in_value.contains(&bit) {
            assert_ne!(found.as_deref(), Some(&b"value"[..]), "bit {bit}");
        }
    }
}

/// verified::V8. The sum of a large value was taken each time that one request named its key: half
/// a minute for half a million times. The next pin takes it again, and believes no older one.
#[test]
fn a_guard_sums_a_long_entry_once_and_the_next_one_again() {
    let is_whole = |guard: &Guard<'_>, value: &[u8]| {
        let found = guard.read(TABLE, guard.hash(b"key"), b"key").unwrap();
        found.unwrap().value == value
    };
    for (bytes, is_long) in [(1_000, false), (100_000, true)] {
        let store = store();
        let mut session = store.session().unwrap();
        let value = vec![7u8; bytes];
        put(&mut session, b"key", &value).unwrap();
        let mut guard = session.pin();
        assert!(is_whole(&guard, &value));
        assert!(store.flips().entry(TABLE, b"key", &[8 * 500]));
        assert_eq!(is_whole(&guard, &value), !is_long, "{bytes} bytes");
        assert_eq!(store.stats().flipped_bits, u64::from(!is_long));
        guard.refresh();
        assert!(is_whole(&guard, &value), "{bytes} bytes");
        assert_eq!(store.stats().flipped_bits, 1);
        drop(guard);
        assert_eq!(get(&mut session, b"key"), Ok(Some(value)));
    }
}

type Pair = (Vec<u8>, Vec<u8>);

/// Keys and values of an export of everything.
fn exported(store: &Arc<Store>) -> Result<Vec<Pair>, Error> {
    let mut export = store.ranges().export(TABLE, KeyRange::ALL);
    let mut out = Vec::new();
    while export.step(1 << 20, &mut out)? {}
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < out.len() {
        let entry = entry::parse(&out[at..]).unwrap();
        entries.push((entry.key.to_vec(), entry.value.to_vec()));
        at += entry.padded_bytes;
    }
    Ok(entries)
}

/// An export gives each entry a new checksum, which would prove the bad bit for ever.
#[test]
fn one_flipped_bit_is_not_exported_and_more_damage_stops_an_export() {
    let store = store();
    let mut session = store.session().unwrap();
    let good = [(b"key".to_vec(), b"value".to_vec())];
    for bit in 0..ENTRY_BITS {
        put(&mut session, b"key", b"value").unwrap();
        assert!(store.flips().entry(TABLE, b"key", &[bit]));
        assert_eq!(exported(&store).unwrap(), good, "bit {bit}");
        assert_eq!(
            store.ranges().count(TABLE, KeyRange::ALL).unwrap().objects,
            1
        );
        let mut out = Vec::new();
        let keys = [DirtyKey::of_object(b"key", 9)];
        store.ranges().export_keys(TABLE, &keys, &mut out).unwrap();
        let entry = entry::parse(&out).unwrap();
        assert_eq!(
            (entry.kind, entry.value),
            (entry::Kind::Object, &b"value"[..])
        );
    }
    put(&mut session, b"key", b"value").unwrap();
    store.flips().entry(TABLE, b"key", &[3, 100]);
    assert_eq!(exported(&store), Err(Error::Damaged));
    let keys = [DirtyKey::of_object(b"key", 9)];
    let exported = store.ranges().export_keys(TABLE, &keys, &mut Vec::new());
    assert_eq!(exported, Err(Error::Damaged));
}

#[test]
fn planted_exports_that_do_not_verify_are_found() {
    let store = store();
    let mut session = store.session().unwrap();
    put(&mut session, b"key", b"value").unwrap();
    store.flips().entry(TABLE, b"key", &[8 * 28]);
    let wrong = with_bug(Bug::ExportsUnverified, || exported(&store)).unwrap();
    assert_ne!(wrong, exported(&store).unwrap());
}

/// The first difference that a step with this bug, after this flip, makes to the same without it.
fn differs(bug: Bug, bits: std::ops::Range<usize>) -> bool {
    let run = |bug: Option<Bug>, bit: usize| {
        let store = store();
        let mut session = store.session().unwrap();
        put(&mut session, b"key", b"value").unwrap();
        store.flips().entry(TABLE, b"key", &[bit]);
        let mut steps = || {
            let found = get(&mut session, b"key");
            (found, put(&mut session, b"key", b"new"))
        };
        match bug {
            Some(bug) => with_bug(bug, steps),
            None => steps(),
        }
    };
    let sound = run(None, bits.start);
    assert_eq!(sound, (Ok(Some(b"value".to_vec())), Ok(2)));
    bits.into_iter().any(|bit| run(Some(bug), bit) != sound)
}

#[test]
fn planted_reads_that_do_not_verify_are_found() {
    let value = 8 * 27..8 * 32;
    assert!(differs(Bug::ReadsUnverified, value));
}

#[test]
fn planted_misses_that_are_not_verified_are_found() {
    let key = 8 * 24..8 * 27;
    assert!(differs(Bug::MissesUnverified, key));
}

#[test]
fn planted_slots_that_are_not_verified_are_found() {
    let store = store();
    let mut session = store.session().unwrap();
    let version = put(&mut session, b"key", b"value").unwrap();
    store.flips().slot(TABLE, b"key", &[50]);
    let after = with_bug(Bug::SlotsUnverified, || put(&mut session, b"key", b"new"));
    assert_ne!(after, Ok(version + 1));
}

#[test]
fn planted_versions_that_are_not_verified_are_found() {
    let version = 8..60;
    assert!(differs(Bug::VersionsUnverified, version));
}

/// Whether a guard shows a long value as it was written, of which a bit flips between two pins.
fn is_summed_under_each_pin() -> bool {
    let store = store();
    let mut session = store.session().unwrap();
    let value = vec![7u8; 20_000];
    put(&mut session, b"key", &value).unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"key");
    guard.read(TABLE, hash, b"key").unwrap().unwrap();
    assert!(store.flips().entry(TABLE, b"key", &[8 * 500]));
    guard.refresh();
    let found = guard.read(TABLE, hash, b"key").unwrap();
    found.unwrap().value == value
}

#[test]
fn planted_sums_that_outlive_their_pins_are_found() {
    assert!(is_summed_under_each_pin());
    assert!(!with_bug(Bug::SumsOutlivePins, is_summed_under_each_pin));
}
