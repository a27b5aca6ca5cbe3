//! Bits that flip on the device, or in memory before a segment goes there.

use super::device::{Flash, MIB, TABLE, key, options, read, value, write};
use duramen_base::ids::KeyRange;
use duramen_base::planted::{Bug, with_bug};
use duramen_base::random::Random;
use duramen_engine::{Error, Session, Store};
use std::sync::Arc;

const VALUE_BYTES: usize = 1000;
const SEGMENT_BYTES: u64 = 64 << 10;

/// A store without cleaners: the writer itself brings segments to flash.
fn store(flash: &Arc<Flash>) -> (Arc<Store>, Session) {
    let mut options = options(4 * MIB, flash);
    options.cleaners = 0;
    // No two keys here have the same tag: a write of one would have to read the damaged other.
    options.hash_seed = Some(1);
    let store = Store::new(options).unwrap();
    let session = store.session().unwrap();
    (store, session)
}

fn fill(session: &mut Session, keys: std::ops::Range<u64>) {
    for n in keys {
        write(session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
    }
}

/// One bit of each segment on the device: an entry that is read alone did not match its checksum,
/// and a walk over the range ended.
#[test]
fn one_flipped_bit_of_a_segment_on_flash_is_put_back() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = store(&flash);
    fill(&mut session, 0..12_000);
    let mut random = Random::new(7);
    for segment in 0..32 * MIB / SEGMENT_BYTES {
        let byte = segment * SEGMENT_BYTES + random.below(SEGMENT_BYTES);
        flash.flip(8 * byte as usize + random.below(8) as usize);
    }
    for n in 0..12_000 {
        let found = read(&mut session, &key(n)).unwrap();
        assert_eq!(found, Some(value(n, 0, VALUE_BYTES)), "{n}");
    }
    let mut export = store.ranges().export(TABLE, KeyRange::ALL);
    let (mut out, mut bytes) = (Vec::new(), 0);
    while export.step(1 << 20, &mut out).unwrap() {
        bytes += out.len();
        out.clear();
    }
    assert!(bytes + out.len() > 12_000 * VALUE_BYTES);
    let stats = store.stats();
    assert!(stats.flipped_bits > 50, "{}", stats.flipped_bits);
    assert_eq!(stats.flash.read_errors, 0);
}

/// core::slots::I1. Some places at which the entry of a damaged slot may be are on flash: the slot
/// once stayed damaged, although its entry was in memory.
#[test]
fn a_flipped_bit_of_a_slot_is_put_back_beside_segments_on_flash() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = store(&flash);
    fill(&mut session, 0..9_000);
    for bit in 0..64 {
        let n = 9_000 + bit as u64;
        fill(&mut session, n..n + 1);
        assert!(store.flips().slot(TABLE, &key(n), &[bit]));
        let found = read(&mut session, &key(n));
        assert_eq!(found, Ok(Some(value(n, 0, VALUE_BYTES))), "bit {bit}");
    }
    let stats = store.stats();
    assert_eq!((stats.flipped_bits, stats.damaged_entries), (64, 0));
}

/// Reads a key of which these bits had flipped in memory, after its segment had time to go to
/// flash; and whether it went.
fn read_after(bits: &[usize], bug: Option<Bug>) -> (Result<Option<Vec<u8>>, Error>, bool) {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = store(&flash);
    fill(&mut session, 0..200);
    assert!(store.flips().entry(TABLE, &key(7), bits));
    let mut rest = || fill(&mut session, 200..9_000);
    match bug {
        Some(bug) => with_bug(bug, rest),
        None => rest(),
    }
    for n in (0..9_000).filter(|n| *n != 7) {
        let found = read(&mut session, &key(n)).unwrap();
        assert_eq!(found, Some(value(n, 0, VALUE_BYTES)), "{n}");
    }
    let is_in_memory = store.flips().entry(TABLE, &key(7), &[]);
    (read(&mut session, &key(7)), !is_in_memory)
}

/// mended::M1: with more damage than one bit, memory would lose the segment, and the device would
/// be blamed.
#[test]
fn a_segment_is_verified_before_it_goes_to_flash() {
    let good = Ok(Some(value(7, 0, VALUE_BYTES)));
    assert_eq!(read_after(&[8 * 40], None), (good, true));
    let two = [8 * 40, 8 * 77 + 3];
    assert_eq!(read_after(&two, None), (Err(Error::Damaged), false));
    let wrong = read_after(&two, Some(Bug::DamageGoesToFlash));
    assert_eq!(wrong, (Err(Error::FlashFailed), true));
}
