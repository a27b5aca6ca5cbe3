//! CLIENT LIST, INFO and KILL: the connected clients.

use crate::access::client_line::line;
use crate::command::context::{Context, Done, Failure, SYNTAX, YIELDS};
use crate::command::row::*;
use crate::command::turn::Ending;
use crate::threads::clients::ClientRecord;
use crate::threads::mailbox::Message;
use duramen_config::clock;
use duramen_wire::resp::number::parse_integer;
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("client|info", 2, NOSCRIPT | LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Connection, "6.2.0", "O(1)", "Describes this connection."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(info)).tips(&["nondeterministic_output"]),
    row("client|list", -2, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS | REPORTS,
        doc(Topic::Connection, "2.4.0", "O(N)", "Describes all connections."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(list)).tips(&["nondeterministic_output"]),
    row("client|kill", -3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS | SWEEPS,
        doc(Topic::Connection, "2.4.0", "O(N)", "Closes connections."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(kill)),
];

pub(crate) fn info(ctx: &mut Context<'_>) -> Done {
    let record = Arc::clone(ctx.client.record());
    ctx.client.publish(ctx.table);
    let text = line(ctx.shared, &record, clock::now_ms()) + "\n";
    ctx.reply.encoder().verbatim("txt", &text);
    Ok(())
}

/// Lines of CLIENT LIST that are written in one go: in a millisecond or two.
const LINES_PER_SLICE: usize = 256;

/// CLIENT LIST runs in slices. It shows the clients that were connected when it began, as they are
/// when they are shown.
pub(crate) fn list(ctx: &mut Context<'_>) -> Done {
    let mut walk = ctx.client.parking.take_walk(ctx.table);
    if walk.cursor == 0 {
        walk.clients = to_list(ctx)?;
    }
    ctx.client.publish(ctx.table);
    let lines = match ctx.may_go_on_later() {
        true => LINES_PER_SLICE,
        false => usize::MAX,
    };
    let (from, now_ms) = (walk.cursor as usize, clock::now_ms());
    for record in walk.clients.iter().skip(from).take(lines) {
        if from == 0 || !record.is_gone() {
            let line = line(ctx.shared, record, now_ms);
            walk.found.extend_from_slice(line.as_bytes());
            walk.found.push(b'\n');
        }
    }
    let next = from.saturating_add(lines);
    if next < walk.clients.len() {
        if ctx.reply.len() + walk.found.len() > ctx.reply.bytes_max() {
            return Err(ctx.reply.too_long());
        }
        (walk.cursor, walk.moved) = (next as u64, true);
        ctx.client.parking.keep_walk(walk);
        return Err(YIELDS);
    }
    let text = String::from_utf8_lossy(&walk.found);
    ctx.reply.encoder().verbatim("txt", &text);
    Ok(())
}

/// The clients that a CLIENT LIST shows, in the order of their ids.
fn to_list(ctx: &Context<'_>) -> Result<Vec<Arc<ClientRecord>>, Failure> {
    let mut records = ctx.shared.threads.clients();
    let Some(filter) = ctx.request.args.get(2) else {
        return Ok(records);
    };
    if filter.eq_ignore_ascii_case(b"type") && ctx.request.args.len() == 4 {
        let kind = parse_kind(ctx.arg(3))?;
        records.retain(|record| ClientKind::of(record) == kind);
    } else if filter.eq_ignore_ascii_case(b"id") && ctx.request.args.len() > 3 {
        let mut ids = Vec::new();
        for text in ctx.request.args.skip(3) {
            ids.push(parse_integer(text).ok_or(Failure::Text("ERR Invalid client ID"))?);
        }
        ids.sort_unstable();
        records.retain(|record| ids.binary_search(&(record.id as i64)).is_ok());
    } else {
        return Err(SYNTAX);
    }
    Ok(records)
}

/// The types of clients in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKind {
    Normal,
    PubSub,
    /// No client here is of this type.
    Server,
}

impl ClientKind {
    fn of(record: &ClientRecord) -> ClientKind {
        match record.is_subscribed() {
            true => ClientKind::PubSub,
            false => ClientKind::Normal,
        }
    }
}

fn parse_kind(kind: &[u8]) -> Result<ClientKind, Failure> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(ClientKind::Normal),
        b"pubsub" => Ok(ClientKind::PubSub),
        b"master" | b"replica" | b"slave" => Ok(ClientKind::Server),
        _ => Err(format!(
            "ERR Unknown client type '{}'",
            String::from_utf8_lossy(kind)
        )
        .into()),
    }
}

/// The selection of CLIENT KILL.
#[derive(Default)]
struct Filter {
    id: Option<u64>,
    /// As `CLIENT LIST` shows them.
    peer: Option<String>,
    local: Option<String>,
    user: Option<String>,
    kind: Option<ClientKind>,
    age_s: Option<u64>,
    spare_me: bool,
}

impl Filter {
    fn means(&self, record: &ClientRecord, now_ms: u64) -> bool {
        self.kind.is_none_or(|kind| kind == ClientKind::of(record))
            && self.id.is_none_or(|id| id == record.id)
            && self.means_address(record)
            && self
                .user
                .as_ref()
                .is_none_or(|user| *user == record.text().user)
            && self
                .age_s
                .is_none_or(|age_s| now_ms.saturating_sub(record.connected_at_ms) / 1000 >= age_s)
    }

    fn means_address(&self, record: &ClientRecord) -> bool {
        if self.peer.is_none() && self.local.is_none() {
            return true;
        }
        let (peer, local) = record.shown_addresses();
        self.peer.as_ref().is_none_or(|wanted| *wanted == peer)
            && self.local.as_ref().is_none_or(|wanted| *wanted == local)
    }
}

pub(crate) fn kill(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() == 3 {
        let filter = Filter {
            peer: Some(String::from_utf8_lossy(ctx.arg(2)).into_owned()),
            ..Filter::default()
        };
        if kill_all(ctx, &filter) == 0 {
            return Err(Failure::Text("ERR No such client"));
        }
        return ctx.reply.ok();
    }
    let filter = parse_filter(ctx)?;
    let killed = kill_all(ctx, &filter);
    ctx.reply.integer(killed)
}

fn parse_filter(ctx: &Context<'_>) -> Result<Filter, Failure> {
    let mut filter = Filter {
        spare_me: true,
        ..Filter::default()
    };
    let mut rest = ctx.request.args.skip(2).into_iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        let text = String::from_utf8_lossy(value).into_owned();
        match option.to_ascii_lowercase().as_slice() {
            b"id" => {
                let id = parse_integer(value).filter(|id| *id > 0);
                let id = id.ok_or(Failure::Text("ERR client-id should be greater than 0"))?;
                filter.id = Some(id.unsigned_abs());
            }
            b"type" => filter.kind = Some(parse_kind(value)?),
            b"addr" => filter.peer = Some(text),
            b"laddr" => filter.local = Some(text),
            b"user" if ctx.shared.acl().users().get(&text).is_some() => filter.user = Some(text),
            b"user" => return Err(format!("ERR No such user '{text}'").into()),
            b"maxage" => {
                let age = parse_integer(value).filter(|age| *age > 0);
                let age = age.ok_or(Failure::Text("ERR maxage should be greater than 0"))?;
                filter.age_s = Some(age.unsigned_abs());
            }
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.spare_me = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.spare_me = false,
            _ => return Err(SYNTAX),
        }
    }
    Ok(filter)
}

/// The reply waits until the killed clients are gone (docs/operations.md promises it), and so do
/// the next requests of the client that kills: a message reaches a thread between two rounds, and
/// until then the thread runs requests of the killed clients. A mark that each request tests would
/// not do: a request that has passed the test still has its effect.
fn kill_all(ctx: &mut Context<'_>, filter: &Filter) -> i64 {
    let now_ms = clock::now_ms();
    let mut killed = 0;
    for record in ctx.shared.threads.clients() {
        if !filter.means(&record, now_ms) {
            continue;
        }
        if record.id == ctx.client.id() {
            if filter.spare_me {
                continue;
            }
            ctx.turn.ending = Ending::CloseAfterReply;
        } else {
            ctx.shared
                .threads
                .post(&record, Message::Close { client: record.id });
            ctx.client.wait.until_gone(record);
            if ctx.turn.ending == Ending::Open {
                ctx.turn.ending = Ending::Held;
            }
        }
        killed += 1;
    }
    killed
}
