//! Native clients in forked processes. A fork inherits the locks of files, and holds connections
//! open: other tests of the process would fail.

use crate::alone;
use crate::cluster::{Cluster, wait_until};
use duramen_client::asynchronous::{AsyncClient, wait};
use duramen_client::{Client, Error};
use duramen_config::Poll;

fn start() -> Cluster {
    Cluster::with(None, |config| {
        config.local_ring_bytes = 16 << 10;
        config.poll = Poll::Adaptive;
    })
}

/// Open files of this process.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// The threads of a cluster and of clients that have been dropped close their sockets: another test
/// counts open files.
fn wait_for_the_end(before: usize) {
    wait_until("all sockets are closed", || open_files() <= before);
}

/// A child that is never told to stop is ended by a signal after this time.
const PATIENCE_SECONDS: u32 = 60;

/// A forked process makes connections of its own: with its parent's, the frames of both would mix.
#[test]
fn a_forked_client_does_not_use_its_parents_memory() {
    let _alone = alone();
    let before = open_files();
    let cluster = start();
    let table = {
        let client = Client::connect(cluster.local_options()).expect("the cluster is there");
        client.table("t").expect("it has table t")
    };
    table.set(b"k", b"v").expect("written");
    // SAFETY: the child uses only this thread's client, whose locks no other thread takes, and ends
    // without running anything of its parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    let get = |key: &[u8]| table.get(key).expect("read").map(|found| found.value);
    if child == 0 {
        // SAFETY: it takes a number; the signal ends the process.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
        let mut is_right = true;
        while get(b"stop").is_none() {
            is_right &= get(b"k").as_deref() == Some(b"v");
        }
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    wait_until("the child has its own memory", || {
        assert_eq!(get(b"k").as_deref(), Some(&b"v"[..]));
        cluster.local_clients() == 2
    });
    table.set(b"stop", b"").expect("written");
    let mut status = 0;
    // SAFETY: waits for this process's own child.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    wait_until("the child's memory is given back", || {
        cluster.local_clients() == 1
    });
    assert_eq!(get(b"k").as_deref(), Some(&b"v"[..]));
    drop((table, cluster));
    wait_for_the_end(before);
}

/// The thread of an asynchronous client does not exist in a forked process: its operations end
/// there with an error, without a lock that the thread may have had, and go on in the parent.
#[test]
fn a_forked_process_does_not_have_its_parents_operations() {
    let _alone = alone();
    let before = open_files();
    let cluster = start();
    let client = AsyncClient::new(cluster.options()).expect("a thread");
    let table = wait(client.table("t")).expect("it has table t");
    wait(table.set(b"k", b"v")).expect("written");
    // Some are in flight whenever the process forks.
    let writes: Vec<_> = (0..100).map(|_| table.increment(b"n", 1)).collect();
    // SAFETY: the child takes no lock of another thread, and ends without running anything of its
    // parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: it takes a number; the signal ends the process.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
        let mut is_right = matches!(wait(table.get(b"k")), Err(Error::Closed(_)));
        for write in writes {
            is_right &= matches!(wait(write), Err(Error::OutcomeUnknown { .. }));
        }
        drop((table, client));
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for this process's own child.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    for write in writes {
        wait(write).expect("executed");
    }
    assert_eq!(wait(table.increment(b"n", 0)), Ok(100));
    drop((table, client, cluster));
    wait_for_the_end(before);
}
