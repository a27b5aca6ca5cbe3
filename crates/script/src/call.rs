//! `redis.call`, `redis.pcall` and `redis.acl_check_cmd`, as C functions of Lua. They copy their
//! arguments, ask the server, and put short replies on the stack; `reply` makes the other values.
//!
//! - C1: an error of Lua jumps over the frame of `command` alone, which owns nothing: `ask` has
//!   dropped all that it owns before the interpreter allocates.
//! - C2: the pointer to the channel points into an `Rc` that lives as long as the interpreter:
//!   callbacks of `mlua` in the same interpreter hold it, and `machine::live` holds it beyond them.

use crate::channel::{Answer, Arguments, Called, Channel, Event, Stopped};
use crate::host::{Host, NO_MEMORY};
use crate::{number, reply};
use mlua::ffi::{
    LUA_GCCOUNT, LUA_GCCOUNTB, LUA_TNUMBER, LUA_TSTRING, lua_State, lua_call, lua_createtable,
    lua_error, lua_gc, lua_gettop, lua_pushboolean, lua_pushcclosure, lua_pushlightuserdata,
    lua_pushlstring, lua_pushnumber, lua_pushvalue, lua_setfield, lua_toboolean, lua_tolstring,
    lua_tonumber, lua_touserdata, lua_type, lua_upvalueindex,
};
use mlua::{Function, Lua, Table, Value};
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// Work of one argument beside its bytes (`Channel::charge`).
const ARGUMENT_WORK: usize = 64;
/// Longest reply that stays in the channel after its value is made.
const SHORT_BYTES: usize = 16 << 10;

/// The functions of this file; Lua knows them by their numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `redis.call`: an error reply is raised.
    Call = 0,
    /// `redis.pcall`: an error reply is a value.
    Protected = 1,
    /// `redis.acl_check_cmd`: the reply says whether the command may run.
    Allowed = 2,
}

/// A reply whose value needs no function of the host.
#[derive(Clone, Copy)]
enum Short {
    Number(f64),
    Null,
    /// The start and the end of a text in the reply.
    Text(usize, usize),
    Status(usize, usize),
    /// Any other reply: `reply` makes its value.
    Not,
}

/// Adds the functions of this file to those of the host. `bytes_max`: maximum bytes of all
/// arguments together.
pub(crate) fn add(
    lua: &Lua,
    channel: &Rc<Channel>,
    host: &Table,
    bytes_max: usize,
) -> mlua::Result<()> {
    channel.arguments_max.set(bytes_max);
    let pointer: *mut c_void = Rc::as_ptr(channel).cast_mut().cast();
    for (name, way) in [
        ("call", Way::Call),
        ("pcall", Way::Protected),
        ("allowed", Way::Allowed),
    ] {
        let channel = Rc::clone(channel);
        let replying = lua.create_function(move |lua, ()| {
            let channel = &channel;
            reply(Host { lua, channel })
        })?;
        // SAFETY: `replying` is the only value on the stack; with the two that follow it becomes an
        // upvalue of the closure, which is the only value left.
        let calling: Function = unsafe {
            lua.exec_raw(replying, |state| {
                lua_pushlightuserdata(state, pointer);
                lua_pushnumber(state, f64::from(way as u8));
                lua_pushcclosure(state, command, 3);
            })
        }?;
        host.raw_set(name, calling)?;
    }
    Ok(())
}

/// A call by a script. Its upvalues are those that `add` gave it.
unsafe extern "C-unwind" fn command(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its arguments on a stack with 20 free places, and with the upvalues
    // that `add` gave it (C2). The reply stays where it is until the next call of `ask`; C1.
    unsafe {
        let channel: *const Channel = lua_touserdata(state, lua_upvalueindex(2)).cast();
        let way = lua_tonumber(state, lua_upvalueindex(3)) as u8;
        let is = |other: Way| way == other as u8;
        let text = |start: usize, end: usize| {
            let reply = match &*(*channel).called.as_ptr() {
                Called::Replied(reply) => reply.get(start..end).unwrap_or_default(),
                _ => &[],
            };
            lua_pushlstring(state, reply.as_ptr().cast(), reply.len());
        };
        match ask(state, &*channel, is(Way::Allowed)) {
            Short::Number(number) if is(Way::Allowed) => {
                lua_pushboolean(state, c_int::from(number == 1.0));
            }
            Short::Number(number) => lua_pushnumber(state, number),
            Short::Null => lua_pushboolean(state, 0),
            Short::Text(start, end) => text(start, end),
            Short::Status(start, end) => {
                lua_createtable(state, 0, 1);
                text(start, end);
                lua_setfield(state, -2, c"ok".as_ptr());
            }
            Short::Not => {
                lua_pushvalue(state, lua_upvalueindex(1));
                lua_call(state, 0, 2);
                if !is(Way::Protected) && lua_toboolean(state, -2) == 0 {
                    lua_error(state)
                }
            }
        }
    }
    1
}

/// Asks the server to run the command on the stack or, with `asks`, whether the command may run.
/// Leaves the answer in the channel. The script may be suspended.
///
/// # Safety
/// `state` is the one of a running function of C.
unsafe fn ask(state: *mut lua_State, channel: &Channel, asks: bool) -> Short {
    let memory = || {
        // SAFETY: the state is that of a running function, as above; neither call allocates.
        let (kib, rest) = unsafe {
            (
                lua_gc(state, LUA_GCCOUNT, 0),
                lua_gc(state, LUA_GCCOUNTB, 0),
            )
        };
        ((kib as usize) << 10) + rest as usize
    };
    let ended = || -> Result<Called, Stopped> {
        // SAFETY: the caller keeps the same rule.
        let taken = unsafe { arguments(state, channel.arguments_max.get()) };
        channel.look(memory)?; // a command may take as long as many instructions
        let args = match taken {
            Ok(args) => args,
            Err(text) => return Ok(Called::Refused(text)),
        };
        channel.charge(ARGUMENT_WORK * args.len() + args.bytes(), memory)?;
        let resp3 = channel.resp3.get();
        let answer = channel.ask(if asks {
            Event::Allowed { args }
        } else {
            Event::Call { args, resp3 }
        })?;
        let Answer::Reply(bytes) = answer else {
            return Ok(Called::Refused("ERR the command has no reply".to_owned()));
        };
        channel.charge(ARGUMENT_WORK + bytes.len().min(SHORT_BYTES), memory)?;
        Ok(Called::Replied(bytes))
    };
    let called = ended().unwrap_or(Called::Stopped);
    let short = match &called {
        Called::Replied(bytes) => short(bytes),
        _ => Short::Not,
    };
    channel.called.replace(called);
    short
}

/// The value of a reply that is one line or one short text.
fn short(reply: &[u8]) -> Short {
    if reply.len() > SHORT_BYTES {
        return Short::Not;
    }
    let line_end = |reply: &[u8]| reply.iter().position(|byte| *byte == b'\r');
    match reply {
        b"$-1\r\n" => Short::Null,
        [b':', number @ .., b'\r', b'\n'] => {
            let number = std::str::from_utf8(number).ok();
            let number = number.and_then(|text| text.parse::<i64>().ok());
            number.map_or(Short::Not, |number| Short::Number(number as f64))
        }
        [b'+', line @ .., b'\r', b'\n'] => Short::Status(1, 1 + line.len()),
        [b'$', ..] => {
            let start = line_end(reply).map_or(reply.len(), |end| end + 2);
            Short::Text(start, reply.len().saturating_sub(2).max(start))
        }
        _ => Short::Not,
    }
}

/// The values on the stack as arguments, or the text of an error.
///
/// # Safety
/// `state` is the one of a running function of C.
unsafe fn arguments(state: *mut lua_State, bytes_max: usize) -> Result<Arguments, String> {
    // SAFETY: all indices are of values on the stack. The text of a string is not made, as that of
    // a number would be (C1).
    unsafe {
        let number = lua_gettop(state);
        if number == 0 {
            let text = "ERR Please specify at least one argument for this redis lib call";
            return Err(text.to_owned());
        }
        let mut texts = Arguments::with_capacity(number as usize);
        for at in 1..=number {
            match lua_type(state, at) {
                LUA_TSTRING => {
                    let mut length = 0;
                    let text = lua_tolstring(state, at, &raw mut length);
                    if texts.bytes().saturating_add(length) > bytes_max {
                        return Err(format!("ERR {NO_MEMORY}"));
                    }
                    texts.push(std::slice::from_raw_parts(text.cast(), length));
                }
                LUA_TNUMBER => texts.push(&number_text(lua_tonumber(state, at))),
                _ => {
                    let text = "ERR Lua redis lib command arguments must be strings or integers";
                    return Err(text.to_owned());
                }
            }
        }
        Ok(texts)
    }
}

/// The text of a number as `%.17g` writes it, but an integer of at most 17 digits in full.
fn number_text(number: f64) -> Vec<u8> {
    let integer = number as i64;
    let is_short = integer.unsigned_abs() < 100_000_000_000_000_000;
    if is_short && (integer as f64).to_bits() == number.to_bits() {
        integer.to_string().into_bytes()
    } else {
        number::general(number, 17).into_bytes()
    }
}

/// The value of a reply that is not [`Short`]; the first result is whether it is no error.
fn reply(host: Host<'_>) -> mlua::Result<(bool, Value)> {
    let Host { lua, channel } = host;
    match channel.called.take() {
        Called::Stopped => Err(Stopped.into()),
        Called::Refused(text) => Ok((false, reply::error_table(lua, text.as_bytes())?)),
        Called::Replied(bytes) => {
            let is_error = bytes.first() == Some(&b'-');
            Ok((!is_error, reply::read(host, &bytes)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_17_digits() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (60.0, "60"),
            (-7.0, "-7"),
            (0.1, "0.10000000000000001"),
            (1e15, "1000000000000000"),
            (-1e16, "-10000000000000000"),
            (10_000_000_000_000_002.0, "10000000000000002"),
            (99_999_999_999_999_984.0, "99999999999999984"),
            (1e17, "1e+17"),
            (-123_456_789_012_345_678.0, "-1.2345678901234568e+17"),
            (1e300, "1.0000000000000001e+300"),
            (-9_223_372_036_854_775_808.0, "-9.2233720368547758e+18"),
            (9_223_372_036_854_775_808.0, "9.2233720368547758e+18"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(String::from_utf8_lossy(&number_text(number)), text);
        }
    }
}
