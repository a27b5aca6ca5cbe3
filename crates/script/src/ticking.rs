//! C functions of Lua that work on their texts in one piece. The clock is looked at before each
//! call with long texts, so a script that makes such calls again and again is suspended in time.
//!
//! - T1: an error leaves [`ticking`] by a jump over its own frame alone, which owns nothing.

use mlua::ffi::{
    LUA_TSTRING, lua_State, lua_call, lua_gettop, lua_objlen, lua_pushcclosure, lua_pushvalue,
    lua_tocfunction, lua_type, lua_upvalueindex,
};
use mlua::{Function, Lua};
use std::ffi::c_int;

/// Bytes from which on the texts of a call are long: copying so many takes as long as a look at the
/// clock.
const LONG_BYTES: usize = 4 << 10;

/// Calls the C function in its first upvalue within its own frame, so that errors name that
/// function. If the texts are long, it first calls the function in the second upvalue.
unsafe extern "C-unwind" fn ticking(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its arguments on a stack with 20 free places, and with the upvalues
    // that `ticks` gave it. The first one is a function of Lua's own that has no upvalues, so it
    // finds what it expects. T1.
    unsafe {
        let mut bytes = 0;
        for at in 1..=lua_gettop(state) {
            if lua_type(state, at) == LUA_TSTRING {
                bytes += lua_objlen(state, at);
            }
        }
        if bytes > LONG_BYTES {
            lua_pushvalue(state, lua_upvalueindex(2));
            lua_call(state, 0, 0);
        }
        match lua_tocfunction(state, lua_upvalueindex(1)) {
            Some(function) => function(state),
            None => 0,
        }
    }
}

/// Makes a function that does the same as `function`, one of Lua's own without upvalues, and calls
/// `tick` first if the texts are long.
pub(crate) fn ticks(lua: &Lua, function: Function, tick: Function) -> mlua::Result<Function> {
    // SAFETY: the two functions are the only values on the stack, and become the upvalues of the
    // closure, which is the only value left.
    unsafe {
        lua.exec_raw((function, tick), |state| {
            lua_pushcclosure(state, ticking, 2);
        })
    }
}
