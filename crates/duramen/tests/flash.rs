//! A durable store with more data than memory: what was acknowledged is there, also after a restart.

use duramen::engine::flash::Device;
use duramen::engine::{FlashOptions, TableId};
use duramen::{Level, Options, Session, Store};
use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};

const T: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 12_000;
const VALUE_BYTES: usize = 6_000;

struct Flash(RwLock<Vec<u8>>);

impl Device for Flash {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.read().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.read().unwrap().len() as u64
    }
}

fn open(dir: &Path) -> Arc<Store> {
    let mut options = Options::new(dir, 32 * MIB);
    options.engine.tiny = true;
    options.engine.heads = 1;
    options.engine.huge_pages = false;
    options.level = Level::Buffered;
    options.wal_bytes = 16 * MIB;
    // Empty at each start: what is in it is not trusted.
    options.engine.flash = Some(FlashOptions {
        device: Arc::new(Flash(RwLock::new(vec![0; 128 * MIB as usize]))),
    });
    Store::open(options, |_| {}).unwrap()
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:06}").into_bytes()
}

fn value(n: u64, round: u64) -> Vec<u8> {
    let mut value = format!("{n}/{round}/").into_bytes();
    value.resize(VALUE_BYTES, n as u8);
    value
}

/// Writes many values before it waits for any.
fn write(session: &mut Session, keys: impl Iterator<Item = u64>, round: u64) {
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(100) {
        session
            .batch(|guard| {
                for n in some {
                    let hash = guard.hash(&key(*n));
                    guard.write(T, hash, &key(*n), &value(*n, round), None)?;
                }
                Ok(())
            })
            .unwrap();
    }
}

fn check(session: &mut Session) {
    for n in 0..OBJECTS {
        let found = session.get(T, &key(n)).unwrap().map(|found| found.bytes);
        let expected = match n {
            n if n % 5 == 0 => None,
            n if n % 3 == 0 => Some(value(n, 1)),
            n => Some(value(n, 0)),
        };
        assert!(found == expected, "key {n}");
    }
}

#[test]
fn a_log_beyond_memory_is_loaded_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut session = store.session().unwrap();
    write(&mut session, 0..OBJECTS, 0);
    write(&mut session, (0..OBJECTS).filter(|n| n % 3 == 0), 1);
    for n in (0..OBJECTS).step_by(5) {
        session.remove(T, &key(n)).unwrap();
    }
    check(&mut session);
    let stats = store.engine().stats();
    assert!(stats.flash.segments_demoted > 5, "{:?}", stats.flash);
    assert!(stats.committed_bytes <= store.engine().memory_bytes());
    drop(session);
    drop(store);
    for _ in 0..2 {
        let store = open(dir.path());
        let mut session = store.session().unwrap();
        let stats = store.engine().stats();
        assert!(stats.flash.segments_demoted > 5, "{:?}", stats.flash);
        assert!(stats.committed_bytes <= store.engine().memory_bytes());
        assert_eq!(stats.objects, OBJECTS - OBJECTS.div_ceil(5));
        check(&mut session);
        // It goes on: the same again, over itself.
        write(
            &mut session,
            (0..OBJECTS).filter(|n| n % 3 == 0 && n % 5 != 0),
            1,
        );
    }
}
