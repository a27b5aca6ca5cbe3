//! A TCP connection whose reader spins for a moment before it sleeps, where that pays
//! ([`duramen_base::spin`]).

use duramen_base::spin::{IdleMode, Spinner, Spinning};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Tcp {
    pub stream: TcpStream,
    spinner: Spinner,
    /// See `Options::spin`.
    spin: Duration,
}

impl Tcp {
    pub fn new(stream: TcpStream, spin: Duration) -> Tcp {
        Tcp {
            stream,
            spinner: Spinner::default(),
            spin,
        }
    }

    /// Receives available bytes, and waits for the first; returns 0 if the other side has ended.
    pub fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let since = Instant::now();
        let spin_us = self.spin.as_micros() as u64;
        self.spinner.round_had(1, 0);
        let mut way = IdleMode::Sleep;
        let mut received = None;
        if self.spinner.pays(spin_us)
            && let Some(_right) = Spinning::begin()
        {
            way = IdleMode::Spin;
            received = self.spin(out);
        }
        let received = received.unwrap_or_else(|| self.stream.read(out))?;
        self.spinner.work_came_after(since.elapsed(), way, spin_us);
        Ok(received)
    }

    /// Spins for a limited time; returns `None` if no bytes have come.
    fn spin(&mut self, out: &mut [u8]) -> Option<io::Result<usize>> {
        let stream = &self.stream;
        self.spinner.spin(self.spin, || {
            match rustix::net::recv(stream, &mut *out, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => Some(Ok(bytes)),
                Err(Errno::AGAIN | Errno::INTR) => None,
                Err(error) => Some(Err(error.into())),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn a_spin_ends_with_bytes_with_the_other_side_or_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let mut tcp = Tcp::new(stream, Duration::from_millis(3));
        let mut out = [0; 8];
        let since = Instant::now();
        assert!(tcp.spin(&mut out).is_none() && since.elapsed() >= tcp.spin);
        tcp.spin = Duration::from_secs(3600);
        other.write_all(b"abc").unwrap();
        let received = tcp.spin(&mut out);
        assert_eq!(received.unwrap().unwrap(), 3);
        drop(other);
        let received = tcp.spin(&mut out);
        assert_eq!(received.unwrap().unwrap(), 0);
    }
}
