//! The login of a client at each new connection.

use crate::error::Error;
use duramen_wire::native::codec::{Envelope, LOGIN_BYTES_MAX, encode_login};
use duramen_wire::native::message;

/// A user of the cluster, whose rights the client has. Without a login it has those of the default
/// user, if that needs no password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: String,
}

/// Shows the user, and not the password.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish()
    }
}

impl Login {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.user.len() > LOGIN_BYTES_MAX || self.password.len() > LOGIN_BYTES_MAX {
            let why = format!("a user's name and a password have at most {LOGIN_BYTES_MAX} bytes");
            return Err(Error::Options(why));
        }
        Ok(())
    }

    /// Appends the frame of the login, with this request number.
    pub(crate) fn encode(&self, request: u64, out: &mut Vec<u8>) {
        let envelope = Envelope {
            request,
            ..Envelope::default()
        };
        let login = message::Login {
            user: self.user.as_bytes(),
            password: self.password.as_bytes(),
        };
        encode_login(out, &envelope, &login);
    }
}
