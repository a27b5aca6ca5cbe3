//! The user of a command: the same options for all commands that ask a server, a member or a
//! coordinator.

use crate::failure::Failure;
use clap::Args;
use duramen_client::Login;
use duramen_config::file;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The user of a command that names none.
const DEFAULT_USER: &str = "default";

// The same for each command: no doc comment, because clap would take it for a description.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LoginArgs {
    /// User to log in as. Without a password below, it is asked for at the terminal.
    #[arg(long, global = true, env = "DURAMEN_USER")]
    user: Option<String>,
    /// Password. Prefer the environment: other users of this machine can read command lines.
    #[arg(long, global = true, env = "DURAMEN_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// File whose first line is the password; it is used before --password.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_PASSWORD_FILE",
        value_name = "FILE"
    )]
    password_file: Option<PathBuf>,
    /// The password that a person has typed, which all connections of the command use.
    #[arg(skip)]
    typed: OnceLock<String>,
}

impl LoginArgs {
    /// The user, if it is named.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read; or a user is named without a password, and there is no terminal to
    /// ask at.
    pub(crate) fn secret(&self) -> Result<Option<String>, Failure> {
        if let Some(file) = &self.password_file {
            let line = first_line(file).map_err(|reason| Failure::Input {
                what: format!("the password in {}", file.display()),
                reason,
            })?;
            return Ok(Some(line));
        }
        let (Some(user), None) = (&self.user, &self.password) else {
            return Ok(self.password.clone());
        };
        if let Some(typed) = self.typed.get() {
            return Ok(Some(typed.clone()));
        }
        let typed = ask(user).map_err(|reason| {
            Failure::Usage(format!(
                "--user needs a password: set DURAMEN_PASSWORD, or name a file by \
                 --password-file; it cannot be asked for at a terminal: {reason}"
            ))
        })?;
        Ok(Some(self.typed.get_or_init(|| typed).clone()))
    }

    /// The login of a native client; `None` if the command has no password.
    ///
    /// # Errors
    /// As [`secret`](Self::secret).
    pub(crate) fn login(&self) -> Result<Option<Login>, Failure> {
        let user = self.user().unwrap_or(DEFAULT_USER).to_owned();
        let secret = self.secret()?;
        Ok(secret.map(|password| Login { user, password }))
    }
}

/// The first line of a file with a secret. The length of the file is limited, because reading a
/// device may never end.
///
/// # Errors
/// Those of [`file::load`].
pub(crate) fn first_line(path: &Path) -> io::Result<String> {
    let text = file::load(path)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Asks for a password at the terminal, which does not show it.
fn ask(user: &str) -> io::Result<String> {
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    write!(terminal, "Password of {user}: ")?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    // No signal of the keyboard ends the process before the terminal is restored: ^C is read as a
    // character, which ends the line.
    silent
        .local_modes
        .remove(LocalModes::ECHO | LocalModes::ISIG);
    silent.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let read = typed_line(&terminal);
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    writeln!(terminal)?;
    read
}

/// The character of ^C.
const INTERRUPT: u8 = 3;

/// The line that a person types.
///
/// # Errors
/// `Interrupted` if ^C was typed.
fn typed_line(terminal: impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    for byte in BufReader::new(terminal).bytes() {
        match byte? {
            INTERRUPT => return Err(io::ErrorKind::Interrupted.into()),
            b'\n' => {
                let line = String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData)?;
                return Ok(line.trim_end_matches('\r').to_owned());
            }
            byte => line.push(byte),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device without an end took all memory.
    #[test]
    fn a_password_is_the_first_line_of_a_file_that_ends() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("password");
        std::fs::write(&path, "secret\r\nmore\n").expect("a file");
        assert_eq!(first_line(&path).expect("it is there"), "secret");
        let endless = first_line(Path::new("/dev/zero")).expect_err("it has no end");
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_typed_password_ends_with_its_line_and_an_interrupt_ends_all() {
        let typed = |bytes: &[u8]| typed_line(bytes).map_err(|error| error.kind());
        assert_eq!(typed(b"secret\r\nmore"), Ok("secret".to_owned()));
        assert_eq!(typed(b"sec\x03"), Err(io::ErrorKind::Interrupted));
        assert_eq!(typed(b""), Err(io::ErrorKind::UnexpectedEof));
    }
}
