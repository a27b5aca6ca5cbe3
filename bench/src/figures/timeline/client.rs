//! A client with one connection that notes the time at each step of a request, and when the kernel
//! got the reply.
//!
//! The kernel's time is that of the arrival of the reply's last packet at the client's socket
//! (`SO_TIMESTAMPNS`). On loopback that is during the server's call that sends it.

use crate::harness::{Doing, Failure, Random, Result};
use duramen_wire::resp::{ReplySkipper, RequestEncoder};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest reply.
const BUFFER_BYTES: usize = 64 * 1024;
/// Room for the kernel's messages about a packet, in words: the time takes 4.
const CONTROL_WORDS: usize = 16;
/// A longer wait is an error.
const PATIENCE: Duration = Duration::from_secs(30);

/// The parts of the time of one request, in nanoseconds; together they are all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Making the bytes of the request.
    pub encode_ns: u64,
    /// The call that sends them, or as much of it as is over when the reply arrives.
    pub send_ns: u64,
    /// From its return to the arrival of the reply at the client's socket.
    pub server_ns: u64,
    /// From there to the return of the call that receives it: the client's wake-up.
    pub receive_ns: u64,
    /// Reading the reply.
    pub decode_ns: u64,
}

impl Parts {
    pub(super) fn total_ns(&self) -> u64 {
        self.encode_ns + self.send_ns + self.server_ns + self.receive_ns + self.decode_ns
    }

    /// From the moments between the parts. `None`: the clock was set back meanwhile.
    fn between(moments: [u64; 6]) -> Option<Parts> {
        let [from, encoded, sent, arrived, received, decoded] = moments;
        let sent = sent.min(arrived);
        Some(Parts {
            encode_ns: encoded.checked_sub(from)?,
            send_ns: sent.checked_sub(encoded)?,
            server_ns: arrived.checked_sub(sent)?,
            receive_ns: received.checked_sub(arrived)?,
            decode_ns: decoded.checked_sub(received)?,
        })
    }
}

/// The request that a client repeats, with another key each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Get,
    Set,
}

/// The client.
pub(super) struct Client {
    stream: TcpStream,
    request: Request,
    keys: u64,
    value: Vec<u8>,
    random: Random,
    output: Vec<u8>,
    input: Vec<u8>,
}

/// The time on the clock that the kernel uses for packets, in nanoseconds.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

impl Client {
    /// # Errors
    /// The server does not accept, or the kernel does not note times.
    pub(super) fn connect(
        server: SocketAddr,
        request: Request,
        keys: u64,
        value_bytes: usize,
    ) -> Result<Client> {
        let doing = || format!("connecting to {server}");
        let stream = TcpStream::connect(server).doing(doing())?;
        stream.set_nodelay(true).doing(doing())?;
        stream.set_read_timeout(Some(PATIENCE)).doing(doing())?;
        note_times(&stream).doing("asking the kernel for the times of packets")?;
        Ok(Client {
            stream,
            request,
            keys,
            value: duramen_load::value(value_bytes),
            random: Random::new(crate::harness::fresh_seed()),
            output: Vec::new(),
            input: vec![0; BUFFER_BYTES],
        })
    }

    /// One request with a random key. `None`: its times are not known.
    ///
    /// # Errors
    /// The server refuses it, has not the key, or is gone.
    pub(super) fn ask(&mut self) -> Result<Option<Parts>> {
        let doing = || format!("sending {:?}", self.request);
        let key = duramen_load::key(self.random.below(self.keys));
        let from = now_ns();
        self.output.clear();
        let mut encoder = RequestEncoder::new(&mut self.output);
        match self.request {
            Request::Get => encoder.request(&[&b"GET"[..], key.as_bytes()]),
            Request::Set => encoder.request(&[&b"SET"[..], key.as_bytes(), &self.value]),
        }
        let encoded = now_ns();
        self.stream.write_all(&self.output).doing(doing())?;
        let sent = now_ns();
        let mut skipper = ReplySkipper::new();
        let mut kept = 0;
        loop {
            let room = &mut self.input[kept..];
            let (bytes, arrived) = receive(&self.stream, room).doing(doing())?;
            let received = now_ns();
            if bytes == 0 {
                return Err(Failure::new(doing(), "the server closed the connection"));
            }
            let input = &self.input[..kept + bytes];
            let passed = skipper.advance(input).doing(doing())?;
            if passed.errors + passed.nulls > 0 {
                let reply = String::from_utf8_lossy(input).into_owned();
                return Err(Failure::new(doing(), reply));
            }
            if passed.replies == 1 {
                // The first packets may come before the kernel has begun to note times.
                let Some(arrived) = arrived else {
                    return Ok(None);
                };
                let moments = [from, encoded, sent, arrived, received, now_ns()];
                return Ok(Parts::between(moments));
            }
            let whole = input.len();
            self.input.copy_within(passed.bytes..whole, 0);
            kept = whole - passed.bytes;
        }
    }
}

/// Makes the kernel note the time of each packet that arrives.
fn note_times(stream: &TcpStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the socket is open, and the option is an `int` of the given length.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives into `buffer`. Returns the number of bytes, and the time when the last of them arrived,
/// if the kernel tells it.
fn receive(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Option<u64>)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all zeros are a valid header: no name, no parts.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let bytes = loop {
        // SAFETY: the header points to one part and to room for control messages, both of which
        // outlive the call and have the stated lengths.
        let bytes = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, 0) };
        if bytes >= 0 {
            break bytes as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut arrived = None;
    // SAFETY: the kernel filled in the header; its messages lie within `control`, aligned to words.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: it is not null, so it points to a whole message within `control`.
        let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: a message of this kind carries a `timespec`, which may be unaligned.
            let time: libc::timespec = unsafe {
                libc::CMSG_DATA(message)
                    .cast::<libc::timespec>()
                    .read_unaligned()
            };
            arrived = Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
        }
        // SAFETY: header and message are those of this call.
        message = unsafe { libc::CMSG_NXTHDR(&raw const header, message) };
    }
    Ok((bytes, arrived))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn the_parts_of_a_request_are_all_of_its_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        // It ends with the test process.
        std::thread::spawn(move || duramen_load::echo::serve(&listener));
        for request in [Request::Get, Request::Set] {
            let mut client = Client::connect(server, request, 100, 100).unwrap();
            let (mut seen, deadline) = (0, now_ns() + PATIENCE.as_nanos() as u64);
            while seen < 100 {
                let begun = now_ns();
                assert!(begun < deadline, "{seen} requests had their times");
                let parts = client.ask().unwrap();
                let took = now_ns() - begun;
                if let Some(parts) = parts {
                    assert!(parts.total_ns() <= took, "{parts:?} in {took} ns");
                    seen += usize::from(parts.receive_ns > 0 && parts.send_ns > 0);
                }
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_parts() {
        assert_eq!(Parts::between([10, 9, 13, 14, 15, 16]), None);
        let early = Parts::between([10, 11, 13, 12, 15, 16]).unwrap();
        assert_eq!(
            (early.send_ns, early.server_ns, early.receive_ns),
            (1, 0, 3)
        );
        let parts = Parts::between([10, 11, 13, 16, 20, 25]).unwrap();
        assert_eq!(parts.total_ns(), 15);
        assert_eq!((parts.server_ns, parts.receive_ns), (3, 4));
    }
}
