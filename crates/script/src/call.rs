//! `redis.call`: `host.take` takes the arguments of a command, and `host.call` or `host.allowed`,
//! which are called next, ask the server.
//!
//! - C1: the function `take` allocates nothing in the interpreter, so it raises no error and no
//!   jump passes over its values.
//! - C2: its pointer to the channel is of an `Rc` that lives as long as the interpreter: callbacks
//!   of `mlua` in the same interpreter hold it, and `machine::live` beyond them.

use crate::channel::{Answer, Arguments, Channel, Event};
use crate::host::{Host, NO_MEMORY};
use crate::{number, reply};
use mlua::ffi::{
    LUA_TNUMBER, LUA_TSTRING, lua_State, lua_gettop, lua_pushcclosure, lua_pushlightuserdata,
    lua_tolstring, lua_tonumber, lua_touserdata, lua_type, lua_upvalueindex,
};
use mlua::{Function, Lua, Table, Value};
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// Work of one argument beside its bytes (`Host::charge`).
const ARGUMENT_WORK: usize = 64;

/// Adds the functions of this file to those of the host. `bytes_max`: maximum of all arguments.
pub(crate) fn add(
    lua: &Lua,
    channel: &Rc<Channel>,
    host: &Table,
    bytes_max: usize,
) -> mlua::Result<()> {
    channel.arguments_max.set(bytes_max);
    let pointer: *mut c_void = Rc::as_ptr(channel).cast_mut().cast();
    // SAFETY: the pointer is the only value on the stack, and becomes the upvalue of the closure,
    // which is the only value left.
    let taking: Function = unsafe {
        lua.exec_raw((), |state| {
            lua_pushlightuserdata(state, pointer);
            lua_pushcclosure(state, take, 1);
        })
    }?;
    host.raw_set("take", taking)?;
    for (name, asks) in [("call", false), ("allowed", true)] {
        let channel = Rc::clone(channel);
        let calling = lua.create_function(move |lua, ()| {
            let channel = &channel;
            call(Host { lua, channel }, asks)
        })?;
        host.raw_set(name, calling)?;
    }
    Ok(())
}

/// Copies its arguments into the channel.
unsafe extern "C-unwind" fn take(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its arguments on the stack, and with the upvalue that `add` gave it
    // (C2); a string stays where it is as long as it is on the stack.
    unsafe {
        let channel: *const Channel = lua_touserdata(state, lua_upvalueindex(1)).cast();
        let channel = &*channel;
        *channel.arguments.borrow_mut() = arguments(state, channel.arguments_max.get());
    }
    0
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

/// An integer of 64 bits in full; another number as `%.17g` writes it.
fn number_text(number: f64) -> Vec<u8> {
    let integer = number as i64;
    match (integer as f64).to_bits() == number.to_bits() && integer != i64::MAX {
        true => integer.to_string().into_bytes(),
        false => number::general(number, 17).into_bytes(),
    }
}

/// Asks the server to run the command that was taken, or whether it would: whether the result is no
/// error, and the result.
fn call(host: Host<'_>, asks: bool) -> mlua::Result<(bool, Value)> {
    let Host { lua, channel } = host;
    let taken = channel.arguments.replace(Ok(Arguments::default()));
    channel.tick(lua)?; // a command may take as long as many instructions
    let charged = taken.and_then(|args| {
        host.charge(ARGUMENT_WORK * args.len() + args.bytes())?;
        Ok(args)
    });
    let args = match charged {
        Ok(args) => args,
        Err(text) => return Ok((false, reply::error_table(lua, text.as_bytes())?)),
    };
    let resp3 = channel.resp3.get();
    let event = match asks {
        true => Event::Allowed { args },
        false => Event::Call { args, resp3 },
    };
    let Answer::Reply(bytes) = channel.ask(event)? else {
        return Ok((
            false,
            reply::error_table(lua, b"ERR the command has no reply")?,
        ));
    };
    let is_error = bytes.first() == Some(&b'-');
    Ok((!is_error, reply::read(host, &bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_integers_in_full_or_have_17_digits() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (60.0, "60"),
            (-7.0, "-7"),
            (0.1, "0.10000000000000001"),
            (1e18, "1000000000000000000"),
            (-9_223_372_036_854_775_808.0, "-9223372036854775808"),
            (9_223_372_036_854_775_808.0, "9.2233720368547758e+18"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(String::from_utf8_lossy(&number_text(number)), text);
        }
    }
}
