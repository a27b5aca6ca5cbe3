//! `duramen config`, and the sources of a server's settings: flags, then `DURAMEN_*`, then the
//! file, then defaults.
//!
//! All of it is derived from the server's one table of settings; this file contains no name of a
//! setting.

use clap::{Arg, ArgMatches, Subcommand};
use duramen_config::file::{self, Entry};
use duramen_config::{Kind, MemoryLimit, SETTINGS, ServerConfig, Setting, hint, redis_line_hint};
use duramen_server::Server;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Read from the working directory if no other file is named.
const FILE_DEFAULT: &str = "duramen.toml";
/// Names another file.
const FILE_ENV: &str = "DURAMEN_CONFIG";

/// The source of a setting's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment,
    Flag,
}

impl Origin {
    fn describe(&self, setting: &Setting) -> String {
        match self {
            Origin::Default => "default".to_owned(),
            Origin::File { path, line } => format!("{}:{line}", path.display()),
            Origin::Environment => format!("environment {}", setting.env_name()),
            Origin::Flag => format!("flag --{}", setting.name),
        }
    }
}

/// Settings, each with its source.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: ServerConfig,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// In the order of [`SETTINGS`].
    origins: Vec<Origin>,
    /// Warnings about `DURAMEN_*` variables that are no setting.
    pub(crate) warnings: Vec<String>,
}

/// All mistakes, one line each.
#[derive(Debug)]
pub(crate) struct Problems(Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// Values of settings as the user wrote them.
pub(crate) type Given = HashMap<&'static str, String>;

impl Loaded {
    /// Combines all sources. `file` is the file of a flag; without one, `DURAMEN_CONFIG` names the
    /// file, or it is `duramen.toml` if that exists. An empty variable counts as unset.
    pub(crate) fn new(
        file: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        flags: &Given,
    ) -> Result<Loaded, Problems> {
        // Variables of other programs may have any bytes.
        let environment: HashMap<String, OsString> = environment
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, value)| name.starts_with("DURAMEN_") && !is_service_link(name, value))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let mut loaded = Loaded {
            config: ServerConfig::default(),
            file: None,
            origins: vec![Origin::Default; SETTINGS.len()],
            warnings: Vec::new(),
        };
        let mut problems = Vec::new();
        let named = file
            .map(Path::to_owned)
            .or_else(|| environment.get(FILE_ENV).map(PathBuf::from));
        let path = named.clone().unwrap_or_else(|| FILE_DEFAULT.into());
        if named.is_some() || path.exists() {
            loaded.read_file(&path, &mut problems);
            loaded.file = Some(path);
        }
        for (n, setting) in SETTINGS.iter().enumerate() {
            loaded.read_environment(n, &environment, &mut problems);
            if let Some(text) = flags.get(setting.name) {
                loaded.apply(n, text, Origin::Flag, &mut problems);
            }
        }
        loaded.warn_of_unknown(&environment);
        if loaded.config.cap_memory_share() {
            let why = "the share of `memory` is above memory-max: memory is memory-max";
            loaded.warnings.push(why.to_owned());
        }
        if problems.is_empty()
            && let Err(error) = loaded.config.check()
        {
            problems.push(error.to_string());
        }
        if problems.is_empty() {
            Ok(loaded)
        } else {
            Err(Problems(problems))
        }
    }

    /// Whether a flag, a variable or the file sets it.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        let mut all = SETTINGS.iter().zip(&self.origins);
        all.any(|(setting, origin)| setting.name == name && *origin != Origin::Default)
    }

    /// Keeps each secret of `last` that no source names any more: a file that is cut short removes
    /// no password. Returns the names of the secrets that it kept.
    pub(crate) fn keep_secrets(&mut self, last: &ServerConfig) -> Vec<&'static str> {
        let secrets = SETTINGS.iter().zip(&self.origins);
        let kept = secrets.filter(|(setting, origin)| {
            setting.secret && **origin == Origin::Default && !setting.show_plain(last).is_empty()
        });
        let kept: Vec<&Setting> = kept.map(|(setting, _)| setting).collect();
        for setting in &kept {
            // This cannot fail: the value was accepted before.
            let _ = setting.apply(&mut self.config, &setting.show_plain(last));
        }
        kept.iter().map(|setting| setting.name).collect()
    }

    /// Notes in `last` the values that `CONFIG REWRITE` has put into the file since: reading them
    /// again changes nothing. A flag and the environment precede the file.
    pub(crate) fn note_rewritten(
        &self,
        rewritten: BTreeMap<&'static str, String>,
        last: &mut ServerConfig,
    ) {
        for (setting, origin) in SETTINGS.iter().zip(&self.origins) {
            if let Some(value) = rewritten.get(setting.name)
                && !matches!(origin, Origin::Flag | Origin::Environment)
            {
                // This cannot fail: the value was in force.
                let _ = setting.apply(last, value);
            }
        }
    }

    /// Logs suspicious input that is not an error.
    fn warn(&self) {
        for warning in &self.warnings {
            eprintln!("duramen: {warning}");
        }
    }

    /// The sources of settings, in one readable line.
    fn summary(&self) -> String {
        let count =
            |is: fn(&Origin) -> bool| self.origins.iter().filter(|origin| is(origin)).count();
        let in_file = count(|origin| matches!(origin, Origin::File { .. }));
        let variables = count(|origin| *origin == Origin::Environment);
        let file = match &self.file {
            Some(file) => format!("{}: correct, {in_file}", file.display()),
            None => format!("no {FILE_DEFAULT} here: correct, 0"),
        };
        let variables = match variables {
            0 => String::new(),
            n => format!(", {n} by variables"),
        };
        format!("{file} of {} settings set{variables}", SETTINGS.len())
    }

    fn read_environment(
        &mut self,
        n: usize,
        environment: &HashMap<String, OsString>,
        problems: &mut Vec<String>,
    ) {
        let names = SETTINGS[n].env_names();
        let said: Vec<(String, &OsString)> = names
            .filter_map(|name| environment.get(&name).map(|text| (name, text)))
            .collect();
        match &said[..] {
            [] => {}
            [(name, text)] => match text.to_str() {
                Some(text) => self.apply(n, text, Origin::Environment, problems),
                None => problems.push(format!("the value of {name} is not UTF-8 text")),
            },
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| &**name).collect();
                problems.push(format!(
                    "{} are the same setting: use one of them",
                    names.join(" and ")
                ));
            }
        }
    }

    fn apply(&mut self, n: usize, text: &str, origin: Origin, problems: &mut Vec<String>) {
        let setting = &SETTINGS[n];
        match setting.apply(&mut self.config, text) {
            Ok(()) => self.origins[n] = origin,
            Err(error) => problems.push(format!("{error} ({})", origin.describe(setting))),
        }
    }

    fn read_file(&mut self, path: &Path, problems: &mut Vec<String>) {
        let text = match file::load(path) {
            Ok(text) => text,
            Err(error) => {
                problems.push(format!("cannot read {}: {error}", path.display()));
                return;
            }
        };
        let entries = match file::read(&text) {
            Ok(entries) => entries,
            Err(error) => {
                let (path, line, message) = (path.display(), error.line, error.message);
                let wrong = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
                problems.push(match redis_line_hint(wrong) {
                    Some(hint) => format!("{path}:{line}: {hint}"),
                    None => format!("{path}:{line}: not TOML: {message}"),
                });
                return;
            }
        };
        for entry in entries {
            self.read_entry(path, &entry, problems);
        }
    }

    fn read_entry(&mut self, path: &Path, entry: &Entry, problems: &mut Vec<String>) {
        let Entry {
            key, text, line, ..
        } = entry;
        let place = path.display();
        let known = SETTINGS
            .iter()
            .position(|setting| setting.names().any(|name| name == key));
        let Some(n) = known else {
            problems.push(if entry.is_table {
                format!(
                    "{place}:{line}: there are no sections, and `{key}` is not a setting: write the settings without `[{key}]`"
                )
            } else {
                format!("{place}:{line}: unknown setting `{key}`; {}", hint(key))
            });
            return;
        };
        if let Origin::File { line: first, .. } = &self.origins[n] {
            let names: Vec<&str> = SETTINGS[n].names().collect();
            problems.push(format!(
                "{place}:{line}: `{}` are the same setting, which is set in line {first} already",
                names.join("` and `")
            ));
            return;
        }
        let origin = Origin::File {
            path: path.to_owned(),
            line: *line,
        };
        match text {
            Some(text) => self.apply(n, text, origin, problems),
            None => problems.push(format!(
                "{place}:{line}: {key} must be text, a number, true or false, or a list of texts"
            )),
        }
    }

    /// Other programs of this name may have such variables: an unknown one gets a warning, not a
    /// refusal.
    fn warn_of_unknown(&mut self, environment: &HashMap<String, OsString>) {
        for name in environment.keys() {
            let known = SETTINGS
                .iter()
                .any(|setting| setting.env_names().any(|known| known == *name));
            let others = [
                FILE_ENV,
                "DURAMEN_HOST",
                "DURAMEN_PASSWORD",
                "DURAMEN_PASSWORD_FILE",
                "DURAMEN_USER",
                "DURAMEN_TABLE",
                "DURAMEN_TLS",
                "DURAMEN_TLS_SERVER_NAME",
            ];
            if !known && !others.contains(&name.as_str()) {
                let nearest = Setting::nearest(name.trim_start_matches("DURAMEN_"));
                let nearest = nearest.and_then(Setting::find).map_or_else(
                    || "no setting has a similar name".to_owned(),
                    |near| format!("did you mean {}?", near.env_name()),
                );
                self.warnings.push(format!(
                    "environment variable {name} is not a setting; {nearest}"
                ));
            }
        }
        self.warnings.sort();
    }
}

/// Whether a variable is one of those that Kubernetes sets in each container beside a Service whose
/// name begins with `duramen`: `DURAMEN_PORT=tcp://10.0.0.1:6379`, `DURAMEN_SERVICE_HOST`.
pub(crate) fn is_service_link(name: &str, value: &OsStr) -> bool {
    let schemes = ["tcp://", "udp://", "sctp://"];
    let has_scheme = |text: &str| schemes.iter().any(|scheme| text.starts_with(scheme));
    let is_url = name.ends_with("_PORT") && value.to_str().is_some_and(has_scheme);
    is_url || name.contains("_SERVICE_") || name.contains("_PORT_")
}

/// The flags of all settings.
pub(crate) fn setting_args() -> impl Iterator<Item = Arg> {
    SETTINGS.iter().map(|setting| {
        let mut arg = Arg::new(setting.name)
            .long(setting.name)
            .visible_aliases(setting.redis_name)
            .help(help(setting));
        arg = match setting.kind {
            Kind::Size { .. } => arg.value_name("SIZE"),
            Kind::Memory { .. } => arg.value_name("SIZE|SHARE"),
            Kind::Number { .. } => arg.value_name("N").allow_negative_numbers(true),
            // `--admin`, `--admin=no`: a bare flag must not take the next word.
            Kind::Flag => arg
                .value_name("yes|no")
                .num_args(0..=1)
                .default_missing_value("yes")
                .require_equals(true),
            Kind::Choice(names) => arg
                .value_name("CHOICE")
                .value_parser(clap::builder::PossibleValuesParser::new(names)),
            Kind::Addresses { .. } => arg.value_name("ADDR"),
            Kind::Text | Kind::Lines | Kind::Password | Kind::Events => arg.value_name("TEXT"),
        };
        arg
    })
}

fn help(setting: &Setting) -> String {
    let mut notes = Vec::new();
    match setting.kind {
        Kind::Size { min, max } | Kind::Memory { min, max } => notes.push(format!(
            "{} to {}",
            duramen_config::format_size(min),
            duramen_config::format_size(max)
        )),
        Kind::Number { min, max } if max < i64::MAX => {
            notes.push(
                format!("{min} to {max} {}", setting.unit)
                    .trim_end()
                    .to_owned(),
            );
        }
        _ => {}
    }
    if !setting.default.is_empty() {
        notes.push(format!("default {}", setting.default));
    }
    notes.push(setting.env_name());
    format!("{} [{}]", setting.doc, notes.join("; "))
}

/// The values given as flags.
pub(crate) fn given(matches: &ArgMatches) -> Given {
    SETTINGS
        .iter()
        .filter_map(|setting| {
            let text = matches.get_one::<String>(setting.name)?;
            Some((setting.name, text.clone()))
        })
        .collect()
}

#[derive(clap::Args)]
#[command(after_help = "\
Both commands read the same settings as `duramen serve`: the file that --config names, else the one
that DURAMEN_CONFIG names, else duramen.toml if it exists. Variables DURAMEN_* override the file.

EXAMPLES
  duramen config check
  duramen config check --config /etc/duramen.toml
  duramen config print --show-origin
  duramen config print > duramen.toml     start a file from the defaults

Exit codes: 0 correct, 2 there are errors, one per line.")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check the settings that `duramen serve` would use here: every key and value, their
    /// combination, and the files of certificates, users, token and encryption key.
    Check {
        /// The configuration file to read.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The same file, as an argument.
        #[arg(value_name = "FILE", conflicts_with = "config")]
        file: Option<PathBuf>,
    },
    /// Print the settings that `duramen serve` would use here, as a configuration file.
    Print {
        /// The configuration file to read.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print the source of each setting's value.
        #[arg(long)]
        show_origin: bool,
        /// Print JSON instead: name, value, origin, default, unit, doc.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: ConfigArgs) -> ExitCode {
    match args.command {
        ConfigCommand::Check { config, file } => {
            let file = config.or(file);
            match Loaded::new(file.as_deref(), std::env::vars_os(), &Given::new()) {
                Ok(loaded) => {
                    loaded.warn();
                    if let Err(problem) = judge_memory(&loaded.config) {
                        return refuse(&Problems(vec![problem]));
                    }
                    let config = &loaded.config;
                    let files = config
                        .check_certificates()
                        .and_then(|()| Server::check_files(config));
                    if let Err(problem) = files {
                        return refuse(&Problems(vec![problem.to_string()]));
                    }
                    println!("{}", loaded.summary());
                    ExitCode::SUCCESS
                }
                Err(problems) => refuse(&problems),
            }
        }
        ConfigCommand::Print {
            config,
            show_origin,
            json,
        } => match Loaded::new(config.as_deref(), std::env::vars_os(), &Given::new()) {
            Ok(loaded) => {
                loaded.warn();
                let text = if json {
                    print_json(&loaded)
                } else {
                    print_toml(&loaded, show_origin)
                };
                match std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(e) => crate::failure::Failure::stdout(e).report(),
                }
            }
            Err(problems) => refuse(&problems),
        },
    }
}

/// Whether this machine has the memory; prints a warning if it is tight.
fn judge_memory(config: &ServerConfig) -> Result<(), String> {
    let Some(limit) = MemoryLimit::now() else {
        return Ok(());
    };
    if let Some(warning) = limit.judge(config.memory_bytes)? {
        eprintln!("duramen: {warning}");
    }
    Ok(())
}

/// Prints the mistakes; exit code 2.
pub(crate) fn refuse(problems: &Problems) -> ExitCode {
    for problem in &problems.0 {
        eprintln!("duramen: {problem}");
    }
    ExitCode::from(2)
}

fn shown(setting: &Setting, config: &ServerConfig) -> String {
    let value = setting.show(config);
    if setting.secret && !value.is_empty() {
        "(hidden)".to_owned()
    } else {
        value
    }
}

fn print_toml(loaded: &Loaded, show_origin: bool) -> String {
    let mut text = String::new();
    for (setting, origin) in SETTINGS.iter().zip(&loaded.origins) {
        let value = shown(setting, &loaded.config);
        let value = file::written(setting, value);
        text.push_str(&format!("# {}\n", setting.doc));
        // A hidden value must not become a password when this output is used as a file.
        if setting.secret && !setting.show(&loaded.config).is_empty() {
            text.push_str("# ");
        }
        text.push_str(&format!("{} = {value}", setting.name));
        if show_origin {
            text.push_str(&format!("  # {}", origin.describe(setting)));
        }
        text.push_str("\n\n");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn print_json(loaded: &Loaded) -> String {
    let list: Vec<serde_json::Value> = SETTINGS
        .iter()
        .zip(&loaded.origins)
        .map(|(setting, origin)| {
            serde_json::json!({
                "name": setting.name,
                "value": shown(setting, &loaded.config),
                "origin": origin.describe(setting),
                "default": setting.default,
                "unit": setting.unit,
                "doc": setting.doc,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::Array(list))
}

#[cfg(test)]
mod tests;
