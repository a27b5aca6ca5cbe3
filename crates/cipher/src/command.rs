//! Runs the command whose output is a key.
//!
//! **Invariants**
//! - C1: the command ends within `PATIENCE`, or it and its children are ended.

use crate::error::Error;
use crate::text::read_text;
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest run of the command: it may ask a service in the network.
const PATIENCE: Duration = Duration::from_secs(30);

/// The first bytes of the command's output.
///
/// # Errors
/// [`Error::Start`], [`Error::Status`], [`Error::Slow`].
pub(crate) fn output(command: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
    output_within(command, PATIENCE)
}

fn output_within(command: &str, within: Duration) -> Result<Zeroizing<Vec<u8>>, Error> {
    let failed = |source| Error::Start { source };
    let mut child = Command::new("sh")
        .args(["-c", command])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let pipe = child.stdout.take();
    let (sender, receiver) = channel();
    // If nobody receives the output any more, the thread ends when the pipe is closed.
    let reader = std::thread::Builder::new().spawn(move || {
        let text = pipe.map(read_text);
        let _ = sender.send(text);
    });
    if let Err(error) = reader {
        end(&mut child);
        return Err(failed(error));
    }
    let text = receiver.recv_timeout(within).ok().flatten();
    let Some(text) = text else {
        end(&mut child);
        return Err(Error::Slow { within }); // C1: it was ended
    };
    // The command has closed its output, so only its end is missing; more output than a key is an
    // error anyway.
    let status = wait(&mut child, within).map_err(failed)?;
    match status {
        Some(status) if status.success() => text.map_err(failed),
        Some(status) => Err(Error::Status {
            status: status.to_string(),
        }),
        None => Err(Error::Slow { within }),
    }
}

/// Waits for the end of the child; `None`: it did not end in time, and was ended (C1).
fn wait(child: &mut Child, within: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    const LOOK: Duration = Duration::from_millis(2);
    let began = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > within {
            end(child);
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

fn end(child: &mut Child) {
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        // The group may have ended meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeySource, MasterKey};
    use std::time::Instant;

    #[test]
    fn the_output_of_a_command_is_a_key() {
        let key = MasterKey::random().unwrap();
        let text = key.text();
        let text = std::str::from_utf8(text.trim_ascii()).unwrap();
        let read = |command: &str| KeySource::Command(command.to_owned()).read();
        assert_eq!(read(&format!("echo {text}")).unwrap().id(), key.id());
        let said = |command: &str| read(command).unwrap_err().to_string();
        assert!(said(&format!("echo {text}; exit 3")).contains("exit status: 3"));
        assert!(said("echo abc").contains("the output of encryption-key-command is not"));
        // An endless output is cut (cipher::text::T1), and its writer ends by SIGPIPE.
        assert!(said("exec yes").contains("encryption-key-command"));
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let began = Instant::now();
        let within = Duration::from_millis(100);
        let hangs = output_within("sleep 60; echo late", within).unwrap_err();
        assert!(matches!(hangs, Error::Slow { .. }), "{hangs}");
        let closes = output_within("exec >&-; sleep 60", within).unwrap_err();
        assert!(matches!(closes, Error::Slow { .. }), "{closes}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
