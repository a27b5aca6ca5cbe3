//! One connection: a handshake, then one request and its answer at a time.

use super::stream::Stream;
use super::tcp::Tcp;
use crate::certificates::host;
use crate::login::Login;
use duramen_base::ids::ClusterId;
use duramen_base::origin::Origin;
use duramen_tls::Identity;
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Credentials, Frame, HEADER_BYTES, Handshake, HelloError, Parsed,
    Progress, Reply, Role, Trouble, decode_reply, fresh_nonce, parse_frame,
};
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// Minimum bytes of one read.
const READ_BYTES: usize = 16 << 10;
/// A buffer that grew larger than this for one message is not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// An idle connection that was used within this time is taken without checking whether the other
/// side has closed it: a check costs a system call per request, and a wrong guess costs a repeated
/// request.
const TRUSTED: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// The process that made the connection: a forked process must not use its parent's
    /// connections.
    origin: Origin,
    /// The socket's current timeout: setting it costs a system call.
    timeout: Duration,
    input: Vec<u8>,
    /// Length of the answer at the beginning of `input`.
    answer: usize,
    output: Vec<u8>,
    request: u64,
    used: Instant,
}

/// Reason why there is no connection.
#[derive(Debug)]
pub(crate) enum Unopened {
    /// A later attempt may succeed.
    Failed(String),
    /// The other side belongs to another cluster, has another version, or has another token.
    Foreign(String),
    /// The login is refused: the user or the password is wrong, or the other side knows no users.
    Denied(String),
    /// The login had no answer in time.
    Unanswered(String),
}

/// Time for the answer to a login, if the call has as much: a server holds the answer to a wrong
/// password for 3.2 s, and longer while others guess from the same address.
pub(crate) const LOGIN_PATIENCE: Duration = Duration::from_secs(5);

impl From<String> for Unopened {
    fn from(why: String) -> Unopened {
        Unopened::Failed(why)
    }
}

impl From<Unopened> for String {
    fn from(why: Unopened) -> String {
        match why {
            Unopened::Failed(why)
            | Unopened::Foreign(why)
            | Unopened::Denied(why)
            | Unopened::Unanswered(why) => why,
        }
    }
}

impl Connection {
    /// Connects, over TLS if there is an `identity`; each side proves to the other that it has the
    /// token.
    pub fn open(
        address: &str,
        cluster: &str,
        token: &[u8],
        identity: Option<&Identity>,
        timeout: Duration,
        spin: Duration,
    ) -> Result<Connection, Unopened> {
        if timeout.is_zero() {
            return Err("no time is left".to_owned().into());
        }
        let stream = connect(address, timeout).map_err(|error| error.to_string())?;
        let ready = stream.set_nodelay(true);
        ready.map_err(|error| error.to_string())?;
        let stream = match identity {
            Some(identity) => Stream::encrypted(identity, host(address), stream, timeout)
                .map_err(|error| text(&error))?,
            None => Stream::Tcp(Tcp::new(stream, spin)),
        };
        Connection::over(stream, cluster, token, timeout)
    }

    /// As [`open`](Self::open), at a server's Unix socket; later frames pass through memory that
    /// the server shares.
    pub fn open_locally(
        path: &Path,
        cluster: &str,
        token: &[u8],
        timeout: Duration,
        spin: Duration,
    ) -> Result<Connection, Unopened> {
        let deadline = Instant::now() + timeout;
        let socket = duramen_shm::connect(path).map_err(|error| error.to_string())?;
        let mut connection = Connection::over(Stream::Unix(socket), cluster, token, timeout)?;
        // This sends the last proof: the server shares its memory only after it.
        connection.transmit(deadline.saturating_duration_since(Instant::now()))?;
        connection.stream = connection.stream.share(&connection.input, spin)?;
        Ok(connection)
    }

    fn over(
        stream: Stream,
        cluster: &str,
        token: &[u8],
        timeout: Duration,
    ) -> Result<Connection, Unopened> {
        let limited = stream.limit(timeout);
        limited.map_err(|error| error.to_string())?;
        let mut connection = Connection {
            stream,
            origin: Origin::here(),
            timeout,
            input: Vec::new(),
            answer: 0,
            output: Vec::new(),
            request: 0,
            used: Instant::now(),
        };
        connection.shake(
            Credentials {
                cluster,
                token,
                id: ClusterId::NONE,
            },
            timeout,
        )?;
        Ok(connection)
    }

    fn shake(&mut self, ours: Credentials<'_>, timeout: Duration) -> Result<(), Unopened> {
        let deadline = Instant::now() + timeout;
        let nonce = fresh_nonce().map_err(|error| error.to_string())?;
        let mut handshake = Handshake::dial(Role::Client, nonce, &mut self.output);
        if let Some(binding) = self.stream.binding().map_err(str::to_owned)? {
            handshake.bind(&binding);
        }
        loop {
            if !self.output.is_empty() {
                self.transmit(deadline.saturating_duration_since(Instant::now()))?;
            }
            self.fill(deadline)?;
            let progress = handshake.advance(ours, &self.input, &mut self.output);
            match progress.map_err(unopened)? {
                Progress::Waiting { used } => drop(self.input.drain(..used)),
                Progress::Done { used, .. } => {
                    self.input.drain(..used);
                    // The last proof is sent with the first request.
                    return Ok(());
                }
            }
        }
    }

    /// Logs in; to be called once, before all requests.
    pub fn log_in(mut self, login: &Login, timeout: Duration) -> Result<Connection, Unopened> {
        let request = self.next_request();
        login.encode(request, &mut self.output);
        let deadline = Instant::now() + timeout;
        self.transmit(timeout)?;
        match self.receive(timeout, CLIENT_FRAME_BYTES_MAX) {
            Ok(reply) => logged_in(&reply)?,
            Err(_) if Instant::now() >= deadline => return Err(login_unanswered()),
            Err(why) => return Err(why.into()),
        }
        self.consumed();
        Ok(self)
    }

    pub fn next_request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    /// The buffer for the next request.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends the written request.
    pub fn transmit(&mut self, timeout: Duration) -> Result<(), String> {
        self.limit(timeout)?;
        let sent = self.stream.send(&self.output, timeout);
        self.output.clear();
        self.output.shrink_to(KEPT_BYTES_MAX);
        sent.map_err(|error| format!("sending: {}", text(&error)))
    }

    /// The answer to the last request. Call [`consumed`](Self::consumed) after its use.
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
        // An error to request 0 is an error to the hello: the other side refuses the connection.
        let refused = frame.header.error && frame.header.envelope.request == 0;
        if frame.header.envelope.request != self.request && !refused {
            return Err("an answer to another request".to_owned());
        }
        decode_reply(&frame).map_err(|error| error.to_string())
    }

    /// To be called when the answer was used.
    pub fn consumed(&mut self) {
        self.input.drain(..self.answer);
        self.input.shrink_to(KEPT_BYTES_MAX);
        self.answer = 0;
        self.used = Instant::now();
    }

    /// Whether the other side has not closed the connection; checked only after some time without
    /// use.
    pub fn is_open(&mut self) -> bool {
        if self.origin.is_inherited() {
            return false;
        }
        self.used.elapsed() < TRUSTED || self.stream.is_quiet()
    }

    fn limit(&mut self, timeout: Duration) -> Result<(), String> {
        if timeout.is_zero() {
            return Err("no time is left".to_owned());
        }
        // A timeout shorter than the current one must be set; a slightly longer one need not be.
        if timeout < self.timeout || timeout > self.timeout * 2 {
            let set = self.stream.limit(timeout);
            set.map_err(|error| error.to_string())?;
            self.timeout = timeout;
        }
        Ok(())
    }

    /// Reads the available bytes, at least one.
    fn fill(&mut self, deadline: Instant) -> Result<(), String> {
        if Instant::now() >= deadline {
            return Err("no answer in time".to_owned());
        }
        let old = self.input.len();
        // A long answer is read in larger and larger pieces as its bytes arrive.
        self.input.resize(old + old.max(READ_BYTES), 0);
        let read = self.stream.receive(&mut self.input[old..], deadline);
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

/// Sorts an error of the handshake: it is foreign if no later attempt can succeed and the user has
/// to know it.
pub(crate) fn unopened(error: HelloError) -> Unopened {
    let text = error.to_string();
    match error {
        HelloError::Token
        | HelloError::Encrypted
        | HelloError::WrongCluster { .. }
        | HelloError::NoCommonVersion { .. } => Unopened::Foreign(text),
        _ => Unopened::Failed(text),
    }
}

/// The login had no answer in time.
pub(crate) fn login_unanswered() -> Unopened {
    Unopened::Unanswered("no answer to the login in time: its password may be wrong".to_owned())
}

/// Whether the other side has accepted the login.
pub(crate) fn logged_in(reply: &Reply<'_>) -> Result<(), Unopened> {
    match reply {
        Reply::LoggedIn => Ok(()),
        Reply::Trouble(Trouble::NotPermitted { reason }) => {
            Err(Unopened::Denied((*reason).to_owned()))
        }
        Reply::Trouble(Trouble::Malformed { .. }) => Err(Unopened::Denied(
            "the other side is too old to know users of native clients: update it, or connect \
             without a login"
                .to_owned(),
        )),
        Reply::Trouble(trouble) => Err(Unopened::Failed(trouble.to_string())),
        _ => Err(Unopened::Failed(
            "an answer that does not fit a login".to_owned(),
        )),
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
