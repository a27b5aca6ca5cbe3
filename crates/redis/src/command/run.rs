//! One command: it is run, counted, and its failure becomes its reply.

use super::context::{Context, Done, Failure, YIELDS};
use super::flag;
use super::outcome::{Abandoned, Outcome, Unfinished};
use super::permit::Permit;
use super::routing::NO_DATABASE;
use super::spec::{Kind, Run};
use super::store_access::Access;
use super::turn::Ending;
use super::{cold, pause, slow_timer};
use crate::state::client::gate;
use crate::state::db::DROPPED;
use duramen_base::planted::{Bug, has_bug};
use duramen_config::seldom;
use duramen_engine::{Error, Guard};
use std::time::Instant;

const TOO_MANY_EFFECTS: Failure = Failure::Text(
    "ERR the messages and events of the script need more memory than script-memory: nothing was done",
);

/// The lengths of the output and of the effects before a command, and the clock of one that is
/// timed by itself.
struct Begun {
    out: usize,
    effects: usize,
    timer: Option<Instant>,
}

impl Context<'_> {
    /// Runs the command of a client's request, counts it, and turns a failure into its reply.
    #[inline]
    pub(crate) fn run(&mut self, permit: Permit, mut access: Access<'_, '_>) -> Outcome {
        let mut begun = self.begin();
        let mut done = self.dispatch(permit, access.for_now(), &mut begun.effects);
        while self.is_outdated(&done) {
            self.take_back(&begun);
            if let Access::Guarded(guard) = &mut access {
                guard.pin_mut().renew();
            }
            done = self.begin_again();
            if done.is_ok() {
                done = self.dispatch(permit, access.for_now(), &mut begun.effects);
            }
        }
        let outcome = match done {
            _ if self.reply.is_exceeded() => self.overflowed(&begun),
            Ok(()) => Outcome::Replied,
            Err(failure) => self.end_without_reply(failure, &begun, &access),
        };
        if outcome.has_ended() {
            self.count(&begun);
        }
        outcome
    }

    /// As [`run`](Self::run), for a command of an EXEC. It does not wait for anything.
    ///
    /// # Errors
    /// Nothing of the EXEC is to be done.
    pub(crate) fn run_queued(
        &mut self,
        permit: Permit,
        guard: &mut Guard<'_>,
    ) -> Result<(), Abandoned> {
        let mut begun = self.begin();
        let mut ended = Ok(());
        match self.dispatch(permit, Access::Guarded(guard), &mut begun.effects) {
            Err(Failure::Unfinished(Unfinished::Abandons(abandoned))) => ended = Err(*abandoned),
            // Else EXEC itself fails, for lack of this reply (`overflowed`).
            Err(failure) if !self.reply.is_exceeded() => {
                if guard.draft().is_some()
                    && let Some(abandoned) =
                        Abandoned::of_step(&failure, self.request.spec.has(flag::WRITE))
                {
                    self.take_back(&begun);
                    return Err(abandoned);
                }
                if let Some(failure) = self.park(failure, &Access::Guarded(guard)) {
                    self.refuse(&begun, &failure);
                }
            }
            _ => {}
        }
        self.count(&begun);
        ended
    }

    #[inline]
    fn begin(&mut self) -> Begun {
        let begun = Begun {
            out: self.reply.len(),
            effects: self.client.effects.len(),
            timer: slow_timer::timer(self.request.spec, self.client, self.local),
        };
        let number = self.request.spec.number;
        self.client.last_command = number as u16;
        self.reply.begin();
        self.local.meter.begin(number);
        begun
    }

    /// Counts a command that has run.
    #[inline]
    fn count(&mut self, begun: &Begun) {
        self.local.meter.ran();
        if let Some(timer) = begun.timer {
            slow_timer::command_took(self, timer);
        }
    }

    /// The end of a request whose command has not replied.
    #[cold]
    fn end_without_reply(
        &mut self,
        failure: Failure,
        begun: &Begun,
        access: &Access<'_, '_>,
    ) -> Outcome {
        let outcome = match &failure {
            Failure::Unfinished(Unfinished::Waits) => {
                self.turn.ending = Ending::Blocked;
                Outcome::Blocked
            }
            Failure::Unfinished(Unfinished::Yields) => {
                cold::note_reported(self.request.spec, self.shared, self.local, self.client);
                Outcome::Yield
            }
            Failure::Unfinished(Unfinished::NeedsAlone) => Outcome::Retry { alone: true },
            failure if self.is_to_be_shown_again(failure) => Outcome::Retry { alone: false },
            _ => match self.park(failure, access) {
                Some(failure) => {
                    self.refuse(begun, &failure);
                    return Outcome::Failed;
                }
                None => Outcome::Cold,
            },
        };
        // It has not run: it is counted when it does.
        self.take_back(begun);
        outcome
    }

    /// Runs a command of a script, whose reply is in `out`, and counts it. An error becomes its
    /// reply.
    ///
    /// # Errors
    /// The whole script must run again: an entry is on flash, or the keys are moving. Or it has
    /// failed, and nothing of it is done: its messages and events need too much memory, or the
    /// command is one after which nothing of an EXEC is done ([`Abandoned::of_step`]).
    pub(crate) fn run_in_script(&mut self, permit: Permit, guard: &mut Guard<'_>) -> Done {
        let start = self.client.effects.len();
        self.local.meter.begin(self.request.spec.number);
        // That of the EXEC around it.
        let exceeded = self.reply.set_exceeded(false);
        let mut done = self.dispatch(permit, Access::Guarded(guard), &mut { start });
        if self.reply.set_exceeded(exceeded) {
            done = Err(self.reply.too_long());
        }
        self.client.effects.forget_replies(start);
        if self.client.effects.len() > start {
            let bytes_max = self.local.config(self.shared).scripts.memory_bytes;
            if self.client.effects.bytes() > bytes_max {
                return Err(TOO_MANY_EFFECTS);
            }
        }
        if let Err(failure) = done {
            let ends = match has_bug(Bug::ScriptsStopHalfway) {
                true => Abandoned::of(&failure),
                false => Abandoned::of_step(&failure, self.request.spec.has(flag::WRITE)), // drafted::R5
            };
            if ends.is_some() {
                return Err(failure);
            }
            self.fail(0, &failure);
        }
        self.local.meter.ran();
        Ok(())
    }

    /// keys::K1: true if nothing was done, because SWAPDB came between the lookup of the table and
    /// its use.
    #[inline]
    fn is_outdated(&self, done: &Done) -> bool {
        let is_told = |failure: &Failure| failure.is_moving();
        done.as_ref().is_err_and(is_told) && self.may_be_outdated()
    }

    /// The request begins after a wait, in which CLIENT PAUSE and SWAPDB may have run. It has done
    /// nothing yet.
    pub(crate) fn begin_again(&mut self) -> Done {
        if pause::has_begun(self) {
            return Err(YIELDS); // it is shown again, and then waits for the end of the pause
        }
        self.take_table_again()
    }

    /// keys::K1: takes the table that the client has selected by now, after a wait in which SWAPDB
    /// may have run. The client may have no right to that one, or to another one that the request
    /// names.
    pub(crate) fn take_table_again(&mut self) -> Done {
        self.table = self.client.table(self.shared);
        let checked = Permit::check(
            self.request.spec,
            &self.request.args,
            self.client,
            self.table,
            self.shared,
        );
        match checked {
            Ok(_) => {} // of the same request: it runs by the permit that it has
            Err(_) if has_bug(Bug::RightsAreNotCheckedAgain) => {}
            Err(refusal) => return Err((self.commands.hooks.refused_late)(self, refusal)),
        }
        Ok(())
    }

    /// `effects`: the number of those that stay if the command does not.
    #[inline]
    fn dispatch(
        &mut self,
        permit: Permit,
        mut access: Access<'_, '_>,
        effects: &mut usize,
    ) -> Done {
        if self.client.gate & gate::TRACKS != 0 {
            (self.commands.hooks.note_reads)(self, &mut access)?;
        }
        match (permit.run(), access) {
            (Run::Data(run) | Run::Atomic(run), Access::Guarded(guard)) => {
                guard.rewrites(self.request.spec.rewrites());
                if self.request.spec.has(flag::WRITE | flag::DENYOOM)
                    && let Some(draft) = guard.draft_mut()
                {
                    draft.note_command(self.request.spec.rewrites());
                }
                if self.request.spec.is_own()
                    && let Some(draft) = guard.draft_mut()
                {
                    draft.note_versions();
                }
                guard.pin_mut().set_counts_reads(self.counts_reads());
                guard
                    .pin_mut()
                    .set_decides(self.request.spec.has(flag::WRITE));
                let done = run(self, guard);
                if guard.notes().has_replaced() {
                    *effects = self.notify_replaced(guard.notes().take_replaced(), *effects);
                }
                done
            }
            (Run::Plain(run) | Run::Store(run), _) => run(self),
            (Run::Alone(run), access) => run(self, access),
            (Run::Refused(reason), _) => Err(self.request.spec.refusal(reason).into()),
            (Run::Data(_) | Run::Atomic(_), Access::Session(_) | Access::NoStore) => {
                unreachable!("{} runs under a guard", self.request.spec.name)
            }
        }
    }

    /// Whether its reads count for eviction.
    #[inline]
    fn counts_reads(&self) -> bool {
        let untouched =
            self.client.gate & gate::NO_TOUCH != 0 && !self.request.spec.has(flag::COUNTED);
        !untouched && !self.request.spec.has(flag::UNCOUNTED)
    }

    /// The request has not run: takes back its reply and its effects (effects::E2).
    fn take_back(&mut self, begun: &Begun) {
        self.reply.truncate(begun.out);
        self.client.effects.truncate(begun.effects);
    }

    /// The reply did not fit into the connection's output. A command that only reads gets an error.
    /// The effect of a write, or of a change of subscriptions, stays and cannot be reported, so the
    /// connection is closed, as Redis does at its output buffer limit.
    #[cold]
    fn overflowed(&mut self, begun: &Begun) -> Outcome {
        self.reply.set_exceeded(false);
        let changes =
            self.request.spec.has(flag::WRITE | flag::TRANSACTION) || self.reply.confirms();
        if self.request.spec.has(flag::READONLY) || !changes {
            self.client.effects.truncate(begun.effects);
            self.fail(begun.out, &self.reply.too_long());
            return Outcome::Failed;
        }
        self.reply.truncate(begun.out);
        self.turn.ending = Ending::CloseNow;
        self.local.counters(self.shared).output_closed.add(1);
        seldom!(
            warn,
            client = self.client.id(),
            peer = %self.client.record().peer,
            command = self.request.spec.name,
            limit_bytes = self.reply.bytes_max(),
            "closing a client whose reply does not fit (output-limit)"
        );
        Outcome::Failed
    }

    /// Whether the command failed without effect because this member no longer serves the keys, and
    /// the client still has patience.
    #[cold]
    fn is_to_be_shown_again(&mut self, failure: &Failure) -> bool {
        if !self.is_leaving(failure) || self.locked {
            return false;
        }
        if !self.may_be_half_done()
            && let Some(until_ms) = self.client.waits_for_owner()
        {
            self.turn.ending = Ending::Paused { until_ms };
            return true;
        }
        if self.client.in_multi() {
            self.client.end_transaction(); // EXEC has finally failed
        }
        false
    }

    /// Whether the keys begin to move to another server, or the cluster considers this server
    /// crashed (its life ends in a moment).
    fn is_leaving(&self, failure: &Failure) -> bool {
        self.shared.membership().is_some() && (failure.is_moving() || failure.is_disk_failed())
    }

    /// Whether this is a command on several keys, each handled separately. Clients take `TRYAGAIN`
    /// for "nothing was done".
    fn may_be_half_done(&self) -> bool {
        !self.request.spec.keys.is_one() && self.request.spec.kind() == Kind::Data
    }

    fn failure_text(&self, failure: &Failure) -> String {
        let is_missing = |error: &Error| matches!(error, Error::NoSuchTable(DROPPED));
        match failure {
            // The coordinator has not made the table, or this member has not heard of it yet.
            Failure::Engine(error) if is_missing(error) && self.shared.membership().is_some() => {
                NO_DATABASE.to_owned()
            }
            failure if !self.is_leaving(failure) => failure.text(),
            _ if self.may_be_half_done() => {
                "ERR the keys left this server while this ran: some of it may be done".to_string()
            }
            failure if failure.is_moving() => failure.text(),
            _ => "CLUSTERDOWN The cluster is down: it takes this server for crashed".to_string(),
        }
    }

    /// The request has failed: that is its reply.
    fn refuse(&mut self, begun: &Begun, failure: &Failure) {
        // Commands on several keys may have changed some before: that is told.
        self.client.effects.silence(begun.out);
        self.fail(begun.out, failure);
    }

    #[cold]
    fn fail(&mut self, start: usize, failure: &Failure) {
        self.reply.truncate(start);
        self.client.end_key_wait(self.shared, true);
        let text = self.failure_text(failure);
        self.local.note_error(self.shared, &text);
        self.reply.encoder().error(text);
        self.local
            .command(self.shared, self.request.spec.number)
            .failed
            .add(1);
    }
}
