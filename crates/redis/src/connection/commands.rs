//! The connection itself: HELLO, AUTH, PING, ECHO, QUIT, RESET.

use crate::access::commands as acl;
use crate::access::refusals;
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::row::*;
use crate::command::turn::Ending;
use crate::monitor;
use crate::pubsub::commands as pubsub;
use crate::reply::wait::Until;
use crate::state::access::audit::Outcome;
use crate::state::client::gate;
use crate::tracking::commands as tracking;
use duramen_acl::LoginError;
use duramen_config::{REDIS_VERSION, clock};
use duramen_wire::resp::Protocol;
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("hello", -1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | CHANGES_RIGHTS,
        doc(Topic::Connection, "6.0.0", "O(1)", "Chooses the protocol version, and authenticates and names the connection."),
        Keys::NONE, Effect::Acts, Secrets::From(2), Run::Plain(hello)),
    row("auth", -2, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | CHANGES_RIGHTS,
        doc(Topic::Connection, "1.0.0", "O(N)", "Gives the password."),
        Keys::NONE, Effect::Acts, Secrets::From(1), Run::Plain(auth)),
    row("ping", -1, SUBSCRIBED | FAST | CONNECTION | TELLS, doc(Topic::Connection, "1.0.0", "O(1)", "Answers PONG, or what it was given."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(ping))
            .differs("While a store loads, the error `LOADING` has percent and time left.").tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    row("echo", 2, LOADING | STALE | FAST | CONNECTION | TELLS, doc(Topic::Connection, "1.0.0", "O(1)", "Answers what it was given."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(echo)),
    row("quit", -1, SUBSCRIBED | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | NEVER_QUEUED,
        doc(Topic::Connection, "1.0.0", "O(1)", "Closes the connection after its replies."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(quit)),
    row("reset", 1, SUBSCRIBED | NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION | NEVER_QUEUED,
        doc(Topic::Connection, "6.2.0", "O(1)", "Brings the connection back to how it was when it was new."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(reset)),
];

pub(crate) fn ping(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() <= 2 && ctx.client.gate() & gate::SUBSCRIBED != 0 {
        let text = ctx.request.args.get(1).unwrap_or_default();
        let mut reply = ctx.reply.encoder();
        reply.array(2);
        reply.bulk(b"pong");
        reply.bulk(text);
        return Ok(());
    }
    match ctx.request.args.len() {
        1 => {
            ctx.reply.append(b"+PONG\r\n");
            Ok(())
        }
        2 => ctx.reply.bulk(ctx.arg(1)),
        _ => Err(Failure::Text(
            "ERR wrong number of arguments for 'ping' command",
        )),
    }
}

pub(crate) fn echo(ctx: &mut Context<'_>) -> Done {
    ctx.reply.bulk(ctx.arg(1))
}

pub(crate) fn quit(ctx: &mut Context<'_>) -> Done {
    pubsub::effects_first(ctx)?;
    ctx.turn.ending = Ending::CloseAfterReply;
    ctx.reply.ok()
}

pub(crate) fn reset(ctx: &mut Context<'_>) -> Done {
    pubsub::effects_first(ctx)?;
    monitor::stop(ctx.shared, ctx.client);
    pubsub::end_all(ctx);
    tracking::end(ctx.shared, ctx.client);
    ctx.client.reset();
    ctx.reply.set_protocol(ctx.client.protocol());
    ctx.client.log_in_by_default(ctx.shared);
    ctx.reply.append(b"+RESET\r\n");
    Ok(())
}

pub(crate) fn auth(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() > 3 {
        return Err(SYNTAX);
    }
    let (user, password) = match ctx.request.args.len() {
        2 if ctx.shared.acl().users().default_user().needs_no_password() => {
            return Err(Failure::Text(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        2 => (&b"default"[..], ctx.arg(1)),
        _ => (ctx.arg(1), ctx.arg(2)),
    };
    log_in(ctx, user, password)?;
    ctx.reply.ok()
}

const WRONG_PASSWORD: Failure =
    Failure::Text("WRONGPASS invalid username-password pair or user is disabled.");

/// The error of a login whose password was not checked, because too many failed
/// (`duramen_acl::Logins`).
const TOO_MANY_FAILED: Failure =
    Failure::Text("ERR too many failed logins from this address: try again in some seconds");

/// Gives the connection the rights of a user, if the password is right.
fn log_in(ctx: &mut Context<'_>, user: &[u8], password: &[u8]) -> Done {
    let (shared, address) = (ctx.shared, ctx.client.record().peer.ip());
    let users = shared.acl().users();
    let login = (user, password);
    match shared
        .logins()
        .log_in(&users, address, login, clock::now_ms())
    {
        Ok(user) => {
            ctx.client.log_in(user);
            if shared.audit().classes() & 1 != 0 {
                let origin = acl::origin(shared, ctx.client);
                refusals::record_login(shared, &origin, user.name(), Outcome::Allowed);
            }
            acl::renew(ctx);
            Ok(())
        }
        Err(error) => {
            let origin = acl::origin(shared, ctx.client);
            refusals::note_failed_login(shared, &origin, ctx.request.args.name(), user);
            let LoginError::Wrong { until_ms } = error else {
                return Err(TOO_MANY_FAILED);
            };
            if let Some(until_ms) = until_ms {
                ctx.client.wait.then(Until::Time(until_ms), &[]);
                ctx.turn.ending = Ending::Held;
            }
            Err(WRONG_PASSWORD)
        }
    }
}

/// The parsed options of HELLO, before any is applied.
#[derive(Default)]
struct Hello<'a> {
    protocol: Option<Protocol>,
    auth: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

pub(crate) fn hello(ctx: &mut Context<'_>) -> Done {
    let hello = parse_hello(ctx)?;
    if hello.protocol.is_some() {
        pubsub::effects_first(ctx)?; // earlier messages for the client come in the old protocol
    }
    if let Some((user, password)) = hello.auth {
        log_in(ctx, user, password)?;
    }
    if !ctx.client.is_authenticated() {
        ctx.client.log_in_by_default(ctx.shared);
    }
    if !ctx.client.is_authenticated() {
        return Err(Failure::Text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
             <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = hello.name {
        let name = check_name(name, "Client names")?;
        ctx.client.record().change_text(|text| text.name = name);
    }
    if let Some(protocol) = hello.protocol {
        ctx.client.set_protocol(protocol);
        ctx.reply.set_protocol(protocol);
    }
    greet(ctx);
    Ok(())
}

fn parse_hello<'a>(ctx: &Context<'a>) -> Result<Hello<'a>, Failure> {
    let mut hello = Hello::default();
    let Some(version) = ctx.request.args.get(1) else {
        return Ok(hello);
    };
    let version = parse_integer(version).ok_or(Failure::Text(
        "ERR Protocol version is not an integer or out of range",
    ))?;
    hello.protocol = Some(match version {
        2 => Protocol::Resp2,
        3 => Protocol::Resp3,
        _ => return Err(Failure::Text("NOPROTO unsupported protocol version")),
    });
    let mut rest = ctx.request.args.skip(2).into_iter();
    while let Some(option) = rest.next() {
        let mut take = || {
            rest.next().ok_or_else(|| {
                let option = String::from_utf8_lossy(option);
                Failure::from(format!("ERR Syntax error in HELLO option '{option}'"))
            })
        };
        if option.eq_ignore_ascii_case(b"auth") {
            hello.auth = Some((take()?, take()?));
        } else if option.eq_ignore_ascii_case(b"setname") {
            hello.name = Some(take()?);
        } else {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
        }
    }
    Ok(hello)
}

fn greet(ctx: &mut Context<'_>) {
    let id = ctx.client.id() as i64;
    let proto = if ctx.client.protocol() == Protocol::Resp3 {
        3
    } else {
        2
    };
    let mode: &[u8] = match ctx.shared.membership() {
        None => b"standalone",
        Some(_) => b"cluster",
    };
    let mut reply = ctx.reply.encoder();
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.integer(proto);
    reply.bulk(b"id");
    reply.integer(id);
    reply.bulk(b"mode");
    reply.bulk(mode);
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"modules");
    reply.array(0);
}

/// Maximum length of a client's name, in bytes: it is kept per connection and shown in every
/// `CLIENT LIST`.
const NAME_BYTES_MAX: usize = 1024;

/// Checks a name for `CLIENT LIST`: printable, without blanks.
pub(crate) fn check_name(name: &[u8], what: &str) -> Result<String, Failure> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("ERR {what} cannot be longer than {NAME_BYTES_MAX} bytes").into());
    }
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(String::from_utf8_lossy(name).into_owned());
    }
    Err(format!("ERR {what} cannot contain spaces, newlines or special characters.").into())
}
