//! The user of a command: the same options for all commands that ask a server, a member or a
//! coordinator.

use crate::failure::Failure;
use clap::Args;
use duramen_client::Login;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
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
    /// The password that a person has typed: for all connections of the command.
    #[arg(skip)]
    typed: OnceLock<String>,
}

impl LoginArgs {
    /// The user, if it is named.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password; `None`: there is none.
    ///
    /// # Errors
    /// The file cannot be read; or a user is named without a password, and there is no terminal to
    /// ask at.
    pub(crate) fn secret(&self) -> Result<Option<String>, Failure> {
        if let Some(file) = &self.password_file {
            let text = std::fs::read_to_string(file).map_err(|reason| Failure::Input {
                what: format!("the password in {}", file.display()),
                reason,
            })?;
            return Ok(Some(text.lines().next().unwrap_or_default().to_owned()));
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

    /// The login of a native client; `None`: the command has no password.
    ///
    /// # Errors
    /// As [`secret`](Self::secret).
    pub(crate) fn login(&self) -> Result<Option<Login>, Failure> {
        let user = self.user().unwrap_or(DEFAULT_USER).to_owned();
        let secret = self.secret()?;
        Ok(secret.map(|password| Login { user, password }))
    }
}

/// Asks for a password at the terminal, which does not show it.
fn ask(user: &str) -> io::Result<String> {
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    write!(terminal, "Password of {user}: ")?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let mut line = String::new();
    let read = BufReader::new(&terminal).read_line(&mut line);
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    writeln!(terminal)?;
    match read? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
    }
}
