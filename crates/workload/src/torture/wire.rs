//! One watched connection: every reply arrives within the limit, or the run has failed.

use super::watch::{Sent, Watch};
use crate::resp::{Reply, encode, read_reply};
use std::io::{self, BufReader, ErrorKind, Read, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which a waiting client checks whether its reply is late.
const LOOK: Duration = Duration::from_millis(200);
/// Pause of a client after the answer that the server is loading.
const LOADING_PAUSE: Duration = Duration::from_millis(20);

/// The reason why a client has no reply.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection ended. Requests without an answer may have been executed.
    Gone(String),
    /// The run has failed: a wrong reply, or a late one.
    Failed(String),
}

pub(crate) type Result<T> = std::result::Result<T, Trouble>;

/// A command as its arguments.
pub(crate) type Command = Vec<Vec<u8>>;

/// Makes a command of words.
pub(crate) fn command<const N: usize>(words: [&[u8]; N]) -> Command {
    words.iter().map(|word| word.to_vec()).collect()
}

/// Splits a line into the arguments of a command.
pub(crate) fn words(line: &str) -> Command {
    line.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

pub(crate) struct Wire {
    stream: BufReader<Watched>,
}

struct Watched {
    stream: TcpStream,
    watch: Arc<Watch>,
    sent: Sent,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if self.watch.is_stopped() && !self.watch.is_late(self.sent) {
                        return Err(io::Error::new(ErrorKind::ConnectionAborted, "the run ends"));
                    }
                    // Checked twice: meanwhile a standstill of the machine is noticed and excused.
                    if self.watch.is_late(self.sent) {
                        std::thread::sleep(LOOK);
                        if self.watch.is_late(self.sent) {
                            return Err(io::Error::new(ErrorKind::TimedOut, "late"));
                        }
                    }
                }
                other => return other,
            }
        }
    }
}

impl Wire {
    pub(crate) fn open(port: u16, watch: &Arc<Watch>) -> io::Result<Wire> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Wire {
            stream: BufReader::new(Watched {
                stream,
                watch: watch.clone(),
                sent: watch.sent(),
            }),
        })
    }

    /// Waits until the server has loaded its data: of a pipeline that begins before, the first half
    /// could be refused and the second half executed.
    pub(crate) fn await_loaded(&mut self) -> Result<()> {
        loop {
            match self.ask("PING")? {
                Reply::Error(text) if text.starts_with("LOADING ") => {
                    std::thread::sleep(LOADING_PAUSE);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Sends the bytes unchanged.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let watched = self.stream.get_mut();
        watched.sent = watched.watch.sent();
        watched
            .stream
            .write_all(bytes)
            .map_err(|error| Trouble::Gone(format!("write: {error}")))
    }

    /// Sends these commands at once.
    pub(crate) fn send_all(&mut self, commands: &[Command]) -> Result<()> {
        let mut request = Vec::new();
        for command in commands {
            let parts: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            encode(&mut request, &parts);
        }
        self.send(&request)
    }

    pub(crate) fn reply(&mut self, asked: &str) -> Result<Reply> {
        match read_reply(&mut self.stream) {
            Ok(reply) => {
                let watched = self.stream.get_mut();
                watched.watch.answered(watched.sent);
                // The limit begins anew for the next reply of a pipeline.
                watched.sent = watched.watch.sent();
                Ok(reply)
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(Trouble::Failed(format!(
                "no reply within the limit to: {asked}"
            ))),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Err(Trouble::Failed(format!("{asked}: {error}")))
            }
            Err(error) => Err(Trouble::Gone(error.to_string())),
        }
    }

    pub(crate) fn call(&mut self, command: &Command) -> Result<Reply> {
        self.send_all(std::slice::from_ref(command))?;
        self.reply(&shown(command))
    }

    pub(crate) fn ask(&mut self, line: &str) -> Result<Reply> {
        self.call(&words(line))
    }
}

/// A command as text, cut to a readable length.
pub(crate) fn shown(command: &Command) -> String {
    let mut text = String::new();
    for word in command.iter().take(6) {
        let word = String::from_utf8_lossy(&word[..word.len().min(24)]);
        text.push_str(&word);
        text.push(' ');
    }
    if command.len() > 6 {
        text.push_str(&format!("… ({} arguments)", command.len()));
    }
    text
}
