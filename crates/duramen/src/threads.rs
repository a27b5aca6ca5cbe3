//! The two threads of a durable store: one commits, one writes frames.
//!
//! Each holds the log writer, never the store; [`Threads::end`] ends and joins both.

use crate::{Error, LogWriter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The background looks for work this often; a commit that leaves some behind does not wake it: frames are not urgent.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// After a step that could not be done (a full disk).
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// One frame is verified in this time: a scrub must not be noticed.
const SCRUB_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Threads {
    log: Arc<LogWriter>,
    stop: Arc<Stop>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Stop {
    stopped: AtomicBool,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Stop {
    fn sleep(&self, time: Duration) {
        let guard = self.lock.lock().expect("the background's bell");
        if !self.stopped.load(Ordering::Acquire) {
            drop(self.bell.wait_timeout(guard, time));
        }
    }
}

impl Threads {
    pub fn start(log: &Arc<LogWriter>) -> Result<Threads, Error> {
        let threads = Threads {
            log: log.clone(),
            stop: Arc::default(),
            handles: Mutex::default(),
        };
        let (writer, background, stop) = (log.clone(), log.clone(), threads.stop.clone());
        threads.spawn("duramen-log", move || writer.run())?;
        threads.spawn("duramen-frames", move || run_background(&background, &stop))?;
        Ok(threads)
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        match thread.spawn(body) {
            Ok(handle) => {
                self.handles.lock().expect("threads").push(handle);
                Ok(())
            }
            Err(error) => {
                self.end();
                Err(Error::Thread(error))
            }
        }
    }

    /// Ends both threads and waits for them. More than once is fine.
    pub fn end(&self) {
        self.log.stop.store(true, Ordering::SeqCst);
        self.log.wake();
        self.stop.stopped.store(true, Ordering::Release);
        drop(self.stop.lock.lock().expect("the background's bell"));
        self.stop.bell.notify_all();
        let handles = std::mem::take(&mut *self.handles.lock().expect("threads"));
        for handle in handles {
            handle.join().expect("a thread of the store panicked");
        }
    }
}

fn run_background(log: &LogWriter, stop: &Stop) {
    let durable = &log.durable;
    let mut scrubbed = Instant::now();
    while !stop.stopped.load(Ordering::Acquire) {
        let before = durable.ended.load(Ordering::Acquire);
        let done = durable.background_step();
        if durable.ended.load(Ordering::Acquire) != before {
            log.tell();
        }
        match done {
            Ok(true) => {}
            Ok(false) => {
                if scrubbed.elapsed() >= SCRUB_EVERY {
                    scrubbed = Instant::now();
                    // What it finds it counts; a device that cannot be read shows itself there.
                    let _ = durable.scrub_step();
                }
                stop.sleep(LOOK_EVERY);
            }
            Err(error) => {
                durable.note(&error);
                stop.sleep(TRY_AGAIN);
            }
        }
    }
}
