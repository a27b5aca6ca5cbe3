//! A running server: its store, its threads, its addresses.

use crate::admin::Admin;
use crate::closing;
use crate::doors::Doors;
use crate::member::{Lifeline, Ports, is_home};
use crate::reactor::{Listeners, Reactor, SocketFile, Standby, bind, listen_at};
use duramen_backup::Backup;
use duramen_backup::os::OsDisk;
use duramen_cipher::KeySource;
use duramen_config::process::raise_file_limit;
use duramen_config::{ConfigFile, MemoryLimit, ServerConfig, ServerError, format_size};
use duramen_engine::{Options, Store};
use duramen_redis::command::restore as restore_databases;
use duramen_redis::durability::{Durability, Progress};
use duramen_redis::flash::Tier;
use duramen_redis::operation::written;
use duramen_redis::script::restore_all as restore_functions;
use duramen_redis::state::Shared;
use duramen_redis::table::catalog;
use duramen_redis::threads::Stop;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The addresses at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Without TLS.
    pub resp: Vec<SocketAddr>,
    /// RESP with TLS.
    pub tls: Vec<SocketAddr>,
    /// The native port; `None` if the server is not a member of a cluster.
    pub native: Option<SocketAddr>,
    /// None = off.
    pub admin: Option<SocketAddr>,
}

impl Addresses {
    /// The first RESP address, with TLS if there is such a port. A member announces this address,
    /// and beside it the address of its plain port.
    pub fn for_clients(&self) -> SocketAddr {
        let first = self.tls.first().or(self.resp.first());
        *first.expect("a server has a RESP port")
    }

    /// The first RESP address without TLS, if there is one with TLS too.
    fn beside_tls(&self) -> Option<SocketAddr> {
        let plain = self.resp.first().filter(|_| !self.tls.is_empty());
        plain.copied()
    }
}

/// A server in this process. Dropping it stops it at once.
///
/// ```
/// use duramen_config::{Level, ServerConfig};
/// use duramen_server::Server;
/// let config = ServerConfig {
///     level: Some(Level::Memory), // no data directory: nothing outlasts this process
///     port: 0,
///     admin: false,
///     threads: 1,
///     memory_bytes: 64 << 20,
///     ..ServerConfig::default()
/// };
/// let server = Server::start(config).expect("starts");
/// println!("redis-cli -p {}", server.addresses().resp[0].port());
/// server.stop();
/// server.wait().expect("stops");
/// ```
pub struct Server {
    shared: Arc<Shared>,
    doors: Arc<Doors>,
    addresses: Addresses,
    threads: Vec<JoinHandle<()>>,
    /// The thread that loads the data; None once it has ended.
    loader: Option<JoinHandle<Result<(), ServerError>>>,
    admin: Option<Admin>,
    /// The member's life; `None` if the server is not a member of a cluster.
    life: Option<Lifeline>,
    /// Removes the Unix socket for RESP at the end.
    _socket: Option<SocketFile>,
    /// Dropped with the server, to end the thread that reads certificates again.
    certificates: Option<mpsc::Sender<()>>,
}

/// Judges the memory that the settings ask for, and fits the numbers of threads and of connections
/// to this machine.
fn fit_to_machine(config: &mut ServerConfig) -> Result<(), ServerError> {
    if let Some(limit) = MemoryLimit::now() {
        match limit.judge(config.memory_bytes) {
            Ok(None) => {}
            Ok(Some(warning)) => tracing::warn!("{warning}"),
            Err(why) => return Err(ServerError::Config(why)),
        }
    }
    if config.settle_memory_max() {
        tracing::warn!(
            "memory-max is lowered to {}, 16 times `memory`",
            format_size(config.memory_bytes_max)
        );
    }
    let is_chosen = config.threads > 0;
    config.threads = config.reactor_threads();
    let fit = config.threads_with_flash();
    if !config.flash_file.is_empty() && config.threads > fit {
        if is_chosen {
            tracing::warn!(
                threads = config.threads,
                fit,
                "with flash these threads may take more than `memory`: choose fewer, or more memory"
            );
        } else {
            config.threads = fit;
        }
    }
    if let Some(fit) = raise_file_limit(config.maxclients, config.threads) {
        tracing::warn!(
            maxclients = config.maxclients,
            fit,
            "the system allows fewer open files than maxclients needs (raise `ulimit -n`)"
        );
        config.maxclients = fit.max(1);
    }
    Ok(())
}

impl Server {
    /// Binds every address, starts the threads, and loads the data. Clients are served when this
    /// returns.
    ///
    /// # Errors
    /// [`ServerError`]; nothing keeps running.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        let mut server = Server::launch(config, None)?;
        server.wait_loaded()?;
        Ok(server)
    }

    /// Reads the files of users, of the cluster's token and of the encryption key, and checks them
    /// as a start does. A command that prints the key is not run.
    ///
    /// # Errors
    /// The file, and the fault.
    pub fn check_files(config: &ServerConfig) -> Result<(), ServerError> {
        Shared::check_users(config, catalog())?;
        config.cluster_token()?;
        let key = config.key_source();
        if let Some(file) = key.filter(|key| matches!(key, KeySource::File(_))) {
            let read = file.read();
            read.map_err(|error| ServerError::Config(error.to_string()))?;
        }
        Ok(())
    }

    /// As [`start`](Self::start), but returns as soon as the server listens: until the data is
    /// loaded, clients are told to wait. `file` is the file that the settings came from; `CONFIG
    /// REWRITE` writes to it.
    ///
    /// # Errors
    /// [`ServerError`]; nothing keeps running.
    pub fn launch(
        mut config: ServerConfig,
        file: Option<ConfigFile>,
    ) -> Result<Server, ServerError> {
        config.check()?;
        fit_to_machine(&mut config)?;
        // The directory is fixed here, because it depends on `level`, which may change while the
        // server runs.
        if let Some(dir) = config.data_dir() {
            config.dir = dir.display().to_string();
        }
        let mut bound = bind(&config, config.threads)?;
        let mut socket = None;
        if let Some((listener, file)) = listen_at(&config)? {
            // One thread accepts; each connection goes to the thread that has the fewest.
            bound.by_thread[0].push(listener);
            socket = Some(file);
        }
        let admin_listener = if config.admin {
            Some(Admin::bind(&config)?)
        } else {
            None
        };
        let doors = Doors::open(config, file)?;
        let shared = Arc::clone(doors.shared());
        shared.settings.certificates().load(&shared.config())?;
        let mut server = Server {
            doors,
            shared: Arc::clone(&shared),
            addresses: Addresses {
                resp: bound.plain,
                tls: bound.tls,
                native: None,
                admin: None,
            },
            threads: Vec::with_capacity(bound.by_thread.len()),
            loader: None,
            admin: None,
            life: None,
            _socket: socket,
            certificates: None,
        };
        // From here on an error drops `server`, which ends the threads that already run.
        server.start_reactors(bound.by_thread)?;
        server.watch_certificates()?;
        if let Some(listener) = admin_listener {
            let admin = Admin::start(listener, Arc::clone(&shared))?;
            server.addresses.admin = Some(admin.address());
            server.admin = Some(admin);
        }
        server.start_loader()?;
        Ok(server)
    }

    /// Starts the thread that loads the data; for a member, the one that waits until it is served.
    fn start_loader(&mut self) -> Result<(), ServerError> {
        let load: Box<dyn FnOnce() -> Result<(), ServerError> + Send> =
            if self.shared.config().is_member() {
                let ports = Ports {
                    resp: self.addresses.for_clients().port(),
                    plain: self.addresses.beside_tls().map(|address| address.port()),
                    admin: self.addresses.admin.map(|address| address.port()),
                };
                let (life, native, opens) = Lifeline::begin(&self.doors, ports)?;
                self.addresses.native = Some(native);
                self.life = Some(life);
                // No answer arrives if the server was told to stop.
                Box::new(move || opens.recv().unwrap_or(Ok(())))
            } else {
                let shared = Arc::clone(&self.shared);
                Box::new(move || load(&shared))
            };
        let loader = std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(load)
            .map_err(|source| ServerError::System {
                doing: "start the loading thread",
                source,
            })?;
        self.loader = Some(loader);
        Ok(())
    }

    fn start_reactors(&mut self, listeners: Vec<Listeners>) -> Result<(), ServerError> {
        let threads = listeners.len();
        let (started, starts) = mpsc::channel();
        let standby = Arc::new(Standby::default());
        for (number, listeners) in listeners.into_iter().enumerate() {
            let (doors, started) = (Arc::clone(&self.doors), started.clone());
            let running = self.shared.watch.ending().begin();
            let made = Arc::clone(&standby);
            standby.begins();
            self.spawn(format!("reactor-{number}"), move || {
                let reactor = Reactor::new(doors, number, listeners, Arc::clone(&made), running);
                match reactor {
                    Ok(reactor) => {
                        let _ = started.send(Ok(()));
                        Reactor::work(&made, Some(reactor));
                    }
                    Err(error) => {
                        made.ended();
                        let _ = started.send(Err(error));
                    }
                }
            })?;
        }
        self.spawn("standby".to_owned(), move || Reactor::work(&standby, None))?;
        drop(started);
        for _ in 0..threads {
            starts.recv().unwrap_or_else(|_| {
                Err(ServerError::System {
                    doing: "start a reactor thread",
                    source: std::io::Error::other("the thread ended early"),
                })
            })?;
        }
        Ok(())
    }

    /// Starts the thread that reads certificates again when their files change.
    fn watch_certificates(&mut self) -> Result<(), ServerError> {
        if !self.shared.settings.certificates().are_used() {
            return Ok(());
        }
        let (keep, ended) = mpsc::channel();
        let certificates = Arc::clone(self.shared.settings.certificates());
        self.certificates = Some(keep);
        // It is not waited for: the files may be on a disk that hangs.
        std::thread::Builder::new()
            .name("certificates".to_owned())
            .spawn(move || certificates.watch(&ended))
            .map_err(|source| ServerError::System {
                doing: "start the thread that reads certificates",
                source,
            })?;
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServerError> {
        let thread = std::thread::Builder::new().name(name).spawn(work);
        let thread = thread.map_err(|source| ServerError::System {
            doing: "start a reactor thread",
            source,
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Waits until the data is loaded and clients are served, or until a stop is requested; `true`
    /// = clients are served.
    ///
    /// # Errors
    /// [`ServerError`]: the data cannot be loaded; the stored data is unchanged.
    ///
    /// # Panics
    /// If the loading thread panicked.
    pub fn wait_loaded(&mut self) -> Result<bool, ServerError> {
        while let Some(loader) = &self.loader {
            if loader.is_finished() {
                let loader = self.loader.take().expect("there is one");
                loader.join().expect("the loading thread panicked")?;
            } else if self.shared.watch.stopping() != Stop::No {
                // The data read so far is in memory only, so loading may end with the process.
                return Ok(false);
            } else {
                std::thread::park_timeout(LOOK_EVERY);
            }
        }
        Ok(true)
    }

    /// Waits until the threads have ended. Returns false if one is stuck.
    fn is_ended(&self) -> bool {
        let shared = &self.shared;
        shared
            .watch
            .ending()
            .wait(|how| self.patience(how), || shared.is_stuck())
    }

    /// The longest time that the threads may take to end.
    fn patience(&self, how: Stop) -> Duration {
        match how {
            Stop::No => Duration::MAX,
            Stop::Graceful => {
                let replies_ms = self.shared.config().stop_timeout_ms;
                Duration::from_millis(replies_ms + self.shared.watch.stuck_after_ms())
            }
            Stop::AtOnce => AT_ONCE,
        }
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The ways by which other threads pass connections to the server's threads.
    pub fn doors(&self) -> &Arc<Doors> {
        &self.doors
    }

    /// Asks the server to stop gracefully: see the setting `stop-timeout-ms`. Returns at once.
    pub fn stop(&self) {
        self.shared.stop(Stop::Graceful);
    }

    /// Waits until the server has stopped, by [`stop`](Self::stop), a `SHUTDOWN` command or
    /// [`Shared::stop`]. After a graceful stop, it notes in the data directory that the stop was
    /// clean.
    ///
    /// # Errors
    /// [`ServerError::Store`]: the note could not be written; acknowledged data is safe
    /// nevertheless. [`ServerError::LifeOver`]: the server stopped because the cluster no longer
    /// counts this member. [`ServerError::Stuck`]: a thread did not end in time. It is left
    /// running, and the process should end.
    ///
    /// # Panics
    /// If a reactor thread panicked.
    pub fn wait(mut self) -> Result<(), ServerError> {
        if !self.is_ended() {
            return Err(self.stuck());
        }
        if let Some(loader) = self.loader.take() {
            // The life may have ended while it began: resources that its loader holds must be free
            // for the next life.
            let _ = loader.join().expect("the loading thread panicked");
        }
        if let Some(durability) = self.shared.durability()
            && !closing::close(&self.shared, durability, |how| self.patience(how))?
        {
            return Err(self.stuck());
        }
        // One of these threads may have been in a commit until now.
        for thread in self.threads.drain(..) {
            thread.join().expect("a reactor thread panicked");
        }
        if let Some(mut life) = self.life.take() {
            life.end();
        }
        match self.shared.life_over() {
            Some((again, reason)) => Err(ServerError::LifeOver {
                again,
                reason: reason.to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Longest wait at an immediate stop: every thread comes back to its loop within this time.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How often the owner of a loading server checks for a stop.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Refuses a flash file in a directory in which a store is to be created: with that file it would
/// not be empty, now and at each later start.
fn check_flash_place(config: &ServerConfig) -> Result<(), ServerError> {
    let Some(dir) = config.data_dir() else {
        return Ok(());
    };
    let absolute = |path: &Path| std::path::absolute(path).ok();
    let flash = absolute(Path::new(&config.flash_file));
    let is_inside = flash.is_some_and(|flash| flash.parent() == absolute(&dir).as_deref());
    if !is_inside || Backup::exists(&OsDisk::new(&dir, config.disk_mode)).unwrap_or(true) {
        return Ok(());
    }
    Err(ServerError::Config(format!(
        "flash-file is in `{}`, where a store is to be created: choose another folder for it",
        dir.display()
    )))
}

/// Creates the store, or restores it from its directory; afterwards clients are served.
fn load(shared: &Arc<Shared>) -> Result<(), ServerError> {
    let config = shared.config();
    check_flash_place(&config)?;
    let tier = Tier::open(&config)?.map(Arc::new);
    let fetch_bytes = tier.as_ref().map_or(0, |tier| tier.fetch_bytes());
    let engine = Options {
        memory_bytes_max: config.engine_bytes_max(fetch_bytes),
        mode: config.mode,
        heads: config.threads,
        cleaners: config.cleaners,
        huge_pages: config.huge_pages,
        flash: tier.as_ref().map(|tier| tier.options()),
        ..Options::new(config.engine_bytes(fetch_bytes))
    };
    let Some(dir) = config.data_dir() else {
        shared.serve_with(Store::new(engine)?, None, tier);
        return Ok(());
    };
    if is_home(&dir) {
        return Err(ServerError::Config(format!(
            "`{}` belongs to a member of a cluster: start it with --coordinator, or choose another directory",
            dir.display()
        )));
    }
    let durability = Durability::open(&config, engine, dir, |progress| {
        shared.storage.set_progress(Progress {
            now: Some(*progress),
        });
    })?;
    let durability = Arc::new(durability);
    written::watch_commits(shared, &durability);
    let engine = Arc::clone(durability.store().engine());
    shared
        .commands
        .levels
        .note(durability.store().default_level());
    for table in engine.tables().list() {
        let level = engine.tables().level(table.id)?;
        shared.commands.levels.set(table.id, level);
    }
    restore_databases(shared, &engine)?;
    restore_functions(shared, &engine)?;
    if let Some(log) = engine.log() {
        // The level may have changed during loading.
        log.set_default_level(shared.config().write_level());
    }
    shared.serve_with(engine, Some(durability), tier);
    Ok(())
}

impl Server {
    /// Leaves a thread running that does not end, and returns the error for it.
    fn stuck(self) -> ServerError {
        let table = self.shared.table_of_waits();
        self.shared.audit().end();
        // Dropping it would wait for the thread.
        std::mem::forget(self);
        ServerError::Stuck { table }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop(Stop::AtOnce);
        drop(self.life.take());
        for thread in self.threads.drain(..) {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
        // The process may end while others still hold the state.
        self.shared.audit().end();
    }
}
