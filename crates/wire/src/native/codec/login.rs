//! The login of a client: a question to the side that it has connected to.
//!
//! **Layout**: bytes of the user's name u16, bytes of the password u16, name, password. The answer
//! is empty.

use super::cursor::Cursor;
use super::frame::Builder;
use super::{BodyError, Envelope, Frame, Kind};
use crate::native::message::Login;

/// Maximum bytes of a client's user name, and of its password.
pub const LOGIN_BYTES_MAX: usize = 4096;

/// Appends a login.
///
/// # Panics
/// If name or password are longer than [`LOGIN_BYTES_MAX`]: callers check that before.
pub fn encode_login(out: &mut Vec<u8>, envelope: &Envelope, login: &Login<'_>) {
    let builder = Builder::question(out, Kind::Login, envelope);
    for text in [login.user, login.password] {
        assert!(text.len() <= LOGIN_BYTES_MAX, "a login within its limits");
        let bytes = text.len() as u16;
        builder.out.extend_from_slice(&bytes.to_le_bytes());
    }
    builder.out.extend_from_slice(login.user);
    builder.out.extend_from_slice(login.password);
    builder.finish(0);
}

/// Appends the answer to a login that succeeded.
pub fn encode_logged_in(out: &mut Vec<u8>, envelope: &Envelope) {
    Builder::reply(out, Kind::Login, envelope).finish(0);
}

/// The login in a frame; `None`: the frame has a question of another kind.
///
/// # Errors
/// The frame is a malformed login. Answer with [`Trouble::Malformed`](super::Trouble::Malformed).
pub fn decode_login<'a>(frame: &Frame<'a>) -> Result<Option<Login<'a>>, BodyError> {
    if frame.header.kind != Kind::Login as u16 {
        return Ok(None);
    }
    if frame.header.reply || frame.header.error {
        return Err(BodyError::Direction);
    }
    if !frame.payload.is_empty() {
        return Err(BodyError::Trailing {
            kind: Kind::Login,
            bytes: frame.payload.len(),
        });
    }
    let mut cursor = Cursor::new(Kind::Login, frame.body);
    let user_bytes = usize::from(cursor.u16("bytes of user")?);
    let password_bytes = usize::from(cursor.u16("bytes of password")?);
    if user_bytes.max(password_bytes) > LOGIN_BYTES_MAX {
        return Err(cursor.wrong("bytes"));
    }
    let user = cursor.bytes(user_bytes, "user")?;
    let password = cursor.bytes(password_bytes, "password")?;
    cursor.end()?;
    Ok(Some(Login { user, password }))
}
