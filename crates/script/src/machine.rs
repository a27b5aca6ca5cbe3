//! One interpreter, on a stack of its own.
//!
//! **Mechanism.** The interpreter runs as a coroutine of this thread. When a script calls a command,
//! or has run for a slice of time, the coroutine is suspended with an [`Event`], wherever it is (in
//! a protected call, in a sort). The caller decides when it goes on, and with which [`Answer`].
//!
//! **Invariants**
//! - K1: one script at a time. An interpreter whose script is suspended takes no other.
//! - K2: [`Answer::Stop`] ends the script: from then on every hook and every call of the host fails
//!   with an error that no script can catch, so the coroutine comes to its end.
//! - K3: the pointer to the coroutine's handle is used inside of that coroutine alone, whose frame
//!   at the bottom of the stack owns the interpreter and so outlives all its callbacks.
//! - K4: an interpreter moves between threads as a whole, while it is suspended: everything that its
//!   callbacks share is on its own stack or in its own heap, and nothing of it is thread-local.

use crate::reply;
use crate::sandbox::{self, Sandbox};
use crate::source::Script;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an interpreter's stack: the deepest recursion of the parser and of the libraries takes
/// less than half of it. Pages that are never touched cost nothing.
const STACK_BYTES: usize = 2 << 20;

/// Limits of one interpreter, and the texts that it tells scripts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory of the interpreter, and length of each value that its libraries make.
    pub memory_bytes: usize,
    /// The version of Redis that scripts are told.
    pub version: &'static str,
    pub version_number: u32,
}

/// A script to run.
pub struct Job {
    pub script: Arc<Script>,
    pub keys: Vec<Vec<u8>>,
    pub args: Vec<Vec<u8>>,
    /// The client speaks RESP3.
    pub resp3: bool,
    /// The script is suspended each time that it has run for this long.
    pub slice: Duration,
    /// Maximum length of the reply.
    pub reply_bytes_max: usize,
}

/// The reason why the script is suspended.
#[derive(Debug)]
pub enum Event {
    /// It has ended; the interpreter takes another.
    Done(Outcome),
    /// It calls a command, and goes on with [`Answer::Reply`]. `resp3`: the form of the reply.
    Call { args: Vec<Vec<u8>>, resp3: bool },
    /// It asks whether it may run a command; the reply is an integer or an error.
    Allowed { args: Vec<Vec<u8>> },
    /// It has something for the log, at a level from 0 to 3; it goes on with [`Answer::GoOn`].
    Log { level: u8, text: Vec<u8> },
    /// It has run for its slice; it goes on with [`Answer::GoOn`].
    Slice,
}

/// The result of a script.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The reply, as RESP.
    pub reply: Vec<u8>,
    /// The reply is an error of the script, not one that it returned.
    pub failed: bool,
    /// It was stopped; there is no reply.
    pub stopped: bool,
    /// See [`Machine::is_heavy`].
    heavy: bool,
}

/// What the coroutine is resumed with.
pub enum Answer {
    Run(Box<Job>),
    /// Reads a script and does not run it.
    Compile(Arc<Script>),
    /// The reply of a command, as RESP.
    Reply(Vec<u8>),
    GoOn,
    /// K2.
    Stop,
    /// The interpreter is dropped; only between scripts.
    Quit,
}

/// The connection of the callbacks to the world outside of the coroutine.
pub(crate) struct Channel {
    yielder: Cell<*const Yielder<Answer, Event>>,
    stopped: Cell<bool>,
    slice: Cell<Duration>,
    slice_end: Cell<Instant>,
    /// The form of the replies of commands.
    pub(crate) resp3: Cell<bool>,
    pub(crate) random: RefCell<crate::random::Generator>,
}

/// The error that ends a stopped script.
#[derive(Debug)]
pub(crate) struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the script was stopped")
    }
}

impl std::error::Error for Stopped {}

impl Channel {
    fn new() -> Channel {
        Channel {
            yielder: Cell::new(std::ptr::null()),
            stopped: Cell::new(false),
            slice: Cell::new(Duration::MAX),
            slice_end: Cell::new(Instant::now()),
            resp3: Cell::new(false),
            random: RefCell::new(crate::random::Generator::unknown()),
        }
    }

    /// Suspends the script until it is answered.
    ///
    /// # Errors
    /// [`Stopped`] (K2).
    pub(crate) fn ask(&self, event: Event) -> mlua::Result<Answer> {
        let stop = || Err(mlua::Error::external(Stopped));
        let yielder = self.yielder.get();
        if self.stopped.get() || yielder.is_null() {
            return stop();
        }
        let is_slice = matches!(event, Event::Slice);
        // SAFETY: K3: it was set by the bottom frame of this coroutine, which has not returned.
        let answer = unsafe { &*yielder }.suspend(event);
        if matches!(answer, Answer::Stop | Answer::Quit) {
            self.stopped.set(true);
            return stop();
        }
        if is_slice {
            self.slice_end.set(Instant::now() + self.slice.get());
        }
        Ok(answer)
    }

    /// To be called now and then while a script runs.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn tick(&self) -> mlua::Result<()> {
        if self.stopped.get() {
            return Err(mlua::Error::external(Stopped));
        }
        if Instant::now() >= self.slice_end.get() {
            self.ask(Event::Slice)?;
        }
        Ok(())
    }

    fn begin(&self, job: &Job) {
        self.stopped.set(false);
        self.slice.set(job.slice);
        self.slice_end.set(Instant::now() + job.slice);
        self.resp3.set(false);
    }
}

/// An interpreter.
pub struct Machine {
    fiber: Coroutine<Answer, Event, (), DefaultStack>,
    /// A script is suspended.
    busy: bool,
    heavy: bool,
}

// SAFETY: K4: `live` shares its `Rc`s with callbacks of its own interpreter alone, events and
// answers own their bytes, and neither Lua nor `mlua` nor `corosensei` keeps thread-local state. The
// coroutine runs only in `resume`, which borrows the interpreter exclusively.
unsafe impl Send for Machine {}

impl Machine {
    /// # Errors
    /// The system has no memory for its stack.
    pub fn new(limits: Limits) -> std::io::Result<Machine> {
        let stack = DefaultStack::new(STACK_BYTES)?;
        let fiber =
            Coroutine::with_stack(stack, move |yielder, first| live(yielder, first, &limits));
        Ok(Machine {
            fiber,
            busy: false,
            heavy: false,
        })
    }

    /// Starts a script.
    ///
    /// # Panics
    /// If a script is suspended (K1).
    pub fn start(&mut self, job: Box<Job>) -> Event {
        assert!(!self.busy, "an interpreter runs one script at a time");
        self.busy = true;
        self.resume(Answer::Run(job))
    }

    /// Goes on with the suspended script.
    pub fn resume(&mut self, answer: Answer) -> Event {
        if self.fiber.done() {
            return Event::Done(Outcome::default());
        }
        match self.fiber.resume(answer) {
            CoroutineResult::Yield(event) => {
                if let Event::Done(outcome) = &event {
                    self.busy = false;
                    self.heavy = outcome.heavy;
                }
                event
            }
            CoroutineResult::Return(()) => {
                self.busy = false;
                Event::Done(Outcome::default())
            }
        }
    }

    /// The text of the error if a script cannot be compiled. It does not run.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn compile_error(&mut self, script: &Arc<Script>) -> Option<String> {
        assert!(!self.busy, "an interpreter runs one script at a time");
        match self.resume(Answer::Compile(Arc::clone(script))) {
            Event::Done(outcome) if outcome.failed => {
                let text = String::from_utf8_lossy(outcome.reply.get(1..).unwrap_or_default());
                Some(text.trim_end().to_owned())
            }
            _ => None,
        }
    }

    /// Whether a script is suspended.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether the last script has left so much garbage that another interpreter should take its
    /// place: there is no collection when an allocation fails, and to clear it takes long.
    pub fn is_heavy(&self) -> bool {
        self.heavy
    }

    /// Ends the suspended script, if there is one (K2).
    pub fn stop(&mut self) {
        while self.busy {
            self.resume(Answer::Stop);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
        if self.fiber.started() && !self.fiber.done() {
            self.fiber.resume(Answer::Quit);
        }
        debug_assert!(!self.fiber.started() || self.fiber.done());
    }
}

/// The life of an interpreter: the bottom frame of its coroutine.
fn live(yielder: &Yielder<Answer, Event>, first: Answer, limits: &Limits) {
    let channel = Rc::new(Channel::new());
    channel.yielder.set(yielder);
    let sandbox = Sandbox::new(&channel, limits);
    let mut answer = first;
    loop {
        let mut outcome = match answer {
            Answer::Run(job) => match &sandbox {
                Ok(sandbox) => run(sandbox, &channel, &job),
                Err(error) => failure(&format!("ERR scripts cannot run: {error}")),
            },
            Answer::Compile(script) => match &sandbox {
                Ok(sandbox) => match sandbox.compile_error(&script) {
                    None => Outcome::default(),
                    Some(text) => failure(&text),
                },
                Err(error) => failure(&format!("ERR scripts cannot run: {error}")),
            },
            Answer::Quit => return,
            Answer::Reply(_) | Answer::GoOn | Answer::Stop => Outcome::default(),
        };
        outcome.heavy = sandbox.as_ref().is_ok_and(Sandbox::is_heavy);
        answer = yielder.suspend(Event::Done(outcome));
    }
}

fn failure(text: &str) -> Outcome {
    let mut reply = Vec::new();
    reply::write_error(&mut reply, text.as_bytes());
    Outcome {
        reply,
        failed: true,
        ..Outcome::default()
    }
}

fn run(sandbox: &Sandbox, channel: &Channel, job: &Job) -> Outcome {
    channel.begin(job);
    let ended = sandbox.run(job);
    if channel.stopped.get() {
        return Outcome {
            stopped: true,
            ..Outcome::default()
        };
    }
    match ended {
        Ok(sandbox::Ended::Value(value)) => {
            let mut writer = reply::Writer {
                out: Vec::new(),
                resp3: job.resp3,
                booleans: channel.resp3.get(),
                bytes_max: job.reply_bytes_max,
            };
            match writer.write(&value, 0) {
                Ok(()) => Outcome {
                    reply: writer.out,
                    ..Outcome::default()
                },
                Err(text) => failure(&text),
            }
        }
        Ok(sandbox::Ended::Failed(text)) => {
            let mut reply = Vec::new();
            reply::write_error(&mut reply, &text);
            Outcome {
                reply,
                failed: true,
                ..Outcome::default()
            }
        }
        Err(error) => failure(&format!("ERR {}", sandbox::text_of(&error))),
    }
}
