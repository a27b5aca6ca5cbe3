//! Flipped bits of a closed segment at a start: docs/traps.md, scenario 20.

use super::scenarios::{clean_all, fresh, get, put, remove, seal};
use crate::two_levels::disk::{Device, Mistake, Setup};
use duramen_base::ids::SegmentId;
use duramen_engine::{Error, LoadError, TableId, Unfinished};

/// A device with one closed segment of 19 objects and a tombstone, its id, and the listed segments.
fn device(setup: &Setup) -> (Device, u64, Vec<SegmentId>) {
    let running = fresh(setup);
    let mut session = running.store.session().unwrap();
    for key in 0..20u8 {
        put(&mut session, &[key], &[key; 50]).unwrap();
    }
    remove(&mut session, &[3]).unwrap();
    drop(session);
    seal(&running);
    let device = running.crash();
    let id = *device.frames.keys().next().unwrap();
    let listed = device.listed.iter().map(|id| SegmentId(*id)).collect();
    (device, id, listed)
}

/// Two flipped bits of an entry, or of the header, are told, and another replica can be taken.
#[test]
fn scenario_20_flipped_bits_are_told_and_another_replica_taken() {
    let setup = Setup::small();
    let (device, id, listed) = device(&setup);
    let good = &device.frames[&id];
    let store = setup.open(&device);
    let loader = store.loader(&listed, &[]);
    let length = good.len() as u32;
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        bad[bit / 8] ^= 1 << ((bit + 3) % 8);
        let mut fill = |out: &mut [u8]| {
            out.copy_from_slice(&bad);
            Ok::<(), ()>(())
        };
        match loader.adopt(SegmentId(id), length, &mut fill) {
            Err(LoadError::Damaged {
                segment, offset, ..
            }) => {
                assert_eq!(segment.0, id);
                assert!(offset >= 64 && offset as usize <= bit / 8);
            }
            Err(LoadError::Header { .. }) => assert!(bit / 8 < 64),
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    for (id, bytes) in &device.frames {
        let mut fill = |out: &mut [u8]| {
            out.copy_from_slice(bytes);
            Ok::<(), ()>(())
        };
        loader
            .adopt(SegmentId(*id), bytes.len() as u32, &mut fill)
            .unwrap();
        let twice = loader.adopt(SegmentId(*id), bytes.len() as u32, &mut fill);
        assert_eq!(
            twice,
            Err(LoadError::NotListed {
                segment: SegmentId(*id)
            })
        );
    }
    let report = loader.finish().unwrap();
    assert_eq!((report.objects, report.tombstones), (19, 1));
}

/// load::R2.
#[test]
fn scenario_20_one_flipped_bit_is_put_back() {
    let setup = Setup::small();
    let (device, id, listed) = device(&setup);
    let good = &device.frames[&id];
    for bit in (0..good.len() * 8).step_by(61) {
        let store = setup.open(&device);
        let loader = store.loader(&listed, &[]);
        for (segment, bytes) in &device.frames {
            let mut fill = |out: &mut [u8]| {
                out.copy_from_slice(bytes);
                out[bit / 8] ^= u8::from(*segment == id) << (bit % 8);
                Ok::<(), ()>(())
            };
            let length = bytes.len() as u32;
            loader
                .adopt(SegmentId(*segment), length, &mut fill)
                .unwrap();
        }
        let report = loader.finish().unwrap();
        assert_eq!((report.objects, report.tombstones), (19, 1), "bit {bit}");
        let (segment, mended) = &report.mended[0];
        let found = (segment.0, mended.byte, usize::from(mended.bit));
        assert_eq!(found, (id, bit / 8, bit % 8));
        let mut session = store.session().unwrap();
        for key in 0..20u8 {
            let value = (key != 3).then(|| vec![key; 50]);
            assert_eq!(get(&mut session, &[key]), value, "bit {bit}");
        }
    }
}

/// verified::V7: a key whose slot was damaged began its versions anew, below the one on disk, and
/// its removal found nothing. After a restart the old value was back.
#[test]
fn what_follows_a_flip_of_a_slot_outlives_a_restart() {
    let setup = Setup::small();
    for bit in 0..64 {
        let running = fresh(&setup);
        let mut session = running.store.session().unwrap();
        for key in [1, 2] {
            for value in [3, 4, 5] {
                put(&mut session, &[key], &[value; 20]).unwrap();
            }
        }
        seal(&running);
        let flip = |key: &[u8]| running.store.flips().slot(TableId::DEFAULT, key, &[bit]);
        assert!(flip(&[1]));
        put(&mut session, &[1], b"new").unwrap();
        assert!(flip(&[2]));
        assert!(remove(&mut session, &[2]).unwrap(), "bit {bit}");
        drop(session);
        seal(&running);
        let running = setup.start(running.crash(), Mistake::None, 1);
        let mut session = running.store.session().unwrap();
        let found = get(&mut session, &[1]);
        assert_eq!(found.as_deref(), Some(&b"new"[..]), "bit {bit}");
        assert_eq!(get(&mut session, &[2]), None, "bit {bit}");
    }
}

/// load::R10. The newest entry of a key was passed over: an older one got a second slot.
#[test]
fn a_load_that_meets_a_damaged_slot_fails() {
    let setup = Setup::small();
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    for value in [b"old", b"new"] {
        put(&mut session, &[1], value).unwrap();
        seal(&running);
    }
    drop(session);
    let device = running.crash();
    let listed: Vec<SegmentId> = device.listed.iter().map(|id| SegmentId(*id)).collect();
    for bit in [3, 38, 40, 50] {
        let store = setup.open(&device);
        let loader = store.loader(&listed, &[]);
        let mut failed = None;
        for (id, bytes) in device.frames.iter().rev() {
            let mut fill = |out: &mut [u8]| {
                out.copy_from_slice(bytes);
                Ok::<(), ()>(())
            };
            let adopted = loader.adopt(SegmentId(*id), bytes.len() as u32, &mut fill);
            failed = adopted.err();
            if failed.is_some() {
                break;
            }
            store.flips().slot(TableId::DEFAULT, &[1], &[bit]);
        }
        let is_damage = |reason: &Error| *reason == Error::Damaged;
        assert!(
            matches!(&failed, Some(LoadError::Memory { reason, .. }) if is_damage(reason)),
            "bit {bit}: {failed:?}"
        );
    }
}

/// load::R10. A slot of a tombstone may be among those that are damaged, and would stay.
#[test]
fn a_load_with_a_damaged_slot_does_not_end() {
    let setup = Setup::small();
    let (device, _, listed) = device(&setup);
    for bit in [3, 38, 40, 50] {
        let store = setup.open(&device);
        let loader = store.loader(&listed, &[]);
        for (id, bytes) in &device.frames {
            let mut fill = |out: &mut [u8]| {
                out.copy_from_slice(bytes);
                Ok::<(), ()>(())
            };
            let length = bytes.len() as u32;
            loader.adopt(SegmentId(*id), length, &mut fill).unwrap();
        }
        assert!(store.flips().slot(TableId::DEFAULT, &[5], &[bit]));
        assert_eq!(loader.finish(), Err(Unfinished::Flipped), "bit {bit}");
    }
}

/// context::C6
#[test]
fn a_cleaner_keeps_an_entry_whose_slot_is_damaged() {
    let setup = Setup::small();
    for bit in (0..64).step_by(7) {
        let running = fresh(&setup);
        let mut session = running.store.session().unwrap();
        put(&mut session, &[1], b"stays").unwrap();
        for _ in 0..1000 {
            put(&mut session, &[2], &[9; 4000]).unwrap();
        }
        seal(&running);
        assert!(running.store.flips().slot(TableId::DEFAULT, &[1], &[bit]));
        for _ in 0..3 {
            clean_all(&running); // the first time it stops where it finds the slot
        }
        assert!(running.store.stats().cleaner.segments_cleaned > 0);
        let found = get(&mut session, &[1]);
        assert_eq!(found.as_deref(), Some(&b"stays"[..]), "bit {bit}");
    }
}
