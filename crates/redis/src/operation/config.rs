//! CONFIG: the settings of the running server, by their own names and by Redis's names.

use crate::command::background::{self, Kind, OK};
use crate::command::context::{Context, Done, Failure};
use crate::command::row::*;
use crate::command::turn::Ending;
use crate::operation::configure;
use crate::operation::written;
use crate::reply::wait::Until;
use crate::state::Shared;
use crate::state::shared::encodings::Encodings;
use crate::state::shared::totals;
use duramen_base::glob::Pattern;
use duramen_base::ids::Level;
use duramen_config::{SETTINGS, ServerConfig, ServerError, Setting};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("config", doc(Topic::Server, "2.0.0", "Depends on the subcommand", "A container for commands about settings.")),
    row("config|get", -3, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | REPORTS, doc(Topic::Server, "2.0.0", "O(N)", "Returns settings."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(get))
            .differs("Secrets are empty or `(hidden)`."),
    row("config|set", -4, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | CHANGES_SETTINGS,
        doc(Topic::Server, "2.0.0", "O(N)", "Changes settings of the running server."),
        Keys::NONE, Effect::Acts, Secrets::From(3), Run::Plain(set))
            .differs("Errors list the allowed values.").tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    row("config|resetstat", 2, ADMIN | NOSCRIPT | LOADING | STALE | DANGEROUS | SWEEPS,
        doc(Topic::Server, "2.0.0", "O(1)", "Sets the counters of INFO back to 0."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(resetstat)),
    row("config|rewrite", 2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | DANGEROUS,
        doc(Topic::Server, "2.8.0", "O(1)", "Writes the settings that CONFIG SET changed to the configuration file."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(rewrite))
            .differs("Writes the changes of `CONFIG SET` into `duramen.toml`, never secrets."),
    row("config|help", 2, LOADING | STALE | TELLS, doc(Topic::Server, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
];

/// Parameters that Redis's clients and agents read and that are fixed here.
fn fixed(shared: &Shared, config: &ServerConfig) -> Vec<(&'static str, String)> {
    let member = shared.membership().is_some();
    let durable = member || config.data_dir().is_some();
    let yes = |is: bool| if is { "yes" } else { "no" };
    let appendfsync = match config.write_level() {
        Level::Synced => "always",
        Level::Memory | Level::Buffered => "no",
    };
    let (hard, seconds) = (config.output_limit_bytes, config.output_stall_s);
    let mut fixed: Vec<(&'static str, String)> = [
        ("appendonly", yes(durable)),
        ("appendfsync", appendfsync),
        ("databases", if member { "1" } else { "16" }),
        ("cluster-enabled", yes(member)),
        ("protected-mode", yes(!config.insecure_bind)),
        ("save", ""),
        ("dbfilename", "dump"),
        ("latency-tracking", "yes"),
        ("cluster-require-full-coverage", "no"),
        ("daemonize", "no"),
        ("supervised", "no"),
        ("io-threads", "1"),
        ("hz", "10"),
        ("lazyfree-lazy-user-del", "yes"),
        ("lazyfree-lazy-user-flush", "yes"),
        ("stop-writes-on-bgsave-error", "no"),
        ("replica-read-only", "yes"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    let limits = format!("normal {hard} 0 {seconds} slave 0 0 0 pubsub {hard} 0 {seconds}");
    fixed.push(("client-output-buffer-limit", limits));
    fixed
}

/// Maximum number of patterns of one `CONFIG GET`: each is matched against every name.
const PATTERNS_MAX: usize = 128;
/// Maximum bytes of all patterns of one `CONFIG GET`: a few milliseconds to compile them.
const PATTERN_BYTES_MAX: usize = 16 << 10;

pub(crate) fn get(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() - 2 > PATTERNS_MAX {
        return Err(Failure::Text("ERR CONFIG GET takes at most 128 patterns"));
    }
    let pattern_bytes: usize = ctx.request.args.skip(2).into_iter().map(<[u8]>::len).sum();
    if pattern_bytes > PATTERN_BYTES_MAX {
        let text = "ERR CONFIG GET takes at most 16384 bytes of patterns";
        return Err(Failure::Text(text));
    }
    let config = ctx.shared.config();
    // A pattern that is too long matches no setting.
    let patterns: Vec<(&[u8], Pattern)> = ctx
        .request
        .args
        .skip(2)
        .into_iter()
        .filter_map(|text| Some((text, Pattern::new(text, true)?)))
        .collect();
    // Returns the name as it is written in the first pattern that matches it: a pattern without
    // wildcards is a name, and keeps the client's case.
    let wanted = |name: &str| -> Option<String> {
        let (pattern, _) = patterns
            .iter()
            .find(|(_, pattern)| pattern.matches(name.as_bytes()))?;
        let is_name = !pattern.iter().any(|byte| b"*?[".contains(byte));
        Some(if is_name {
            text(pattern)
        } else {
            name.to_string()
        })
    };
    let mut found: Vec<(String, String)> = Vec::new();
    for setting in SETTINGS {
        for name in std::iter::once(setting.name).chain(setting.redis_name) {
            if let Some(name) = wanted(name) {
                found.push((name, shown(setting, &config)));
            }
        }
    }
    for (name, value) in fixed(ctx.shared, &config) {
        if Setting::find(name).is_none()
            && let Some(name) = wanted(name)
        {
            found.push((name, value));
        }
    }
    for (name, value) in ctx.shared.settings.encodings().each() {
        if let Some(name) = wanted(name) {
            found.push((name, value.to_string()));
        }
    }
    let mut reply = ctx.reply.encoder();
    reply.map(found.len());
    for (name, value) in found {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    Ok(())
}

/// The value in use: for the level `auto` and an empty directory, the value they stand for; for a
/// secret, only whether it is set.
fn shown(setting: &Setting, config: &ServerConfig) -> String {
    let is_set = !setting.show_plain(config).is_empty();
    if setting.secret && is_set {
        return "(hidden)".to_owned();
    }
    match setting.name {
        "memory" => config.memory_bytes.to_string(),
        "level" => config.write_level().name().to_owned(),
        "dir" => config
            .data_dir()
            .map_or(String::new(), |dir| dir.display().to_string()),
        _ => setting.show_plain(config),
    }
}

pub(crate) fn set(ctx: &mut Context<'_>) -> Done {
    if !ctx.request.args.len().is_multiple_of(2) {
        return Err(Failure::Text(
            "ERR wrong number of arguments for 'config|set' command",
        ));
    }
    let pairs: Vec<(String, String)> = (2..ctx.request.args.len())
        .step_by(2)
        .map(|n| {
            let name = text(ctx.arg(n));
            match std::str::from_utf8(ctx.arg(n + 1)) {
                Ok(value) => Ok((name, value.to_owned())),
                Err(_) => Err(refused(&name, "the value is not UTF-8 text")),
            }
        })
        .collect::<Result<_, _>>()?;
    // The changes are tried on a copy first, so that an error names the argument.
    let mut trial = ServerConfig::clone(&ctx.shared.config());
    let mut changes = Vec::new();
    let mut limits = Vec::new();
    for (n, (name, value)) in pairs.iter().enumerate() {
        if pairs[..n]
            .iter()
            .any(|(earlier, _)| earlier.eq_ignore_ascii_case(name))
        {
            return Err(refused(name, "duplicate parameter"));
        }
        match Setting::find(name) {
            Some(setting) if setting.runtime => {
                setting
                    .apply(&mut trial, value)
                    .map_err(|error| refused(name, &brief(&error.to_string(), value)))?;
                changes.push((setting, &**value));
            }
            Some(setting) => {
                let why = format!(
                    "can't set immutable config: {} cannot be changed while the server runs",
                    setting.name
                );
                return Err(refused(name, &why));
            }
            None => match Encodings::parse(name, value) {
                Some(limit) => limits.push(limit.map_err(|why| refused(name, &why))?),
                None => check_fixed(ctx.shared, &trial, name, value)?,
            },
        }
    }
    let failed = |error: ServerError| format!("CONFIG SET failed - {error}");
    if changes.iter().any(|(setting, _)| reads_files(setting)) {
        if ctx.thread.exec.runs() {
            let text = "ERR CONFIG SET of tls-* reads files, which a transaction does not wait for";
            return Err(Failure::Text(text));
        }
        let changes = changes.into_iter();
        let owned: Vec<(&Setting, String)> = changes
            .map(|(setting, value)| (setting, value.to_owned()))
            .collect();
        return background::run(ctx, Kind::Files, move |shared, _| {
            let changes = owned.iter();
            let changes: Vec<_> = changes.map(|(name, value)| (*name, &**value)).collect();
            configure::set(shared, &changes).map_err(failed)?;
            shared.settings.encodings().set(&limits);
            Ok(OK.to_vec())
        });
    }
    configure::set(ctx.shared, &changes)
        .map_err(|error| Failure::from(format!("ERR {}", failed(error))))?;
    ctx.shared.settings.encodings().set(&limits);
    ctx.reply.ok()
}

/// Whether a change of a setting reads files.
fn reads_files(setting: &Setting) -> bool {
    setting.name.starts_with("tls-")
}

/// A fixed parameter may be set to its current value.
fn check_fixed(shared: &Shared, config: &ServerConfig, name: &str, value: &str) -> Done {
    let fixed = fixed(shared, config);
    match fixed
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
    {
        Some((_, current)) if current.eq_ignore_ascii_case(value) => Ok(()),
        Some((_, current)) => Err(refused(
            name,
            &format!("can't set immutable config: it is `{current}` here"),
        )),
        None => Err(Failure::from(format!(
            "ERR Unknown option or number of arguments for CONFIG SET - '{}'",
            brief(name, name)
        ))),
    }
}

/// Most bytes of an argument in an error.
const SHOWN_BYTES_MAX: usize = 128;

/// An error text that shows this argument, shortened if the argument is long.
fn brief(error: &str, argument: &str) -> String {
    if argument.len() <= SHOWN_BYTES_MAX {
        return error.to_owned();
    }
    let end = argument.floor_char_boundary(SHOWN_BYTES_MAX);
    error.replace(argument, &format!("{}…", &argument[..end]))
}

fn refused(name: &str, why: &str) -> Failure {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn resetstat(ctx: &mut Context<'_>) -> Done {
    ctx.count_up_to_now();
    totals::reset(ctx.shared);
    ctx.shared.acl().reset_counts();
    ctx.shared.figures.error_codes().reset();
    ctx.reply.ok()
}

/// Handles CONFIG REWRITE: the reply waits until the file is on disk.
pub(crate) fn rewrite(ctx: &mut Context<'_>) -> Done {
    let Some(file) = ctx.shared.settings.file() else {
        return Err(Failure::Text(
            "ERR The server is running without a config file",
        ));
    };
    let finish = written::rewrite_config(ctx.shared, file)?;
    ctx.reply.ok()?;
    ctx.client.wait.then(Until::Rewritten(finish), b"+OK\r\n");
    ctx.turn.ending = Ending::Held;
    Ok(())
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "GET <pattern>",
            "    Return parameters matching the glob-like <pattern> and their values.",
            "SET <directive> <value>",
            "    Set the configuration <directive> to <value>.",
            "RESETSTAT",
            "    Reset statistics reported by the INFO command.",
            "REWRITE",
            "    Rewrite the configuration file.",
        ],
    )
}
