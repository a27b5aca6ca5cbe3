//! The bytes of a connection: TCP, TLS over TCP, or memory that a server on this machine shares.

use super::local::Local;
use super::tcp::Tcp;
use duramen_shm::{Rings, receive_with_fd};
use duramen_tls::Identity;
use duramen_wire::native::codec::{Binding, RINGS_FRAME_BYTES, decode_rings};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream of bytes in each direction; reads and writes wait.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(Tcp),
    Tls(Box<duramen_tls::Stream>),
    /// A Unix socket, during the handshake.
    Unix(UnixStream),
    /// Shared memory, after the handshake at a Unix socket.
    Local(Box<Local>),
}

impl Stream {
    /// A TLS connection over a new one of TCP, to a server whose certificate is for `host`.
    pub fn encrypted(
        identity: &Identity,
        host: &str,
        socket: TcpStream,
        timeout: Duration,
    ) -> io::Result<Stream> {
        limit(&socket, Some(timeout))?;
        let stream = duramen_tls::Stream::connect(identity, host, socket);
        Ok(Stream::Tls(Box::new(stream?)))
    }

    /// The binding of a TLS channel.
    ///
    /// # Errors
    /// TLS has none. That is a fault of TLS: nothing may be sent.
    pub fn binding(&self) -> Result<Option<Binding>, &'static str> {
        match self {
            Stream::Tls(stream) => match stream.channel_binding() {
                Some(binding) => Ok(Some(binding)),
                None => Err("the TLS channel has no exporter"),
            },
            _ => Ok(None),
        }
    }

    /// Replaces a Unix socket, at which the handshake is over, by the memory that the server shares
    /// now. `input` are bytes that were received already; any at all are an error.
    pub fn share(&mut self, input: &[u8], spin: Duration) -> Result<Stream, String> {
        let Stream::Unix(socket) = self else {
            return Err("no Unix socket".to_owned());
        };
        let refused = || "the server shares no memory".to_owned();
        let mut frame = [0; RINGS_FRAME_BYTES + 1];
        let received = receive_with_fd(&*socket, &mut frame).map_err(|error| error.to_string())?;
        let (bytes, Some(fd)) = received else {
            return Err(refused());
        };
        let frame = frame.get(..bytes).filter(|_| input.is_empty());
        let ring_bytes = frame.and_then(decode_rings).ok_or_else(refused)?;
        let rings = Rings::adopt(&fd, ring_bytes as usize).map_err(|error| error.to_string())?;
        let socket = socket.try_clone().map_err(|error| error.to_string())?;
        Ok(Stream::Local(Box::new(Local::new(socket, rings, spin))))
    }

    /// Sets the longest time that a read or a write waits.
    pub fn limit(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Stream::Tcp(tcp) => limit(&tcp.stream, timeout),
            Stream::Tls(stream) => limit(stream.socket(), timeout),
            Stream::Unix(socket) => {
                socket.set_read_timeout(timeout)?;
                socket.set_write_timeout(timeout)
            }
            Stream::Local(local) => local.limit(timeout),
        }
    }

    /// Sends all bytes. `timeout` bounds the whole call with shared memory, and each write
    /// otherwise.
    pub fn send(&mut self, bytes: &[u8], timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.stream.write_all(bytes),
            Stream::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
            Stream::Unix(socket) => socket.write_all(bytes),
            Stream::Local(local) => local.send(bytes, timeout),
        }
    }

    /// Receives available bytes; returns 0 if the other side has ended.
    pub fn receive(&mut self, out: &mut [u8], deadline: Instant) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => tcp.receive(out),
            Stream::Tls(stream) => stream.read(out),
            Stream::Unix(socket) => socket.read(out),
            Stream::Local(local) => local.receive(out, deadline),
        }
    }

    /// Whether the other side has not ended, and has sent nothing.
    pub fn is_quiet(&mut self) -> bool {
        match self {
            Stream::Tcp(tcp) => is_quiet(&tcp.stream),
            Stream::Tls(stream) => is_quiet(stream.socket()),
            Stream::Unix(_) => false,
            Stream::Local(local) => local.is_quiet(),
        }
    }
}

fn limit(socket: &TcpStream, timeout: Option<Duration>) -> io::Result<()> {
    socket.set_read_timeout(timeout)?;
    socket.set_write_timeout(timeout)
}

/// Whether the socket has received nothing, not even an end.
fn is_quiet(socket: &TcpStream) -> bool {
    if socket.set_nonblocking(true).is_err() {
        return false;
    }
    let peeked = socket.peek(&mut [0]);
    let quiet = matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
    socket.set_nonblocking(false).is_ok() && quiet
}
