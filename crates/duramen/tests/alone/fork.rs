//! A forked process inherits a store: it belongs to the parent alone.

use crate::alone;
use duramen::{Error, Level, Options, Store, Table};
use std::time::{Duration, Instant};

const T: Table = Table::DEFAULT;
/// A child that waits for a thread of its parent is ended by a signal after this time.
const PATIENCE_SECONDS: u32 = 20;

/// Runs `body` in a forked process, which ends with its result.
fn fork(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs `body`, which takes no lock that another thread of the test may hold
    // but the store's, then ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(PATIENCE_SECONDS);
            let run = std::panic::AssertUnwindSafe(body);
            let is_right = std::panic::catch_unwind(run).unwrap_or(false);
            libc::_exit(i32::from(!is_right));
        }
        assert!(child > 0, "fork");
        child
    }
}

/// The end of a child: 0 if its body returned true.
fn end_of(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for this process's own child.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    status
}

fn is_closed<R>(result: Result<R, Error>) -> bool {
    matches!(result, Err(Error::Closed))
}

/// A child's `set` returned Ok and wrote into its parent's log, which could not be read again; in
/// a program that becomes a daemon, writes ended with `DiskFull`, and `close` aborted.
#[test]
fn a_forked_child_gets_errors_and_touches_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let options = || Options::new(folder.path().join("store"), 64 << 20);
    let store = Store::open(options()).unwrap();
    let mut session = store.session().unwrap();
    session.set(T, "before", "parent").unwrap();
    let copy = folder.path().join("copy");
    let children = [
        fork(|| {
            let all = [
                is_closed(session.set(T, "child", "child")),
                is_closed(session.get(T, "before")),
                is_closed(session.get_with(T, "before", <[u8]>::len)),
                is_closed(session.transaction(&[(T, "child")], |tx| tx.set(T, "child", "1"))),
                is_closed(session.scan(T).next().unwrap()),
                is_closed(session.wait_durable(Level::Synced)),
                store.memory() == duramen::MemoryStats::default(),
                is_closed(store.session()),
                is_closed(store.create_table("child", None)),
                is_closed(store.clear_tables(&[T])),
                is_closed(store.snapshot(&copy)),
                is_closed(store.flush()),
                is_closed(store.close()),
                store.scrub().is_none(),
            ];
            all.iter().all(|right| *right)
        }),
        // SAFETY: of the child alone, which never returns to this copy of the values.
        fork(|| unsafe {
            drop(std::ptr::read(&session));
            drop(std::ptr::read(&store));
            true
        }),
        fork(|| {
            let own = Store::open(Options::new(folder.path().join("own"), 64 << 20)).unwrap();
            own.session().unwrap().set(T, "child", "child").unwrap();
            own.close().is_ok() && matches!(Store::open(options()), Err(Error::Disk(_)))
        }),
    ];
    let until = Instant::now() + Duration::from_millis(200);
    let mut after = 0u32;
    while Instant::now() < until || after < 10 {
        session.set(T, format!("after {after}"), "parent").unwrap();
        after += 1;
    }
    assert_eq!(children.map(end_of), [0; 3]);
    assert!(!copy.exists());
    assert!(
        matches!(Store::open(options()), Err(Error::Disk(_))),
        "it has the lock"
    );
    drop((session, store)); // as after a crash: the log is read
    let store = Store::open(options()).unwrap();
    assert_eq!(store.count(T), u64::from(after) + 1);
    store.close().unwrap();
}

/// A closure that forks is under a guard already when its child's call goes on.
#[test]
fn a_fork_inside_a_closure_is_the_end_of_the_childs_call() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let options = || Options::new(folder.path().join("store"), 64 << 20);
    let store = Store::open(options()).unwrap();
    let mut session = store.session().unwrap();
    let child = fork(|| {
        let own = Store::open(Options::new(folder.path().join("own"), 64 << 20)).unwrap();
        let mut session = own.session().unwrap();
        let mut grandchild = 0;
        let result = session.transaction(&[(T, "key")], |tx| {
            // SAFETY: this process has no other thread that uses a lock of the test.
            grandchild = unsafe { libc::fork() };
            tx.set(T, "key", "value")
        });
        if grandchild == 0 {
            // SAFETY: ends the grandchild.
            unsafe { libc::_exit(i32::from(!is_closed(result))) };
        }
        result.is_ok() && end_of(grandchild) == 0 && own.close().is_ok()
    });
    session.set(T, "key", "value").unwrap();
    assert_eq!(end_of(child), 0);
    store.close().unwrap();
    let store = Store::open(options()).unwrap();
    assert_eq!(store.count(T), 1);
}
