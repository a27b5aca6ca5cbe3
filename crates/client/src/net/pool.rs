//! The pool of idle connections.

use super::connection::{Connection, LOGIN_PATIENCE, Unopened};
use crate::certificates::Certificates;
use crate::error::Error;
use crate::login::Login;
use crate::options::Options;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time that is left, for the parts of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// Time for one attempt.
    pub attempt: Duration,
    /// Time for the whole call, which a login may take.
    pub call: Duration,
}

impl Timeouts {
    fn after(self, elapsed: Duration) -> Timeouts {
        Timeouts {
            attempt: self.attempt.saturating_sub(elapsed),
            call: self.call.saturating_sub(elapsed),
        }
    }
}

/// Maximum idle connections per address: more than the number of simultaneously calling threads is
/// useless.
const IDLE_MAX: usize = 128;

pub(super) struct Pool {
    cluster: String,
    token: Vec<u8>,
    login: Option<Login>,
    certificates: Option<Certificates>,
    /// See [`Options::socket_dir`].
    socket_dir: Option<PathBuf>,
    spin: Duration,
    idle: Mutex<HashMap<String, Vec<Connection>>>,
    /// The reason why the last new connection does not use shared memory.
    not_local: Mutex<Option<String>>,
}

impl Pool {
    /// # Errors
    /// [`Error::Options`]: the certificates cannot be used.
    pub fn new(options: &Options) -> Result<Pool, Error> {
        Ok(Pool {
            cluster: options.cluster.clone(),
            token: options.token.clone(),
            login: options.login.clone(),
            certificates: Certificates::load(options.tls.as_ref())?,
            socket_dir: options.socket_dir.clone(),
            spin: options.spin,
            idle: Mutex::new(HashMap::new()),
            not_local: Mutex::new(None),
        })
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<String, Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to this address that the other side has not closed, as far as is visible: an
    /// idle one, or a new one. `timeouts` bound its handshake and the whole call.
    pub fn take(&self, address: &str, timeouts: Timeouts) -> Result<Connection, Unopened> {
        self.take_or(address, || {
            let since = Instant::now();
            self.open_locally(address, timeouts)
                .unwrap_or_else(|| self.open_by_tcp(address, timeouts.after(since.elapsed())))
        })
    }

    /// As [`take`](Self::take); coordinators have no shared memory.
    pub fn take_of_coordinator(
        &self,
        address: &str,
        timeouts: Timeouts,
    ) -> Result<Connection, Unopened> {
        self.take_or(address, || self.open_by_tcp(address, timeouts))
    }

    fn open_by_tcp(&self, address: &str, timeouts: Timeouts) -> Result<Connection, Unopened> {
        let identity = self.certificates.as_ref().map(Certificates::newest);
        let (cluster, token) = (&self.cluster, &self.token);
        let since = Instant::now();
        let opened = Connection::open(
            address,
            cluster,
            token,
            identity,
            timeouts.attempt,
            self.spin,
        )?;
        self.log_in(opened, timeouts.after(since.elapsed()).call)
    }

    /// Logs in on a new connection; `timeout` is that of the whole call.
    fn log_in(&self, opened: Connection, timeout: Duration) -> Result<Connection, Unopened> {
        match &self.login {
            Some(login) => opened.log_in(login, timeout.min(LOGIN_PATIENCE)),
            None => Ok(opened),
        }
    }

    fn take_or(
        &self,
        address: &str,
        open: impl FnOnce() -> Result<Connection, Unopened>,
    ) -> Result<Connection, Unopened> {
        while let Some(mut connection) = self.pop(address) {
            if connection.is_open() {
                return Ok(connection);
            }
        }
        open()
    }

    /// A connection through shared memory. `None` if the server has no socket on this machine, has
    /// no more shared memory, or does not answer; TCP then either works or gives the reason.
    fn open_locally(
        &self,
        address: &str,
        timeouts: Timeouts,
    ) -> Option<Result<Connection, Unopened>> {
        // An address with a slash would leave the directory.
        let dir = self
            .socket_dir
            .as_ref()
            .filter(|_| !address.contains('/'))?;
        let path = dir.join(address);
        let (cluster, token) = (&self.cluster, &self.token);
        // A process that listens there and does not answer leaves time for TCP.
        let opened =
            Connection::open_locally(&path, cluster, token, timeouts.attempt / 2, self.spin)
                .and_then(|opened| self.log_in(opened, timeouts.call / 2));
        let (opened, failure) = match opened {
            Err(Unopened::Failed(why)) => (None, Some(format!("{}: {why}", path.display()))),
            opened => (Some(opened), None),
        };
        *self
            .not_local
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = failure;
        opened
    }

    /// See [`Client::why_not_local`](crate::Client::why_not_local).
    pub fn why_not_local(&self) -> Option<String> {
        let why = self.not_local.lock();
        why.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pop(&self, address: &str) -> Option<Connection> {
        self.idle().get_mut(address)?.pop()
    }

    /// Gives back a connection without a request in flight.
    pub fn put(&self, address: &str, connection: Connection) {
        let mut idle = self.idle();
        match idle.get_mut(address) {
            Some(connections) if connections.len() < IDLE_MAX => connections.push(connection),
            Some(_) => {}
            None => {
                idle.insert(address.to_owned(), vec![connection]);
            }
        }
    }
}
