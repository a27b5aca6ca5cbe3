//! Memory after a restart.

use duramen::{Options, Store};
use duramen_engine::TableId;
use std::path::Path;

const T: TableId = TableId::DEFAULT;
const KEYS: u32 = 30_000;

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 1;
    options.engine.huge_pages = false;
    options.level = duramen::Level::Memory; // a close makes it durable nevertheless
    options.wal_bytes = 16 << 20;
    options
}

/// While segments are loaded the index grows for the number of keys that the segments so far
/// predict. Here most later entries are older versions of the same keys: the excess is freed when
/// the load ends.
#[test]
fn an_index_that_was_loaded_is_as_large_as_its_keys_need() {
    for versions in [1, 2, 4, 5] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(options(dir.path())).unwrap();
        let mut session = store.session().unwrap();
        for version in 0..versions {
            for key in 0..KEYS {
                let value = [version; 60];
                session.set(T, key.to_le_bytes(), value).unwrap();
            }
        }
        drop(session);
        store.close().unwrap();
        drop(store);
        let store = Store::open(options(dir.path())).unwrap();
        let report = store.engine().memory_report();
        assert_eq!(report.objects, u64::from(KEYS));
        let load = report.objects as f64 / report.index_slots as f64;
        assert!(
            (0.74..=0.95).contains(&load),
            "{versions} versions: {load:.2} of {} slots are in use",
            report.index_slots
        );
        let mut session = store.session().unwrap();
        for key in 0..KEYS {
            let found = session.get(T, key.to_le_bytes()).unwrap();
            assert_eq!(found.unwrap().bytes, [versions - 1; 60], "key {key}");
        }
    }
}
