//! An HTTP/1.1 connection to etcd's JSON gateway, for one request at a time.
//!
//! **Invariants**
//! - W1: a silent peer is waited for at most for the timeout, also if this process is stopped and
//!   continued meanwhile; an answer takes no more memory than the limits.
//! - W2: after any error the connection is dropped: a late answer is never taken for the answer to
//!   another request.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use duramen_tls::Identity;
use serde_json::Value;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Most bytes of an answer's header.
const HEADER_BYTES_MAX: u64 = 16 << 10;
/// Most bytes of an answer's body.
const BODY_BYTES_MAX: u64 = 64 << 20;

pub(super) struct Connection {
    stream: BufReader<Patient>,
    host: String,
}

/// A socket whose `Read` keeps the timeout (W1).
struct Patient {
    stream: Stream,
    timeout: Duration,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<duramen_tls::Stream>),
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let began = Instant::now();
        loop {
            match self.stream.read(buffer) {
                // A stop ends the socket's wait (signal(7)); a new read begins a whole one.
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    if began.elapsed() >= self.timeout {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                read => return read,
            }
        }
    }
}

/// An answer: its HTTP status and its JSON body.
pub(super) struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Connection {
    /// `identity`: TLS, with the authority that it names.
    pub(super) fn open(
        endpoint: &str,
        identity: Option<&Identity>,
        timeout: Duration,
    ) -> Result<Connection, Error> {
        let addresses: Vec<SocketAddr> = endpoint.to_socket_addrs()?.collect();
        let stream = connect(&addresses, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        let stream = match identity {
            None => Stream::Plain(stream),
            Some(identity) => {
                // New files count from the next connection on; wrong ones leave the former.
                let _ = identity.reload();
                let (host, _) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let stream = duramen_tls::Stream::connect(identity, host, stream)?;
                Stream::Tls(Box::new(stream))
            }
        };
        Ok(Connection {
            stream: BufReader::new(Patient { stream, timeout }),
            host: endpoint.to_owned(),
        })
    }

    /// Sends a request, and waits for the answer. `token`: of the login, if etcd asks for one.
    pub(super) fn post(
        &mut self,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Answer, Error> {
        let body = body.to_string();
        let login = token.map_or_else(String::new, |token| format!("Authorization: {token}\r\n"));
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\n{login}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        let mut question = head.into_bytes();
        question.extend_from_slice(body.as_bytes());
        self.stream.get_mut().stream.write_all(&question)?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer, Error> {
        let mut left = HEADER_BYTES_MAX;
        let first = self.line(&mut left)?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| bad("it does not speak HTTP"))?;
        let mut length = None;
        let mut is_chunked = false;
        loop {
            let line = self.line(&mut left)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("a broken header"))?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse::<u64>().ok();
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = value.trim().eq_ignore_ascii_case("chunked");
            }
        }
        let mut body = Vec::new();
        if is_chunked {
            while self.chunk(&mut body)? {}
        } else {
            let length = length.ok_or_else(|| bad("an answer without a length"))?;
            self.take(length, &mut body)?;
        }
        let body = serde_json::from_slice(&body).map_err(|_| bad("an answer that is no JSON"))?;
        Ok(Answer { status, body })
    }

    /// Reads one chunk; false after the last.
    fn chunk(&mut self, body: &mut Vec<u8>) -> Result<bool, Error> {
        let line = self.line(&mut HEADER_BYTES_MAX.clone())?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| bad("a broken chunk"))?;
        self.take(size, body)?;
        self.line(&mut HEADER_BYTES_MAX.clone())?;
        Ok(size > 0)
    }

    fn take(&mut self, length: u64, body: &mut Vec<u8>) -> Result<(), Error> {
        if length > BODY_BYTES_MAX - body.len() as u64 {
            return Err(bad("an answer that is too long"));
        }
        let taken = Read::by_ref(&mut self.stream)
            .take(length)
            .read_to_end(body)?;
        if (taken as u64) < length {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        Ok(())
    }

    /// Reads a line, and returns it without its end. `left`: bytes that may still be read.
    fn line(&mut self, left: &mut u64) -> Result<String, Error> {
        let mut line = String::new();
        let taken = Read::by_ref(&mut self.stream)
            .take(*left)
            .read_line(&mut line)?;
        *left -= taken as u64;
        if line.pop() != Some('\n') {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        if line.ends_with('\r') {
            line.pop();
        }
        Ok(line)
    }
}

/// Connects to the first address of a name that accepts the connection.
fn connect(addresses: &[SocketAddr], timeout: Duration) -> Result<TcpStream, Error> {
    let mut failure = Error::new(ErrorKind::NotFound, "the name has no address");
    let share = timeout / addresses.len().max(1) as u32;
    for address in addresses {
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

/// Bytes in base64, their form in etcd's JSON.
pub(super) fn encode(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The bytes of a field; no bytes if it is absent, as etcd leaves out empty fields.
pub(super) fn decode(field: &Value) -> Option<Vec<u8>> {
    match field {
        Value::Null => Some(Vec::new()),
        Value::String(text) => BASE64_STANDARD.decode(text).ok(),
        _ => None,
    }
}

/// The number of a field; etcd writes numbers as text, and leaves out 0.
pub(super) fn number(field: &Value) -> Option<i64> {
    match field {
        Value::Null => Some(0),
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The result of a request that is answered with these bytes.
    fn answered(bytes: &'static [u8]) -> Result<Answer, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = listener.local_addr().expect("it is bound").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let mut some = [0; 64];
            stream.read_exact(&mut some).expect("a question");
            stream.write_all(bytes).expect("somebody listens");
        });
        let mut connection =
            Connection::open(&endpoint, None, Duration::from_secs(5)).expect("open");
        let answer = connection.post("/v3/kv/txn", &Value::Null, None);
        server.join().expect("it ends");
        answer
    }

    #[test]
    fn answers_with_a_length_and_in_chunks() {
        let whole =
            answered(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\":[1]}").expect("ok");
        assert_eq!((whole.status, &whole.body["a"][0]), (200, &Value::from(1)));
        let parts = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n5\r\n:[1]}\r\n0\r\n\r\n";
        let parts = answered(parts).expect("ok");
        assert_eq!((parts.status, &parts.body["a"][0]), (503, &Value::from(1)));
    }

    /// A name with the addresses ::1 and 127.0.0.1 never led to an etcd that listens at only one of
    /// them: only the first address was tried.
    #[test]
    fn every_address_of_a_name_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = listener.local_addr().expect("it is bound");
        let nowhere = SocketAddr::new([127, 0, 0, 2].into(), there.port());
        let timeout = Duration::from_secs(5);
        assert!(connect(&[nowhere, there], timeout).is_ok());
        assert!(connect(&[nowhere], timeout).is_err());
        assert!(connect(&[], timeout).is_err());
    }

    #[test]
    fn nonsense_is_an_error_and_bounded() {
        for bytes in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
            b"220 mail ready\r\n\r\n",
        ] {
            assert!(answered(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn fields_as_etcd_writes_them() {
        assert_eq!(number(&Value::from("12")), Some(12));
        assert_eq!(number(&Value::Null), Some(0));
        assert_eq!(number(&Value::from("x")), None);
        assert_eq!(
            decode(&Value::from(encode(b"\0\xff"))),
            Some(b"\0\xff".to_vec())
        );
        assert_eq!(decode(&Value::from("!")), None);
    }
}
