//! The times of requests: for the slow log, of those that took longer than
//! `slowlog-log-slower-than`, and for `LATENCY`, of those that took at least
//! `latency-monitor-threshold`.
//!
//! Commands that can be slow by nature are timed one by one, and so are transactions that have such
//! commands, or more keys than a group. The others are timed by the group, which costs one clock
//! reading per group instead of two per request. If a whole group exceeds the limit, its first
//! request is logged, with a note, and stands for the group in `LATENCY` too. With a limit of the
//! slow log below [`ONE_BY_ONE_BELOW_US`] every command is timed by itself.

use super::context::Context;
use super::flag;
use super::secrets::REDACTED;
use super::spec::Spec;
use crate::figures::latency::{self, Event};
use crate::figures::slow_log::{ENTRY_BYTES, Entry};
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::thread::Thread;
use duramen_config::heap;
use duramen_wire::resp::Args;
use std::time::{Duration, Instant};

/// Below this limit the time of a group is no measure for its requests.
const ONE_BY_ONE_BELOW_US: i64 = 1_000;
/// Maximum arguments of an entry, and maximum bytes of an argument; as in Redis.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;

/// Starts the clock for a command that is timed by itself.
#[inline]
pub(crate) fn timer(spec: &Spec, client: &Client, thread: &Thread) -> Option<Instant> {
    // If a client in MULTI runs a command that is timed by itself, the command is EXEC.
    let queue = client.transaction.open();
    let is_long = || queue.is_none_or(|queue| queue.is_long(client.transaction.watched().len()));
    if spec.has(flag::TIMED) && is_long() || thread.timing.slow_us() < ONE_BY_ONE_BELOW_US {
        return Some(Instant::now());
    }
    None
}

/// Logs a command that was timed by itself, if it was slow.
pub(crate) fn command_took(ctx: &mut Context<'_>, started: Instant) {
    let took = started.elapsed();
    ctx.thread.timing.note_timed(took);
    if took < ctx.thread.timing.noted_from() {
        return;
    }
    note_event(ctx.shared, ctx.thread, Some(ctx.request.spec), took);
    if is_slow(ctx.thread, took) && !ctx.request.spec.has(flag::SKIP_SLOWLOG) {
        let args = kept(Some(ctx.request.spec), &ctx.request.args);
        push(ctx.shared, ctx.thread, ctx.client, args, took);
    }
}

/// Logs a group of requests that took longer than the limit for one request.
pub(crate) fn group_took(
    shared: &Shared,
    thread: &mut Thread,
    client: &Client,
    spec: Option<&Spec>,
    first: &Args<'_>,
    took_ns: u64,
    requests: u64,
) {
    let took = Duration::from_nanos(took_ns);
    if took < thread.timing.noted_from() || thread.timing.slow_us() < ONE_BY_ONE_BELOW_US {
        return;
    }
    note_event(shared, thread, spec, took);
    if !is_slow(thread, took) {
        return;
    }
    let mut args = kept(spec, first);
    if requests > 1 {
        args.push(format!("(first of a batch of {requests} requests)").into_bytes());
    }
    push(shared, thread, client, args, took);
}

fn is_slow(thread: &Thread, took: Duration) -> bool {
    took.as_micros() as u64 >= thread.timing.slow_us().unsigned_abs()
}

/// Records an event that took so long, if `LATENCY` is to show it.
#[cold]
fn note_event(shared: &Shared, thread: &Thread, spec: Option<&Spec>, took: Duration) {
    let from = thread.timing.event_from();
    if took < from {
        return;
    }
    let is_fast = spec.is_some_and(|spec| spec.has(flag::FAST));
    let event = if is_fast {
        Event::FastCommand
    } else {
        Event::Command
    };
    shared.figures.latency().add(event, took);
    // A write waits for memory within its command, so the wait has been noted by now.
    let stalled = shared.data().map(|store| store.take_longest_stall());
    if let Some(stalled) = stalled.filter(|stalled| *stalled >= from) {
        shared.figures.latency().add(Event::Cleaner, stalled);
    }
}

fn kept(spec: Option<&Spec>, args: &Args<'_>) -> Vec<Vec<u8>> {
    let shown = if args.len() > ARGS_MAX {
        ARGS_MAX - 1
    } else {
        args.len()
    };
    let mut kept: Vec<Vec<u8>> = args
        .iter()
        .take(shown)
        .enumerate()
        .map(|(n, arg)| {
            if spec.is_some_and(|spec| spec.is_secret(n)) {
                return REDACTED.to_vec();
            }
            if arg.len() <= ARG_BYTES_MAX {
                return arg.to_vec();
            }
            let mut text = arg[..ARG_BYTES_MAX].to_vec();
            let more = arg.len() - ARG_BYTES_MAX;
            text.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
            text
        })
        .collect();
    if args.len() > shown {
        kept.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    kept
}

fn push(shared: &Shared, thread: &mut Thread, client: &Client, args: Vec<Vec<u8>>, took: Duration) {
    let len_max = thread.config(shared).slow.log_max_len;
    let mut log = shared.commands.slow_log();
    let entry = Entry {
        id: log.next_id,
        unix_s: latency::now_s(),
        took_us: took.as_micros() as u64,
        args,
        peer: client.record().shown_addresses().0,
        name: client.record().text().name,
    };
    log.next_id += 1;
    log.entries.push_front(entry);
    let removed = log.entries.len().saturating_sub(len_max);
    log.entries.truncate(len_max);
    drop(log);
    heap::freed(removed * ENTRY_BYTES);
}
