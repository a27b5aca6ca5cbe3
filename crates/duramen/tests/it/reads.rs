//! Reads beside a slow disk: a read of durable data does not wait for a sync; a read of undurable
//! data waits.

use duramen::{Options, Store};
use duramen_backup::Mode;
use duramen_backup::disk::{Disk, File, OpenHow};
use duramen_backup::os::OsDisk;
use duramen_engine::TableId;
use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;
/// No wait here is longer; it bounds a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether syncs may pass, and the number of waiting ones.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Gate {
    fn close(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self
            .changed
            .wait_while(state, |(closed, _)| *closed)
            .unwrap();
        state.1 -= 1;
    }

    /// Waits until a sync waits.
    fn await_sync(&self) {
        let state = self.state.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(state, PATIENCE, |(_, waiting)| *waiting == 0);
        assert!(!waited.unwrap().1.timed_out(), "nobody syncs");
    }
}

/// A directory whose syncs wait at a gate.
struct Gated(OsDisk, Arc<Gate>);

impl Disk for Gated {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(GatedFile(self.0.open(name, how)?, self.1.clone())))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.0.lock()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.0.sync_dir()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }

    fn label(&self) -> String {
        self.0.label()
    }
}

struct GatedFile(Arc<dyn File>, Arc<Gate>);

impl File for GatedFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, into)
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.0.forget_cached()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(at, bytes)
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.pass();
        self.0.write_durably(at, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.1.pass();
        self.0.sync_data()
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        self.0.allocate(at, bytes, zero)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn open(dir: &Path, gate: &Arc<Gate>) -> Arc<Store> {
    let disk = Gated(OsDisk::new(dir, Mode::Buffered), gate.clone());
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 4 << 20;
    Store::open_on(Arc::new(disk), options, true, &|_| {}).unwrap()
}

/// Opens the gate also when the test fails, or its threads would wait for ever.
struct Opener<'a>(&'a Gate);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.close(false);
    }
}

#[test]
fn reads_of_what_is_durable_wait_for_no_sync() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let store = open(dir.path(), &gate);
    let mut session = store.session().unwrap();
    for n in 0..100 {
        session.set(T, key(n), n.to_le_bytes()).unwrap();
    }
    assert!(session.remove(T, key(99)).unwrap());
    let sees_undurable = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opener = Opener(&gate);
        gate.close(true);
        // A write waits for its sync, which waits at the gate.
        scope.spawn(|| {
            let mut writer = store.session().unwrap();
            writer.set(T, b"new", b"value").unwrap();
            assert!(
                !gate.state.lock().unwrap().0,
                "written while no sync got through"
            );
        });
        gate.await_sync();
        // Hits, and the miss of a key whose removal is durable.
        for n in 0..1000 {
            let found = session.get(T, key(n % 99)).unwrap().unwrap();
            assert_eq!(found.bytes, (n % 99).to_le_bytes());
        }
        assert_eq!(session.get(T, key(99)).unwrap(), None);
        let (began, begun) = std::sync::mpsc::channel();
        let (store, sees_undurable, gate) = (&store, &sees_undurable, &gate);
        let reader = scope.spawn(move || {
            let mut reader = store.session().unwrap();
            began.send(()).unwrap();
            let found = reader.get(T, b"new").unwrap().unwrap();
            sees_undurable.store(true, Ordering::SeqCst);
            assert_eq!(found.bytes, b"value");
            assert!(
                !gate.state.lock().unwrap().0,
                "shown while no sync got through"
            );
        });
        begun.recv_timeout(PATIENCE).unwrap();
        // As many reads again, beside one that waits.
        for n in 0..1000 {
            session.get(T, key(n % 99)).unwrap().unwrap();
        }
        assert!(
            !sees_undurable.load(Ordering::SeqCst),
            "what can vanish was shown"
        );
        drop(opener);
        reader.join().unwrap();
    });
    assert!(sees_undurable.load(Ordering::SeqCst));
    assert_eq!(session.get(T, b"new").unwrap().unwrap().bytes, b"value");
}

/// Writers that wait for a sync share the next one: while one is delayed, all others append, and
/// one more sync serves them all.
#[test]
fn writers_that_wait_share_a_sync() {
    const WRITERS: u32 = 16;
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let store = open(dir.path(), &gate);
    store.session().unwrap().set(T, b"first", b"value").unwrap();
    let before = store.stats().unwrap().syncs;
    std::thread::scope(|scope| {
        let opener = Opener(&gate);
        gate.close(true);
        for n in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                session.set(T, key(n), b"value").unwrap();
            });
        }
        gate.await_sync();
        // Each has appended before it waits.
        let deadline = Instant::now() + PATIENCE;
        while store.engine().tables().objects(T) < u64::from(WRITERS) + 1 {
            assert!(Instant::now() < deadline, "writers wait for each other");
            std::thread::yield_now();
        }
        drop(opener);
    });
    let syncs = store.stats().unwrap().syncs - before;
    assert!(
        syncs < u64::from(WRITERS) / 2,
        "{syncs} syncs for {WRITERS} writers"
    );
}
