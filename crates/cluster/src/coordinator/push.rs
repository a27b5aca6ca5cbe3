//! Sends servers the server list, their tablets, the users and the functions until they have
//! confirmed them.
//!
//! **Invariants**
//! - H1: only stored state is sent: the published list, users and functions, and tablets as they
//!   were when their batch was sealed.
//! - H2: one list, one set of tablets and one set of users are in flight per server; a newer one
//!   replaces an unsent one.

use super::{CallKind, Coordinator, Server, Timer};
use duramen_base::ids::{ListVersion, ServerId, TabletsVersion};
use duramen_wire::native::message::{
    FromCoordinator, ServerAnswer, ServerChange, ServerListUpdate, Tablets,
};

/// A server without an answer is sent it again after this time.
pub(super) const PATIENCE_US: u64 = 1_000_000;
/// After a failed or refused request, after this time.
const REST_US: u64 = 200_000;
/// Steps that are kept: a server that is further behind gets the full list.
const STEPS_KEPT: usize = 64;
/// In a cluster of more servers than this, updates without urgency are sent to one after the other.
const MANY: usize = 256;
/// Then one of them per this time.
const LEISURE_US: u64 = 200;

/// The versions that a server was sent.
#[derive(Default)]
pub(super) struct Push {
    /// 0: unknown, it gets the full list.
    list_confirmed: ListVersion,
    is_list_told: bool,
    /// The tablets that it should have.
    tablets: Option<Tablets>,
    tablets_confirmed: TabletsVersion,
    are_tablets_told: bool,
    pub users: Revisions,
    pub functions: Revisions,
    /// Why the server does not understand the newest users that it was told.
    pub users_fault: Option<String>,
    /// It has its id: until then nothing is sent to it.
    pub is_welcome: bool,
    /// When it last answered a check.
    pub check_passed_us: Option<u64>,
}

impl Push {
    /// Whether the server has not confirmed a list of tablets of this version.
    pub(super) fn lacks(&self, version: TabletsVersion) -> bool {
        self.tablets_confirmed < version
    }
}

/// The revisions of the users, or of the functions, that a server was sent.
#[derive(Default)]
pub(super) struct Revisions {
    /// 0: unknown, or it has its own.
    pub confirmed: u64,
    is_told: bool,
}

impl Revisions {
    /// Whether this revision is to be sent now; then it is in flight.
    pub fn begin(&mut self, revision: u64) -> bool {
        let begins = !self.is_told && self.confirmed < revision;
        self.is_told |= begins;
        begins
    }

    /// The revision in flight was answered, or no answer came. `confirmed`: the server has it.
    pub fn end(&mut self, confirmed: Option<u64>) {
        self.is_told = false;
        self.confirmed = self.confirmed.max(confirmed.unwrap_or_default());
    }
}

impl Coordinator {
    /// A step is stored: all servers get it.
    pub(super) fn publish(&mut self, version: ListVersion, changes: Vec<ServerChange>) {
        let update = ServerListUpdate::Step { version, changes };
        self.published.apply(&update);
        let ServerListUpdate::Step { changes, .. } = update else {
            return;
        };
        let is_gone = |change: &ServerChange| matches!(change, ServerChange::Removed(_));
        let has_time = self.state.servers.up().len() > MANY && changes.iter().all(is_gone);
        self.steps.push_back((version, changes));
        if self.steps.len() > STEPS_KEPT {
            self.steps.pop_front();
        }
        if has_time {
            self.kick_in_turn();
        } else {
            self.kick_all();
        }
    }

    /// Servers may keep replicas of a log that is not needed any more for a moment.
    fn kick_in_turn(&mut self) {
        let mut at_us = self.state.now_us;
        for id in self.state.servers.up().to_vec() {
            at_us += LEISURE_US;
            self.state.asks.arm(at_us, Timer::Push(id));
        }
    }

    /// Its tablets, as they are stored now.
    pub(super) fn set_tablets(&mut self, id: ServerId, tablets: Tablets) {
        if let Some(server) = self.state.servers.get_mut(&id) {
            server.push.tablets = Some(tablets);
            self.kick(id);
        }
    }

    pub(super) fn kick_all(&mut self) {
        for id in self.state.servers.up().to_vec() {
            self.kick(id);
        }
    }

    /// Sends a server what it has not confirmed, unless that is in flight.
    pub(super) fn kick(&mut self, id: ServerId) {
        let newest = self.published.version();
        let users = self.users.published().revision;
        let functions = self.functions.published().revision;
        let lacks = |server: &Server| {
            let push = &server.push;
            let told = push
                .tablets
                .as_ref()
                .map_or(push.tablets_confirmed, |t| t.version);
            let lacks = push.list_confirmed < newest
                || push.tablets_confirmed < told
                || push.users.confirmed < users
                || push.functions.confirmed < functions;
            lacks && push.is_welcome && server.is_up()
        };
        if !self.state.servers.get(&id).is_some_and(lacks) || !self.published.is_up(id) {
            return;
        }
        self.kick_list(id);
        self.kick_tablets(id);
        self.kick_users(id);
        self.kick_functions(id);
    }

    fn kick_list(&mut self, id: ServerId) {
        let newest = self.published.version();
        let push = &self.state.servers[&id].push;
        if push.is_list_told || push.list_confirmed >= newest {
            return;
        }
        let next = ListVersion(push.list_confirmed.0 + 1);
        let step = self
            .steps
            .iter()
            .find(|(version, _)| *version == next && next.0 > 1);
        let update = match step {
            Some((version, changes)) => ServerListUpdate::Step {
                version: *version,
                changes: changes.clone(),
            },
            None => ServerListUpdate::Full(self.published.list()),
        };
        let version = update.version();
        if let Some(server) = self.state.servers.get_mut(&id) {
            server.push.is_list_told = true;
        }
        let question = FromCoordinator::Servers(update);
        self.state
            .ask(id, question, CallKind::List(version), PATIENCE_US);
    }

    fn kick_tablets(&mut self, id: ServerId) {
        let server = &self.state.servers[&id];
        let Some(tablets) = &server.push.tablets else {
            return;
        };
        let is_news = tablets.version > server.push.tablets_confirmed;
        if server.push.are_tablets_told || !is_news {
            return;
        }
        if server.quiet_until_us > self.state.now_us {
            self.state.asks.arm(server.quiet_until_us, Timer::Push(id)); // coordinator::K7
            return;
        }
        let version = tablets.version;
        let question = FromCoordinator::Tablets(tablets.clone());
        if let Some(server) = self.state.servers.get_mut(&id) {
            server.push.are_tablets_told = true;
        }
        self.state
            .ask(id, question, CallKind::Tablets(version), PATIENCE_US);
    }

    /// It has been told its id, and the list of this version.
    pub(super) fn set_welcome(&mut self, id: ServerId, version: ListVersion) {
        if let Some(server) = self.state.servers.get_mut(&id) {
            server.push.is_welcome = true;
            server.push.list_confirmed = version;
        }
        self.kick(id);
    }

    /// The versions that a server has confirmed.
    pub(super) fn confirmed(&mut self, id: ServerId, list: ListVersion, tablets: TabletsVersion) {
        // A version that was never sent cannot be confirmed.
        let list_max = self.published.version();
        let tablets_max = self.state.tablets_version();
        if let Some(server) = self.state.servers.get_mut(&id) {
            let is_list_known = list <= list_max;
            server.push.list_confirmed = if is_list_known { list } else { ListVersion(0) };
            server.push.tablets_confirmed = tablets.min(tablets_max);
            self.state
                .tables
                .shares
                .confirmed(id, tablets.min(tablets_max));
        }
        self.kick(id);
    }

    pub(super) fn list_told(
        &mut self,
        id: ServerId,
        version: ListVersion,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let Some(server) = self.state.servers.get_mut(&id) else {
            return;
        };
        server.push.is_list_told = false;
        match answer {
            Some((ServerAnswer::Confirmed { list_version, .. }, _)) if list_version >= version => {
                server.push.list_confirmed = list_version;
                self.kick(id);
            }
            Some((ServerAnswer::Confirmed { .. }, _)) if server.push.list_confirmed.0 > 0 => {
                // It could not apply the step: the full list is next.
                server.push.list_confirmed = ListVersion(0);
                self.kick(id);
            }
            _ => self
                .state
                .asks
                .arm(self.state.now_us + REST_US, Timer::Push(id)),
        }
    }

    pub(super) fn tablets_told(
        &mut self,
        id: ServerId,
        version: TabletsVersion,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let newest = self.state.tablets_version();
        let Some(server) = self.state.servers.get_mut(&id) else {
            return;
        };
        server.push.are_tablets_told = false;
        match answer {
            Some((
                ServerAnswer::Confirmed {
                    tablets_version, ..
                },
                _,
            )) if tablets_version >= version => {
                server.push.tablets_confirmed = tablets_version;
                self.state
                    .tables
                    .shares
                    .confirmed(id, tablets_version.min(newest));
                self.kick(id);
            }
            _ => self
                .state
                .asks
                .arm(self.state.now_us + REST_US, Timer::Push(id)),
        }
    }
}
