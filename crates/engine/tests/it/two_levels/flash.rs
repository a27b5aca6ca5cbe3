//! A log whose segments are partly on flash, on a device that stalls or fails.

use crate::two_levels::disk::{Device, Mistake, Running, Setup};
use crate::two_levels::scenarios::{busy_setup, fresh, get, in_time, put, remove, with_writer};
use duramen_base::ids::SegmentId;
use duramen_base::planted::carry;
use duramen_engine::{Error, FlashOptions, LoadError, TableId, flash};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 1000;

/// A device in memory.
struct Slow {
    bytes: RwLock<Vec<u8>>,
    writes: AtomicU64,
    /// This write takes `stall`.
    stalls_at: u64,
    stall: Duration,
    /// Writes do not end while this is set.
    hangs: AtomicBool,
    fails: AtomicBool,
}

impl Slow {
    fn new(stalls_at: u64, stall: Duration) -> Arc<Slow> {
        Arc::new(Slow {
            bytes: RwLock::new(vec![0; 256 << 20]),
            writes: AtomicU64::new(0),
            stalls_at,
            stall,
            hangs: AtomicBool::new(false),
            fails: AtomicBool::new(false),
        })
    }

    fn sound() -> Arc<Slow> {
        Slow::new(u64::MAX, Duration::ZERO)
    }
}

impl flash::Device for Slow {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read().unwrap();
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.writes.fetch_add(1, Ordering::Relaxed) == self.stalls_at {
            std::thread::sleep(self.stall);
        }
        while self.hangs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.bytes.write().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes.read().unwrap().len() as u64
    }
}

fn setup(device: &Arc<Slow>) -> Setup {
    Setup {
        disk_segments_max: 400,
        newest_first: true,
        flash: Some(FlashOptions {
            device: device.clone(),
        }),
        ..busy_setup()
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    vec![n as u8; VALUE_BYTES]
}

fn put_all(running: &Running, keys: u32) {
    let mut session = running.store.session().unwrap();
    let started = Instant::now();
    for n in 0..keys {
        in_time(started);
        put(&mut session, &key(n), &value(n)).unwrap();
    }
}

/// The cleaner once took its victims from flash, because most dead data were there. Their survivors
/// took the windows that cleaning needs, and none could go to flash again.
#[test]
fn after_flash_has_failed_a_full_memory_is_cleaned_as_if_there_were_none() {
    let flash = Slow::sound();
    let running = fresh(&setup(&flash));
    with_writer(&running, || {
        let mut keys = 110_000;
        put_all(&running, keys);
        flash.fails.store(true, Ordering::Relaxed);
        let mut session = running.store.session().unwrap();
        let started = Instant::now();
        let full = loop {
            in_time(started);
            match put(&mut session, &key(keys), &value(keys)) {
                Ok(_) => keys += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::OutOfMemory { .. }), "{full}");
        assert!(running.store.stats().flash.is_off);
        for n in (0..keys).step_by(2) {
            assert!(remove(&mut session, &key(n)).unwrap(), "{n}");
        }
        let stats = running.store.stats();
        for n in keys..keys + 5_000 {
            in_time(started);
            put(&mut session, &key(n), &value(n)).unwrap();
        }
        // Rewrites of what is in memory go on for ever.
        for n in (keys..keys + 5_000).chain(keys..keys + 5_000) {
            in_time(started);
            put(&mut session, &key(n), &value(n)).unwrap();
        }
        let after = running.store.stats();
        assert!(after.cleaner.segments_cleaned > stats.cleaner.segments_cleaned);
        for n in 0..keys + 5_000 {
            let expected = (n >= keys || n % 2 == 1).then(|| value(n));
            assert_eq!(get(&mut session, &key(n)), expected, "{n}");
        }
    });
}

/// A log that is twice as long as memory.
fn long() -> Device {
    let running = fresh(&setup(&Slow::sound()));
    with_writer(&running, || put_all(&running, 120_000));
    running.writer(|writer, log| writer.settle(log));
    running.crash()
}

/// A load once gave up, for want of memory, when a write to flash took more than half a second.
#[test]
#[ignore = "full tier"]
fn a_load_waits_for_flash() {
    let device = long();
    for stalls_at in [5, 100] {
        let flash = Slow::new(stalls_at, Duration::from_millis(1500));
        let running = setup(&flash).start(device.clone(), Mistake::None, 2);
        assert!(flash.writes.load(Ordering::Relaxed) > stalls_at);
        assert_eq!(running.store.tables().objects(TableId::DEFAULT), 120_000);
    }
}

#[test]
#[ignore = "full tier"]
fn a_load_that_flash_ends_says_so() {
    let device = long();
    for hangs in [false, true] {
        let flash = Slow::sound();
        flash.hangs.store(hangs, Ordering::Relaxed);
        flash.fails.store(true, Ordering::Relaxed);
        let store = setup(&flash).open(&device);
        store
            .tables()
            .restore(TableId::DEFAULT, "default", device.table_floor, None)
            .unwrap();
        let listed: Vec<SegmentId> = device.listed.iter().map(|id| SegmentId(*id)).collect();
        let loader = store.loader(&listed, &device.passes);
        let next = AtomicU64::new(0);
        let load = || -> Result<(), LoadError<()>> {
            while let Some(segment) = listed.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                let bytes = &device.frames[&segment.0];
                let mut fill = |out: &mut [u8]| {
                    out.copy_from_slice(bytes);
                    Ok::<(), ()>(())
                };
                loader.adopt(*segment, bytes.len() as u32, &mut fill)?;
            }
            Ok(())
        };
        let errors = std::thread::scope(|scope| {
            let work = || {
                let result = load();
                flash.hangs.store(false, Ordering::Relaxed); // the other thread hangs with it
                result.unwrap_err()
            };
            [scope.spawn(carry(work)), scope.spawn(carry(work))]
                .map(|worker| worker.join().unwrap())
        });
        for error in errors {
            let of_flash = |reason: &Error| *reason == Error::FlashStuck;
            assert!(
                matches!(&error, LoadError::Memory { reason, .. } if of_flash(reason)),
                "{error:?}"
            );
        }
    }
}
