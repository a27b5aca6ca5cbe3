//! A running server: its store, its threads, its addresses.

use crate::admin::Admin;
use crate::config::{ConfigFile, ServerConfig};
use crate::error::ServerError;
use crate::reactor::{Reactor, bind, raise_file_limit};
use crate::shared::{Shared, Stop};
use duramen_engine::{Options, Store};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub resp: Vec<SocketAddr>,
    /// None = off.
    pub admin: Option<SocketAddr>,
}

/// A server in this process. Dropping it ends it at once.
///
/// ```
/// use duramen_server::{Server, ServerConfig};
/// let config = ServerConfig { port: 0, admin: false, threads: 1, memory_bytes: 64 << 20, ..ServerConfig::default() };
/// let server = Server::start(config).expect("starts");
/// println!("redis-cli -p {}", server.addresses().resp[0].port());
/// server.stop();
/// server.wait();
/// ```
pub struct Server {
    shared: Arc<Shared>,
    addresses: Addresses,
    threads: Vec<JoinHandle<()>>,
    admin: Option<Admin>,
}

impl Server {
    /// Makes the store, binds every address, starts the threads. When it returns, clients are served.
    ///
    /// # Errors
    /// [`ServerError`]; nothing keeps running.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        Server::start_from(config, None)
    }

    /// As [`start`](Self::start), with the file that the settings came from: `CONFIG REWRITE` writes to it.
    ///
    /// # Errors
    /// [`ServerError`]; nothing keeps running.
    pub fn start_from(
        mut config: ServerConfig,
        file: Option<ConfigFile>,
    ) -> Result<Server, ServerError> {
        config.check()?;
        config.threads = config.reactor_threads();
        if let Some(fit) = raise_file_limit(config.maxclients) {
            tracing::warn!(
                maxclients = config.maxclients,
                fit,
                "the system allows fewer open files than maxclients needs (raise `ulimit -n`)"
            );
            config.maxclients = fit.max(1);
        }
        let threads = config.threads;
        let (listeners, resp) = bind(&config, threads)?;
        let admin_listener = if config.admin {
            Some(Admin::bind(&config)?)
        } else {
            None
        };
        let store = Store::new(Options {
            mode: config.mode,
            heads: threads,
            cleaners: config.cleaners,
            huge_pages: config.huge_pages,
            ..Options::new(config.memory_bytes)
        })?;
        let shared = Arc::new(Shared::new(config, file, store)?);
        let mut server = Server {
            shared: Arc::clone(&shared),
            addresses: Addresses { resp, admin: None },
            threads: Vec::with_capacity(threads),
            admin: None,
        };
        // From here on an error drops `server`, which ends the threads that run already.
        let (started, starts) = mpsc::channel();
        for (number, listeners) in listeners.into_iter().enumerate() {
            let (shared, started) = (Arc::clone(&shared), started.clone());
            let thread = std::thread::Builder::new()
                .name(format!("reactor-{number}"))
                .spawn(move || match Reactor::new(shared, number, listeners) {
                    Ok(reactor) => {
                        let _ = started.send(Ok(()));
                        reactor.run();
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                })
                .map_err(|source| ServerError::System {
                    doing: "start a reactor thread",
                    source,
                })?;
            server.threads.push(thread);
        }
        drop(started);
        for _ in 0..threads {
            starts.recv().unwrap_or_else(|_| {
                Err(ServerError::System {
                    doing: "start a reactor thread",
                    source: std::io::Error::other("the thread ended early"),
                })
            })?;
        }
        if let Some(listener) = admin_listener {
            let admin = Admin::start(listener, shared)?;
            server.addresses.admin = Some(admin.address());
            server.admin = Some(admin);
        }
        Ok(server)
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks the server to stop gracefully: see the setting `stop-timeout-ms`. Returns at once.
    pub fn stop(&self) {
        self.shared.stop(Stop::Graceful);
    }

    /// Waits until the server has stopped, by [`stop`](Self::stop), a `SHUTDOWN` command or [`Shared::stop`].
    ///
    /// # Panics
    /// If a reactor thread panicked.
    pub fn wait(mut self) {
        for thread in self.threads.drain(..) {
            thread.join().expect("a reactor thread panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop(Stop::AtOnce);
        for thread in self.threads.drain(..) {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}
