//! A limit for patterns: Lua's matcher calls itself for each item that may repeat, and checks no
//! stack.
//!
//! - P1: an error leaves [`guarded`] by a jump over its own frame alone, which owns nothing. The
//!   function of Lua's library runs in that frame, so its errors have the right name and line.

use mlua::ffi::{
    LUA_TSTRING, lua_State, lua_concat, lua_error, lua_pushboolean, lua_pushcclosure,
    lua_pushlstring, lua_toboolean, lua_tocfunction, lua_tolstring, lua_type, lua_upvalueindex,
    luaL_where,
};
use mlua::{Function, Lua};
use std::ffi::c_int;

/// As in Lua 5.2.
const TEXT: &str = "pattern too complex";
/// Items of a pattern that may repeat, each with a frame of some 150 bytes: as deep as in Lua 5.2.
const ITEMS_MAX: usize = 200;
/// Place of `plain`, the argument of `find` that makes its pattern a text.
const PLAIN_AT: c_int = 4;

/// Whether a pattern has more than [`ITEMS_MAX`] items that may repeat.
fn is_complex(pattern: &[u8]) -> bool {
    let byte = |at: usize| pattern.get(at).copied();
    let (mut at, mut items) = (0, 0);
    while let Some(first) = byte(at) {
        at += 1;
        match first {
            b'%' => at += 1,
            b'[' => {
                at += usize::from(byte(at) == Some(b'^'));
                // The first one stands for itself.
                at += usize::from(byte(at) == Some(b']'));
                while let Some(inner) = byte(at) {
                    at += if inner == b'%' { 2 } else { 1 };
                    if inner == b']' {
                        break;
                    }
                }
            }
            _ => {}
        }
        if matches!(byte(at), Some(b'*' | b'+' | b'-' | b'?')) {
            items += 1;
            at += 1;
        }
    }
    items > ITEMS_MAX
}

/// Calls the function in its first upvalue, unless the second argument is too complex a pattern.
/// The second upvalue: that argument may be a text.
unsafe extern "C-unwind" fn guarded(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its arguments on a stack with 20 free places, and with the upvalues
    // that `guard` gave it; the string stays on the stack while its bytes are read; P1.
    unsafe {
        if lua_type(state, 2) == LUA_TSTRING {
            let mut bytes = 0;
            let pattern = lua_tolstring(state, 2, &raw mut bytes);
            let is_text = bytes > ITEMS_MAX
                && lua_toboolean(state, lua_upvalueindex(2)) != 0
                && lua_toboolean(state, PLAIN_AT) != 0;
            if bytes > ITEMS_MAX
                && !is_text
                && is_complex(std::slice::from_raw_parts(pattern.cast(), bytes))
            {
                luaL_where(state, 1);
                lua_pushlstring(state, TEXT.as_ptr().cast(), TEXT.len());
                lua_concat(state, 2);
                lua_error(state);
            }
        }
        match lua_tocfunction(state, lua_upvalueindex(1)) {
            Some(function) => function(state),
            None => 0,
        }
    }
}

/// A function of Lua's library that takes a pattern as its second argument, with the limit.
/// `may_be_text`: it is `find`.
pub(crate) fn guard(lua: &Lua, function: Function, may_be_text: bool) -> mlua::Result<Function> {
    // SAFETY: the function is the only value on the stack. It and the boolean become the upvalues
    // of the closure, which is the only value left.
    unsafe {
        lua.exec_raw(function, |state| {
            lua_pushboolean(state, may_be_text.into());
            lua_pushcclosure(state, guarded, 2);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_counted_as_lua_reads_them() {
        for (part, counts) in [
            ("a?", true),
            ("%a*", true),
            ("%%+", true),
            ("[a]-", true),
            ("[^]?]+", true),
            ("[%]?]?", true),
            ("%?a", false),
            ("[?*+-]", false),
            ("abc", false),
        ] {
            assert!(!is_complex(part.repeat(200).as_bytes()), "{part}");
            assert_eq!(is_complex(part.repeat(201).as_bytes()), counts, "{part}");
        }
        for cut in ["%", "[", "[^", "[%", "[a"] {
            assert!(!is_complex(cut.as_bytes()));
        }
    }
}
