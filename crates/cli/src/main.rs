//! `duramen`, the one binary: serves, sends requests to a server, watches one, measures.
//!
//! Subcommands for a running server all take the connection options of [`client::ConnectArgs`],
//! those for a coordinator the options of [`cluster::ClusterArgs`]; they are added here in one
//! place, not in each of them.

#[macro_use]
mod say;

mod arguments;
mod bench;
mod cert;
mod client;
mod cluster;
mod config;
mod documents;
mod failure;
mod log;
mod login;
mod notify;
mod offline;
mod serve;
mod signals;
mod top;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{Args as _, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use bench::BenchCommand;
use client::{ClientCommand, ConnectArgs};
use cluster::{ClusterArgs, ClusterCommand, coordinator, up};
use failure::{EXIT_CODES, Failure};

/// Log-structured, in-memory key-value store with the Redis protocol.
#[derive(Parser)]
#[command(name = "duramen", version, max_term_width = 100, after_help = EXIT_CODES, after_long_help = LONG_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const LONG_HELP: &str = "\
EXAMPLES
  duramen serve --memory 1g               start a server on 127.0.0.1:6379
  duramen set greeting hello              store a value
  duramen get greeting                    print it
  duramen top                             watch the server live
  duramen snapshot /backup/monday         copy all data while the server goes on
  duramen restore /backup/monday data     make a data directory of the copy, for `serve --dir data`
  echo -n \"$BLOB\" | duramen set blob -    store what stdin holds
  duramen help set                        more about one command

EXIT CODES
  0  done
  1  the key was not found, or the condition did not hold
  2  wrong usage: an option, argument or configuration was not understood
  3  the server answered with an error
  4  the server could not be reached, or the connection broke
  5  `serve`, `coordinator` or `up` could not start, or failed; `fsck`, `log dump` or `restore` could
     not read the store, or had no room
  6  `duramen serve`: a thread did not end when the server was stopped

`fsck`, `log dump` and `restore` end with 1 if something is damaged, `bench` if it could not measure.";

#[derive(Subcommand)]
enum Command {
    /// Start a server.
    Serve(serve::ServeArgs),
    /// Start a server that joins a cluster: `serve`, with a coordinator on this machine if no other
    /// is named. It takes the cluster's name from its directory or from the coordinator, and ports
    /// beside those of the members at the same address, if they are not given. A coordinator with
    /// users tells them to a user.
    Join(serve::JoinArgs),
    /// Start a coordinator, which servers of a cluster join.
    #[command(after_help = coordinator::HELP)]
    Coordinator(Box<coordinator::CoordinatorArgs>),
    /// Start a whole cluster on this machine, for trials: a coordinator and some servers.
    #[command(after_help = up::HELP)]
    Up(up::UpArgs),
    /// Check or print the configuration of a server.
    Config(config::ConfigArgs),
    /// Watch a server live: throughput, latency, utilization, cleaner.
    Top(top::TopArgs),
    #[command(flatten)]
    Client(ClientCommand),
    #[command(flatten)]
    Cluster(ClusterCommand),
    /// Verify a data directory that no server uses, without writing to it.
    Fsck(offline::FsckArgs),
    /// Show what damage has lost for good, and let a server or a recovery go on without it.
    AcceptLoss(offline::AcceptArgs),
    /// Copy a snapshot into a new data directory for a server, and verify the copy.
    Restore(offline::RestoreArgs),
    /// Make, replace and show the key of an encrypted data directory.
    #[command(subcommand)]
    Key(offline::KeyCommand),
    /// Show the log of a data directory that no server uses.
    #[command(subcommand)]
    Log(offline::LogCommand),
    /// Make and show certificates for TLS.
    Cert(cert::CertArgs),
    /// Measure a running server.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print the completion script for a shell.
    #[command(after_help = documents::COMPLETIONS_HELP)]
    Completions(documents::CompletionsArgs),
    /// Print the manual page, or write one page per command.
    Man(documents::ManArgs),
}

/// The whole command line, including connection options.
fn command() -> clap::Command {
    let whole = Cli::command().mut_subcommands(|sub| {
        if ClientCommand::has_subcommand(sub.get_name()) || sub.get_name() == "top" {
            ConnectArgs::augment_args(sub)
        } else if ClusterCommand::has_subcommand(sub.get_name()) || sub.get_name() == "accept-loss"
        {
            cluster::tls::without_those_of_resp(ClusterArgs::augment_args(sub))
        } else {
            sub
        }
    });
    without_empty_variables(whole)
}

/// Makes each option treat an empty variable as unset: `${DURAMEN_PASSWORD:-}` of a compose file
/// makes such a variable. (`config::Loaded` does the same for the settings of a server.)
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|text| text.is_empty());
    let command = command.mut_args(|arg| {
        if arg.get_env().is_some_and(is_empty) {
            arg.env(None::<&'static str>)
        } else {
            arg
        }
    });
    command.mut_subcommands(without_empty_variables)
}

/// Ends the process on a panic, even if panics unwind, and if standard error is not read. A process
/// without one of its threads must look dead to other servers, and not hang.
fn die_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => format!("stack backtrace:\n{trace}"),
            _ => "note: run with `RUST_BACKTRACE=1` to display a backtrace\n".to_owned(),
        };
        say::last_words(&format!("\nthread '{name}' {panic}\n{trace}"));
        std::process::abort();
    }));
}

/// Makes a write to a file at the process's size limit an error (EFBIG), which counts as a full
/// disk, instead of a signal that ends the process.
fn survive_file_limit() {
    // The flag is not read: a handler is enough, and children of this process do not inherit it.
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag) {
        eprintln!("duramen: file size limits will end this process: {error}");
    }
}

/// Prints help, or the mistake in the command line, and ends the process.
fn refuse(error: &clap::Error) -> ! {
    use clap::error::{ContextKind, ContextValue};
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let flag = text(ContextKind::InvalidArg).unwrap_or_default();
    // The flag's name, out of a text like `--maxmemory-policy <CHOICE>`.
    let name = flag.trim_start_matches('-').split(' ').next();
    let name = name.unwrap_or_default();
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let advice = match duramen_config::value_hint(name, value) {
        "" => duramen_config::redis_hint(name),
        hint => Some(format!("{value}{hint}")),
    };
    let Some(advice) = advice else { error.exit() };
    // The error is made without a suggestion: a value of similar spelling does not do the same.
    let mut plain = clap::Error::new(error.kind()).with_cmd(&command());
    for (kind, value) in error.context() {
        if kind != ContextKind::SuggestedValue {
            plain.insert(kind, value.clone());
        }
    }
    // Without standard error the message is lost.
    let _ = plain.print();
    eprintln!("\n{advice}");
    std::process::exit(error.exit_code())
}

fn main() -> ExitCode {
    duramen_config::heap::settle();
    up::tie_to_parent();
    die_of_panics();
    survive_file_limit();
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => refuse(&error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let connect = || match matches.subcommand() {
        Some((_, given)) => ConnectArgs::of(given),
        None => Err(Failure::Usage("a subcommand is missing".to_owned())),
    };
    let cluster = || match matches
        .subcommand()
        .map(|(_, sub)| ClusterArgs::from_arg_matches(sub))
    {
        Some(Ok(args)) => Ok(args),
        Some(Err(error)) => Err(Failure::Usage(error.to_string())),
        None => Err(Failure::Usage("a subcommand is missing".to_owned())),
    };
    let result = match cli.command {
        Command::Serve(args) => return serve::run(args),
        Command::Join(args) => return serve::run(args.serving()),
        Command::Coordinator(args) => return coordinator::run(&args),
        Command::Up(args) => return up::run(&args),
        Command::Config(args) => return config::run(args),
        Command::Fsck(args) => return offline::fsck(&args),
        Command::AcceptLoss(args) => match (cluster(), &args.dir) {
            (Ok(cluster), Some(dir)) => return offline::accept_loss(&args, dir, cluster.json),
            (Ok(cluster), None) => cluster::accept_loss(&args, &cluster),
            (Err(failure), _) => Err(failure),
        },
        Command::Restore(args) => return offline::restore(&args),
        Command::Key(command) => return offline::key(&command),
        Command::Log(command) => return offline::log(&command),
        Command::Cert(args) => cert::run(&args),
        Command::Bench(command) => bench::run(&command, &matches),
        Command::Completions(args) => documents::completions(&args, command()),
        Command::Man(args) => documents::man(&args, command()),
        Command::Top(args) => connect().and_then(|connect| top::run(&args, &connect)),
        Command::Cluster(asked) => cluster().and_then(|args| cluster::run(&asked, &args)),
        Command::Client(asked) => connect().and_then(|connect| {
            let given = matches.subcommand().map_or(&matches, |(_, given)| given);
            client::run(&asked, &connect, given)
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
        super::command().debug_assert();
    }
}
