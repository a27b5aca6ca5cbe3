//! Functions that raise errors like C functions of Lua: at the line of their caller, which keeps
//! its frame even if the call is its last action.
//!
//! - R1: an error leaves [`raising`] by a jump over its own frame alone, which owns nothing.

use mlua::ffi::{
    LUA_MULTRET, LUA_TNIL, LUA_TSTRING, lua_State, lua_call, lua_concat, lua_error, lua_gettop,
    lua_insert, lua_pushcclosure, lua_pushvalue, lua_toboolean, lua_type, lua_upvalueindex,
    luaL_where,
};
use mlua::{Function, Lua};
use std::ffi::c_int;

/// Calls the function in its upvalue. If the first result of that is `true`, returns the other
/// results. If it is `false`, raises the second result, a string, with the caller's line in front
/// of it. If it is nil, raises the second result as it is.
unsafe extern "C-unwind" fn raising(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its arguments on a stack with 20 free places, and with the upvalue
    // that `function` gave it; R1.
    unsafe {
        let arguments = lua_gettop(state);
        lua_pushvalue(state, lua_upvalueindex(1));
        lua_insert(state, 1);
        lua_call(state, arguments, LUA_MULTRET);
        let results = lua_gettop(state);
        if lua_toboolean(state, 1) != 0 {
            return results - 1;
        }
        let has_line = lua_type(state, 1) != LUA_TNIL && lua_type(state, 2) == LUA_TSTRING;
        if has_line {
            luaL_where(state, 1);
        }
        lua_pushvalue(state, 2);
        if has_line {
            lua_concat(state, 2);
        }
        lua_error(state)
    }
}

/// Makes a function that raises the errors that `function` returns.
pub(crate) fn raises(lua: &Lua, function: Function) -> mlua::Result<Function> {
    // SAFETY: the function is the only value on the stack, and becomes the upvalue of the closure,
    // which is the only value left.
    unsafe { lua.exec_raw(function, |state| lua_pushcclosure(state, raising, 1)) }
}
