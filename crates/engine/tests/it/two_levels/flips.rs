//! Flipped bits of a closed segment at a start: docs/traps.md, scenario 20.

use super::scenarios::{fresh, get, put, remove, seal};
use crate::two_levels::disk::{Device, Setup};
use duramen_base::ids::SegmentId;
use duramen_engine::LoadError;

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
