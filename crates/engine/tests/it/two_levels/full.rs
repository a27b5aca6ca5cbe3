//! A full store accepts removals, whatever clients rewrite meanwhile (engine::room::R4).

use crate::two_levels::disk::{Mistake, Setup};
use crate::two_levels::scenarios::{busy_setup, fresh, in_time, put, remove, with_writer};
use duramen_base::random::Random;
use duramen_engine::{Error, Session, TableId};
use std::time::Instant;

/// Writes a key anew, as `RENAME` and `EXPIRE` do: a full store accepts it within limits.
fn rewrite(session: &mut Session, key: u32, value: &[u8]) -> Result<(), Error> {
    let mut guard = session.pin();
    guard.rewrites(true);
    let hash = guard.hash(&key.to_le_bytes());
    guard.write(TableId::DEFAULT, hash, &key.to_le_bytes(), value, None)?;
    Ok(())
}

/// Fills the store with values of `bytes`, rewrites each key with a value of `longer` bytes, and
/// removes a key after every `ratio` rewrites; then restarts the store and removes more.
fn rewrites_leave_room_for_removals(setup: &Setup, bytes: usize, longer: usize, ratio: u32) {
    let running = fresh(setup);
    let started = Instant::now();
    let mut keys = 0u32;
    let mut removed = 0u32;
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        while put(&mut session, &keys.to_le_bytes(), &vec![7; bytes]).is_ok() {
            in_time(started);
            keys += 1;
        }
        let (mut accepted, mut refused) = (0u32, 0u32);
        let value = vec![8; longer];
        let mut random = Random::new(1);
        for n in 0..keys.min(ratio * 2000) {
            in_time(started);
            match rewrite(&mut session, random.below(u64::from(keys)) as u32, &value) {
                Ok(()) => accepted += 1,
                Err(Error::OutOfMemory { .. } | Error::DiskFull) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            // Scattered, so that the segments of removed keys have few dead bytes.
            if n % ratio == 0 {
                let key = removed.wrapping_mul(7919) % keys;
                let done = remove(&mut session, &key.to_le_bytes());
                assert!(
                    done.is_ok(),
                    "removal {removed}: {done:?} after {accepted} rewrites, {refused} refused"
                );
                removed += 1;
            }
        }
        println!("{keys} keys, {accepted} rewrites, {refused} refused, {removed} removals");
    });
    running.writer(|writer, log| {
        writer.stage(log);
        writer.commit(log);
    });
    let running = setup.start(running.crash(), Mistake::None, 1);
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        for key in (0..keys).step_by(keys as usize / 200) {
            in_time(started);
            remove(&mut session, &key.to_le_bytes()).unwrap();
        }
    });
}

#[test]
fn rewrites_of_a_full_memory_leave_room_for_removals() {
    rewrites_leave_room_for_removals(&busy_setup(), 100, 400, 25);
}

#[test]
#[ignore = "full tier"]
fn rewrites_on_a_full_disk_leave_room_for_removals() {
    let setup = Setup {
        memory_bytes: 256 << 20,
        disk_segments_max: 24,
        ..busy_setup()
    };
    rewrites_leave_room_for_removals(&setup, 1000, 8000, 5);
}
