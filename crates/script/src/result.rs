//! Results of the host's functions, as the prelude takes them.

use mlua::{Lua, MultiValue, Value};

/// A result of the host, for the prelude.
pub(crate) fn answer<T: mlua::IntoLua>(
    lua: &Lua,
    result: Result<T, String>,
) -> mlua::Result<(bool, Value)> {
    Ok(match result {
        Ok(value) => (true, value.into_lua(lua)?),
        Err(text) => (false, Value::String(lua.create_string(text)?)),
    })
}

/// As [`answer`], of several results.
pub(crate) fn answer_many(
    lua: &Lua,
    result: Result<Vec<Value>, String>,
) -> mlua::Result<(bool, MultiValue)> {
    Ok(match result {
        Ok(values) => (true, values.into_iter().collect()),
        Err(text) => {
            let text = Value::String(lua.create_string(text)?);
            (false, MultiValue::from_iter([text]))
        }
    })
}
