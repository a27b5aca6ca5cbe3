//! The slow log: requests that took longer than `slowlog-log-slower-than`.
//!
//! Commands that can be slow by nature are timed one by one. The others are timed by the group,
//! which costs one clock reading per group instead of two per request. If a whole group exceeds the
//! limit, its first request is logged, with a note. With a limit below [`ONE_BY_ONE_BELOW_US`]
//! every command is timed by itself.

use super::client::Client;
use super::context::{Context, Done, Failure};
use super::local::Local;
use super::table::{self, REDACTED, Resolved, Spec, flag};
use crate::heap;
use crate::shared::Shared;
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Below this limit the time of a group is no measure for its requests.
const ONE_BY_ONE_BELOW_US: i64 = 1_000;
/// Maximum arguments of an entry, and maximum bytes of an argument; as in Redis.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;

#[derive(Debug)]
struct Entry {
    id: i64,
    unix_s: u64,
    took_us: u64,
    args: Vec<Vec<u8>>,
    peer: String,
    name: String,
}

/// The newest entries, newest first.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    next_id: i64,
    entries: VecDeque<Entry>,
}

fn log(shared: &Shared) -> MutexGuard<'_, SlowLog> {
    shared
        .commands
        .slow_log
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Starts the clock for a command that is timed by itself.
#[inline]
pub(super) fn timer(spec: &Spec, local: &Local) -> Option<Instant> {
    if spec.has(flag::TIMED) || local.slow_us() < ONE_BY_ONE_BELOW_US {
        return Some(Instant::now());
    }
    None
}

/// Logs a command that was timed by itself, if it was slow.
pub(super) fn command_took(ctx: &mut Context<'_>, started: Instant) {
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
pub(super) fn group_took(
    shared: &Shared,
    local: &mut Local,
    client: &Client,
    first: &Args<'_>,
    took_ns: u64,
    requests: u64,
) {
    let limit_us = local.slow_us();
    let took_us = took_ns / 1_000;
    if limit_us < ONE_BY_ONE_BELOW_US || took_us < limit_us.unsigned_abs() {
        return;
    }
    let spec = match table::resolve(first) {
        Resolved::Command(spec) | Resolved::Arity(spec) => Some(spec),
        _ => None,
    };
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
    let mut log = log(shared);
    let entry = Entry {
        id: log.next_id,
        unix_s,
        took_us,
        args,
        peer: client.record().peer.to_string(),
        name: client.record().text().name,
    };
    log.next_id += 1;
    log.entries.push_front(entry);
    let removed = log.entries.len().saturating_sub(len_max);
    log.entries.truncate(len_max);
    drop(log);
    heap::freed(removed * ENTRY_BYTES);
}

pub(super) fn get(ctx: &mut Context<'_>) -> Done {
    if ctx.args.len() > 3 {
        return Err(Failure::Text(
            "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.",
        ));
    }
    let count = match ctx.args.get(2) {
        None => 10,
        Some(text) => {
            let count = parse_integer(text).filter(|count| *count >= -1);
            let wrong = Failure::Text("ERR count should be greater than or equal to -1");
            let count = count.ok_or(wrong)?;
            usize::try_from(count).unwrap_or(usize::MAX)
        }
    };
    let log = log(ctx.shared);
    ctx.reply().array(count.min(log.entries.len()));
    for entry in log.entries.iter().take(count) {
        ctx.fits()?;
        let mut reply = ctx.reply();
        reply.array(6);
        reply.integer(entry.id);
        reply.integer(entry.unix_s as i64);
        reply.integer(entry.took_us as i64);
        reply.array(entry.args.len());
        for arg in &entry.args {
            reply.bulk(arg);
        }
        reply.bulk(entry.peer.as_bytes());
        reply.bulk(entry.name.as_bytes());
    }
    Ok(())
}

pub(super) fn len(ctx: &mut Context<'_>) -> Done {
    let len = log(ctx.shared).entries.len();
    ctx.integer(len as i64)
}

/// Approximate memory of an entry, in bytes.
const ENTRY_BYTES: usize = 512;

pub(super) fn reset(ctx: &mut Context<'_>) -> Done {
    let entries = std::mem::take(&mut log(ctx.shared).entries);
    heap::freed(entries.len() * ENTRY_BYTES);
    ctx.ok()
}

pub(super) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.help(&[
        "GET [<count>]",
        "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
        "    Entries are made of:",
        "    id, timestamp, time in microseconds, arguments array, client IP and port,",
        "    client name",
        "LEN",
        "    Return the length of the slowlog.",
        "RESET",
        "    Reset the slowlog.",
    ])
}
