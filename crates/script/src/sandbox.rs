//! The globals that a script sees, and the call of a script.
//!
//! `prelude.lua` builds them from Lua's own and from the host's functions here. A function of the
//! host returns `true` and its result, or `false` and the text of an error, which the prelude
//! raises with the script's line.

use crate::channel::{Arguments, Channel, Event, Job, Limits, Program};
use crate::host::{Host, NO_MEMORY};
use crate::library::{LibraryText, Registered};
use crate::source::{Flags, Script, TEXT_BYTES_MAX, sha1_hex};
use crate::{bits, call, json, layout, number, pack, patterns, raise, reply, ticking};
use mlua::ffi::{
    LUA_GCRESTART, LUA_GCSTOP, lua_State, lua_call, lua_createtable, lua_gc, lua_pushlstring,
    lua_rawseti,
};
use mlua::{
    ChunkMode, Function, HookTriggers, Lua, LuaOptions, StdLib, String as LuaString, Table, Value,
    VmState,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::rc::Rc;
use std::time::Instant;

/// Instructions between two looks at the clock: less than a microsecond, but one instruction may
/// work on a long text.
const INSTRUCTIONS_PER_TICK: u32 = 100;
/// Work for one key or argument of a script, beside the work for each 8 bytes of it. Most take 100
/// ns. But Lua searches a chain of its table of texts for each: hundreds of microseconds at worst.
const TEXT_WORK: usize = 4_000;
/// A script gets more texts than this without a collection meanwhile. A collection would find no
/// dead texts, and would go through the unfinished table in one piece. It would also keep the table
/// of texts from growing while it sweeps that table, so that the chains get long.
const TEXTS_COLLECTED_MAX: usize = 1_000;
/// Maximum compiled scripts that an interpreter keeps: if there would be more, it forgets them all.
const COMPILED_MAX: usize = 512;
/// The name of a script's chunk, as in Redis.
const CHUNK: &str = "@user_script";
type TextChange = fn(&[u8]) -> Vec<u8>;

/// Functions of `string` that Lua's own code runs a byte at a time.
const TEXT_CHANGES: &[(&str, TextChange)] = &[
    ("upper", <[u8]>::to_ascii_uppercase),
    ("lower", <[u8]>::to_ascii_lowercase),
    ("reverse", |text| text.iter().rev().copied().collect()),
];
/// The name of a library's chunk, as in Redis.
const FUNCTION_CHUNK: &str = "@user_function";
const PRELUDE: &str = "=prelude";
/// Maximum values that Rust may refer to at once (host::H1). `mlua` keeps them on a stack of Lua,
/// which has room for 8,000. The process ends when that stack cannot grow because the interpreter
/// is full. So the stack gets its full size before the interpreter has a limit, and no collection
/// shrinks it, because its slots stay in use.
const REFERENCES: usize = 7_900;

pub(crate) struct Sandbox {
    lua: Lua,
    run: Function,
    call_function: Function,
    load_library: Function,
    /// The globals that functions see.
    environment: Table,
    compiled: RefCell<HashMap<String, Function>>,
    /// The loaded libraries by their SHA-1, each a table of its functions by name.
    libraries: Table,
    /// Memory in bytes above which the interpreter is better replaced than cleared of garbage.
    heavy_above: usize,
}

/// How a script ended.
pub(crate) enum Ended {
    Value(Value),
    /// The text of the error reply.
    Failed(Vec<u8>),
}

/// The text of an error of the host.
pub(crate) fn text_of(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => text_of(cause),
        mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        // `mlua` has added the place of the error.
        mlua::Error::RuntimeError(message) => match message.split_once("\nstack traceback:") {
            Some((text, _)) => text.to_owned(),
            None => message.clone(),
        },
        error => error.to_string(),
    }
}

impl Sandbox {
    pub(crate) fn new(channel: &Rc<Channel>, limits: &Limits) -> mlua::Result<Sandbox> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(libraries, options)?;
        let host = host(&lua, channel, limits)?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name(PRELUDE);
        let made: Table = prelude.call(host)?;
        lua.set_globals(made.raw_get("shown")?)?;
        let libraries = lua.create_table()?;
        let references: mlua::Result<Vec<LuaString>> =
            (0..REFERENCES).map(|_| lua.create_string("")).collect();
        drop(references?);
        lua.gc_collect()?;
        let used = lua.used_memory();
        lua.set_memory_limit(used + limits.memory_bytes)?;
        let hook = Rc::clone(channel);
        let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_TICK);
        lua.set_global_hook(triggers, move |lua, _| {
            hook.tick(lua).map(|()| VmState::Continue)
        })?;
        Ok(Sandbox {
            lua,
            run: made.raw_get("run")?,
            call_function: made.raw_get("call_function")?,
            load_library: made.raw_get("load_library")?,
            environment: made.raw_get("environment")?,
            compiled: RefCell::default(),
            libraries,
            heavy_above: used + limits.memory_bytes / 4,
        })
    }

    pub(crate) fn host<'h>(&'h self, channel: &'h Channel) -> Host<'h> {
        Host {
            lua: &self.lua,
            channel,
        }
    }

    /// # Errors
    /// Those of the host: no memory, or the script was stopped.
    pub(crate) fn run(&self, job: &Job, channel: &Channel) -> mlua::Result<Ended> {
        let (runner, function) = match &job.program {
            Program::Script(script) => match self.compiled(script) {
                Ok(function) => (&self.run, function),
                Err(mlua::Error::SyntaxError { message, .. }) => {
                    return Ok(Ended::Failed(compile_text(&message).into_bytes()));
                }
                Err(error) => return Err(error),
            },
            Program::Function { library, name } => match self.function(library, name)? {
                Ok(function) => (&self.call_function, function),
                Err(text) => return Ok(Ended::Failed(text.into_bytes())),
            },
        };
        let host = self.host(channel);
        let many = job.keys.len() + job.args.len() > TEXTS_COLLECTED_MAX;
        // SAFETY: the stack has the runner and the function, and 20 free places; `runner` takes
        // three values, and its two results are left. The closure owns nothing.
        let called: mlua::Result<(bool, Value)> = unsafe {
            self.lua.exec_raw((runner, function), |state| {
                if many {
                    lua_gc(state, LUA_GCSTOP, 0);
                }
                push_texts(state, &job.keys, host);
                push_texts(state, &job.args, host);
                if many {
                    lua_gc(state, LUA_GCRESTART, 0);
                }
                lua_call(state, 3, 2);
            })
        };
        if many {
            self.lua.gc_restart(); // there may have been no memory for the texts
        }
        let (ok, value) = called?;
        if ok {
            return Ok(Ended::Value(value));
        }
        Ok(Ended::Failed(failure_text(&value, job)?))
    }

    /// A function of a library, which is loaded first if it is not yet; or the text of an error.
    fn function(
        &self,
        library: &LibraryText,
        name: &str,
    ) -> mlua::Result<Result<Function, String>> {
        let sha1 = library.sha1.as_str();
        if !self.libraries.contains_key(sha1)?
            && let Err(text) = self.load(library)?
        {
            return Ok(Err(text));
        }
        let functions: Table = self.libraries.raw_get(sha1)?;
        let function: Option<Function> = functions.raw_get(name)?;
        Ok(function.ok_or("ERR Function not found".to_owned()))
    }

    /// Loads a library; returns its functions, or the text of an error.
    pub(crate) fn load(
        &self,
        library: &LibraryText,
    ) -> mlua::Result<Result<Vec<Registered>, String>> {
        let chunk = self.lua.load(library.code()).set_name(FUNCTION_CHUNK);
        let chunk = chunk.set_environment(self.environment.clone());
        let function = match chunk.set_mode(ChunkMode::Text).into_function() {
            Ok(function) => function,
            Err(mlua::Error::SyntaxError { message, .. }) => {
                return Ok(Err(format!("ERR Error compiling function: {message}")));
            }
            Err(error) => return Err(error),
        };
        let (ok, value): (bool, Value) = self.load_library.call(function)?;
        let functions = match (ok, &value) {
            (true, Value::Table(functions)) => functions,
            (_, Value::Error(error)) => return Err((**error).clone()),
            (_, Value::String(text)) => {
                let text = text.to_string_lossy();
                return Ok(Err(format!("ERR Error registering functions: {text}")));
            }
            _ => {
                return Ok(Err(
                    "ERR Error registering functions: unknown error".to_owned()
                ));
            }
        };
        let callbacks = self.lua.create_table()?;
        let mut registered = Vec::new();
        for function in functions.sequence_values::<Table>() {
            let function = function?;
            let name: LuaString = function.raw_get("name")?;
            let name = name.to_string_lossy();
            let description: Option<LuaString> = function.raw_get("description")?;
            let mut flags = Flags {
                declared: true,
                ..Flags::default()
            };
            let names: Table = function.raw_get("flags")?;
            for flag in names.sequence_values::<LuaString>() {
                flags.set(&flag?.to_string_lossy());
            }
            let callback: Function = function.raw_get("callback")?;
            callbacks.raw_set(name.as_str(), callback)?;
            registered.push(Registered {
                name,
                description: description.map(|text| text.as_bytes().to_vec()),
                flags,
            });
        }
        if registered.is_empty() {
            return Ok(Err("ERR No functions registered".to_owned()));
        }
        self.libraries.raw_set(library.sha1.as_str(), callbacks)?;
        Ok(Ok(registered))
    }

    /// See [`Machine::is_heavy`](crate::Machine::is_heavy).
    pub(crate) fn is_heavy(&self) -> bool {
        self.lua.used_memory() > self.heavy_above
    }

    /// The text of the error if a script cannot be compiled.
    pub(crate) fn compile_error(&self, script: &Script) -> Option<String> {
        match self.compiled(script) {
            Ok(_) => None,
            Err(mlua::Error::SyntaxError { message, .. }) => Some(compile_text(&message)),
            Err(error) => Some(format!("ERR {}", text_of(&error))),
        }
    }

    fn compiled(&self, script: &Script) -> mlua::Result<Function> {
        let mut compiled = self.compiled.borrow_mut();
        if let Some(function) = compiled.get(&script.sha1) {
            return Ok(function.clone());
        }
        let chunk = self.lua.load(script.code()).set_name(CHUNK);
        let function = chunk.set_mode(ChunkMode::Text).into_function()?;
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
        }
        compiled.insert(script.sha1.clone(), function.clone());
        Ok(function)
    }
}

fn compile_text(message: &str) -> String {
    format!("ERR Error compiling script (new function): {message}")
}

/// The text of the error reply to a script that has raised this value.
fn failure_text(value: &Value, job: &Job) -> mlua::Result<Vec<u8>> {
    let table = match value {
        Value::Table(table) => table,
        Value::Error(error) => return Err((**error).clone()),
        Value::String(text) => {
            return Ok([b"ERR ", &text.as_bytes()[..]].concat());
        }
        _ => return Ok(b"ERR unknown error".to_vec()),
    };
    let mut text = match table.raw_get("err")? {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number::general(number, 14).into_bytes(),
        _ => b"ERR unknown error".to_vec(),
    };
    let source: Value = table.raw_get("source")?;
    let line: Value = table.raw_get("line")?;
    if let (Value::String(source), Value::Integer(line)) = (source, line) {
        text.extend_from_slice(format!(" script: {}, on ", job.program.name()).as_bytes());
        text.extend_from_slice(&source.as_bytes());
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    Ok(text)
}

/// Functions that make a text from another one.
fn add_text_functions(
    lua: &Lua,
    channel: &Rc<Channel>,
    host: &Table,
    bytes_max: usize,
) -> mlua::Result<()> {
    for (name, change) in TEXT_CHANGES {
        let own = Rc::clone(channel);
        let run = lua.create_function(move |lua, text: LuaString| {
            own.tick(lua)?;
            lua.create_string(change(&text.as_bytes()))
        })?;
        host.raw_set(*name, run)?;
    }
    let own = Rc::clone(channel);
    let rep = lua.create_function(move |lua, (text, times): (LuaString, usize)| {
        own.tick(lua)?;
        let text = text.as_bytes();
        if text.len().saturating_mul(times) > bytes_max {
            return Err(mlua::Error::MemoryError(NO_MEMORY.to_owned()));
        }
        lua.create_string(text.repeat(times))
    })?;
    host.raw_set("rep", rep)
}

/// The host's functions.
fn host(lua: &Lua, channel: &Rc<Channel>, limits: &Limits) -> mlua::Result<Table> {
    let host = lua.create_table()?;
    let null = Value::NULL;
    host.raw_set("null", null)?;
    host.raw_set("version", limits.version)?;
    host.raw_set("version_number", limits.version_number)?;
    let bytes_max = limits.memory_bytes;
    host.raw_set("bytes_max", bytes_max)?;
    host.raw_set("text_max", TEXT_BYTES_MAX)?;
    let raises = lua.create_function(|lua, function: Function| raise::raises(lua, function))?;
    host.raw_set("raises", raises)?;
    call::add(lua, channel, &host, bytes_max)?;
    let own = Rc::clone(channel);
    let log = lua.create_function(move |_, (level, text): (u8, LuaString)| {
        let text = text.as_bytes().to_vec();
        own.ask(Event::Log { level, text })?;
        Ok(())
    })?;
    host.raw_set("log", log)?;
    let own = Rc::clone(channel);
    let setresp = lua.create_function(move |_, version: u8| {
        own.resp3.set(version == 3);
        Ok(())
    })?;
    host.raw_set("setresp", setresp)?;
    let own = Rc::clone(channel);
    let random = lua.create_function(move |_, ()| Ok(own.random.borrow_mut().next()))?;
    host.raw_set("random", random)?;
    let own = Rc::clone(channel);
    let seed = lua.create_function(move |_, seed: f64| {
        let seed = number::to_integer(seed) as i32;
        *own.random.borrow_mut() = crate::random::Generator::seeded(seed);
        Ok(())
    })?;
    host.raw_set("seed", seed)?;
    let is_flag = |_: &Lua, name: LuaString| Ok(Flags::default().set(&name.to_string_lossy()));
    host.raw_set("is_flag", lua.create_function(is_flag)?)?;
    let sha1hex = lua.create_function(|_, text: LuaString| Ok(sha1_hex(&text.as_bytes())))?;
    host.raw_set("sha1hex", sha1hex)?;
    let error_text =
        |lua: &Lua, text: LuaString| lua.create_string(reply::error_text(&text.as_bytes()));
    host.raw_set("error_text", lua.create_function(error_text)?)?;
    host.raw_set("where", lua.create_function(|lua, ()| Ok(place(lua)))?)?;
    let started = Instant::now();
    let clock = lua.create_function(move |_, ()| Ok(started.elapsed().as_secs_f64()))?;
    host.raw_set("clock", clock)?;
    host.raw_set("bit", bits::library(lua)?)?;
    host.raw_set("patterns", patterns::library(lua, channel, bytes_max)?)?;
    add_text_functions(lua, channel, &host, bytes_max)?;
    let own = Rc::clone(channel);
    let tick = lua.create_function(move |lua, ()| own.tick(lua))?;
    host.raw_set("tick", tick)?;
    let ticks = lua.create_function(|lua, (function, tick): (Function, Function)| {
        ticking::ticks(lua, function, tick)
    })?;
    host.raw_set("ticks", ticks)?;
    host.raw_set("pack", pack::library(lua, channel, bytes_max)?)?;
    host.raw_set("layout", layout::library(lua, channel, bytes_max)?)?;
    let own = Rc::clone(channel);
    let json = lua.create_function(move |lua, ()| json::library(lua, &own, bytes_max))?;
    host.raw_set("json", json)?;
    Ok(host)
}

/// Pushes a table of texts, in the order of Lua's lists. The script may be suspended. If it is
/// stopped meanwhile, some texts are missing: the script ends at the next look (machine::K2).
///
/// # Safety
/// `state` is the one of a running function of C, with two free places.
unsafe fn push_texts(state: *mut lua_State, texts: &Arguments, host: Host<'_>) {
    let charge = |work| host.channel.charge(work, || host.lua.used_memory());
    // SAFETY: as above; an error jumps over this frame, which owns nothing.
    unsafe {
        // Making a large table takes a while by itself.
        if charge(8 * texts.len()).is_err() {
            return lua_createtable(state, 0, 0);
        }
        lua_createtable(state, c_int::try_from(texts.len()).unwrap_or(0), 0);
        for (n, text) in (1..).zip(texts.iter()) {
            lua_pushlstring(state, text.as_ptr().cast(), text.len());
            lua_rawseti(state, -2, n);
            if charge(TEXT_WORK + text.len() / 8).is_err() {
                break;
            }
        }
    }
}

/// Source and line of the innermost function of a script.
fn place(lua: &Lua) -> (Option<String>, Option<usize>) {
    /// Maximum frames of the host and of the prelude above that of the script.
    const LEVELS_MAX: usize = 16;
    for level in 0..LEVELS_MAX {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source();
            let name = source.source.as_deref().unwrap_or_default().to_owned();
            let is_script = source.what != "C" && name != PRELUDE;
            is_script.then(|| (name, debug.current_line()))
        });
        match found {
            None => break,
            Some(Some((name, line))) if name != "=?" && name != "=(tail call)" => {
                return (Some(name), line);
            }
            Some(_) => {}
        }
    }
    (None, None)
}
