//! The driver: the thread that owns the sockets and the state machine.

mod chronicle;
mod clients;
mod complaints;
mod figures;
mod members;
mod requests;
mod resigning;
mod roles;
mod wiring;

use crate::guard::Guard;
use crate::keeper::{Keeper, LeaseEnd, Order};
use crate::news::{Leads, News, Report};
use crate::{Error, Options, Role, Running, StoreError, admin, certificates, system};
use chronicle::Chronicle;
use clients::Clients;
use complaints::Complaints;
use duramen_base::ids::ClusterId;
use duramen_cluster::coordinator::store::MetaStore;
use duramen_cluster::coordinator::{Config, Coordinator, Input, OpenError, Output};
use duramen_net::{Event, Handle, Hub};
use duramen_wire::native::codec as net;
use duramen_wire::native::message::{ClusterSettings, Refusal};
use figures::{Figures, Refused};
use members::Certificates;
use requests::{Askers, Calls};
use resigning::Resigning;
use roles::{Leading, Roles};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep of the driver between two polls of the sockets.
const POLL_MAX: Duration = Duration::from_secs(1);
/// Time that a stop waits for the store.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// Time for which a leader that cannot judge does not campaign: several campaigns of the others.
const RESIGN_REST: Duration = Duration::from_secs(10);
/// Interval at which the progress of recoveries is logged.
const CHRONICLE_US: u64 = 20_000;
/// Shares are made equal when nothing has changed for this long: members count their data every
/// 10 s, so it is known where all of it is.
const BALANCE_AFTER_US: u64 = 15_000_000;
/// Most connections: enough for a cluster of 10,000 servers and their tools.
const CONNECTIONS_MAX: usize = 20_000;

/// Starts the admin port, if there is one.
fn serve_admin(
    options: &Options,
    driver: &Handle<News>,
    guard: &Arc<Guard>,
) -> Result<Option<SocketAddr>, Error> {
    let Some(address) = options.admin else {
        return Ok(None);
    };
    let context = admin::Context {
        driver: driver.clone(),
        guard: Arc::clone(guard),
        identity: options.admin_identity.clone(),
    };
    admin::listen(address, context).map(Some)
}

/// The driver's state; see the module.
pub(crate) struct Driver {
    options: Options,
    name: String,
    hub: Hub<News>,
    guard: Arc<Guard>,
    clients: Clients,
    certificates: Certificates,
    orders: Sender<Order>,
    lease_end: LeaseEnd,
    origin: Instant,
    roles: Roles,
    askers: Askers,
    calls: Calls,
    complaints: Complaints,
    /// Resignations because it could not judge.
    resigning: Resigning,
    figures: Figures,
    /// End of the wait for the store, after a request to stop.
    stops: Option<Instant>,
    /// Result of the coordinator, once it has ended.
    ended: Option<Result<(), Error>>,
}

impl Driver {
    pub(crate) fn launch(
        options: Options,
        make: impl FnOnce(&str, &str) -> Result<Box<dyn MetaStore>, StoreError>,
    ) -> Result<Running, Error> {
        let (hub, address, name) = listen(&options)?;
        certificates::watch(&options)?;
        let store = make(&name, &options.cluster).map_err(|error| Error::Store {
            store: options.store.to_string(),
            reason: error.to_string(),
        })?;
        let handle = hub.handle();
        let guard = Guard::start((options.catalog)(), handle.clone())?;
        let http = serve_admin(&options, &handle, &guard)?;
        let origin = Instant::now();
        let lease_end = LeaseEnd::default();
        let (orders, received) = mpsc::channel();
        let keeper = Keeper {
            store,
            orders: received,
            news: handle.clone(),
            lease_end: lease_end.clone(),
            origin,
            epoch: 0,
            rests_until: None,
        };
        let (roles, told) = mpsc::channel();
        let driver = Driver {
            options,
            name: name.clone(),
            hub,
            guard,
            clients: Clients::default(),
            certificates: Certificates::default(),
            orders,
            lease_end,
            origin,
            roles: Roles::new(roles),
            askers: Askers::default(),
            calls: Calls::default(),
            complaints: Complaints::default(),
            resigning: Resigning::default(),
            figures: Figures::default(),
            stops: None,
            ended: None,
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        thread("store")
            .spawn(move || keeper.run())
            .map_err(system("start a thread"))?;
        let driver: JoinHandle<Result<(), Error>> = thread("coordinator")
            .spawn(move || driver.run())
            .map_err(system("start a thread"))?;
        Ok(Running {
            address,
            admin: http,
            name,
            handle,
            roles: told,
            driver,
        })
    }

    fn run(mut self) -> Result<(), Error> {
        let mut events = Vec::new();
        loop {
            if let Some(ended) = self.ended.take() {
                self.flush();
                return ended;
            }
            let timeout = self.timeout();
            self.hub.poll(Some(timeout), &mut events);
            self.check_lease();
            for event in events.drain(..) {
                self.happened(event);
            }
            self.tick();
            if self.stops.is_some_and(|until| Instant::now() >= until) {
                tracing::warn!("the store does not answer; its lease runs out by itself");
                self.ended.get_or_insert(Ok(()));
            }
        }
    }

    /// Sends queued answers, as far as the sockets take them.
    fn flush(&mut self) {
        let mut events = Vec::new();
        self.hub.poll(Some(Duration::ZERO), &mut events);
    }

    fn now_us(&self) -> u64 {
        self.origin.elapsed().as_micros() as u64
    }

    fn timeout(&self) -> Duration {
        let Some(leading) = self.roles.leading() else {
            return match self.stops {
                Some(_) => Duration::from_millis(10),
                None => POLL_MAX,
            };
        };
        let next_us = leading.wake_at_us.min(self.lease_end.get());
        let left = Duration::from_micros(next_us.saturating_sub(self.now_us()));
        left.min(POLL_MAX)
    }

    /// Ends a leadership whose lease has run out (coordinator::D2).
    fn check_lease(&mut self) {
        let Some(epoch) = self.roles.epoch() else {
            return;
        };
        if self.now_us() >= self.lease_end.get() {
            let _ = self.orders.send(Order::Drop { epoch });
            self.lose(epoch, "its lease has run out");
        }
    }

    fn happened(&mut self, event: Event<News>) {
        match event {
            Event::Question {
                connection,
                role,
                message,
            } => self.on_request(connection, role, &message),
            Event::Answer {
                request, message, ..
            } => self.answered(request, &message),
            Event::Foreign {
                peer, cluster_id, ..
            } => self.foreign(peer, cluster_id),
            Event::Unanswered {
                requests, reason, ..
            } => self.unanswered(&requests, &reason),
            Event::Accepted {
                connection,
                role,
                peer,
            } => {
                self.figures.connections += 1;
                if role == net::Role::Client {
                    self.clients.connected(connection, peer);
                } else if let Some(shown) = self.hub.peer_certificate(connection) {
                    self.certificates.accepted(connection, shown.not_after);
                }
            }
            Event::Closed { connection, reason } => {
                self.clients.closed(connection);
                self.certificates.closed(connection);
                self.figures.connections = self.figures.connections.saturating_sub(1);
                tracing::debug!("a connection is gone: {reason}");
            }
            Event::Handed(_) => {}
            Event::Mail(news) => self.on_news(news),
        }
    }

    fn on_news(&mut self, news: News) {
        match news {
            News::Leads(leads) => self.lead(leads),
            News::Stored { epoch, token } => {
                self.figures.commits += 1;
                self.figures.committed(self.origin.elapsed());
                if self.roles.epoch() == Some(epoch) {
                    self.handle(Input::Persisted { token }); // coordinator::D1
                }
            }
            News::Lost { epoch, reason } => self.lose(epoch, &reason),
            News::Follows(leader) => self.follow(leader),
            News::Away(reason) => self.roles.away(reason),
            News::Unusable(reason) => {
                let store = self.options.store.to_string();
                self.end(Err(Error::Store { store, reason }));
            }
            News::Resigned => self.end(Ok(())),
            News::Users => self.users_changed(),
            News::Report(to) => {
                // The admin thread may have given up.
                let _ = to.try_send(self.report());
            }
            News::Stop => {
                tracing::info!("stopping");
                let _ = self.orders.send(Order::Stop);
                self.stops = Some(Instant::now() + STOP_PATIENCE);
            }
        }
    }

    fn end(&mut self, how: Result<(), Error>) {
        if let Some(epoch) = self.roles.epoch() {
            self.lose(epoch, "the coordinator ends");
        }
        self.ended.get_or_insert(how);
    }

    fn lead(&mut self, leads: Leads) {
        let Leads {
            epoch,
            term,
            contents,
        } = leads;
        // Terms are counted, one per leadership: they never reach 2^32.
        let term = u32::try_from(term.0).unwrap_or(u32::MAX);
        let config = Config {
            cluster: self.options.cluster.clone(),
            new_id: new_id(),
            name: self.name.clone(),
            term,
            seed: RandomState::new().hash_one(term),
            settings: self.options.settings.clone(),
            balance_after_us: self.options.balances.then_some(BALANCE_AFTER_US),
        };
        let keys = contents.len();
        match Coordinator::open(self.now_us(), &contents, config) {
            Ok((machine, outputs)) => {
                let id = machine.cluster_id();
                tracing::info!(term, keys, store = %self.options.store, %id, "leading");
                say_unused(&self.options, &machine.overview().status.settings);
                self.hub.set_cluster_id(id);
                self.hub.greet_again();
                self.figures.leading();
                self.roles.lead(Leading {
                    epoch,
                    term,
                    machine,
                    wake_at_us: u64::MAX,
                    chronicle: Chronicle::default(),
                });
                self.execute(outputs);
                if let Some(leading) = self.roles.leading() {
                    self.guard.lead(leading.machine.users());
                }
                self.users_changed();
            }
            Err(reason) => self.refuse(reason),
        }
    }

    /// The store belongs to another cluster, or is too new: an operator must act.
    fn refuse(&mut self, reason: OpenError) {
        let store = self.options.store.to_string();
        // The store is released for a coordinator that can use it.
        let _ = self.orders.send(Order::Stop);
        self.end(Err(Error::Open { store, reason }));
    }

    /// coordinator::D2: ends a leadership. Its pending requests are refused, its calls dropped.
    fn lose(&mut self, epoch: u64, reason: &str) {
        if self.roles.epoch() != Some(epoch) {
            return;
        }
        if self.stops.is_none() {
            tracing::warn!("not leading any more: {reason}");
        }
        self.handle(Input::StoreFailed {
            reason: reason.to_owned(),
        });
        self.roles.stand_by(None);
        for asker in self.askers.take_all() {
            self.send_refusal(&asker, Refusal::NotLeader { leader: None });
        }
        for (request, call) in self.calls.take_all() {
            self.forget(request, &call.address);
        }
        self.roles.tell(Role::Standby(None));
    }

    fn follow(&mut self, leader: Option<String>) {
        if !self.options.store.has_standbys() {
            let store = self.options.store.to_string();
            let _ = self.orders.send(Order::Stop);
            return self.end(Err(Error::InUse { store, leader }));
        }
        // Its own name is from an earlier run: that process does not lead now.
        let leader = leader.filter(|leader| *leader != self.name);
        self.resigning.follows(leader.as_deref(), Instant::now());
        if self.roles.is_news(&Role::Standby(leader.clone())) {
            let shown = leader.as_deref().unwrap_or("not known yet");
            tracing::info!(leader = shown, "standing by");
        }
        self.roles.stand_by(leader.clone());
        self.roles.tell(Role::Standby(leader));
    }

    /// Gives the input to the state machine, and executes its outputs.
    fn handle(&mut self, input: Input) {
        let now_us = self.now_us();
        let Some(leading) = self.roles.leading_mut() else {
            return;
        };
        let outputs = leading.machine.handle(now_us, input);
        if leading.machine.may_judge() {
            self.resigning.judges();
        }
        self.execute(outputs);
        // The guard learns of the users in the store.
        if let Some(leading) = self.roles.leading() {
            self.guard.want(leading.machine.users());
        }
    }

    fn execute(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            if let Some(leading) = self.roles.leading_mut() {
                leading.chronicle.read(&output);
            }
            match output {
                Output::Answer { reply, answer } => self.answer(reply, &answer),
                Output::Ask {
                    call,
                    to,
                    address,
                    question,
                } => self.ask(call, to, address, &question),
                Output::Persist { token, batch } => {
                    if let Some(epoch) = self.roles.epoch() {
                        self.figures.committing(self.origin.elapsed());
                        // The keeper outlives the driver, or has reported why it ended.
                        let _ = self.orders.send(Order::Commit {
                            epoch,
                            token,
                            batch,
                        });
                    }
                }
                Output::Reopen { address } => self.hub.close_links(&address),
                Output::WakeAt { at_us } => {
                    if let Some(leading) = self.roles.leading_mut() {
                        leading.wake_at_us = at_us;
                    }
                }
                Output::Unfit {
                    asked,
                    answered,
                    is_denied,
                    resigns,
                } => {
                    self.complaints.unfit(asked, answered, is_denied);
                    if resigns {
                        self.resign(is_denied);
                    }
                }
            }
        }
    }

    /// The hub refused a server of a cluster with another id.
    fn foreign(&mut self, peer: SocketAddr, cluster_id: ClusterId) {
        self.handle(Input::Foreign { cluster_id });
        if self.mistaken().is_none() {
            let ours = self.hub.cluster_id();
            self.complaints.foreign(peer, cluster_id, ours);
        }
    }

    fn mistaken(&self) -> Option<String> {
        let leading = self.roles.leading()?;
        leading.machine.mistaken(self.now_us())
    }

    /// Leaves the leadership to a coordinator that may reach the servers.
    fn resign(&mut self, is_denied: bool) {
        let now = Instant::now();
        let may = is_denied || self.resigning.may(now);
        let Some(epoch) = self.roles.epoch().filter(|_| may) else {
            return;
        };
        if !self.options.store.has_standbys() {
            return;
        }
        self.resigning.resigned(now);
        let rest = RESIGN_REST;
        let _ = self.orders.send(Order::Resign { epoch, rest });
        self.lose(
            epoch,
            "the servers do not answer it, another coordinator may be better placed",
        );
    }

    fn tick(&mut self) {
        let now_us = self.now_us();
        if let Some(leading) = self.roles.leading_mut()
            && leading.wake_at_us <= now_us
        {
            leading.wake_at_us = u64::MAX;
            self.handle(Input::Tick);
        }
        if let Some(why) = self.mistaken() {
            self.complaints.mistaken(&why);
        }
        if let Some(leading) = self.roles.leading_mut()
            && now_us >= leading.chronicle.due_us
        {
            leading.chronicle.due_us = now_us + CHRONICLE_US;
            let recoveries = leading.machine.recovery_statuses();
            leading.chronicle.recover(&recoveries);
        }
        // Calls whose answer is not needed any more.
        for (request, call) in self.calls.take_old(now_us) {
            self.forget(request, &call.address);
        }
    }

    fn report(&mut self) -> Report {
        let health = self.members_health().unwrap_or_default();
        let role = self.roles.present();
        let machine = self.roles.leading().map(|leading| &leading.machine);
        let status = machine.map(Coordinator::overview);
        let unanswered = machine.map_or(0, Coordinator::unanswered);
        let waits = machine.map(Coordinator::waits).unwrap_or_default();
        let refused = Refused {
            malformed: self.hub.offences(),
            by_tls: self.hub.tls_failures(),
            logins: self.guard.failed_logins.load(Ordering::Relaxed),
            denied: self.guard.denied.load(Ordering::Relaxed),
        };
        let identity = self.options.identity.as_ref();
        let left_s = identity.and_then(|identity| identity.seconds_left());
        let certificate = left_s.map(figures::of_certificate);
        Report {
            metrics: self.figures.text(
                status.as_ref().map(|status| (status, &health, &waits[..])),
                &role,
                refused,
                unanswered,
                certificate,
            ),
            status: status.map(|status| (self.options.show)(&status, &health, &waits)),
            mistaken: self.mistaken(),
            store_waits: match role {
                Role::Leader => self.figures.store_waits(self.origin.elapsed()),
                Role::Standby(_) => Duration::ZERO,
            },
            role,
        }
    }
}

/// Logs the chosen settings that the cluster does not have: it keeps those of its creation.
fn say_unused(options: &Options, stored: &ClusterSettings) {
    for setting in &options.chosen {
        let (chosen, kept) = ((setting.read)(&options.settings), (setting.read)(stored));
        if chosen != kept {
            let option = setting.option;
            tracing::warn!(
                option,
                chosen,
                kept,
                "this option is for a new cluster: this one keeps the value of its creation"
            );
        }
    }
}

/// The sockets, the real address of the listening one, and the name under which others reach it.
fn listen(options: &Options) -> Result<(Hub<News>, SocketAddr, String), Error> {
    let mut hub_options = duramen_net::Options::new(
        duramen_wire::native::codec::Role::Coordinator,
        &options.cluster,
    );
    hub_options.limits.connections = CONNECTIONS_MAX;
    hub_options.token.clone_from(&options.token);
    hub_options.identity.clone_from(&options.identity);
    let mut hub = Hub::new(hub_options).map_err(system("make sockets"))?;
    let address = hub.listen(options.listen).map_err(|reason| Error::Listen {
        address: options.listen,
        reason,
    })?;
    let name = match &options.announce {
        Some(name) => name.clone(),
        None if address.ip().is_unspecified() => return Err(Error::Announce(address)),
        None => address.to_string(),
    };
    Ok((hub, address, name))
}

/// Id of a new cluster. Each `RandomState` has random keys of its own.
fn new_id() -> ClusterId {
    let half = || u128::from(RandomState::new().hash_one(0));
    ClusterId((half() << 64 | half()).max(1))
}
