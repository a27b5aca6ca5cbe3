//! Translates a command to requests, and replies to printed text.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Instant;

use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_wire::resp::Reply;
use serde_json::{Value, json};

use super::print::{self, Printer};
use super::router::Member;
use super::{ClientCommand, ScanArgs, Servers, SetArgs, TableCommand};
use crate::failure::Failure;

/// Executes `command` at the server and prints the answer.
pub(super) fn run(
    command: &ClientCommand,
    server: &mut Servers,
    json: bool,
) -> Result<(), Failure> {
    let out = &mut Printer::new(json);
    match command {
        ClientCommand::Get { key, no_newline } => {
            let reply = server.ask(&request("GET", [key]))?;
            out.value(&reply, !no_newline)
        }
        ClientCommand::Set(args) => set(args, server, out),
        ClientCommand::Del { keys } => counted(&sum(server, "DEL", keys)?, "no such key", out),
        ClientCommand::Exists { keys } => counted(&sum(server, "EXISTS", keys)?, "", out),
        ClientCommand::Incr { key, by } => change("INCRBY", key, by, server, out),
        ClientCommand::Decr { key, by } => change("DECRBY", key, by, server, out),
        ClientCommand::Incrbyfloat { key, by } => change("INCRBYFLOAT", key, by, server, out),
        ClientCommand::Append { key, value } => {
            let value = value_of(value)?;
            out.reply(&server.ask(&words("APPEND", key, &value))?)
        }
        ClientCommand::Strlen { key } => out.reply(&server.ask(&request("STRLEN", [key]))?),
        ClientCommand::Mget { keys } => mget(keys, server, out),
        ClientCommand::Mset { pairs } => mset(pairs, server, out),
        ClientCommand::Expire { key, after, nx, xx } => {
            let after_ms = after.ms.to_string();
            let mut words = words("PEXPIRE", key, &after_ms).to_vec();
            words.extend(condition(*nx, *xx));
            let none = "no such key, or the condition did not hold";
            counted(&server.ask(&words)?, none, out)
        }
        ClientCommand::Ttl { key, ms } => {
            let name = if *ms { "PTTL" } else { "TTL" };
            match server.ask(&request(name, [key]))? {
                Reply::Integer(-2) => absent("no such key", out),
                reply => out.reply(&reply),
            }
        }
        ClientCommand::Persist { key } => {
            let none = "no such key, or it never expires";
            counted(&server.ask(&request("PERSIST", [key]))?, none, out)
        }
        ClientCommand::Type { key } => match server.ask(&request("TYPE", [key]))? {
            none if none.as_bytes() == Some(b"none") => absent("no such key", out),
            reply => out.reply(&reply),
        },
        ClientCommand::Rename { key, new_key } => {
            out.done(&server.ask(&request("RENAME", [key, new_key]))?)
        }
        ClientCommand::Scan(args) => scan(args, server, out),
        ClientCommand::Keys { pattern } => keys(pattern, server, out),
        ClientCommand::Dbsize => dbsize(server, out),
        ClientCommand::Ping { count } => ping(*count, server, out),
        ClientCommand::Info { sections } => {
            let reply = server.ask(&request("INFO", sections))?;
            let text = reply.as_bytes().unwrap_or_default();
            out.info(&String::from_utf8_lossy(text))
        }
        ClientCommand::Snapshot(args) => super::snapshot::run(args, server, out),
        ClientCommand::Table(args) => table(&args.command, server, out),
        ClientCommand::Call { words } => {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            out.reply(&server.ask(&words)?)
        }
    }
    .and_then(|()| out.flush())
}

/// Whether the keys of one request are in different slots.
fn is_crossed(asked: &Result<Reply, Failure>) -> bool {
    matches!(asked, Err(Failure::Server(text)) if text.starts_with("CROSSSLOT"))
}

fn change(
    name: &str,
    key: &OsStr,
    by: &impl ToString,
    server: &mut Servers,
    out: &mut Printer,
) -> Result<(), Failure> {
    out.reply(&server.ask(&words(name, key, &by.to_string()))?)
}

/// The sum of a counting command over all keys. If several members of a cluster have the keys, each
/// key is requested separately.
fn sum(server: &mut Servers, name: &str, keys: &[OsString]) -> Result<Reply, Failure> {
    let whole = server.ask(&request(name, keys));
    if !is_crossed(&whole) {
        return whole;
    }
    let mut total = 0;
    for key in keys {
        total += server.ask(&request(name, [key]))?.as_integer().unwrap_or(0);
    }
    Ok(Reply::Integer(total))
}

/// Values in the order of their keys; in a cluster as in [`sum`].
fn values(server: &mut Servers, keys: &[OsString]) -> Result<Reply, Failure> {
    let whole = server.ask(&request("MGET", keys));
    if !is_crossed(&whole) {
        return whole;
    }
    let each = keys.iter().map(|key| server.ask(&request("GET", [key])));
    each.collect::<Result<Vec<Reply>, Failure>>()
        .map(Reply::Array)
}

fn keys(pattern: &OsString, server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    let all = server.walk(|server, member, all: &mut Vec<Reply>| {
        match server.ask_at(member, &request("KEYS", [pattern]))? {
            Reply::Array(keys) => all.extend(keys),
            other => all.push(other),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    out.reply(&Reply::Array(all))
}

fn dbsize(server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    let total = server.walk(|server, member, total: &mut i64| {
        let count = server.ask_at(member, &["DBSIZE"])?.as_integer();
        *total += count.unwrap_or(0);
        Ok(ControlFlow::Continue(()))
    })?;
    out.reply(&Reply::Integer(total))
}

fn request<'a>(name: &'a str, args: impl IntoIterator<Item = &'a OsString>) -> Vec<&'a [u8]> {
    std::iter::once(name.as_bytes())
        .chain(args.into_iter().map(|arg| arg.as_bytes()))
        .collect()
}

fn words<'a>(name: &'a str, key: &'a OsStr, value: &'a impl AsRef<[u8]>) -> [&'a [u8]; 3] {
    [name.as_bytes(), key.as_bytes(), value.as_ref()]
}

fn condition(nx: bool, xx: bool) -> Option<&'static [u8]> {
    match (nx, xx) {
        (true, _) => Some(b"NX"),
        (_, true) => Some(b"XX"),
        _ => None,
    }
}

fn text(word: Option<&OsString>) -> String {
    word.map(|word| word.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The bytes of an argument, or for `-` all of standard input.
fn value_of(argument: &OsStr) -> Result<Vec<u8>, Failure> {
    if argument != "-" {
        return Ok(argument.as_bytes().to_vec());
    }
    let mut value = Vec::new();
    io::stdin()
        .take(VALUE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut value)
        .map_err(|reason| Failure::Input {
            what: "the value from standard input".to_owned(),
            reason,
        })?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "the value on standard input is longer than {VALUE_BYTES_MAX} bytes"
        )));
    }
    Ok(value)
}

/// Prints null in JSON; reports the reason otherwise. Exit code 1.
fn absent(why: &str, out: &mut Printer) -> Result<(), Failure> {
    out.null()?;
    out.flush()?;
    Err(Failure::NotFound(why.to_owned()))
}

/// Prints a count; 0 counts as "not found".
fn counted(reply: &Reply, none: &str, out: &mut Printer) -> Result<(), Failure> {
    out.reply(reply)?;
    if *reply == Reply::Integer(0) {
        out.flush()?;
        return Err(Failure::NotFound(none.to_owned()));
    }
    Ok(())
}

fn set(args: &SetArgs, server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    let value = value_of(&args.value)?;
    let ttl_ms = args.ttl.map(|ttl| ttl.ms.to_string());
    let mut words = vec![&b"SET"[..], args.key.as_bytes(), &value];
    if let Some(ttl_ms) = &ttl_ms {
        words.extend([&b"PX"[..], ttl_ms.as_bytes()]);
    }
    if args.keep_ttl {
        words.push(b"KEEPTTL");
    }
    words.extend(condition(args.nx, args.xx));
    if args.get {
        words.push(b"GET");
        let reply = server.ask(&words)?;
        // Whether it was stored follows from the old value and the condition.
        let stored = if args.nx {
            reply == Reply::Null
        } else {
            !args.xx || reply != Reply::Null
        };
        return match (&reply, stored) {
            (Reply::Null, true) => out.null(),
            (_, true) => out.value(&reply, true),
            (_, false) => {
                out.reply(&reply)?;
                out.flush()?;
                Err(Failure::NotFound(
                    "not stored: the condition did not hold".to_owned(),
                ))
            }
        };
    }
    match server.ask(&words)? {
        Reply::Null => absent("not stored: the condition did not hold", out),
        reply => out.done(&reply),
    }
}

fn mset(pairs: &[OsString], server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    if !pairs.len().is_multiple_of(2) {
        return Err(Failure::Usage(format!(
            "mset takes keys and values in turn; the last key, `{}`, has no value",
            text(pairs.last())
        )));
    }
    out.done(&server.ask(&request("MSET", pairs))?)
}

fn mget(keys: &[OsString], server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    let reply = values(server, keys)?;
    out.reply(&reply)?;
    let missing: Vec<String> = keys
        .iter()
        .zip(reply.as_array().unwrap_or_default())
        .filter(|(_, value)| **value == Reply::Null)
        .map(|(key, _)| text(Some(key)))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    out.flush()?;
    Err(Failure::NotFound(format!(
        "no such key: {}",
        missing.join(", ")
    )))
}

fn scan(args: &ScanArgs, server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    let limit = match args.limit {
        0 => u64::MAX,
        limit => limit,
    };
    // A walk that begins anew may print all keys again.
    server.walk(|server, member, printed: &mut u64| {
        let mut left = limit - *printed;
        scan_one(args, server, member, &mut left, out)?;
        *printed = limit - left;
        Ok(match left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    })?;
    Ok(())
}

fn scan_one(
    args: &ScanArgs,
    server: &mut Servers,
    member: &Member,
    left: &mut u64,
    out: &mut Printer,
) -> Result<(), Failure> {
    let batch = args.batch.to_string();
    let mut cursor = b"0".to_vec();
    loop {
        let words = [
            &b"SCAN"[..],
            &cursor,
            b"MATCH",
            args.pattern.as_bytes(),
            b"COUNT",
            batch.as_bytes(),
        ];
        let reply = server.ask_at(member, &words)?;
        let Some([next, keys]) = reply.as_array() else {
            return Err(Failure::Server(format!(
                "an answer to SCAN that is none: {}",
                print::short(&reply)
            )));
        };
        let keys: Vec<&[u8]> = keys
            .as_array()
            .unwrap_or_default()
            .iter()
            .filter_map(Reply::as_bytes)
            .collect();
        let keys = keys
            .get(..usize::try_from(*left).unwrap_or(usize::MAX).min(keys.len()))
            .unwrap_or_default();
        *left -= keys.len() as u64;
        if args.values && !keys.is_empty() {
            pairs(server, keys, out)?;
        } else {
            for key in keys {
                if args.null {
                    out.ended_by_zero(key)?
                } else {
                    out.line(key)?
                }
            }
        }
        cursor = next.as_bytes().unwrap_or(b"0").to_vec();
        if cursor == b"0" || *left == 0 {
            return Ok(());
        }
    }
}

/// Keys with their values.
fn pairs(server: &mut Servers, keys: &[&[u8]], out: &mut Printer) -> Result<(), Failure> {
    let owned: Vec<OsString> = keys
        .iter()
        .map(|key| OsString::from_vec(key.to_vec()))
        .collect();
    let values = match values(server, &owned) {
        // Large values: half of them at a time.
        Err(Failure::Server(text)) if keys.len() > 1 && text.contains("output-limit") => {
            let (first, rest) = keys.split_at(keys.len() / 2);
            pairs(server, first, out)?;
            return pairs(server, rest, out);
        }
        values => values?,
    };
    for (key, value) in keys.iter().zip(values.as_array().unwrap_or_default()) {
        // An absent value was removed after the scan had found its key.
        if let Some(value) = value.as_bytes() {
            out.pair(key, value)?;
        }
    }
    Ok(())
}

fn ping(count: u32, server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    for _ in 0..count {
        let began = Instant::now();
        let reply = server.ask(&["PING"])?;
        let took_us = began.elapsed().as_micros();
        if out.is_json() {
            out.json(&json!({ "reply": print::json_of(&reply), "microseconds": took_us as u64 }))?;
        } else {
            let reply = print::short(&reply);
            out.line(format!("{reply} from {} in {took_us} µs", server.address()).as_bytes())?;
        }
    }
    Ok(())
}

fn table(command: &TableCommand, server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    match command {
        TableCommand::List => list_tables(server, out),
        TableCommand::Create { name, level, .. } => {
            let mut words = table_words("CREATE", name).to_vec();
            if let Some(level) = level {
                words.extend([&b"LEVEL"[..], level.as_bytes()]);
            }
            out.reply(&server.ask(&words)?)
        }
        TableCommand::Id { name } => out.reply(&server.ask(&table_words("ID", name))?),
        TableCommand::Drop { name } => {
            server.ask(&table_words("DROP", name))?;
            let (name, at) = (text(Some(name)), server.address());
            if out.is_json() {
                return out.json(&json!({ "dropped": name, "server": at }));
            }
            out.line(format!("dropped table `{name}` of the server at {at}").as_bytes())
        }
    }
}

/// A heading and one line per table, as for a cluster; with JSON an array of objects.
fn list_tables(server: &mut Servers, out: &mut Printer) -> Result<(), Failure> {
    let reply = server.ask(&["DURAMEN.TABLE", "LIST"])?;
    let tables = reply.as_array().unwrap_or_default();
    let tables: Vec<Value> = tables.iter().map(print::object_of).collect();
    if out.is_json() {
        return out.json(&Value::Array(tables));
    }
    let line = |id: &str, name: &str, level: &str, objects: &str| {
        format!("{id:<6} {name:<24} {level:<9} {objects}")
    };
    out.line(line("id", "table", "level", "objects").as_bytes())?;
    for table in &tables {
        let field = |name: &str| match &table[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let [id, name, level, objects] = ["id", "name", "level", "objects"].map(field);
        out.line(line(&id, &name, &level, &objects).as_bytes())?;
    }
    Ok(())
}

fn table_words<'a>(action: &'a str, name: &'a OsString) -> [&'a [u8]; 3] {
    [b"DURAMEN.TABLE", action.as_bytes(), name.as_bytes()]
}
