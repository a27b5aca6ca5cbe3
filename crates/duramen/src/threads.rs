//! The threads of a durable store: one commits, one writes frames, one removes keys that have
//! expired by a doubted clock; with a flash tier, one stores or sends hints of hot keys.
//!
//! Each holds the log writer, never the store; [`Threads::end`] ends and joins them.
//!
//! **Invariants**
//! - T1: the thread that writes frames waits for no guard, no head, no keys, no memory and no
//!   commit: all of these may wait for room on disk, which it makes. So doubted keys, whose removal
//!   is a write like any other, have a thread of their own. It ends first.

use crate::Error;
use crate::durable::{Local, Remote, Replicas};
use crate::writer::LogWriter;
use duramen_base::planted::carry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which the background thread looks for work; a commit that leaves work behind does
/// not wake it, because frames are not urgent.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Interval at which expiries are recorded on disk: bounds the objects that come back after a crash
/// if the clock steps back. The thread looks as often whether the files were deleted.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the clock is looked at, and keys are removed that have expired by a doubted
/// one: a step of the clock is to be noticed within a second (engine::core::doubt).
const DOUBTS_EVERY: Duration = Duration::from_millis(100);
/// Pause after a step that failed (a full disk).
const TRY_AGAIN: Duration = Duration::from_millis(200);

type Handles = Mutex<Vec<JoinHandle<()>>>;

pub(crate) struct Threads {
    log: Arc<LogWriter>,
    /// The thread that may wait for the others (T1).
    doubts: Handles,
    handles: Handles,
}

impl Threads {
    pub fn start(log: &Arc<LogWriter>) -> Result<Threads, Error> {
        let threads = Threads {
            log: log.clone(),
            doubts: Mutex::default(),
            handles: Mutex::default(),
        };
        threads.go_on()?;
        Ok(threads)
    }

    /// Starts the threads, also after [`end`](Self::end).
    ///
    /// # Errors
    /// [`Error::Thread`]: none runs.
    pub fn go_on(&self) -> Result<(), Error> {
        let log = &self.log;
        log.stop.store(false, Ordering::SeqCst);
        log.stop_doubts.store(false, Ordering::SeqCst);
        let (writer, background, doubts) = (log.clone(), log.clone(), log.clone());
        let others = &self.handles;
        self.spawn(others, "duramen-log", move || writer.run())?;
        self.spawn(others, "duramen-frames", move || {
            run_background(&background)
        })?;
        self.spawn(&self.doubts, "duramen-doubts", move || run_doubts(&doubts))?;
        if log.durable.hint_bell().is_some() {
            let heat = log.clone();
            self.spawn(others, "duramen-heat", move || run_heat(&heat))?;
        }
        Ok(())
    }

    fn spawn(
        &self,
        handles: &Handles,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        match thread.spawn(carry(body)) {
            Ok(handle) => {
                handles.lock().expect("threads").push(handle);
                Ok(())
            }
            Err(error) => {
                self.end();
                Err(Error::Thread(error))
            }
        }
    }

    /// Ends the threads and waits for them. It may be called several times.
    pub fn end(&self) {
        self.log.stop_doubts.store(true, Ordering::SeqCst);
        self.log.doubts.ring();
        join(&self.doubts);
        self.log.stop.store(true, Ordering::SeqCst);
        self.log.demand.wake();
        self.log.background.ring();
        if let Some(bell) = self.log.durable.hint_bell() {
            bell.ring();
        }
        join(&self.handles);
    }
}

fn join(handles: &Handles) {
    let handles = std::mem::take(&mut *handles.lock().expect("threads"));
    for handle in handles {
        handle.join().expect("a thread of the store panicked");
    }
}

fn run_doubts(log: &LogWriter) {
    while !log.stop_doubts.load(Ordering::SeqCst) {
        // A failure is no failure of the disk: the keys are found again.
        if !log.durable.common.engine.remove_doubted().unwrap_or(false) {
            log.doubts.sleep(DOUBTS_EVERY);
        }
    }
}

fn run_heat(log: &LogWriter) {
    let (engine, stop) = (&log.durable.common.engine, || {
        log.stop.load(Ordering::SeqCst)
    });
    match &log.durable.replicas {
        Replicas::Local(Local {
            heat: Some(heat), ..
        }) => heat.run(engine, &stop),
        Replicas::Remote(Remote {
            hints: Some(hints), ..
        }) => hints.run(engine, &stop),
        _ => {}
    }
}

fn run_background(log: &LogWriter) {
    let durable = &log.durable;
    let (common, local) = (&durable.common, durable.local());
    let is_asked_for = || local.is_some_and(|local| local.scrub.is_asked_for());
    let mut scrubbed = Instant::now();
    let (mut noted, mut expired) = (Instant::now(), 0);
    while !log.stop.load(Ordering::SeqCst) {
        let before = common.ended.load(Ordering::Acquire);
        let done = durable.background_step();
        let relocated = common.relocation_step();
        if common.ended.load(Ordering::Acquire) != before {
            log.waiters.tell();
        }
        if let Some(local) = local
            && noted.elapsed() >= NOTE_EVERY
        {
            let now = common.engine.stats().entries_expired;
            if now != expired && local.note_clock().is_ok() {
                expired = now;
            }
            if let Err(error) = local.backup.scrubber().check_names() {
                common.note(Err(&error.into()));
            }
            noted = Instant::now();
        }
        if let Some(local) = local
            && local.scrub.is_due(scrubbed)
        {
            // Damage that it finds is repaired; an unreadable device shows in the repair.
            let began = Instant::now();
            let _ = local.scrub_step(common);
            scrubbed = Instant::now();
            if is_asked_for() && common.log().undurable_bytes() > 0 {
                log.background.sleep(began.elapsed()); // half of the time is for commits
            }
        }
        common.note(done.as_ref().map(drop));
        match done {
            Ok(true) => {}
            Ok(false) if relocated || is_asked_for() => {}
            Ok(false) => log.background.sleep(LOOK_EVERY),
            Err(_) => log.background.sleep(TRY_AGAIN),
        }
    }
}
