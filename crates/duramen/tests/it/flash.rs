//! A durable store with more data than memory: acknowledged writes are there, also after a restart.

use crate::tiered::{T, key, memory, value, write};
use duramen::{Level, Options, Session, Store};
use duramen_engine::FlashOptions;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 12_000;

fn open(dir: &Path) -> Arc<Store> {
    let mut options = Options::new(dir, 32 * MIB);
    options.engine.tiny = true;
    options.engine.heads = 1;
    options.engine.huge_pages = false;
    options.level = Level::Buffered;
    options.wal_bytes = 16 * MIB;
    // Empty at each start: its content is not trusted.
    options.engine.flash = Some(FlashOptions {
        device: memory(128 * MIB as usize),
    });
    Store::open(options).unwrap()
}

fn check(session: &mut Session) {
    for n in 0..OBJECTS {
        let found = session.get(T, key(n)).unwrap().map(|found| found.bytes);
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
        session.remove(T, key(n)).unwrap();
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
        // It continues: the same writes again, over themselves.
        write(
            &mut session,
            (0..OBJECTS).filter(|n| n % 3 == 0 && n % 5 != 0),
            1,
        );
    }
}
