//! Requests that arrive while the data is being loaded: requests that need no data are answered,
//! all others get an error that asks to wait. As long as a member of a cluster has not heard from
//! its coordinator, it obeys no command of a user that needs no password, except commands that may
//! give a password (users::V4).

use super::Turn;
use super::admit::{self, Admitted};
use crate::command::context::Context;
use crate::command::flag;
use crate::command::lookup::Resolved;
use crate::command::reply::Reply;
use crate::command::run;
use crate::command::spec::{Kind, Request, Spec};
use crate::command::store_access::Access;
use crate::command::turn::Ending;
use crate::state::Shared;
use crate::state::thread::Thread;
use crate::table::COMMANDS;
use std::time::Instant;

/// Runs the requests of all turns, as far as they can run.
pub(crate) fn run(shared: &Shared, thread: &mut Thread, turns: &mut [Turn<'_>]) {
    thread.begin_group(shared, Instant::now());
    for turn in turns {
        turn.replies.set_bytes_max(thread.output_bytes_max());
        while turn.executed < turn.requests.len() && !turn.state.halted {
            thread.timing.meter().begin_none();
            run_one(shared, thread, turn);
        }
    }
    thread.end_group(shared, Instant::now());
}

fn run_one(shared: &Shared, thread: &mut Thread, turn: &mut Turn<'_>) {
    let start = turn.out.len();
    let was_silent = admit::begin_silence(turn);
    let args = turn.requests.args(turn.executed, turn.input);
    let resolved = COMMANDS.resolve(&args);
    let admitted = match resolved {
        Resolved::Command(spec) if !runs_without_data(spec) && turn.client.is_authenticated() => {
            let text = format!(
                "LOADING Duramen is loading the dataset in memory: {}",
                shared.storage.progress()
            );
            turn.admission(shared, thread).refuse(Some(spec), &text)
        }
        Resolved::Command(spec)
            if !spec.has(flag::NO_AUTH)
                && turn.client.login().must_wait(shared.acl())
                && shared.config().is_member() =>
        {
            let text = "LOADING this member has not heard from its coordinator yet, and so does not \
                        know which users may do this; until then it needs a requirepass of its own";
            turn.admission(shared, thread).refuse(Some(spec), text)
        }
        _ => turn
            .admission(shared, thread)
            .admit(&resolved, &args, &[], Ok(())),
    };
    match admitted {
        Admitted::Run(permit) if runs_without_data(permit.spec()) => {
            thread.counters(shared).commands.add(1);
            let mut context = Context {
                request: Request {
                    spec: permit.spec(),
                    args,
                    hashes: &[],
                },
                commands: &COMMANDS,
                table: duramen_engine::TableId::DEFAULT,
                reply: Reply::new(turn.out, turn.client.protocol(), &mut turn.replies),
                client: turn.client,
                turn: &mut turn.state,
                shared,
                thread,
                locked: false,
            };
            let outcome = run::run(&mut context, permit, Access::NoStore);
            if outcome.is_shown_again() {
                return turn.show_again(turn.executed, outcome);
            }
        }
        // The client turned out to need no password: next time the request is refused with the
        // right reason.
        Admitted::Run(_) => return,
        Admitted::Answered => {}
        Admitted::Attack => turn.state.ending = Ending::CloseNow,
        Admitted::Later { until_ms } => {
            let outcome = turn.wait_until(until_ms);
            return turn.show_again(turn.executed, outcome);
        }
    }
    if was_silent && admit::end_silence(turn.client) {
        turn.silence(start);
    }
    turn.executed += 1;
    if turn.state.ending != Ending::Open || turn.has_enough_replies() {
        turn.state.halted = true;
    }
}

/// Whether a command works without data.
fn runs_without_data(spec: &Spec) -> bool {
    let plain =
        matches!(spec.kind(), Kind::Plain | Kind::Refused(_)) || spec.has(flag::WITHOUT_DATA);
    plain && spec.has(flag::LOADING)
}
