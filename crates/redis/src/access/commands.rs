//! ACL: users and their rights, with the replies of Redis 7.4.

use super::changes::NO_FILE;
use super::client_line::line;
use super::record as audit;
use super::refusals::Origin;
use super::{changes, refusals};
use crate::command::background::{self, Kind, OK};
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, YIELDS};
use crate::command::lookup::Resolved;
use crate::command::permit::{self, Permit};
use crate::command::refusal::{NO_AUTH, Refusal, denial_text, late_denial_text};
use crate::command::row::*;
use crate::command::spec::{Request, Spec};
use crate::command::turn::Ending;
use crate::state::Shared;
use crate::state::access::audit::Outcome;
use crate::state::access::users::{Denial, Reason};
use crate::state::client::Client;
use duramen_acl::{CATEGORIES, Catalog, Denied, Selector, Users, random_password};
use duramen_config::clock;
use duramen_engine::TableId;
use duramen_wire::resp::number::parse_integer;
use duramen_wire::resp::{Args, Encoder};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("acl", doc(Topic::Server, "6.0.0", "Depends on the subcommand", "A container for commands about users.")),
    row("acl|cat", -2, NOSCRIPT | LOADING | STALE | TELLS, doc(Topic::Server, "6.0.0", "O(1)", "Lists the categories, or the commands of one."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(cat)),
    row("acl|deluser", -3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | CHANGES_RIGHTS,
        doc(Topic::Server, "6.0.0", "O(1)", "Removes users and closes their connections."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(deluser))
            .differs("A client that removes its own user in `MULTI` gets `NOAUTH` from then on."),
    row("acl|dryrun", -4, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | TELLS,
        doc(Topic::Server, "7.0.0", "O(1)", "Tells whether a user may make a request, without making it."),
        Keys::NONE, Effect::Acts, Secrets::From(4), Run::Plain(dryrun)),
    row("acl|genpass", -2, NOSCRIPT | LOADING | STALE | TELLS, doc(Topic::Server, "6.0.0", "O(1)", "Returns a new random password."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(genpass)),
    row("acl|getuser", 3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "6.0.0", "O(N)", "Returns the rights of a user."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(getuser))
            .differs("Shows tables behind the keys."),
    row("acl|help", 2, LOADING | STALE | TELLS, doc(Topic::Server, "6.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
    row("acl|list", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "6.0.0", "O(N)", "Returns all users and their rights."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(list)),
    row("acl|load", 2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | DANGEROUS,
        doc(Topic::Server, "6.0.0", "O(N)", "Reads the users from their file again."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(load)),
    row("acl|log", -2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | SWEEPS,
        doc(Topic::Server, "6.0.0", "O(N)", "Returns denied requests and failed logins."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(log)),
    row("acl|save", 2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | DANGEROUS,
        doc(Topic::Server, "6.0.0", "O(N)", "Writes the users to their file."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(save)),
    row("acl|setuser", -3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | CHANGES_RIGHTS,
        doc(Topic::Server, "6.0.0", "O(N)", "Makes or changes a user."),
        Keys::NONE, Effect::Acts, Secrets::From(3), Run::Plain(setuser))
            .differs("`table:NAME`, `alltables`, `resettables` in addition; patterns of 1,024 bytes."),
    row("acl|users", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS,
        doc(Topic::Server, "6.0.0", "O(N)", "Returns the names of all users."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(users)),
    row("acl|whoami", 2, NOSCRIPT | LOADING | STALE | TELLS, doc(Topic::Server, "6.0.0", "O(1)", "Returns the name of this connection's user."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(whoami)),
];

/// Time for the connections of removed users to end, and the interval between two checks of them.
const CLOSING_MAX: Duration = Duration::from_secs(10);
const CLOSING_LOOK: Duration = Duration::from_millis(1);

/// A client, for the logs of logins and denied requests.
#[cold]
pub fn origin(shared: &Shared, client: &Client) -> Origin {
    let record = client.record();
    Origin {
        user: client.login().user_name().to_owned(),
        address: record.shown_addresses().0,
        client: client.id(),
        line: line(shared, record, clock::now_ms()),
    }
}

/// Logs and counts a denied request.
#[cold]
pub(crate) fn note_denied(
    shared: &Shared,
    client: &Client,
    spec: &Spec,
    args: &Args<'_>,
    denied: Denied,
    context: &'static str,
) {
    let object = |n| args.get(n).unwrap_or_default().to_vec();
    let (reason, object) = match denied {
        Denied::Command => (Reason::Command, spec.name.as_bytes().to_vec()),
        Denied::Key(n) => (Reason::Key, object(n)),
        Denied::Channel(n) => (Reason::Channel, object(n)),
        Denied::Table(n) => (Reason::Table, object(n)),
    };
    refusals::note_denial(shared, origin(shared, client), reason, object, context);
}

/// Returns the reason for which a request is refused whose rights were checked again after a wait.
#[cold]
pub(crate) fn refused_late(ctx: &Context<'_>, refusal: Refusal) -> Failure {
    if let Refusal::Denied(denied) = refusal {
        note_denied(
            ctx.shared,
            ctx.client,
            ctx.request.spec,
            &ctx.request.args,
            denied,
            "toplevel",
        );
        audit::record(
            ctx.shared,
            ctx.client,
            ctx.request.spec,
            &ctx.request.args,
            Outcome::Denied,
        );
    }
    refusal_text(refusal, ctx.client, ctx.request.spec).into()
}

/// Checks a queued request again when EXEC runs it: its user may have other rights by now, also
/// because of an earlier command of the same EXEC. `None`: the request is refused, and the error is
/// its reply.
pub(crate) fn permit_queued(
    ctx: &mut Context<'_>,
    request: &Request<'_>,
    table: TableId,
) -> Option<Permit> {
    let (spec, args) = (request.spec, &request.args);
    let refusal = match Permit::check(spec, args, ctx.client, table, ctx.shared) {
        Ok(permit) => return Some(permit),
        Err(refusal) => refusal,
    };
    let text = match refusal {
        Refusal::LogIn => NO_AUTH.to_owned(),
        Refusal::Denied(denied) => {
            note_denied(ctx.shared, ctx.client, spec, args, denied, "multi");
            audit::record(ctx.shared, ctx.client, spec, args, Outcome::Denied);
            late_denial_text(denied)
        }
    };
    ctx.thread.note_error(ctx.shared, &text);
    let command = ctx.thread.command(ctx.shared, spec.number);
    command.rejected.add(1);
    ctx.reply.encoder().error(text);
    None
}

pub(crate) fn whoami(ctx: &mut Context<'_>) -> Done {
    let name = ctx.client.login().user_name().to_owned();
    ctx.reply.bulk(name.as_bytes())
}

pub(crate) fn users(ctx: &mut Context<'_>) -> Done {
    let users = ctx.shared.acl().users();
    let mut reply = ctx.reply.encoder();
    reply.array(users.iter().count());
    for user in users.iter() {
        reply.bulk(user.name().as_bytes());
    }
    Ok(())
}

/// Users, and bytes of their rules, that ACL LIST writes in one go: in a millisecond or two.
const USERS_PER_SLICE: usize = 256;
const USER_BYTES_PER_SLICE: usize = 256 << 10;

/// ACL LIST runs in slices and lists the users as they were when it began.
pub(crate) fn list(ctx: &mut Context<'_>) -> Done {
    let mut walk = ctx.client.parking.take_walk(ctx.table);
    let users = walk
        .users
        .take()
        .unwrap_or_else(|| ctx.shared.acl().users());
    let (from, before) = (walk.keys, walk.found.len());
    let stops = ctx.may_go_on_later();
    let mut room = ctx.reply.room_left();
    let mut is_over = false;
    for user in users.iter().skip(from) {
        let is_long =
            walk.keys - from >= USERS_PER_SLICE || walk.found.len() - before > USER_BYTES_PER_SLICE;
        is_over = stops && is_long;
        if is_over {
            break;
        }
        let mut reply = Encoder::within(&mut walk.found, ctx.client.protocol(), &mut room);
        reply.bulk(&user.print());
        if room.exceeded {
            return Err(ctx.reply.too_long());
        }
        walk.keys += 1;
    }
    if is_over {
        (walk.users, walk.moved) = (Some(users), true);
        ctx.client.parking.keep_walk(walk);
        return Err(YIELDS);
    }
    ctx.reply.encoder().array(walk.keys);
    ctx.reply.append(&walk.found);
    Ok(())
}

pub(crate) fn getuser(ctx: &mut Context<'_>) -> Done {
    let users = ctx.shared.acl().users();
    let name = std::str::from_utf8(ctx.arg(2)).unwrap_or_default();
    let Some(user) = users.get(name) else {
        return ctx.reply.null();
    };
    let mut reply = ctx.reply.encoder();
    reply.map(6);
    reply.bulk(b"flags");
    let flags = user.flags();
    reply.set(flags.len());
    for flag in flags {
        reply.bulk(flag.as_bytes());
    }
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    for password in user.passwords() {
        reply.bulk(password.to_string().as_bytes());
    }
    write_selector(&mut reply, user.root());
    reply.bulk(b"selectors");
    reply.array(user.others().len());
    for selector in user.others() {
        reply.map(3);
        write_selector(&mut reply, selector);
    }
    Ok(())
}

/// Redis's clients expect exactly these fields. The field of the keys has the patterns of tables
/// too.
fn write_selector(reply: &mut Encoder<'_>, selector: &Selector) {
    let (keys, tables) = (selector.keys(), selector.tables());
    let blank: &[u8] = match keys.is_empty() || tables.is_empty() {
        true => b"",
        false => b" ",
    };
    reply.bulk(b"commands");
    reply.bulk(selector.commands().as_bytes());
    reply.bulk(b"keys");
    reply.bulk(&[&keys, blank, &tables].concat());
    reply.bulk(b"channels");
    reply.bulk(&selector.channels());
}

/// Refuses a change of users on a member that serves no data yet (users::V4): the change would go
/// to the member's own users, and the cluster's users replace those.
fn after_joining(ctx: &Context<'_>) -> Done {
    if !changes::joins_a_cluster(ctx.shared) {
        return Ok(());
    }
    Err(Failure::Text(
        "LOADING this member serves no data yet, and until then its users cannot be changed",
    ))
}

/// Takes over the changed user of a client, or closes its connection (users::V1). Called after a
/// request that may have changed the user.
pub(crate) fn renew(ctx: &mut Context<'_>) {
    if !ctx.client.renew(ctx.shared) {
        ctx.turn.ending = Ending::CloseNow;
        ctx.turn.halted = true;
    }
}

pub(crate) fn setuser(ctx: &mut Context<'_>) -> Done {
    after_joining(ctx)?;
    let rules = ctx.request.args.skip(3).into_iter();
    if ctx.shared.membership().is_none() {
        let acl = ctx.shared.acl();
        acl.change(|users| users.set(ctx.arg(2), rules, acl.catalog()))
            .map_err(|fault| Failure::from(format!("ERR {fault}")))?;
        changes::users_changed(ctx.shared);
        renew(ctx);
        return ctx.reply.ok();
    }
    let name = ctx.arg(2).to_vec();
    let rules: Vec<Vec<u8>> = rules.map(<[u8]>::to_vec).collect();
    in_cluster(ctx, move |users, catalog| {
        let rules = rules.iter().map(Vec::as_slice);
        let set = users.set(&name, rules, catalog);
        set.map(|()| OK.to_vec()).map_err(|fault| fault.to_string())
    })
}

pub(crate) fn deluser(ctx: &mut Context<'_>) -> Done {
    after_joining(ctx)?;
    let names = ctx.request.args.skip(2).into_iter();
    let names: Vec<String> = names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    if names.iter().any(|name| name == duramen_acl::DEFAULT_USER) {
        return Err(Failure::Text("ERR The 'default' user cannot be removed"));
    }
    let remove = move |users: &mut Users| {
        let removed = names.iter().filter(|name| users.remove(name));
        removed.count() as i64
    };
    if ctx.shared.membership().is_some() {
        return in_cluster(ctx, move |users, _| {
            Ok(format!(":{}\r\n", remove(users)).into_bytes())
        });
    }
    let removed: Result<i64, Failure> = ctx.shared.acl().change(|users| Ok(remove(users)));
    // As with CLIENT KILL, the reply waits until none of their requests runs any more.
    for record in changes::users_changed(ctx.shared) {
        if record.id == ctx.client.id() {
            ctx.turn.ending = Ending::CloseAfterReply;
            ctx.client.lose_user();
            continue;
        }
        ctx.client.wait.until_gone(record);
        if ctx.turn.ending == Ending::Open {
            ctx.turn.ending = Ending::Held;
        }
    }
    ctx.reply.integer(removed?)
}

/// Changes the users of the whole cluster; `make` returns the reply. The reply waits until the
/// coordinator has stored the change, and until no request of a removed user runs here any more.
fn in_cluster(
    ctx: &mut Context<'_>,
    make: impl Fn(&mut Users, &Catalog) -> Result<Vec<u8>, String> + Send + 'static,
) -> Done {
    if ctx.thread.exec.runs() {
        return Err(Failure::Text(
            "ERR the users of a cluster cannot be changed in a transaction",
        ));
    }
    let own = ctx.client.id();
    background::run(ctx, Kind::Users, move |shared, deadline| {
        let membership = shared.membership().ok_or("this is no member any more")?;
        let catalog = shared.acl().catalog();
        let (reply, closed) =
            changes::change_cluster_users(shared, membership, deadline, |users| {
                make(users, catalog)
            })?;
        let deadline = Instant::now() + CLOSING_MAX;
        let mut open = closed.iter().filter(|record| record.id != own);
        while open.clone().any(|record| !record.is_gone()) && Instant::now() < deadline {
            std::thread::sleep(CLOSING_LOOK);
        }
        match open.all(|record| record.is_gone()) {
            true => Ok(reply),
            false => Err("a connection of a removed user is not closed yet".to_owned()),
        }
    })
}

/// Refuses more than one argument of a subcommand.
fn at_most_one(ctx: &Context<'_>) -> Done {
    if ctx.request.args.len() <= 3 {
        return Ok(());
    }
    let sub = String::from_utf8_lossy(ctx.arg(1));
    Err(
        format!("ERR unknown subcommand or wrong number of arguments for '{sub}'. Try ACL HELP.")
            .into(),
    )
}

pub(crate) fn cat(ctx: &mut Context<'_>) -> Done {
    at_most_one(ctx)?;
    let Some(name) = ctx.request.args.get(2) else {
        let mut reply = ctx.reply.encoder();
        reply.array(CATEGORIES.len());
        for category in CATEGORIES {
            reply.bulk(category.as_bytes());
        }
        return Ok(());
    };
    let name = String::from_utf8_lossy(name);
    let Some(commands) = ctx.shared.acl().catalog().in_category(&name) else {
        let shown: String = name.chars().take(128).collect();
        return Err(format!("ERR Unknown category '{shown}'").into());
    };
    let rows = ctx.commands.rows();
    let mut reply = ctx.reply.encoder();
    reply.array(commands.len());
    for spec in commands.iter().filter_map(|number| rows.get(*number)) {
        reply.bulk(spec.name.as_bytes());
    }
    Ok(())
}

/// Entries that ACL LOG shows without a count; as in Redis.
const LOG_SHOWN: usize = 10;

pub(crate) fn log(ctx: &mut Context<'_>) -> Done {
    at_most_one(ctx)?;
    let count = match ctx.request.args.get(2) {
        None => LOG_SHOWN,
        Some(word) if word.eq_ignore_ascii_case(b"reset") => {
            ctx.shared.acl().denials().clear();
            return ctx.reply.ok();
        }
        Some(text) => {
            let count = parse_integer(text).ok_or(NOT_AN_INTEGER)?;
            usize::try_from(count).unwrap_or(0)
        }
    };
    let denials: Vec<Denial> = ctx
        .shared
        .acl()
        .denials()
        .iter()
        .take(count)
        .cloned()
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    let mut reply = ctx.reply.encoder();
    reply.array(denials.len());
    for denial in denials {
        let age_s = now_ms.saturating_sub(denial.created_ms) as f64 / 1_000.0;
        reply.map(10);
        reply.bulk(b"count");
        reply.integer(denial.count as i64);
        for (field, text) in [
            ("reason", denial.reason.name().as_bytes()),
            ("context", denial.context.as_bytes()),
            ("object", denial.object.as_slice()),
            ("username", denial.user.as_bytes()),
            ("age-seconds", format!("{age_s:.3}").as_bytes()),
            ("client-info", denial.client.as_bytes()),
        ] {
            reply.bulk(field.as_bytes());
            reply.bulk(text);
        }
        for (field, number) in [
            ("entry-id", denial.id),
            ("timestamp-created", denial.created_ms),
            ("timestamp-last-updated", denial.updated_ms),
        ] {
            reply.bulk(field.as_bytes());
            reply.integer(number as i64);
        }
    }
    Ok(())
}

/// Bits of a password if no number is given; maximum bits. As in Redis.
const PASSWORD_BITS: i64 = 256;
const PASSWORD_BITS_MAX: i64 = 4096;

pub(crate) fn genpass(ctx: &mut Context<'_>) -> Done {
    at_most_one(ctx)?;
    let bits = match ctx.request.args.get(2) {
        None => PASSWORD_BITS,
        Some(text) => parse_integer(text).ok_or(NOT_AN_INTEGER)?,
    };
    let bits = Some(bits).filter(|bits| (1..=PASSWORD_BITS_MAX).contains(bits));
    let bits = bits.ok_or(Failure::Text(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive \
         number up to 4096",
    ))?;
    let password = random_password(bits as usize)
        .ok_or(Failure::Text("ERR the system has no random numbers"))?;
    ctx.reply.bulk(password.as_bytes())
}

pub(crate) fn dryrun(ctx: &mut Context<'_>) -> Done {
    let users = ctx.shared.acl().users();
    let name = String::from_utf8_lossy(ctx.arg(2)).into_owned();
    let Some(user) = users.get(&name) else {
        return Err(format!("ERR User '{name}' not found").into());
    };
    let args = ctx.request.args.skip(3);
    let spec = match ctx.commands.resolve(&args) {
        Resolved::Command(spec) => spec,
        Resolved::Arity(spec) => {
            return Err(
                format!("ERR wrong number of arguments for '{}' command", spec.name).into(),
            );
        }
        _ => {
            let command = String::from_utf8_lossy(ctx.arg(3));
            return Err(format!("ERR Command '{command}' not found").into());
        }
    };
    let Err(denied) = permit::allows(user, spec, &args, ctx.table, ctx.shared) else {
        return ctx.reply.ok();
    };
    let object = |n| String::from_utf8_lossy(args.get(n).unwrap_or_default());
    let what = match denied {
        Denied::Command => format!("run the '{}' command", spec.name),
        // This is the key of DURAMEN.SCAN, which names none.
        Denied::Key(0) => "access all keys".to_owned(),
        Denied::Key(n) => format!("access the '{}' key", object(n)),
        Denied::Channel(n) => format!("access the '{}' channel", object(n)),
        Denied::Table(_) => "access the table".to_owned(),
    };
    let text = format!("User {name} has no permissions to {what}");
    ctx.reply.bulk(text.as_bytes())
}

pub(crate) fn load(ctx: &mut Context<'_>) -> Done {
    after_joining(ctx)?;
    with_file(ctx, changes::load_users)
}

pub(crate) fn save(ctx: &mut Context<'_>) -> Done {
    with_file(ctx, |shared, _| changes::save_users(shared))
}

/// Runs `work`, which reads or writes the file of users, on another thread; the reply waits for it.
fn with_file(ctx: &mut Context<'_>, work: fn(&Shared, Instant) -> Result<(), String>) -> Done {
    if ctx.shared.acl().file().is_none() {
        return Err(format!("ERR {NO_FILE}").into());
    }
    background::run(ctx, Kind::Files, move |shared, deadline| {
        work(shared, deadline).map(|()| OK.to_vec())
    })
}

/// The reply to a request that a user may not make.
pub(crate) fn refusal_text(refusal: Refusal, client: &Client, spec: &Spec) -> String {
    match refusal {
        Refusal::LogIn => NO_AUTH.to_owned(),
        Refusal::Denied(denied) => denial_text(denied, client.login().user_name(), spec.name),
    }
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(ctx.request.spec.container(), &[
        "CAT [<category>]",
        "    List all commands that belong to <category>, or all command categories",
        "    when no category is specified.",
        "DELUSER <username> [<username> ...]",
        "    Delete a list of users.",
        "DRYRUN <username> <command> [<arg> ...]",
        "    Returns whether the user can execute the given command without executing the command.",
        "GETUSER <username>",
        "    Get the user's details.",
        "GENPASS [<bits>]",
        "    Generate a secure 256-bit user password. The optional `bits` argument can",
        "    be used to specify a different size.",
        "LIST",
        "    Show users details in config file format.",
        "LOAD",
        "    Reload users from the ACL file.",
        "LOG [<count> | RESET]",
        "    Show the ACL log entries.",
        "SAVE",
        "    Save the current config to the ACL file.",
        "SETUSER <username> <attribute> [<attribute> ...]",
        "    Create or modify a user with the specified attributes.",
        "USERS",
        "    List all the registered usernames.",
        "WHOAMI",
        "    Return the current connection username.",
    ])
}
