//! Sends servers the server list, their tablets, the users and the functions until they have
//! confirmed them.
//!
//! **Invariants**
//! - H1: only stored state is sent: the published list, users and functions, and tablets as they
//!   were when their batch was sealed.
//! - H2: one list, one set of tablets and one set of users are in flight per server; a newer one
//!   replaces an unsent one.

use super::revised::{self, PATIENCE_US, Revised, Revision, Revisions};
use super::{CallKind, Output, ReplyId, Server, State, Timer, refused};
use crate::membership::Members;
use duramen_base::ids::{ListVersion, ServerId, TabletsVersion};
use duramen_wire::native::message::{
    ClusterFunctions, ClusterUsers, CoordinatorAnswer, Enlisted, FromCoordinator, Refusal,
    ServerAnswer, ServerChange, ServerList, ServerListUpdate, Shared, Tablets,
};
use std::collections::VecDeque;

/// A failed or refused request is sent again after this time.
const REST_US: u64 = 200_000;
/// Steps that are kept: a server that is further behind gets the full list.
const STEPS_KEPT: usize = 64;
/// In a cluster of more servers than this, updates without urgency are sent to one after the other.
const MANY: usize = 256;
/// In such a cluster, one of these updates is sent per this time.
const LEISURE_US: u64 = 200;

/// The versions that a server was sent.
#[derive(Default)]
pub(super) struct Push {
    /// The confirmed version; 0 if it is unknown: then the server gets the full list.
    list_confirmed: ListVersion,
    is_list_told: bool,
    /// The tablets that it should have.
    tablets: Option<Tablets>,
    tablets_confirmed: TabletsVersion,
    are_tablets_told: bool,
    pub users: Revisions,
    pub functions: Revisions,
    /// The reason why the server does not understand the newest users that it was sent.
    pub users_fault: Option<String>,
    /// Whether the server has its id: before that, nothing is sent to it.
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

/// The list, users and functions that all servers are told, as they are stored.
#[derive(Default)]
pub(super) struct Pushes {
    /// The server list, and the steps to it.
    list: Members,
    steps: VecDeque<(ListVersion, Vec<ServerChange>)>,
    pub users: Revised<ClusterUsers>,
    pub functions: Revised<ClusterFunctions>,
}

impl Pushes {
    pub(super) fn list(&self) -> &Members {
        &self.list
    }

    /// The whole list. Older members drop the logs of servers that are not in it: so the store is
    /// asked (coordinator::K8).
    pub(super) fn whole_list(&self, state: &mut State) -> CoordinatorAnswer {
        state.ask_store();
        CoordinatorAnswer::Servers(self.list.list())
    }

    /// A new leader's first list.
    pub(super) fn adopt(&mut self, list: ServerList) {
        let full = ServerListUpdate::Full(list.into());
        self.list.apply(&full);
    }

    /// These users are stored: all servers get them.
    pub(super) fn publish_users(&mut self, state: &mut State, users: Shared<ClusterUsers>) {
        self.users.publish(users);
        self.kick_all(state);
    }

    /// These functions are stored: all servers get them.
    pub(super) fn publish_functions(
        &mut self,
        state: &mut State,
        functions: Shared<ClusterFunctions>,
    ) {
        self.functions.publish(functions);
        self.kick_all(state);
    }

    /// A server was sent users or functions of this revision.
    pub(super) fn revision_told<T: Revision>(
        &self,
        state: &mut State,
        id: ServerId,
        revision: u64,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        if revised::told::<T>(state, id, revision, answer) {
            self.kick(state, id);
        }
    }

    /// Answers an enlistment, from the stored state.
    pub(super) fn welcome(&self, state: &mut State, reply: ReplyId, id: ServerId) {
        let answer = if self.list.is_up(id) {
            CoordinatorAnswer::Enlisted(Box::new(Enlisted {
                server: id,
                list: self.list.list(),
                settings: state.meta.settings.clone(),
            }))
        } else {
            refused(Refusal::NotUp(id))
        };
        state.records.tell_at_once(Output::Answer { reply, answer });
        self.begin(state, id, self.list.version());
    }

    /// A step is stored: all servers get it.
    pub(super) fn publish(
        &mut self,
        state: &mut State,
        version: ListVersion,
        changes: Vec<ServerChange>,
    ) {
        let update = ServerListUpdate::Step { version, changes };
        self.list.apply(&update);
        let ServerListUpdate::Step { changes, .. } = update else {
            return;
        };
        let is_gone = |change: &ServerChange| matches!(change, ServerChange::Removed(_));
        let has_time = state.servers.up().len() > MANY && changes.iter().all(is_gone);
        self.steps.push_back((version, changes));
        if self.steps.len() > STEPS_KEPT {
            self.steps.pop_front();
        }
        if has_time {
            kick_in_turn(state);
        } else {
            self.kick_all(state);
        }
    }

    /// Sets the tablets of a server, as they are stored now.
    pub(super) fn set_tablets(&self, state: &mut State, id: ServerId, tablets: Tablets) {
        if let Some(server) = state.servers.get_mut(&id) {
            server.push.tablets = Some(tablets);
            self.kick(state, id);
        }
    }

    pub(super) fn kick_all(&self, state: &mut State) {
        for id in state.servers.up().to_vec() {
            self.kick(state, id);
        }
    }

    /// Sends a server what it has not confirmed, unless that is in flight.
    pub(super) fn kick(&self, state: &mut State, id: ServerId) {
        let newest = self.list.version();
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
                || push.users.confirmed() < users
                || push.functions.confirmed() < functions;
            lacks && push.is_welcome && server.is_up()
        };
        if !state.servers.get(&id).is_some_and(lacks) || !self.list.is_up(id) {
            return;
        }
        self.kick_list(state, id);
        kick_tablets(state, id);
        self.users.kick(state, id);
        self.functions.kick(state, id);
    }

    fn kick_list(&self, state: &mut State, id: ServerId) {
        let newest = self.list.version();
        let push = &state.servers[&id].push;
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
            None => ServerListUpdate::Full(self.list.list()),
        };
        let version = update.version();
        if let Some(server) = state.servers.get_mut(&id) {
            server.push.is_list_told = true;
        }
        let question = FromCoordinator::Servers(update);
        state.ask(id, question, CallKind::List(version), PATIENCE_US);
    }

    /// A server was sent its id, and the list of this version.
    pub(super) fn begin(&self, state: &mut State, id: ServerId, version: ListVersion) {
        if let Some(server) = state.servers.get_mut(&id) {
            server.push.is_welcome = true;
            server.push.list_confirmed = version;
        }
        self.kick(state, id);
    }

    /// A server reports the versions that it has.
    pub(super) fn confirmed(
        &self,
        state: &mut State,
        id: ServerId,
        list: ListVersion,
        tablets: TabletsVersion,
    ) -> CoordinatorAnswer {
        // A version that was never sent cannot be confirmed.
        let list_max = self.list.version();
        let tablets_max = state.tablets_version();
        if let Some(server) = state.servers.get_mut(&id) {
            let is_list_known = list <= list_max;
            server.push.list_confirmed = if is_list_known { list } else { ListVersion(0) };
            server.push.tablets_confirmed = tablets.min(tablets_max);
            state.tables.shares.confirmed(id, tablets.min(tablets_max));
        }
        self.kick(state, id);
        CoordinatorAnswer::Noted
    }

    pub(super) fn list_told(
        &self,
        state: &mut State,
        id: ServerId,
        version: ListVersion,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let Some(server) = state.servers.get_mut(&id) else {
            return;
        };
        server.push.is_list_told = false;
        match answer {
            Some((ServerAnswer::Confirmed { list_version, .. }, _)) if list_version >= version => {
                server.push.list_confirmed = list_version;
                self.kick(state, id);
            }
            Some((ServerAnswer::Confirmed { .. }, _)) if server.push.list_confirmed.0 > 0 => {
                // The server could not apply the step: it gets the full list next.
                server.push.list_confirmed = ListVersion(0);
                self.kick(state, id);
            }
            _ => state.asks.arm(state.now_us + REST_US, Timer::Push(id)),
        }
    }

    pub(super) fn tablets_told(
        &self,
        state: &mut State,
        id: ServerId,
        version: TabletsVersion,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let newest = state.tablets_version();
        let Some(server) = state.servers.get_mut(&id) else {
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
                state
                    .tables
                    .shares
                    .confirmed(id, tablets_version.min(newest));
                self.kick(state, id);
            }
            _ => state.asks.arm(state.now_us + REST_US, Timer::Push(id)),
        }
    }
}

/// Sends updates without urgency in turn: a server may keep the replicas of an unneeded log for a
/// moment.
fn kick_in_turn(state: &mut State) {
    let mut at_us = state.now_us;
    for id in state.servers.up().to_vec() {
        at_us += LEISURE_US;
        state.asks.arm(at_us, Timer::Push(id));
    }
}

fn kick_tablets(state: &mut State, id: ServerId) {
    let server = &state.servers[&id];
    let Some(tablets) = &server.push.tablets else {
        return;
    };
    let is_news = tablets.version > server.push.tablets_confirmed;
    if server.push.are_tablets_told || !is_news {
        return;
    }
    if server.quiet_until_us > state.now_us {
        state.asks.arm(server.quiet_until_us, Timer::Push(id)); // coordinator::K7
        return;
    }
    let version = tablets.version;
    let question = FromCoordinator::Tablets(tablets.clone());
    if let Some(server) = state.servers.get_mut(&id) {
        server.push.are_tablets_told = true;
    }
    state.ask(id, question, CallKind::Tablets(version), PATIENCE_US);
}
