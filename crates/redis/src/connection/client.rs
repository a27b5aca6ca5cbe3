//! CLIENT, as far as it affects the connection itself and pauses.

use super::commands::check_name;
use crate::command::background::{self, Kind, OK};
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::row::*;
use crate::state::client::gate;
use crate::threads::clients::key_wait_state as state;
use crate::threads::clients::shown;
use crate::threads::mailbox::Message;
use duramen_base::planted::{Bug, has_bug};
use duramen_config::clock;
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("client", doc(Topic::Connection, "2.4.0", "Depends on the subcommand", "A container for commands about client connections.")),
    row("client|id", 2, NOSCRIPT | LOADING | STALE | CONNECTION | TELLS, doc(Topic::Connection, "5.0.0", "O(1)", "Returns the connection's id."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(id)),
    row("client|setname", 3, NOSCRIPT | LOADING | STALE | CONNECTION | WITH_DATA, doc(Topic::Connection, "2.6.9", "O(1)", "Names the connection."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(setname)),
    row("client|getname", 2, NOSCRIPT | LOADING | STALE | CONNECTION | TELLS,
        doc(Topic::Connection, "2.6.9", "O(1)", "Returns the connection's name."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(getname)),
    row("client|reply", 3, NOSCRIPT | LOADING | STALE | CONNECTION, doc(Topic::Connection, "3.2.0", "O(1)", "Switches replies off and on."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(reply)),
    row("client|no-evict", 3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS,
        doc(Topic::Connection, "7.0.0", "O(1)", "Keeps the connection from being closed for want of memory."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(no_evict))
            .differs("Shown, without effect."),
    row("client|pause", -3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS,
        doc(Topic::Connection, "2.9.50", "O(1)", "Lets requests wait."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(pause)),
    row("client|unpause", 2, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS | UNPAUSES,
        doc(Topic::Connection, "6.2.0", "O(N)", "Ends a pause."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(unpause)),
    row("client|unblock", -3, ADMIN | NOSCRIPT | LOADING | STALE | CONNECTION | DANGEROUS,
        doc(Topic::Connection, "5.0.0", "O(log(N))", "Wakes a client that waits in a command."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(unblock))
            .differs("Does not end `WAIT` and `WAITAOF`."),
    row("client|help", 2, LOADING | STALE | CONNECTION | TELLS, doc(Topic::Connection, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
    row("client|setinfo", 4, NOSCRIPT | LOADING | STALE | CONNECTION | WITH_DATA,
        doc(Topic::Connection, "7.2.0", "O(1)", "Tells the client library's name and version."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(setinfo)),
    row("client|no-touch", 3, NOSCRIPT | LOADING | STALE | CONNECTION,
        doc(Topic::Connection, "7.2.0", "O(1)", "Keeps the client's reads from counting as accesses."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(no_touch))
            .differs("Reads do not count for eviction."),
];

pub(crate) fn id(ctx: &mut Context<'_>) -> Done {
    ctx.reply.integer(ctx.client.id() as i64)
}

pub(crate) fn setname(ctx: &mut Context<'_>) -> Done {
    let name = check_name(ctx.arg(2), "Client names")?;
    ctx.client.record().change_text(|text| text.name = name);
    ctx.reply.ok()
}

pub(crate) fn getname(ctx: &mut Context<'_>) -> Done {
    let name = ctx.client.record().text().name;
    if name.is_empty() {
        ctx.reply.null()
    } else {
        ctx.reply.bulk(name.as_bytes())
    }
}

pub(crate) fn setinfo(ctx: &mut Context<'_>) -> Done {
    let (attribute, value) = (ctx.arg(2), ctx.arg(3));
    if attribute.eq_ignore_ascii_case(b"lib-name") {
        let name = check_name(value, "lib-name")?;
        ctx.client.record().change_text(|text| text.lib_name = name);
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        let version = check_name(value, "lib-ver")?;
        ctx.client
            .record()
            .change_text(|text| text.lib_version = version);
    } else {
        let attribute = String::from_utf8_lossy(attribute);
        return Err(format!("ERR Unrecognized option '{attribute}'").into());
    }
    ctx.reply.ok()
}

pub(crate) fn reply(ctx: &mut Context<'_>) -> Done {
    let how = ctx.arg(2);
    let silence = gate::REPLY_OFF | gate::REPLY_SKIP | gate::REPLY_SKIP_NEXT;
    if how.eq_ignore_ascii_case(b"on") {
        ctx.client.set_gate(silence, false);
        return ctx.reply.ok();
    }
    if how.eq_ignore_ascii_case(b"off") {
        ctx.client.set_gate(gate::REPLY_OFF, true);
    } else if how.eq_ignore_ascii_case(b"skip") {
        if ctx.client.gate() & gate::REPLY_OFF == 0 {
            ctx.client.set_gate(gate::REPLY_SKIP_NEXT, true);
        }
    } else {
        return Err(SYNTAX);
    }
    Ok(())
}

pub(crate) fn no_evict(ctx: &mut Context<'_>) -> Done {
    switch(ctx, shown::NO_EVICT)
}

pub(crate) fn no_touch(ctx: &mut Context<'_>) -> Done {
    switch(ctx, shown::NO_TOUCH)?;
    let on = ctx.client.record().shows(shown::NO_TOUCH);
    ctx.client.set_gate(gate::NO_TOUCH, on);
    Ok(())
}

fn switch(ctx: &mut Context<'_>, flag: u32) -> Done {
    let how = ctx.arg(2);
    let on = how.eq_ignore_ascii_case(b"on");
    if !on && !how.eq_ignore_ascii_case(b"off") {
        return Err(SYNTAX);
    }
    ctx.client.record().show(flag, on);
    ctx.reply.ok()
}

pub(crate) fn pause(ctx: &mut Context<'_>) -> Done {
    let writes_only = match ctx.request.args.get(3) {
        None => false,
        Some(mode) if mode.eq_ignore_ascii_case(b"all") => false,
        Some(mode) if mode.eq_ignore_ascii_case(b"write") => true,
        Some(_) => return Err(Failure::Text("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let timeout_ms = parse_integer(ctx.arg(2)).ok_or(Failure::Text(
        "ERR timeout is not an integer or out of range",
    ))?;
    let timeout_ms =
        u64::try_from(timeout_ms).map_err(|_| Failure::Text("ERR timeout is negative"))?;
    let now_ms = clock::now_ms();
    let until_ms = now_ms.saturating_add(timeout_ms);
    ctx.shared.commands.pause(until_ms, writes_only, now_ms);
    if ctx.thread.exec.runs() || ctx.shared.data().is_none() || has_bug(Bug::PauseIsNotLookedAt) {
        return ctx.reply.ok();
    }
    // The reply waits until the requests that have begun are over (pause::P1).
    background::run(ctx, Kind::Pauses, |shared, _| {
        if let Some(store) = shared.data() {
            store.quiesce();
        }
        Ok(OK.to_vec())
    })
    .map_err(|failure| {
        let why = failure.text();
        format!("ERR the pause has begun, but writes of before it may still run: {why}").into()
    })
}

pub(crate) fn unpause(ctx: &mut Context<'_>) -> Done {
    ctx.shared.commands.unpause();
    ctx.shared.threads.post_all(&Message::Wake);
    ctx.reply.ok()
}

/// Ends the wait of a client for elements. The wait of WAIT and its like cannot be ended.
pub(crate) fn unblock(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() > 4 {
        let name = String::from_utf8_lossy(ctx.arg(1));
        return Err(format!(
            "ERR unknown subcommand or wrong number of arguments for '{name}'. Try CLIENT HELP."
        )
        .into());
    }
    let how = match ctx.request.args.get(3) {
        None => state::UNBLOCKED_IN_TIME,
        Some(how) if how.eq_ignore_ascii_case(b"timeout") => state::UNBLOCKED_IN_TIME,
        Some(how) if how.eq_ignore_ascii_case(b"error") => state::UNBLOCKED_WITH_ERROR,
        Some(_) => {
            return Err(Failure::Text(
                "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
            ));
        }
    };
    let id = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let found = u64::try_from(id)
        .ok()
        .and_then(|id| ctx.shared.threads.client(id));
    let unblocked = found.filter(|record| record.unblock(how));
    if let Some(record) = &unblocked {
        let client = record.id;
        ctx.shared
            .threads
            .post(record, Message::ShowAgain { client });
    }
    ctx.reply.integer(unblocked.is_some().into())
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "CACHING (YES|NO)",
            "    Enable/disable tracking of the keys for next command in OPTIN/OPTOUT modes.",
            "GETNAME",
            "    Return the name of the current connection.",
            "GETREDIR",
            "    Return the client ID we are redirecting to when tracking is enabled.",
            "ID",
            "    Return the ID of the current connection.",
            "INFO",
            "    Return information about the current client connection.",
            "KILL <ip:port>",
            "    Kill connection made from <ip:port>.",
            "KILL <option> <value> [<option> <value> [...]]",
            "    Kill connections. Options are:",
            "    * ADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made from the specified address",
            "    * LADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made to specified local address",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Kill connections by type.",
            "    * USER <username>",
            "      Kill connections authenticated by <username>.",
            "    * SKIPME (YES|NO)",
            "      Skip killing current connection (default: yes).",
            "    * ID <client-id>",
            "      Kill connections by client id.",
            "    * MAXAGE <maxage>",
            "      Kill connections older than the specified age.",
            "LIST [options ...]",
            "    Return information about client connections. Options:",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Return clients of specified type.",
            "    * ID <client-id> [<client-id> [...]]",
            "      Return clients of specified IDs only.",
            "NO-EVICT (ON|OFF)",
            "    Protect current client connection from eviction.",
            "NO-TOUCH (ON|OFF)",
            "    Will not touch LRU/LFU stats when this mode is on.",
            "PAUSE <timeout> [WRITE|ALL]",
            "    Suspend all, or just write, clients for <timeout> milliseconds.",
            "REPLY (ON|OFF|SKIP)",
            "    Control the replies sent to the current connection.",
            "SETINFO <option> <value>",
            "    Set client meta attr. Options are:",
            "    * LIB-NAME: the client lib name.",
            "    * LIB-VER: the client lib version.",
            "SETNAME <name>",
            "    Assign the name <name> to the current connection.",
            "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
            "         [OPTIN] [OPTOUT] [NOLOOP]",
            "    Control server assisted client side caching.",
            "TRACKINGINFO",
            "    Report tracking status for the current connection.",
            "UNBLOCK <clientid> [TIMEOUT|ERROR]",
            "    Unblock the specified blocked client.",
            "UNPAUSE",
            "    Stop the current client pause, resuming traffic.",
        ],
    )
}
