//! One request of a group: what it needs, whether it may run here and now, and its run.

use super::admit::{self, Admitted};
use super::{APPENDED_BYTES_PER_TURN, Turn};
use crate::command::context::Context;
use crate::command::flag;
use crate::command::key::Key;
use crate::command::lookup::Resolved;
use crate::command::outcome::Outcome;
use crate::command::permit::Permit;
use crate::command::reply::Reply;
use crate::command::routing::{self, NotServed};
use crate::command::spec::{Kind, Request, Spec};
use crate::command::store_access::Access;
use crate::command::turn::Ending;
use crate::command::{KEYS_KEPT, databases, locks, run};
use crate::membership::Membership;
use crate::state::Shared;
use crate::state::client::{Client, gate};
use crate::state::shared::commands::global;
use crate::state::thread::Thread;
use crate::table::COMMANDS;
use crate::tracking::commands::{end_caching, origin};
use duramen_engine::{Guard, KeyHash};
use duramen_wire::resp::Requests;

/// A request of the group.
pub(super) struct Planned {
    pub(super) turn: u32,
    pub(super) request: u32,
    /// Start of the request's hashes in those of the group. They end where those of the next
    /// request start.
    pub(super) hashes: u32,
    pub(super) resolved: Resolved,
}

/// The access to the store that a request needs before it can run.
pub(super) enum StoreAccess {
    Nothing,
    /// Its own guard.
    Guard,
    /// No guard.
    Session,
}

/// State that is passed to all steps of a request.
pub(super) struct Environment<'a> {
    pub(super) shared: &'a Shared,
    pub(super) thread: &'a mut Thread,
    /// The state of a member of a cluster; `None`: the server is none, and serves every key.
    pub(super) member: Option<&'a Membership>,
}

pub(super) fn settle_one(env: &mut Environment<'_>, guard: &mut Guard<'_>, client: &mut Client) {
    if guard.order().has_position() {
        let level = env.thread.level_of(env.shared, client);
        client.wait.settle(guard, level);
    }
}

pub(super) fn needs(
    resolved: &Resolved,
    client: &Client,
    keys: usize,
    thread: &Thread,
) -> StoreAccess {
    let Resolved::Command(spec) = resolved else {
        return StoreAccess::Nothing;
    };
    if client.in_multi() && !spec.has(flag::NEVER_QUEUED) {
        return StoreAccess::Nothing;
    }
    match spec.kind() {
        // Such commands lock their keys, because nothing may happen between the lookup and the
        // change (cold::C1).
        Kind::Data if keys != 1 && thread.has_tier() && spec.changes_many() => StoreAccess::Guard,
        Kind::Data | Kind::Plain | Kind::Refused(_) => StoreAccess::Nothing,
        // A single key needs no lock.
        Kind::Atomic if keys == 1 => StoreAccess::Nothing,
        Kind::Atomic => StoreAccess::Guard,
        Kind::Store | Kind::Alone => StoreAccess::Session,
    }
}

/// Whether the request needs no data.
#[inline]
pub(super) fn is_plain(resolved: &Resolved) -> bool {
    matches!(resolved, Resolved::Command(spec) if spec.kind() == Kind::Plain)
}

pub(super) struct Step<'p> {
    pub(super) planned: &'p Planned,
    pub(super) hashes: &'p [KeyHash],
}

impl Step<'_> {
    #[inline]
    pub(super) fn run(
        &self,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
        ran: &mut u64,
    ) -> Outcome {
        turn.executed = self.planned.request as usize + 1;
        let outcome = if let Some(permit) = self.permit_at_once(env, turn) {
            let spec = permit.spec();
            if env.member.is_some()
                && let Err(outcome) = self.is_here(spec, env, turn, &mut access)
            {
                return outcome;
            }
            let has_own_guard = matches!(access, Access::Session(_));
            let outcome = self.execute(permit, env, turn, access, false);
            if has_own_guard {
                // Databases may have been exchanged since the gate was looked at.
                databases::observe(env.shared, env.thread, turn.client, spec);
            }
            outcome
        } else if let Some(spec) = self.queues_at_once(env, turn) {
            self.queue(spec, env, turn);
            Outcome::Replied
        } else {
            self.run_slowly(env, turn, access)
        };
        if turn.state.ending != Ending::Open
            || turn.has_enough_replies()
            || turn.state.appended_bytes > APPENDED_BYTES_PER_TURN
        {
            turn.state.halted = true;
        }
        if outcome.is_shown_again() {
            self.show_again(turn, outcome);
        } else {
            *ran += 1;
            let client = turn.client.id();
            turn.client.patience.end_put_off();
            turn.client.parking.forget_kept();
            env.thread.scripts.request_ended(env.shared, client);
        }
        outcome
    }

    /// The permit of a request that nothing but rights can stop; `None`: `run_slowly` decides.
    #[inline]
    fn permit_at_once(&self, env: &Environment<'_>, turn: &Turn<'_>) -> Option<Permit> {
        let Resolved::Command(spec) = self.planned.resolved else {
            return None;
        };
        let shared = env.shared.commands.gate();
        // Reads of reserved keys do not wait.
        let shared = match spec.has(flag::WRITE) {
            true => shared,
            false => shared & !global::RESERVED,
        };
        let stops = turn.client.gate() & !gate::RESTRICTED | shared;
        if stops != 0 || spec.is_refused() || spec.is_audited(env.thread.audited()) {
            return None;
        }
        Permit::unrestricted(spec, turn.client).or_else(|| {
            let requests = &turn.requests;
            let args = requests.args(self.planned.request as usize, turn.input);
            Permit::of_one_key(spec, &args, turn.client)
        })
    }

    /// The command of a request of a client in MULTI that nothing can stop from being queued;
    /// `None`: `run_slowly` decides.
    #[inline]
    fn queues_at_once(&self, env: &Environment<'_>, turn: &Turn<'_>) -> Option<&'static Spec> {
        let Resolved::Command(spec) = self.planned.resolved else {
            return None;
        };
        let is_queue = turn.client.gate() == gate::MULTI && env.shared.commands.gate() == 0;
        let stops = flag::NEVER_QUEUED | flag::NO_MULTI;
        let is_queued = is_queue && env.member.is_none() && !spec.has(stops) && !spec.is_refused();
        is_queued.then_some(spec)
    }

    fn queue(&self, spec: &'static Spec, env: &mut Environment<'_>, turn: &mut Turn<'_>) {
        let request = self.request(spec, turn.requests, turn.input);
        env.thread.timing.meter().begin_none();
        turn.client.keep_flushing(None);
        turn.admission(env.shared, env.thread).enqueue(&request);
    }

    /// The request, whose command is known.
    #[inline]
    pub(super) fn request<'t>(
        &'t self,
        spec: &'static Spec,
        requests: &'t Requests,
        input: &'t [u8],
    ) -> Request<'t> {
        Request {
            spec,
            args: requests.args(self.planned.request as usize, input),
            hashes: self.hashes,
        }
    }

    /// Notes that the request has not run, or not to its end.
    pub(super) fn show_again(&self, turn: &mut Turn<'_>, outcome: Outcome) {
        turn.show_again(self.planned.request as usize, outcome);
    }

    /// Whether the keys are here, by the current view (membership::M1).
    #[inline]
    fn place(
        &self,
        spec: &'static Spec,
        member: &Membership,
        env: &mut Environment<'_>,
        turn: &Turn<'_>,
        access: &mut Access<'_, '_>,
    ) -> Result<(), NotServed> {
        if !spec.has_keys() {
            return Ok(());
        }
        let table = routing::table_of(spec, turn.client.table(env.shared), env.shared);
        let has_tls = turn.client.has_tls();
        let request = self.request(spec, turn.requests, turn.input);
        let mut guard = access.guard();
        let view = match &mut guard {
            Some(guard) => env.thread.view(member, guard),
            // The request checks its place again under its guard.
            None => env.thread.view_to_tell(member),
        };
        if let [hash] = self.hashes {
            let at = match spec.keys.place().first {
                0 => request.key_positions().next().unwrap_or_default(),
                first => first.into(),
            };
            let key = Key {
                table,
                hash: *hash,
                bytes: request.arg(at),
            };
            return routing::one(view, key, has_tls);
        }
        routing::find(view, has_tls, guard.as_deref(), table, &request)
    }

    /// The permit of a request that ran and must run again alone; `None`: it is refused now.
    #[cold]
    pub(super) fn permit_again(
        &self,
        spec: &'static Spec,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
    ) -> Option<Permit> {
        let request = self.request(spec, turn.requests, turn.input);
        let table = turn.client.table(env.shared);
        match Permit::check(spec, &request.args, turn.client, table, env.shared) {
            Ok(permit) => Some(permit),
            Err(refusal) => {
                let mut admission = turn.admission(env.shared, env.thread);
                admission.deny(&request, refusal);
                None
            }
        }
    }

    /// Fails with the outcome of the request if it does not run here. This function is kept off the
    /// path of a single server.
    #[inline(never)]
    pub(super) fn is_here(
        &self,
        spec: &'static Spec,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        access: &mut Access<'_, '_>,
    ) -> Result<(), Outcome> {
        let Some(member) = env.member else {
            return Ok(());
        };
        let placed = self.place(spec, member, env, turn, access);
        placed.map_err(|not_served| self.send_away(spec, env, turn, not_served))
    }

    #[cold]
    fn send_away(
        &self,
        spec: &'static Spec,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        not_served: NotServed,
    ) -> Outcome {
        let text: &str = match &not_served {
            NotServed::NotNow(text) => match turn.client.patience.waits_for_owner() {
                Some(until_ms) => {
                    let outcome = turn.wait_until(until_ms);
                    self.show_again(turn, outcome);
                    return outcome;
                }
                None => text,
            },
            NotServed::Refused(text) => text,
        };
        turn.client.patience.end_wait_for_owner();
        let mut admission = turn.admission(env.shared, env.thread);
        admission.refuse(Some(spec), text);
        Outcome::Failed
    }

    /// Runs a request that a check may stop.
    #[cold]
    fn run_slowly(
        &self,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
    ) -> Outcome {
        let start = turn.out.len();
        env.thread.timing.meter().begin_none();
        let place = match (self.planned.resolved, env.member) {
            (Resolved::Command(spec), Some(member)) => {
                self.place(spec, member, env, turn, &mut access)
            }
            _ => Ok(()),
        };
        let was_silent = admit::begin_silence(turn);
        let mut is_message = false;
        let args = turn
            .requests
            .args(self.planned.request as usize, turn.input);
        let mut admission = turn.admission(env.shared, env.thread);
        let outcome = match admission.admit(&self.planned.resolved, &args, self.hashes, place) {
            Admitted::Run(permit) => {
                let spec = permit.spec();
                let outcome = self.execute(permit, env, turn, access, false);
                if outcome.is_shown_again() {
                    return outcome; // the reply is made silent when the request runs to its end
                }
                databases::observe(env.shared, env.thread, turn.client, spec);
                is_message = admit::replies_by_messages(spec) && turn.out.get(start) != Some(&b'-');
                outcome
            }
            Admitted::Answered => {
                turn.client.keep_flushing(None);
                end_caching(turn.client, self.planned.resolved.spec());
                Outcome::Replied
            }
            Admitted::Attack => {
                turn.state.ending = Ending::CloseNow;
                Outcome::Failed
            }
            Admitted::Later { until_ms } => return turn.wait_until(until_ms),
        };
        turn.state.halted |= databases::log_fails(env.shared);
        if was_silent && admit::end_silence(turn.client) && !is_message {
            turn.silence(start);
        }
        outcome
    }

    #[inline]
    pub(super) fn execute(
        &self,
        permit: Permit,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        access: Access<'_, '_>,
        alone: bool,
    ) -> Outcome {
        match self.hashes.is_empty() && permit.spec().has_keys() {
            true => self.execute_hashed(permit, env, turn, access, alone),
            false => self.execute_with(self.hashes, permit, env, turn, access, alone),
        }
    }

    /// As [`execute`](Self::execute), for a request of more keys than a group holds.
    #[cold]
    fn execute_hashed(
        &self,
        permit: Permit,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
        alone: bool,
    ) -> Outcome {
        let mut hashes = std::mem::take(&mut env.thread.buffers.hashes);
        if let Some(guard) = access.guard() {
            let request = self.request(permit.spec(), turn.requests, turn.input);
            let table = turn.client.table(env.shared);
            locks::hash_keys(guard, table, &request, &mut hashes);
        }
        let outcome = self.execute_with(&hashes, permit, env, turn, access, alone);
        hashes.clear();
        hashes.shrink_to(KEYS_KEPT);
        env.thread.buffers.hashes = hashes;
        outcome
    }

    #[inline]
    fn execute_with(
        &self,
        hashes: &[KeyHash],
        permit: Permit,
        env: &mut Environment<'_>,
        turn: &mut Turn<'_>,
        mut access: Access<'_, '_>,
        alone: bool,
    ) -> Outcome {
        let spec = permit.spec();
        let appended = access.appended_bytes();
        let mut context = Context {
            request: Request {
                hashes,
                ..self.request(spec, turn.requests, turn.input)
            },
            commands: &COMMANDS,
            table: turn.client.table(env.shared),
            reply: Reply::new(turn.out, turn.client.protocol(), &mut turn.replies),
            client: turn.client,
            turn: &mut turn.state,
            shared: env.shared,
            thread: env.thread,
            locked: alone,
        };
        let tracks = context.client.gate() & gate::TRACKS != 0;
        if tracks && let Some(origin) = origin(context.client) {
            access.set_origin(origin);
        }
        let outcome = run::run(&mut context, permit, access.for_now());
        if tracks {
            access.set_origin(0); // others use the session too
        }
        turn.state.appended_bytes += access.appended_bytes() - appended;
        if let Some(writes) = access.typed_writes() {
            env.thread.wake_waiters(env.shared, writes);
            // As in Redis, the woken clients look before the requests behind this one run.
            turn.state.halted |= env.thread.has_woken();
        }
        // Other clients of the thread have waited meanwhile too: it is their turn.
        turn.state.halted |= access.take_waited();
        if env.member.is_some() {
            Self::executed_by_member(spec, turn, outcome);
        }
        if tracks && !outcome.is_shown_again() {
            end_caching(turn.client, Some(spec));
        }
        outcome
    }

    /// Makes the reply wait for the member's lease (membership::M2), and ends the waits of a
    /// request that has run.
    #[inline(never)]
    fn executed_by_member(spec: &Spec, turn: &mut Turn<'_>, outcome: Outcome) {
        turn.client.wait.lease(routing::tells_of_data(spec));
        if outcome == Outcome::Blocked || !outcome.is_shown_again() {
            turn.client.patience.end_wait_for_owner();
            turn.client.keep_flushing(None);
        }
    }
}
