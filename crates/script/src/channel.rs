//! The connection of a script's callbacks to the world outside of its coroutine, and the values
//! that pass through it.

use crate::library::{LibraryText, Registered};
use crate::source::Script;
use corosensei::Yielder;
use mlua::Lua;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Work between two looks at the clock; a unit takes about one nanosecond.
const WORK_PER_LOOK: usize = 1 << 16;

/// Limits of one interpreter, and the texts that it tells scripts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory of the interpreter, and length of each value that its libraries make.
    pub memory_bytes: usize,
    /// The version of Redis that scripts see.
    pub version: &'static str,
    pub version_number: u32,
}

/// The program of a job.
#[derive(Clone, Debug)]
pub enum Program {
    Script(Arc<Script>),
    /// A function of a library, by its name as it was registered.
    Function {
        library: Arc<LibraryText>,
        name: String,
    },
}

impl Program {
    /// Whether it has the same text.
    pub fn is(&self, other: &Program) -> bool {
        match (self, other) {
            (Program::Script(a), Program::Script(b)) => Arc::ptr_eq(a, b) || a.sha1 == b.sha1,
            (
                Program::Function { library, name },
                Program::Function {
                    library: other,
                    name: other_name,
                },
            ) => name == other_name && (Arc::ptr_eq(library, other) || library == other),
            _ => false,
        }
    }

    /// The name in error replies: the SHA-1 of a script, or the name of a function.
    pub fn name(&self) -> &str {
        match self {
            Program::Script(script) => &script.sha1,
            Program::Function { name, .. } => name,
        }
    }
}

/// A script to run.
pub struct Job {
    pub program: Program,
    pub keys: Arguments,
    pub args: Arguments,
    /// Whether the client speaks RESP3.
    pub resp3: bool,
    /// The script is suspended each time that it has run for this long.
    pub slice: Duration,
    /// Maximum length of the reply.
    pub reply_bytes_max: usize,
}

impl Job {
    /// Memory of the copies of its keys and arguments, in bytes.
    pub fn bytes(&self) -> usize {
        self.keys.capacity_bytes() + self.args.capacity_bytes()
    }
}

/// The arguments of a command or of a script, in one buffer.
#[derive(Debug, Default)]
pub struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Arguments {
    /// A copy of some texts.
    pub fn of<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Arguments {
        let mut arguments = Arguments::default();
        arguments.ends.reserve(texts.size_hint().0);
        texts.for_each(|text| arguments.push(text));
        arguments
    }

    pub(crate) fn with_capacity(number: usize) -> Arguments {
        Arguments {
            bytes: Vec::with_capacity(64),
            ends: Vec::with_capacity(number),
        }
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all arguments.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory that the arguments take.
    fn capacity_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// The arguments in order: those of a command from its name on.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let spans = starts.zip(&self.ends);
        spans.map(|(start, end)| self.bytes.get(*start..*end).unwrap_or_default())
    }
}

/// The reason why the script is suspended.
#[derive(Debug)]
pub enum Event {
    /// The script has ended; the interpreter takes another one.
    Done(Outcome),
    /// The script calls a command, and goes on with [`Answer::Reply`]. `resp3`: the form of the
    /// reply.
    Call { args: Arguments, resp3: bool },
    /// The script asks whether it may run a command; the reply is an integer or an error.
    Allowed { args: Arguments },
    /// The script writes to the log, at a level from 0 to 3, and goes on with [`Answer::GoOn`].
    Log { level: u8, text: Vec<u8> },
    /// The script has run for its slice, and its interpreter has this much memory in bytes. It goes
    /// on with [`Answer::GoOn`] for a slice of the same length, or with [`Answer::Slice`].
    Slice { memory_bytes: usize },
}

/// The result of a script.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The reply, as RESP.
    pub reply: Vec<u8>,
    /// Whether the reply is an error that the script raised, not one that it returned.
    pub failed: bool,
    /// The functions of the library that was loaded.
    pub registered: Vec<Registered>,
    /// Whether the script was stopped: then there is no reply.
    pub stopped: bool,
    /// See [`Machine::is_heavy`](crate::Machine::is_heavy).
    pub(crate) heavy: bool,
}

impl Outcome {
    /// The text of an error reply.
    pub fn error(&self) -> Option<String> {
        let text = self.reply.get(1..).unwrap_or_default();
        let text = || String::from_utf8_lossy(text).trim_end().to_owned();
        self.failed.then(text)
    }

    /// The functions of the library that was loaded.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn loaded(self) -> Result<Vec<Registered>, String> {
        match self.error() {
            Some(text) => Err(text),
            None if self.stopped => Err("ERR the library was stopped".to_owned()),
            None => Ok(self.registered),
        }
    }
}

/// The value with which the coroutine is resumed.
pub enum Answer {
    Run(Box<Job>),
    /// Reads a script and does not run it.
    Compile(Arc<Script>),
    /// Reads a library, and returns its functions. The load is suspended, as a script is, each time
    /// that it has run for this long.
    Load(Arc<LibraryText>, Duration),
    /// The reply of a command, as RESP.
    Reply(Vec<u8>),
    GoOn,
    /// As `GoOn`; from now on each slice has this length.
    Slice(Duration),
    /// Ends the script (machine::K2).
    Stop,
    /// Ends the coroutine, because the interpreter is dropped. Sent only between scripts.
    Quit,
}

/// The answer to a call, until its value is made.
#[derive(Debug, Default)]
pub(crate) enum Called {
    /// The reply, as RESP.
    Replied(Vec<u8>),
    /// The text of an error.
    Refused(String),
    #[default]
    Stopped,
}

/// The connection of the callbacks to the world outside of the coroutine.
pub(crate) struct Channel {
    pub(crate) yielder: Cell<*const Yielder<Answer, Event>>,
    pub(crate) stopped: Cell<bool>,
    slice: Cell<Duration>,
    slice_end: Cell<Instant>,
    /// The form of the replies of commands.
    pub(crate) resp3: Cell<bool>,
    /// Work of the host's functions since the last look at the clock.
    pub(crate) work: Cell<usize>,
    /// The lowest address of the interpreter's stack.
    pub(crate) stack_limit: Cell<usize>,
    pub(crate) random: RefCell<crate::random::Generator>,
    /// The answer to the last call (`call`).
    pub(crate) called: RefCell<Called>,
    /// Maximum bytes of the arguments of a command.
    pub(crate) arguments_max: Cell<usize>,
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

impl From<Stopped> for mlua::Error {
    fn from(stopped: Stopped) -> mlua::Error {
        mlua::Error::external(stopped)
    }
}

impl Channel {
    pub(crate) fn new() -> Channel {
        Channel {
            yielder: Cell::new(std::ptr::null()),
            stopped: Cell::new(false),
            slice: Cell::new(Duration::MAX),
            slice_end: Cell::new(Instant::now()),
            resp3: Cell::new(false),
            work: Cell::new(0),
            stack_limit: Cell::new(0),
            random: RefCell::new(crate::random::Generator::unknown()),
            called: RefCell::default(),
            arguments_max: Cell::new(0),
        }
    }

    /// Suspends the script until it is answered.
    ///
    /// # Errors
    /// [`Stopped`] (machine::K2).
    pub(crate) fn ask(&self, event: Event) -> Result<Answer, Stopped> {
        let yielder = self.yielder.get();
        if self.stopped.get() || yielder.is_null() {
            return Err(Stopped);
        }
        let is_slice = matches!(event, Event::Slice { .. });
        // SAFETY: machine::K3: the bottom frame of this coroutine has set it, and has not returned.
        let answer = unsafe { &*yielder }.suspend(event);
        if matches!(answer, Answer::Stop | Answer::Quit) {
            self.stopped.set(true);
            return Err(Stopped);
        }
        if let Answer::Slice(slice) = answer {
            self.slice.set(slice);
        }
        if is_slice {
            self.slice_end.set(Instant::now() + self.slice.get());
        }
        Ok(answer)
    }

    /// Must be called now and then while a script runs. `memory_bytes`: memory of the interpreter.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn look(&self, memory_bytes: impl FnOnce() -> usize) -> Result<(), Stopped> {
        if self.stopped.get() {
            return Err(Stopped);
        }
        if Instant::now() >= self.slice_end.get() {
            let memory_bytes = memory_bytes();
            self.ask(Event::Slice { memory_bytes })?;
        }
        Ok(())
    }

    /// As [`look`](Self::look), for a callback of `mlua`.
    ///
    /// # Errors
    /// Those of [`look`](Self::look).
    pub(crate) fn tick(&self, lua: &Lua) -> mlua::Result<()> {
        Ok(self.look(|| lua.used_memory())?)
    }

    /// Must be called in each step of the host that takes about `work` nanoseconds. The script may
    /// be suspended.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(crate) fn charge(
        &self,
        work: usize,
        memory_bytes: impl FnOnce() -> usize,
    ) -> Result<(), Stopped> {
        let sum = self.work.get().saturating_add(work);
        if sum < WORK_PER_LOOK {
            self.work.set(sum);
            return Ok(());
        }
        self.work.set(0);
        self.look(memory_bytes)
    }

    pub(crate) fn begin(&self, slice: Duration) {
        self.stopped.set(false);
        self.slice.set(slice);
        self.slice_end.set(Instant::now() + slice);
        self.resp3.set(false);
        self.called.take(); // the value of a long reply may never have been made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reply_stays_when_the_next_script_begins() {
        let channel = Channel::new();
        channel.called.replace(Called::Replied(vec![0; 1 << 20]));
        channel.begin(Duration::from_millis(1));
        assert!(matches!(channel.called.take(), Called::Stopped));
    }
}
