//! The driver: the thread that owns the sockets and the state machine.

mod chronicle;
mod clients;
mod figures;
mod members;
mod resigning;
mod wiring;

use crate::guard::Guard;
use crate::keeper::{Keeper, LeaseEnd, Order};
use crate::news::{Leads, News, Report};
use crate::{Error, Options, Role, Running, StoreError, admin, certificates, system};
use chronicle::Chronicle;
use clients::Client;
use duramen_base::ids::{ClusterId, ServerId};
use duramen_cluster::coordinator::store::MetaStore;
use duramen_cluster::coordinator::{
    CallId, Config, Coordinator, Input, OpenError, Output, ReplyId,
};
use duramen_net::{ConnectionId, Event, Handle, Hub};
use duramen_wire::native::codec as net;
use duramen_wire::native::codec::Envelope;
use duramen_wire::native::message::{ClusterSettings, Refusal};
use figures::{Figures, Refused};
use members::Certificates;
use resigning::Resigning;
use std::collections::HashMap;
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
/// Age beyond which a call is dropped; the state machine gave it up long before.
const CALL_US_MAX: u64 = 30_000_000;
/// Time for which a leader that cannot judge does not campaign: several campaigns of the others.
const RESIGN_REST: Duration = Duration::from_secs(10);
/// Interval at which a lasting problem is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(10);
/// Interval at which the progress of recoveries is logged.
const CHRONICLE_US: u64 = 20_000;
/// Shares are made equal when nothing has changed for this long: members count their data every
/// 10 s, so it is known where all of it is.
const BALANCE_AFTER_US: u64 = 15_000_000;
/// Most connections: enough for a cluster of 10,000 servers and their tools.
const CONNECTIONS_MAX: usize = 20_000;

/// A leadership.
struct Leading {
    epoch: u64,
    term: u32,
    machine: Coordinator,
    wake_at_us: u64,
    chronicle: Chronicle,
}

/// The coordinator's current role.
enum State {
    /// The leader is not known yet, or the store can't be reached.
    Away {
        reason: String,
    },
    Standby {
        leader: Option<String>,
    },
    Leading(Box<Leading>),
}

/// A pending request: its connection, and the envelope of its answer.
struct Asker {
    connection: ConnectionId,
    envelope: Envelope,
}

/// An unanswered call of the state machine to a server.
struct Call {
    id: CallId,
    epoch: u64,
    address: String,
    since_us: u64,
}

/// Times of the last log lines about problems that may last.
#[derive(Default)]
struct LogTimes {
    /// It cannot judge which servers have crashed.
    unfit: Option<Instant>,
    /// A server refused an order.
    refused: Option<Instant>,
    /// A server belongs to another cluster.
    foreign: Option<Instant>,
    /// A client has no right to what it asked.
    denied: Option<Instant>,
}

/// Whether a problem is logged now: at most once in [`LOG_AGAIN`]. `last`: as in [`LogTimes`].
fn may_log(last: &mut Option<Instant>) -> bool {
    let may = last.is_none_or(|time| time.elapsed() >= LOG_AGAIN);
    if may {
        *last = Some(Instant::now());
    }
    may
}

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
    clients: HashMap<ConnectionId, Client>,
    certificates: Certificates,
    orders: Sender<Order>,
    lease_end: LeaseEnd,
    origin: Instant,
    state: State,
    askers: HashMap<ReplyId, Asker>,
    next_reply: u64,
    calls: HashMap<u64, Call>,
    next_request: u64,
    swept_us: u64,
    roles: Sender<Role>,
    told: Option<Role>,
    logged: LogTimes,
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
            clients: HashMap::new(),
            certificates: Certificates::default(),
            orders,
            lease_end,
            origin,
            state: State::Away {
                reason: "it has just begun".to_owned(),
            },
            askers: HashMap::new(),
            next_reply: 0,
            calls: HashMap::new(),
            next_request: 0,
            swept_us: 0,
            roles,
            told: None,
            logged: LogTimes::default(),
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
        let State::Leading(leading) = &self.state else {
            return match self.stops {
                Some(_) => Duration::from_millis(10),
                None => POLL_MAX,
            };
        };
        let next_us = leading.wake_at_us.min(self.lease_end.get());
        let left = Duration::from_micros(next_us.saturating_sub(self.now_us()));
        left.min(POLL_MAX)
    }

    /// coordinator::D2.
    fn check_lease(&mut self) {
        let State::Leading(leading) = &self.state else {
            return;
        };
        if self.now_us() >= self.lease_end.get() {
            let epoch = leading.epoch;
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
                    self.clients.insert(connection, Client::new(peer));
                } else if let Some(shown) = self.hub.peer_certificate(connection) {
                    self.certificates.accepted(connection, shown.not_after);
                }
            }
            Event::Closed { connection, reason } => {
                self.clients.remove(&connection);
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
                if self.epoch() == Some(epoch) {
                    self.handle(Input::Persisted { token }); // coordinator::D1
                }
            }
            News::Lost { epoch, reason } => self.lose(epoch, &reason),
            News::Follows(leader) => self.follow(leader),
            News::Away(reason) => self.away(reason),
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
        if let Some(epoch) = self.epoch() {
            self.lose(epoch, "the coordinator ends");
        }
        self.ended.get_or_insert(how);
    }

    fn epoch(&self) -> Option<u64> {
        match &self.state {
            State::Leading(leading) => Some(leading.epoch),
            _ => None,
        }
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
                self.say_unused(&machine.overview().status.settings);
                self.hub.set_cluster_id(id);
                self.hub.greet_again();
                self.figures.leading();
                self.state = State::Leading(Box::new(Leading {
                    epoch,
                    term,
                    machine,
                    wake_at_us: u64::MAX,
                    chronicle: Chronicle::default(),
                }));
                self.tell(Role::Leader);
                self.execute(outputs);
                if let State::Leading(leading) = &self.state {
                    self.guard.lead(leading.machine.users());
                }
                self.users_changed();
            }
            Err(reason) => self.refuse(reason),
        }
    }

    /// Logs the chosen settings that the cluster does not have: it keeps those of its creation.
    fn say_unused(&self, stored: &ClusterSettings) {
        for setting in &self.options.chosen {
            let (chosen, kept) = (
                (setting.read)(&self.options.settings),
                (setting.read)(stored),
            );
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

    /// The store belongs to another cluster, or is too new: an operator must act.
    fn refuse(&mut self, reason: OpenError) {
        let store = self.options.store.to_string();
        // The store is released for a coordinator that can use it.
        let _ = self.orders.send(Order::Stop);
        self.end(Err(Error::Open { store, reason }));
    }

    /// coordinator::D2: ends a leadership. Its pending requests are refused, its calls dropped.
    fn lose(&mut self, epoch: u64, reason: &str) {
        if self.epoch() != Some(epoch) {
            return;
        }
        if self.stops.is_none() {
            tracing::warn!("not leading any more: {reason}");
        }
        self.handle(Input::StoreFailed {
            reason: reason.to_owned(),
        });
        self.state = State::Standby { leader: None };
        for (_, asker) in std::mem::take(&mut self.askers) {
            self.send_refusal(&asker, Refusal::NotLeader { leader: None });
        }
        let calls = std::mem::take(&mut self.calls);
        for (request, call) in calls {
            self.forget(request, &call.address);
        }
        self.tell(Role::Standby(None));
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
        let is_news = self.told.as_ref() != Some(&Role::Standby(leader.clone()));
        if is_news {
            let shown = leader.as_deref().unwrap_or("not known yet");
            tracing::info!(leader = shown, "standing by");
        }
        self.state = State::Standby {
            leader: leader.clone(),
        };
        self.tell(Role::Standby(leader));
    }

    fn away(&mut self, reason: String) {
        if !matches!(&self.state, State::Away { reason: old } if *old == reason) {
            tracing::warn!("{reason}; asking again");
        }
        self.state = State::Away { reason };
    }

    fn tell(&mut self, role: Role) {
        if self.told.as_ref() != Some(&role) {
            self.told = Some(role.clone());
            // The receiver may be gone.
            let _ = self.roles.send(role);
        }
    }

    /// Gives the input to the state machine, and executes its outputs.
    fn handle(&mut self, input: Input) {
        let now_us = self.now_us();
        if let State::Leading(leading) = &mut self.state {
            let outputs = leading.machine.handle(now_us, input);
            if leading.machine.may_judge() {
                self.resigning.judges();
            }
            self.execute(outputs);
            self.note_users();
        }
    }

    /// Tells the guard of the users in the store.
    fn note_users(&self) {
        if let State::Leading(leading) = &self.state {
            self.guard.want(leading.machine.users());
        }
    }

    fn execute(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            if let State::Leading(leading) = &mut self.state {
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
                    if let Some(epoch) = self.epoch() {
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
                    if let State::Leading(leading) = &mut self.state {
                        leading.wake_at_us = at_us;
                    }
                }
                Output::Unfit {
                    asked,
                    answered,
                    is_denied,
                    resigns,
                } => {
                    self.say_unfit(asked, answered, is_denied);
                    if resigns {
                        self.resign(is_denied);
                    }
                }
            }
        }
    }

    fn say_unfit(&mut self, asked: usize, answered: usize, is_denied: bool) {
        if !may_log(&mut self.logged.unfit) {
            return;
        }
        if is_denied {
            tracing::error!(
                asked,
                "no server admits this coordinator: it has another token, cluster name or version than they"
            );
        } else {
            tracing::warn!(
                asked,
                answered,
                "fewer than half of the servers answer this coordinator: it calls none of them crashed"
            );
        }
    }

    /// The hub refused a server of a cluster with another id.
    fn foreign(&mut self, peer: SocketAddr, cluster_id: ClusterId) {
        self.handle(Input::Foreign { cluster_id });
        if self.mistaken().is_none() && may_log(&mut self.logged.foreign) {
            let ours = self.hub.cluster_id();
            tracing::warn!(
                %peer,
                "a server of the cluster with id {cluster_id} is refused: this is the cluster with id {ours}"
            );
        }
    }

    fn mistaken(&self) -> Option<String> {
        match &self.state {
            State::Leading(leading) => leading.machine.mistaken(self.now_us()),
            _ => None,
        }
    }

    fn say_mistaken(&mut self) {
        if let Some(why) = self.mistaken()
            && may_log(&mut self.logged.foreign)
        {
            tracing::error!("not ready: {why}");
        }
    }

    /// Leaves the leadership to a coordinator that may reach the servers.
    fn resign(&mut self, is_denied: bool) {
        let now = Instant::now();
        let may = is_denied || self.resigning.may(now);
        let Some(epoch) = self.epoch().filter(|_| may) else {
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
        if let State::Leading(leading) = &mut self.state
            && leading.wake_at_us <= now_us
        {
            leading.wake_at_us = u64::MAX;
            self.handle(Input::Tick);
        }
        self.say_mistaken();
        if let State::Leading(leading) = &mut self.state
            && now_us >= leading.chronicle.due_us
        {
            leading.chronicle.due_us = now_us + CHRONICLE_US;
            let recoveries = leading.machine.recovery_statuses();
            leading.chronicle.recover(&recoveries);
        }
        if now_us.saturating_sub(self.swept_us) > CALL_US_MAX / 2 {
            self.swept_us = now_us;
            self.sweep(now_us);
        }
    }

    /// Sender id of this leadership.
    fn me(&self) -> ServerId {
        match &self.state {
            State::Leading(leading) => ServerId::coordinator(leading.term),
            _ => ServerId::NONE,
        }
    }

    fn report(&mut self) -> Report {
        let health = self.members_health().unwrap_or_default();
        let (role, status) = match &self.state {
            State::Leading(leading) => (Role::Leader, Some(leading.machine.overview())),
            State::Standby { leader } => (Role::Standby(leader.clone()), None),
            State::Away { .. } => (Role::Standby(None), None),
        };
        let (unanswered, waits) = match &self.state {
            State::Leading(leading) => (leading.machine.unanswered(), leading.machine.waits()),
            _ => (0, Vec::new()),
        };
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
