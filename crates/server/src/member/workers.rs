//! Threads beside the node's: for long work, and for the disk's chores.
//!
//! **Concurrency**: a queue behind one lock; a working thread does not hold it.

use super::mail::Mail;
use duramen_backup::{Backup, Error};
use duramen_base::ids::ServerId;
use duramen_config::ServerError;
use duramen_net::Handle;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A piece of work; its result goes to the thread that gave it.
type Work<M> = Box<dyn FnOnce() -> M + Send>;

struct Queue<M> {
    work: VecDeque<Work<M>>,
    is_over: bool,
}

struct Bench<M> {
    queue: Mutex<Queue<M>>,
    bell: Condvar,
}

impl<M> Bench<M> {
    fn new() -> Arc<Bench<M>> {
        let (work, is_over) = (VecDeque::new(), false);
        Arc::new(Bench {
            queue: Mutex::new(Queue { work, is_over }),
            bell: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spawns a thread of a member.
pub(super) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ServerError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(body).map_err(|source| ServerError::System {
        doing: "start a thread",
        source,
    })
}

/// Priority of threads whose delay other servers notice; effective only with the right to set it.
const NICE: i32 = -10;

/// Raises the priority of this thread.
pub(super) fn prefer() {
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// A few threads that execute the work they are given, and mail the results. Dropping it waits for
/// work in progress; work not yet started is dropped.
pub(super) struct Workers<M> {
    bench: Arc<Bench<M>>,
    threads: Vec<JoinHandle<()>>,
}

impl<M: Send + 'static> Workers<M> {
    pub fn start(name: &str, count: usize, owner: &Handle<M>) -> Result<Workers<M>, ServerError> {
        let mut workers = Workers {
            bench: Bench::new(),
            threads: Vec::new(),
        };
        for _ in 0..count {
            let (bench, owner) = (Arc::clone(&workers.bench), owner.clone());
            let thread = spawn(name, move || {
                while let Some(work) = next(&bench) {
                    owner.tell(work());
                }
            })?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub fn give(&self, work: impl FnOnce() -> M + Send + 'static) {
        self.bench.lock().work.push_back(Box::new(work));
        self.bench.bell.notify_one();
    }
}

fn next<M>(bench: &Bench<M>) -> Option<Work<M>> {
    let mut queue = bench.lock();
    loop {
        if queue.is_over {
            return None;
        }
        if let Some(work) = queue.work.pop_front() {
            return Some(work);
        }
        queue = bench
            .bell
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

impl<M> Drop for Workers<M> {
    fn drop(&mut self) {
        let mut queue = self.bench.lock();
        queue.is_over = true;
        let dropped = std::mem::take(&mut queue.work);
        drop(queue);
        drop(dropped);
        self.bench.bell.notify_all();
        for thread in self.threads.drain(..) {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
    }
}

/// Interval at which the disk is checked for work.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Buffered bytes are synced as soon as there are this many. Otherwise the close of a segment or
/// the end of a second would require a longer sync, for which masters wait.
const SYNC_AHEAD_BYTES: u64 = 256 << 10;
/// Pause after a step that was not possible (a full disk).
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// Interval of looks whether the backup's files were deleted.
const NAMES_EVERY: Duration = Duration::from_secs(1);

/// The thread that writes replicas to their frames, and periodically verifies them.
pub(super) struct Chores {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    /// `scrub_ms` is the time for the verification of one frame; with 0, no frame is verified.
    pub fn start(
        backup: Arc<Backup>,
        scrub_ms: Arc<AtomicU64>,
        node: Handle<Mail>,
    ) -> Result<Chores, ServerError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let body = move || {
            if let Err(error) = run(&backup, &scrub_ms, &over, &node) {
                node.tell(Mail::Failed(error.to_string()));
            }
        };
        let thread = Some(spawn("frames", body)?);
        Ok(Chores { is_over, thread })
    }
}

fn run(
    backup: &Backup,
    scrub_ms: &AtomicU64,
    is_over: &AtomicBool,
    node: &Handle<Mail>,
) -> Result<(), Error> {
    let (mut scrubbed, mut named) = (Instant::now(), Instant::now());
    while !is_over.load(Ordering::Acquire) {
        backup.sync_ahead(SYNC_AHEAD_BYTES)?;
        match backup.flush_step() {
            Ok(true) => {}
            Ok(false) => std::thread::park_timeout(LOOK_EVERY),
            Err(error @ Error::Failed { .. }) => return Err(error),
            Err(_) => std::thread::park_timeout(TRY_AGAIN),
        }
        if named.elapsed() >= NAMES_EVERY {
            backup.scrubber().check_names()?;
            named = Instant::now();
        }
        let every = Duration::from_millis(scrub_ms.load(Ordering::Relaxed));
        if !every.is_zero() && scrubbed.elapsed() >= every {
            // No recovery uses a damaged replica; its master makes another one (replica_gc::U4).
            let _ = backup.scrubber().step();
            scrubbed = Instant::now();
        }
        for damaged in backup.reader().take_damaged() {
            let (log, segment) = (ServerId::from_number(damaged.log), damaged.segment);
            let reason = damaged.reason;
            node.tell(Mail::Damaged);
            tracing::warn!(%log, %segment, reason, "a replica here is damaged; its master replaces it");
        }
        for (id, reason) in backup.reader().take_mended() {
            let (log, segment) = (ServerId::from_number(id.log), id.segment);
            tracing::warn!(%log, %segment, reason, "a replica here has a bit that flipped in its master's memory before it was sent; readers get it corrected");
        }
        if let Some(damage) = backup.scrubber().repair_mended_log()? {
            let (lsn, is_repaired) = (damage.lsn, damage.is_mended);
            tracing::warn!(
                lsn,
                is_repaired,
                "a bit of the write-ahead log here had flipped; the start has corrected it, and what the log held lies elsewhere on disk"
            );
        }
    }
    Ok(())
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
