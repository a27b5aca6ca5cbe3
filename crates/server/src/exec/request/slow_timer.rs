//! Times requests for the slow log: those that took longer than `slowlog-log-slower-than`.
//!
//! Commands that can be slow by nature are timed one by one. The others are timed by the group,
//! which costs one clock reading per group instead of two per request. If a whole group exceeds the
//! limit, its first request is logged, with a note. With a limit below [`ONE_BY_ONE_BELOW_US`]
//! every command is timed by itself.

use super::context::Context;
use super::spec::{REDACTED, Spec, flag};
use crate::exec::state::client::Client;
use crate::exec::state::local::Local;
use crate::heap;
use crate::shared::Shared;
use crate::shared::slow_log::{ENTRY_BYTES, Entry};
use duramen_wire::resp::Args;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Below this limit the time of a group is no measure for its requests.
const ONE_BY_ONE_BELOW_US: i64 = 1_000;
/// Maximum arguments of an entry, and maximum bytes of an argument; as in Redis.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;

/// Starts the clock for a command that is timed by itself.
#[inline]
pub(crate) fn timer(spec: &Spec, local: &Local) -> Option<Instant> {
    if spec.has(flag::TIMED) || local.slow_us() < ONE_BY_ONE_BELOW_US {
        return Some(Instant::now());
    }
    None
}

/// Logs a command that was timed by itself, if it was slow.
pub(crate) fn command_took(ctx: &mut Context<'_>, started: Instant) {
    let took_ns = started.elapsed().as_nanos() as u64;
    ctx.local.timed_ns += took_ns;
    let limit_us = ctx.local.slow_us();
    let took_us = took_ns / 1_000;
    if took_us < limit_us.unsigned_abs() || ctx.spec.has(flag::SKIP_SLOWLOG) {
        return;
    }
    let args = kept(Some(ctx.spec), &ctx.args);
    push(ctx.shared, ctx.local, ctx.client, args, took_us);
}

/// Logs a group of requests that took longer than the limit for one request.
pub(crate) fn group_took(
    shared: &Shared,
    local: &mut Local,
    client: &Client,
    (spec, first): (Option<&Spec>, &Args<'_>),
    took_ns: u64,
    requests: u64,
) {
    let limit_us = local.slow_us();
    let took_us = took_ns / 1_000;
    if limit_us < ONE_BY_ONE_BELOW_US || took_us < limit_us.unsigned_abs() {
        return;
    }
    let mut args = kept(spec, first);
    if requests > 1 {
        args.push(format!("(first of a batch of {requests} requests)").into_bytes());
    }
    push(shared, local, client, args, took_us);
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

fn push(shared: &Shared, local: &mut Local, client: &Client, args: Vec<Vec<u8>>, took_us: u64) {
    let len_max = local.config(shared).slowlog_max_len;
    let unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    let mut log = shared.commands.slow_log();
    let entry = Entry {
        id: log.next_id,
        unix_s,
        took_us,
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
