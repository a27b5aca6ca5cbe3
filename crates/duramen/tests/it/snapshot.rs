//! Snapshots on a disk that is slow or hangs: other threads go on, and the copy is one moment.

use duramen::{Error, Level, Options, Session, Store};
use duramen_backup::Mode;
use duramen_backup::disk::{File, Front, Fronted};
use duramen_backup::os::OsDisk;
use duramen_engine::TableId;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;
/// Until then the disk hangs, unless the test ends it.
const HANG_MAX: Duration = Duration::from_secs(60);
/// A thread that has done nothing for longer may be kept out.
const GOES_ON: Duration = Duration::from_millis(500);

/// A device whose syncs hang on demand, or report that there is no room.
#[derive(Default)]
struct Device {
    hangs: Mutex<bool>,
    goes_on: Condvar,
    hanging: AtomicU64,
    is_full: AtomicBool,
}

impl Device {
    fn hang(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
        self.goes_on.notify_all();
    }

    fn pass(&self) {
        self.hanging.fetch_add(1, Ordering::SeqCst);
        let hangs = self.hangs.lock().unwrap();
        drop(
            self.goes_on
                .wait_timeout_while(hangs, HANG_MAX, |hangs| *hangs),
        );
        self.hanging.fetch_sub(1, Ordering::SeqCst);
    }
}

struct SlowFile(Arc<dyn File>, Arc<Device>);

impl Front for SlowFile {
    fn below(&self) -> &dyn File {
        &*self.0
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        // Headers have their blocks.
        if at >= 8192 && self.1.is_full.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(at, bytes)
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.pass();
        Front::write_at(self, at, bytes)?;
        self.0.sync_data()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.1.pass();
        self.0.sync_data()
    }
}

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 16 << 20;
    options.level = Level::Memory;
    options
}

fn open(dir: &Path) -> (Arc<Store>, Arc<Device>) {
    let device = Arc::new(Device::default());
    let slow = device.clone();
    let disk = Fronted::new(
        Arc::new(OsDisk::new(dir, Mode::Buffered)),
        move |file| -> Arc<dyn File> { Arc::new(SlowFile(file, slow.clone())) },
    );
    let store = Store::open_on(Arc::new(disk), options(dir), true, &|_| {}).unwrap();
    (store, device)
}

fn number(session: &mut Session, key: &[u8]) -> u64 {
    let found = session.get(T, key).unwrap();
    found.map_or(0, |value| {
        String::from_utf8(value.bytes).unwrap().parse().unwrap()
    })
}

fn set(session: &mut Session, key: &[u8], number: u64) {
    session.set(T, key, number.to_string().as_bytes()).unwrap();
}

fn until(what: &str, mut is_reached: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_reached() {
        assert!(started.elapsed() < HANG_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the hang and the threads of a test even if it fails.
struct End<'a>(&'a Device, &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
        self.0.hang(false);
    }
}

/// The cut waited for the commit in progress, and then for its own sync, while it kept all other
/// threads out. Here the backlog is longer than a commit may be, so the cut takes several. Of two
/// counters in two heads, the second repeats the first: it is never ahead in the copy.
#[test]
fn a_snapshot_keeps_no_thread_waiting_for_a_disk_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let copies = tempfile::tempdir().unwrap();
    let to = copies.path().join("copy");
    let (store, device) = open(dir.path());
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let end = End(&device, &stop);
        let mut session = store.session().unwrap();
        set(&mut session, b"early", 1);
        device.hang(true);
        scope.spawn(|| store.flush());
        until("a sync hangs", || device.hanging.load(Ordering::SeqCst) > 0);
        for n in 0..16u64 {
            let key = format!("long {n}");
            session.set(T, key.as_bytes(), vec![7; 1_000_000]).unwrap();
        }
        scope.spawn(|| {
            let mut session = store.session().unwrap();
            for n in 1.. {
                set(&mut session, b"first", n);
                if stop.load(Ordering::Acquire) {
                    return;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        scope.spawn(|| {
            let mut session = store.session().unwrap();
            while !stop.load(Ordering::Acquire) {
                let first = number(&mut session, b"first");
                set(&mut session, b"second", first);
                rounds.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        until("they count", || number(&mut session, b"second") > 0);
        let before = number(&mut session, b"second");
        let snapshot = scope.spawn(|| store.snapshot(&to));
        let started = Instant::now();
        // The disk hangs meanwhile. A thread that is kept out waits until the end of this test, so
        // another one has to notice it. It needs the clock, because nothing tells when the cut
        // begins; a busy machine delays the others, but they go on.
        let (mut last, mut at) = (0, Instant::now());
        while started.elapsed() < Duration::from_secs(4) || at.elapsed() > GOES_ON {
            std::thread::sleep(Duration::from_millis(5));
            let now = rounds.load(Ordering::Relaxed);
            if now != last {
                (last, at) = (now, Instant::now());
            }
            assert!(at.elapsed() < HANG_MAX / 2, "others wait");
        }
        assert!(!snapshot.is_finished(), "the disk hangs");
        device.hang(false);
        let report = snapshot.join().unwrap().unwrap();
        assert!(report.segments > 8, "{report:?}");
        drop(end);
        let copy = Store::open(options(&to)).unwrap();
        let mut session = copy.session().unwrap();
        let (first, second) = (
            number(&mut session, b"first"),
            number(&mut session, b"second"),
        );
        assert!(first >= second, "{first} and {second}");
        assert!(second >= before, "{second} after {before}");
        assert_eq!(number(&mut session, b"early"), 1);
        for n in 0..16u64 {
            let found = session.get(T, format!("long {n}")).unwrap();
            assert_eq!(found.unwrap().bytes.len(), 1_000_000, "{n}");
        }
    });
}

/// Appends that a snapshot has collected are committed later, in order, if the disk has no room for
/// them and the snapshot is given up.
#[test]
fn nothing_is_lost_with_a_snapshot_that_a_full_disk_ends() {
    let dir = tempfile::tempdir().unwrap();
    let copies = tempfile::tempdir().unwrap();
    let (store, device) = open(dir.path());
    let mut session = store.session().unwrap();
    device.is_full.store(true, Ordering::Release);
    for n in 0..16u64 {
        let key = format!("long {n}");
        // Once the disk is found full, writes are refused.
        if session.set(T, key, vec![n as u8; 1_000_000]).is_err() {
            break;
        }
        set(&mut session, b"last", n);
    }
    let last = number(&mut session, b"last");
    for n in 0..3 {
        let done = store.snapshot(copies.path().join(n.to_string()));
        assert!(matches!(done, Err(Error::DiskFull(_))), "{done:?}");
    }
    device.is_full.store(false, Ordering::Release);
    until("there is room", || store.flush().is_ok());
    set(&mut session, b"after", 1);
    let to = copies.path().join("copy");
    store.snapshot(&to).unwrap();
    drop(session);
    store.close().unwrap();
    drop(store);
    for path in [dir.path(), &to] {
        let store = Store::open(options(path)).unwrap();
        let mut session = store.session().unwrap();
        assert_eq!(number(&mut session, b"last"), last);
        assert_eq!(number(&mut session, b"after"), 1);
        for n in 0..=last {
            let found = session.get(T, format!("long {n}")).unwrap().unwrap();
            assert!(found.bytes == vec![n as u8; 1_000_000], "{n}");
        }
    }
}
