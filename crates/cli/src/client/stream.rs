//! A socket, or TLS over one.

use std::io::{self, Read, Write};
use std::net::TcpStream;

pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<duramen_tls::Stream>),
}

impl Stream {
    pub(super) fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(bytes),
            Stream::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// Says which option bounds a wait that has ended in vain.
pub(super) fn in_time(reason: io::Error) -> io::Error {
    match reason.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time (--timeout)")
        }
        _ => reason,
    }
}
