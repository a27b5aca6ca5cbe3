//! `MONITOR`: shows one client the requests of all others.

use crate::command::context::{Context, Done};
use crate::command::flag;
use crate::command::row::*;
use crate::command::secrets::REDACTED;
use crate::command::spec::Spec;
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::db::Db;
use crate::threads::clients::shown;
use crate::threads::mailbox::Message;
use duramen_config::seldom;
use duramen_wire::resp::Args;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("monitor", 1, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS, doc(Topic::Server, "1.0.0", "O(1)", "Shows what all clients send."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(monitor))
            .differs("Shows the commands of each run of a script.").names(Names::AllTables),
];

/// Bytes of a line and of an argument after which the rest of the request is not shown. A line is
/// at most five times as long.
const LINE_BYTES_MAX: usize = 256 << 10;

pub(crate) fn monitor(ctx: &mut Context<'_>) -> Done {
    if ctx.locked {
        return Err(crate::command::context::Failure::Text(
            "ERR MONITOR isn't allowed in a transaction",
        ));
    }
    if !ctx.client.record().shows(shown::MONITOR) {
        ctx.client.record().show(shown::MONITOR, true);
        let mut monitors = ctx.shared.commands.monitors();
        monitors.push(Arc::clone(ctx.client.record()));
        ctx.shared.commands.set_monitored(true);
    }
    ctx.reply.ok()
}

/// Removes a client from the list.
pub(crate) fn stop(shared: &Shared, client: &Client) {
    let mut monitors = shared.commands.monitors();
    monitors.retain(|record| record.id != client.id());
    shared.commands.set_monitored(!monitors.is_empty());
}

/// Sends every monitor the line for this request.
pub(crate) fn feed(shared: &Shared, client: &Client, spec: &Spec, args: &Args<'_>) {
    let address = client.record().shown_addresses().0;
    feed_from(shared, client, &address, spec, args);
}

/// As [`feed`], for a command of a script of this client.
pub(crate) fn feed_script(shared: &Shared, client: &Client, spec: &Spec, args: &Args<'_>) {
    feed_from(shared, client, "lua", spec, args);
}

fn feed_from(shared: &Shared, client: &Client, address: &str, spec: &Spec, args: &Args<'_>) {
    if spec.has(flag::ADMIN) {
        return;
    }
    let line = line(client, address, spec, args);
    let mut monitors = shared.commands.monitors();
    monitors.retain(|record| {
        let thread = &shared.threads[record.thread];
        if thread.clients.get(record.id).is_none() {
            return false;
        }
        let takes = thread.mailbox.push(record.id, &line);
        if !takes {
            seldom!(
                warn,
                client = record.id,
                peer = %record.peer,
                "closing a monitor: its thread has not taken the lines for it for too long"
            );
            shared
                .threads
                .post(record, Message::Close { client: record.id });
        }
        takes
    });
    shared.commands.set_monitored(!monitors.is_empty());
}

fn line(client: &Client, address: &str, spec: &Spec, args: &Args<'_>) -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let db = match client.db() {
        Db::Number(db) => db.to_string(),
        Db::Table(table) => format!("table:{table}"),
    };
    let mut line = format!(
        "+{}.{:06} [{db} {address}]",
        now.as_secs(),
        now.subsec_micros(),
    )
    .into_bytes();
    for (n, arg) in args.iter().enumerate() {
        if line.len() > LINE_BYTES_MAX {
            let more = args.len() - n;
            line.extend_from_slice(format!(" ... ({more} more arguments)").as_bytes());
            break;
        }
        line.push(b' ');
        let arg = if spec.is_secret(n) { REDACTED } else { arg };
        let shown = &arg[..arg.len().min(LINE_BYTES_MAX)];
        quote(shown, &mut line);
        if shown.len() < arg.len() {
            let more = arg.len() - shown.len();
            line.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
        }
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// Appends `text` in quotes, with all unprintable bytes escaped.
pub(crate) fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(*byte),
            _ => {
                let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    out.push(b'"');
}
