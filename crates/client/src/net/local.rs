//! The client's side of memory that a server on this machine shares: spins for a short time, then
//! sleeps at the socket until the server rings the bell.

use duramen_base::spin::{IdleMode, Spinner, Spinning};
use duramen_shm::{Corrupt, Rings, bells, ring_bell};
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Number of looks at the ring between two looks at the clock.
const LOOKS: u32 = 16;
/// Bells received at once.
const BELLS: usize = 64;

#[derive(Debug)]
pub(super) struct Local {
    socket: UnixStream,
    rings: Rings,
    /// See `Options::spin`.
    spin: Duration,
    spinner: Spinner,
    /// Whether the socket has ended: after the bytes in the ring no more come.
    has_ended: bool,
}

/// The event that a side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Bytes,
    Room,
}

impl Local {
    pub fn new(socket: UnixStream, rings: Rings, spin: Duration) -> Local {
        Local {
            socket,
            rings,
            spin,
            spinner: Spinner::default(),
            has_ended: false,
        }
    }

    pub fn limit(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// Whether the server is there, and has sent nothing.
    pub fn is_quiet(&mut self) -> bool {
        !self.has_ended && bells(&self.socket) && self.rings.readable() == Ok(0)
    }

    pub fn send(&mut self, bytes: &[u8], timeout: Duration) -> io::Result<()> {
        let mut sent = 0;
        let mut deadline = None;
        loop {
            let moved = self.rings.write(&bytes[sent..]).map_err(corrupt)?;
            if moved.wakes {
                ring_bell(&self.socket);
            }
            sent += moved.bytes;
            if sent == bytes.len() {
                return Ok(());
            }
            if self.has_ended {
                return Err(ErrorKind::BrokenPipe.into());
            }
            if moved.bytes == 0 {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
                self.wait(Awaited::Room, deadline)?;
            }
        }
    }

    pub fn receive(&mut self, out: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            let moved = self.rings.read(out).map_err(corrupt)?;
            if moved.wakes {
                ring_bell(&self.socket);
            }
            if moved.bytes > 0 || self.has_ended {
                return Ok(moved.bytes);
            }
            self.wait(Awaited::Bytes, deadline)?;
        }
    }

    /// Waits for the event, the socket's end or, if it sleeps, any bell.
    fn wait(&mut self, awaited: Awaited, deadline: Instant) -> io::Result<()> {
        let since = Instant::now();
        let spin_us = self.spin.as_micros() as u64;
        self.spinner.round_had(1, 0);
        let (mut way, mut came) = (IdleMode::Sleep, false);
        if self.spinner.pays(spin_us)
            && let Some(_right) = Spinning::begin()
        {
            way = IdleMode::Spin;
            came = self.spin(awaited, deadline.saturating_duration_since(since))?;
        }
        if !came {
            self.sleep(awaited, deadline)?;
        }
        self.spinner.work_came_after(since.elapsed(), way, spin_us);
        Ok(())
    }

    fn has_come(&mut self, awaited: Awaited) -> io::Result<bool> {
        let has_come = match awaited {
            Awaited::Bytes => self.rings.readable().map(|bytes| bytes > 0),
            Awaited::Room => self.rings.has_room(),
        };
        has_come.map_err(corrupt)
    }

    /// Spins for a limited time; returns whether the event has come.
    fn spin(&mut self, awaited: Awaited, left: Duration) -> io::Result<bool> {
        let mut spinner = std::mem::take(&mut self.spinner);
        let found = spinner.spin(self.spin.min(left), || {
            for _ in 0..LOOKS {
                match self.has_come(awaited) {
                    Ok(false) => std::hint::spin_loop(),
                    come => return Some(come),
                }
            }
            None
        });
        self.spinner = spinner;
        found.unwrap_or(Ok(false))
    }

    /// Sleeps at the socket, at most for its timeout, unless the event has come.
    fn sleep(&mut self, awaited: Awaited, deadline: Instant) -> io::Result<()> {
        let may_sleep = match awaited {
            Awaited::Bytes => self.rings.may_sleep_for_bytes(),
            Awaited::Room => self.rings.may_sleep_for_room(),
        };
        if !may_sleep.map_err(corrupt)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        let read = self.socket.read(&mut [0; BELLS]);
        match awaited {
            Awaited::Bytes => self.rings.reads(),
            Awaited::Room => self.rings.writes(),
        }
        match read {
            Ok(0) => self.has_ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.has_ended = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn corrupt(error: Corrupt) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
