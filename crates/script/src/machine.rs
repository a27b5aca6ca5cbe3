//! One interpreter, on a stack of its own.
//!
//! **Mechanism.** The interpreter runs as a coroutine of this thread. When a script calls a
//! command, or has run for a slice of time, the coroutine is suspended with an [`Event`], wherever
//! it is (in a protected call, in a sort). The caller decides when it goes on, and with which
//! [`Answer`].
//!
//! **Invariants**
//! - K1: an interpreter runs one script at a time. While its script is suspended, it takes no
//!   other.
//! - K2: [`Answer::Stop`] ends the script: from then on every hook and every call of the host fails
//!   with an error that no script can catch, so the coroutine comes to its end.
//! - K3: the pointer to the coroutine's handle is used inside of that coroutine alone, whose frame
//!   at the bottom of the stack owns the interpreter and so outlives all its callbacks.
//! - K4: an interpreter moves between threads as a whole, while it is suspended: everything that
//!   its callbacks share is on its own stack or in its own heap, and nothing of it is thread-local.

use crate::channel::{Answer, Channel, Event, Job, Limits, Outcome};
use crate::library::LibraryText;
use crate::reply;
use crate::sandbox::{self, Sandbox};
use crate::source::Script;
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an interpreter's stack. Lua nests 200 calls of C functions, each with a buffer of 8
/// KiB: some 2 MiB. Walks of values take the most beside them, and check what is left
/// (`Host::descend`). Pages that are never touched cost nothing.
const STACK_BYTES: usize = 8 << 20;

/// An interpreter.
pub struct Machine {
    fiber: Coroutine<Answer, Event, (), DefaultStack>,
    /// Whether a script is suspended.
    busy: bool,
    heavy: bool,
}

// SAFETY: K4: `live` shares its `Rc`s with callbacks of its own interpreter alone, events and
// answers own their bytes, and neither Lua nor `mlua` nor `corosensei` keeps thread-local state.
// The coroutine runs only in `resume`, which borrows the interpreter exclusively.
unsafe impl Send for Machine {}

impl Machine {
    /// # Errors
    /// The system has no memory for its stack.
    pub fn new(limits: Limits) -> std::io::Result<Machine> {
        let stack = DefaultStack::new(STACK_BYTES)?;
        let limit = stack.limit().get();
        let fiber = Coroutine::with_stack(stack, move |yielder, first| {
            live(yielder, first, &limits, limit);
        });
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

    /// Begins to load a library. The outcome has its functions.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn load(&mut self, library: Arc<LibraryText>, slice: Duration) -> Event {
        assert!(!self.busy, "an interpreter runs one script at a time");
        self.busy = true;
        self.resume(Answer::Load(library, slice))
    }

    /// The text of the error if a script cannot be compiled. The script does not run.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn compile_error(&mut self, script: &Arc<Script>) -> Option<String> {
        assert!(!self.busy, "an interpreter runs one script at a time");
        match self.resume(Answer::Compile(Arc::clone(script))) {
            Event::Done(outcome) => outcome.error(),
            _ => None,
        }
    }

    /// Whether a script is suspended.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether the last script has left so much garbage that another interpreter should take the
    /// place of this one: nothing is collected when an allocation fails, and clearing the garbage
    /// takes long.
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

/// The bottom frame of an interpreter's coroutine, which runs until the interpreter is dropped.
fn live(yielder: &Yielder<Answer, Event>, first: Answer, limits: &Limits, stack_limit: usize) {
    let channel = Rc::new(Channel::new());
    channel.yielder.set(yielder);
    channel.stack_limit.set(stack_limit);
    let sandbox = Sandbox::new(&channel, limits);
    let mut answer = first;
    loop {
        let mut outcome = match answer {
            Answer::Run(job) => match &sandbox {
                Ok(sandbox) => run(sandbox, &channel, &job),
                Err(error) => failure(format!("ERR scripts cannot run: {error}")),
            },
            Answer::Load(library, slice) => match &sandbox {
                Ok(sandbox) => load(sandbox, &channel, &library, slice),
                Err(error) => failure(format!("ERR scripts cannot run: {error}")),
            },
            Answer::Compile(script) => match &sandbox {
                Ok(sandbox) => match sandbox.compile_error(&script) {
                    None => Outcome::default(),
                    Some(text) => failure(text),
                },
                Err(error) => failure(format!("ERR scripts cannot run: {error}")),
            },
            Answer::Quit => return,
            Answer::Reply(_) | Answer::GoOn | Answer::Slice(_) | Answer::Stop => Outcome::default(),
        };
        outcome.heavy = sandbox.as_ref().is_ok_and(Sandbox::is_heavy);
        answer = yielder.suspend(Event::Done(outcome));
    }
}

fn stopped() -> Outcome {
    Outcome {
        stopped: true,
        ..Outcome::default()
    }
}

fn failure(text: impl AsRef<[u8]>) -> Outcome {
    let mut reply = Vec::new();
    reply::write_error(&mut reply, text.as_ref());
    Outcome {
        reply,
        failed: true,
        ..Outcome::default()
    }
}

fn load(sandbox: &Sandbox, channel: &Channel, library: &LibraryText, slice: Duration) -> Outcome {
    channel.begin(slice);
    let loaded = sandbox.load(library);
    match loaded {
        _ if channel.stopped.get() => stopped(),
        Ok(Ok(registered)) => Outcome {
            registered,
            ..Outcome::default()
        },
        Ok(Err(text)) => failure(text),
        Err(error) => failure(format!("ERR {}", sandbox::text_of(&error))),
    }
}

fn run(sandbox: &Sandbox, channel: &Channel, job: &Job) -> Outcome {
    channel.begin(job.slice);
    let ended = sandbox.run(job, channel);
    if channel.stopped.get() {
        return stopped();
    }
    match ended {
        Ok(sandbox::Ended::Value(value)) => {
            let mut writer = reply::Writer {
                host: sandbox.host(channel),
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
                Err(_) if channel.stopped.get() => stopped(),
                Err(text) => failure(text),
            }
        }
        Ok(sandbox::Ended::Failed(text)) => failure(text),
        Err(error) => failure(format!("ERR {}", sandbox::text_of(&error))),
    }
}
