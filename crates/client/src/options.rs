//! The options of a client.

use crate::error::Error;
use crate::login::Login;
use std::path::PathBuf;
use std::time::Duration;

/// Default of the spin: as long as some sleeps and wake-ups of a thread take. A server spins for
/// longer, but a client's processor may have other work.
const SPIN: Duration = Duration::from_micros(50);

/// Default of `in_flight_max`: a few times as many operations as servers take from a client at
/// once. Each costs a client some hundred bytes.
const IN_FLIGHT_MAX: usize = 65_536;
/// Default of `in_flight_bytes_max`: room for 64 of the longest values.
const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// Files in PEM form with which a client and a cluster recognize each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The client's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key, without a password.
    pub key: PathBuf,
    /// The cluster's own authority. Several may be in it.
    pub ca: PathBuf,
}

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Addresses `host:port` of coordinators. One that answers is enough: it names the leader.
    pub coordinators: Vec<String>,
    /// The cluster's name; empty: any cluster.
    pub cluster: String,
    /// The cluster's token, if it has one.
    pub token: Vec<u8>,
    /// The user whose rights the client has. `None` for those of the default user, if that needs no
    /// password.
    pub login: Option<Login>,
    /// Certificates, for a cluster whose native ports have TLS. With them there is no connection
    /// over TCP without TLS; each new connection uses the files as they are by then, so a
    /// certificate that is renewed before it expires interrupts nothing. `None` for connections
    /// without TLS.
    pub tls: Option<TlsFiles>,
    /// Maximum time of a call, failures and recoveries included.
    pub deadline: Duration,
    /// Maximum time to wait for one answer before the request is sent again.
    pub attempt: Duration,
    /// Whether writes take effect exactly once. If false, a write whose answer is lost may take
    /// effect twice.
    pub exactly_once: bool,
    /// Directory of the servers' Unix sockets (their setting `native-socket-dir`): a server with a
    /// socket there is reached through shared memory, any other by TCP. Asynchronous clients use
    /// TCP alone.
    pub socket_dir: Option<PathBuf>,
    /// Longest time that a call spins for an answer before it sleeps. It sleeps at once if as many
    /// threads of the process spin as it has cores, less one, or if spinning has not made answers
    /// come sooner. Zero: never spin. While it spins in shared memory, it does not notice a
    /// server's death.
    pub spin: Duration,
    /// Maximum operations in flight of an asynchronous client; further ones wait.
    pub in_flight_max: usize,
    /// Maximum bytes of keys and values of the operations in flight of an asynchronous client;
    /// further operations wait. A single operation may have more, and is then in flight alone.
    pub in_flight_bytes_max: usize,
}

impl Options {
    /// The defaults.
    pub fn new<A: Into<String>>(coordinators: impl IntoIterator<Item = A>) -> Options {
        Options {
            coordinators: coordinators.into_iter().map(Into::into).collect(),
            cluster: String::new(),
            token: Vec::new(),
            login: None,
            tls: None,
            deadline: Duration::from_secs(30),
            attempt: Duration::from_secs(1),
            exactly_once: true,
            socket_dir: None,
            spin: SPIN,
            in_flight_max: IN_FLIGHT_MAX,
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Options(what.to_owned()));
        if self.coordinators.is_empty() {
            return wrong("name at least one coordinator, as host:port");
        }
        if self.cluster.len() > 255 || self.token.len() > 1024 {
            return wrong("a cluster's name has at most 255 bytes, a token 1024");
        }
        self.login.as_ref().map_or(Ok(()), Login::check)?;
        if self.deadline.is_zero() || self.attempt.is_zero() {
            return wrong("deadline and attempt must be longer than nothing");
        }
        if self.in_flight_max == 0 || self.in_flight_bytes_max == 0 {
            return wrong("an asynchronous client must have room for an operation");
        }
        Ok(())
    }
}
