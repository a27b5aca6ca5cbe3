//! A TCP connection whose reader spins for a moment before it sleeps, where that pays
//! ([`duramen_base::spin`]).

use duramen_base::spin::{IdleMode, Spinner, Spinning};
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind, Read};
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

    /// Receives available bytes, and waits for the first; 0: the other side has ended.
    pub fn receive(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let since = Instant::now();
        let spin_us = self.spin.as_micros() as u64;
        self.spinner.round_had(1, 0);
        let mut way = IdleMode::Sleep;
        if self.spinner.pays(spin_us)
            && let Some(_right) = Spinning::begin()
        {
            way = IdleMode::Spin;
            if let Some(received) = self.spin(out, since) {
                return received;
            }
        }
        let received = self.stream.read(out)?;
        self.spinner.work_came_after(since.elapsed(), way, spin_us);
        Ok(received)
    }

    /// Spins for a limited time. `None`: nothing has come.
    fn spin(&mut self, out: &mut [u8], since: Instant) -> Option<io::Result<usize>> {
        let mut before = Duration::ZERO;
        loop {
            let received = rustix::net::recv(&self.stream, &mut *out, RecvFlags::DONTWAIT);
            let waited = since.elapsed();
            self.spinner.look_took(waited - before);
            before = waited;
            match received.map(|(bytes, _)| bytes).map_err(io::Error::from) {
                Ok(bytes) => {
                    let spin_us = self.spin.as_micros() as u64;
                    self.spinner
                        .work_came_after(waited, IdleMode::Spin, spin_us);
                    return Some(Ok(bytes));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Some(Err(error)),
                Err(_) if waited < self.spin => {}
                Err(_) => {
                    self.spinner.gave_up();
                    return None;
                }
            }
        }
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
        assert!(tcp.spin(&mut out, since).is_none() && since.elapsed() >= tcp.spin);
        tcp.spin = Duration::from_secs(3600);
        other.write_all(b"abc").unwrap();
        let received = tcp.spin(&mut out, Instant::now());
        assert_eq!(received.unwrap().unwrap(), 3);
        drop(other);
        let received = tcp.spin(&mut out, Instant::now());
        assert_eq!(received.unwrap().unwrap(), 0);
    }
}
