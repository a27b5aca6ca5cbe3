//! One connection: hello, then a request and its answer at a time.

use duramen_wire::native::codec::{
    Frame, HEADER_BYTES, Hello, HelloParsed, Parsed, Reply, Role, decode_reply, parse_frame,
    parse_hello,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// What is read at once.
const READ_BYTES: usize = 16 << 10;
/// A buffer that grew larger for one message is not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// An idle connection that rested shorter is taken without a look whether the other side has closed it: looking costs a
/// system call per request, and not looking a repetition.
const TRUSTED: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// The socket's timeout as it is set now: setting it costs a system call.
    timeout: Duration,
    input: Vec<u8>,
    /// Bytes of the answer at the beginning of `input`.
    answer: usize,
    output: Vec<u8>,
    request: u64,
    used: Instant,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Unopened {
    /// There may be one later.
    Failed(String),
    /// Whoever is there belongs to another cluster, or speaks another version.
    Foreign(String),
}

impl From<String> for Unopened {
    fn from(why: String) -> Unopened {
        Unopened::Failed(why)
    }
}

impl From<Unopened> for String {
    fn from(why: Unopened) -> String {
        match why {
            Unopened::Failed(why) | Unopened::Foreign(why) => why,
        }
    }
}

impl Connection {
    /// Connects and exchanges hellos.
    pub fn open(
        address: &str,
        cluster: &str,
        token: &[u8],
        timeout: Duration,
    ) -> Result<Connection, Unopened> {
        if timeout.is_zero() {
            return Err("no time is left".to_owned().into());
        }
        let stream = connect(address, timeout).map_err(|error| error.to_string())?;
        let ready = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(timeout)))
            .and_then(|()| stream.set_write_timeout(Some(timeout)));
        ready.map_err(|error| error.to_string())?;
        let mut connection = Connection {
            stream,
            timeout,
            input: Vec::new(),
            answer: 0,
            output: Vec::new(),
            request: 0,
            used: Instant::now(),
        };
        Hello::new(Role::Client, cluster, token).encode(&mut connection.output);
        connection.transmit(timeout)?;
        connection.hello(cluster, timeout)?;
        Ok(connection)
    }

    fn hello(&mut self, cluster: &str, timeout: Duration) -> Result<(), Unopened> {
        let deadline = Instant::now() + timeout;
        loop {
            match parse_hello(&self.input).map_err(|error| error.to_string())? {
                HelloParsed::Incomplete { .. } => self.fill(deadline)?,
                HelloParsed::Hello { hello, bytes } => {
                    let agreed = hello.agree(cluster);
                    agreed.map_err(|error| Unopened::Foreign(error.to_string()))?;
                    self.input.drain(..bytes);
                    return Ok(());
                }
            }
        }
    }

    /// The number of the next request.
    pub fn next_request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    /// Where the next request is written.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends what was written.
    pub fn transmit(&mut self, timeout: Duration) -> Result<(), String> {
        self.limit(timeout)?;
        let sent = self.stream.write_all(&self.output);
        self.output.clear();
        self.output.shrink_to(KEPT_BYTES_MAX);
        sent.map_err(|error| format!("sending: {}", text(&error)))
    }

    /// The answer to the last request. Call [`consumed`](Self::consumed) when it was used.
    pub fn receive(&mut self, timeout: Duration, limit: usize) -> Result<Reply<'_>, String> {
        let deadline = Instant::now() + timeout;
        self.limit(timeout)?;
        let bytes = loop {
            match parse_frame(&self.input, limit).map_err(|error| error.to_string())? {
                Parsed::Frame { bytes, .. } => break bytes,
                Parsed::Incomplete { .. } => self.fill(deadline)?,
            }
        };
        self.answer = bytes;
        let frame = whole(&self.input)?;
        // An error to request 0 is one to the hello: the other side does not want to talk.
        let refused = frame.header.error && frame.header.envelope.request == 0;
        if frame.header.envelope.request != self.request && !refused {
            return Err("an answer to another request".to_owned());
        }
        decode_reply(&frame).map_err(|error| error.to_string())
    }

    /// The answer was used.
    pub fn consumed(&mut self) {
        self.input.drain(..self.answer);
        self.input.shrink_to(KEPT_BYTES_MAX);
        self.answer = 0;
        self.used = Instant::now();
    }

    /// Whether the other side has not closed it, as far as is worth looking.
    pub fn is_open(&self) -> bool {
        if self.used.elapsed() < TRUSTED {
            return true;
        }
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let peeked = self.stream.peek(&mut [0]);
        let quiet = matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_ok() && quiet
    }

    fn limit(&mut self, timeout: Duration) -> Result<(), String> {
        if timeout.is_zero() {
            return Err("no time is left".to_owned());
        }
        // Shorter than what is set must be obeyed; a little longer need not be.
        if timeout < self.timeout || timeout > self.timeout * 2 {
            let set = self
                .stream
                .set_read_timeout(Some(timeout))
                .and_then(|()| self.stream.set_write_timeout(Some(timeout)));
            set.map_err(|error| error.to_string())?;
            self.timeout = timeout;
        }
        Ok(())
    }

    /// Reads what is there, at least a byte.
    fn fill(&mut self, deadline: Instant) -> Result<(), String> {
        if Instant::now() >= deadline {
            return Err("no answer in time".to_owned());
        }
        let old = self.input.len();
        // A long answer is read in ever larger pieces, as its bytes come.
        self.input.resize(old + old.max(READ_BYTES), 0);
        let read = self.stream.read(&mut self.input[old..]);
        self.input
            .truncate(old + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err("the connection was closed".to_owned()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(format!("receiving: {}", text(&error))),
        }
    }
}

fn text(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

fn whole(input: &[u8]) -> Result<Frame<'_>, String> {
    match parse_frame(input, usize::MAX) {
        Ok(Parsed::Frame { frame, .. }) => Ok(frame),
        Ok(Parsed::Incomplete { .. }) => Err(format!("less than {HEADER_BYTES} bytes")),
        Err(error) => Err(error.to_string()),
    }
}

fn connect(address: &str, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
