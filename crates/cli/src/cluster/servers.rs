//! `duramen drain`, `undrain` and `crash`: the operator's decisions about servers.

use super::shown::bytes;
use super::status::{load_of, share};
use super::{Cluster, ask_patiently, names, say};
use crate::arguments::Duration;
use crate::failure::Failure;
use clap::Args;
use duramen_base::ids::ServerId;
use duramen_client::Admin;
use duramen_wire::native::message::{Overview, ServerShare, ServerStatus};
use serde_json::json;
use std::time::Instant;

#[derive(Args)]
pub(crate) struct ServerArg {
    /// As in `duramen status`: 2.1, or 2 for the one that is up, or an address.
    server: String,
}

#[derive(Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    server: ServerArg,
    /// Return when it owns nothing any more, not when draining has begun.
    #[arg(long)]
    wait: bool,
    /// With --wait: stop waiting after this time; draining continues.
    #[arg(long, default_value = "10m", value_name = "TIME", requires = "wait")]
    wait_for: Duration,
}

#[derive(Args)]
pub(crate) struct CrashArgs {
    #[command(flatten)]
    server: ServerArg,
}

pub(super) const DRAIN_HELP: &str = "\
EXAMPLES
  duramen drain 2.1 --wait                then stop it, with SIGTERM
  duramen drain 127.0.0.1:7380
  duramen undrain 2.1                     allow tablets again

The server's tablets move to other servers, two at a time, and are served meanwhile; --wait prints
the progress to standard error each second. The server gets
no new tablets and no new replicas. The replicas that it stores for other servers stay until it is
stopped; then new ones are made on other servers: see `replicas` in `duramen status`. Stop one server
at a time, and wait until it is back before you stop the next.

Exit codes: 0 begun (--wait: it owns nothing), 2 wrong usage, 3 refused, 4 no coordinator answered.";

pub(super) const UNDRAIN_HELP: &str = "\
EXAMPLES
  duramen undrain 2.1

Tablets that have moved do not come back at once: the server gets its share by the balance, within a
minute, or by `duramen rebalance`.

Exit codes: 0 done, 2 wrong usage, 3 the coordinator refused, 4 no coordinator answered.";

pub(super) const CRASH_HELP: &str = "\
EXAMPLES
  duramen crash 2.1
  duramen status --watch                  see its data come back

The cluster detects crashed servers itself, within half a second. Use this command for a server that
runs and must not serve any more, or before you cut its power. The server is fenced: it cannot
acknowledge anything any more. Other servers recover its tablets. If it still runs, it becomes a
member again under a new id, without tablets.

Exit codes: 0 done, 2 wrong usage, 3 the coordinator refused, 4 no coordinator answered.";

fn owned(overview: &Overview, server: ServerId) -> u64 {
    share(overview, server).tablets
}

pub(crate) fn drain(args: &DrainArgs, cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let overview = cluster.overview()?;
    let server = names::server(&overview.status, &args.server.server)?.server;
    cluster.ask(Admin::Drain { server })?;
    let mut left = owned(&overview, server);
    let mut waits_for = None;
    if args.wait {
        wait(cluster, server, args.wait_for, left)?;
        left = 0;
    } else if left == 0 {
        // A recovery may be about to give this server tablets, or may just have done so.
        let share = share(&cluster.overview()?, server);
        (left, waits_for) = (share.tablets, share.waits_for);
    }
    let value = json!({
        "server": server.to_string(),
        "draining": true,
        "tablets_left": left,
        "drain_waits_for": waits_for,
    });
    let text = match (left, waits_for) {
        (0, None) => format!("server {server} is drained: it owns nothing, and gets nothing\n"),
        (0, Some(why)) => format!("server {server} is not drained yet: {why}\n"),
        (left, _) => {
            format!("server {server} is being drained of {left} tablets; see `duramen status`\n")
        }
    };
    say(json, &text, &value)
}

/// Interval of the lines about the progress.
const SAY_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// A line about a drain of a server that had `all` tablets when it began.
fn progress(overview: &Overview, server: ServerId, all: u64) -> String {
    let share = share(overview, server);
    let data = load_of(&overview.status, server).0;
    let mut line = format!(
        "{} of {} tablets left, about {} of data",
        share.tablets,
        all.max(share.tablets),
        bytes(data)
    );
    let migrations = overview.status.migrations.iter();
    for migration in migrations.filter(|migration| migration.from == server) {
        let (done, total) = (bytes(migration.bytes), bytes(migration.bytes_total));
        line += &format!("; to {}: {done} of {total}", migration.to);
    }
    if let Some(why) = share.waits_for {
        line += &format!("; it waits: {why}");
    }
    line
}

/// Whether the server owns nothing, and no recovery is about to give it tablets.
fn is_empty(share: &ServerShare) -> bool {
    share.tablets == 0 && share.waits_for.is_none()
}

/// Waits until the server is empty; `all` is the number of its tablets at the beginning.
fn wait(cluster: &Cluster, server: ServerId, patience: Duration, all: u64) -> Result<(), Failure> {
    let until = Instant::now() + std::time::Duration::from_millis(patience.ms);
    let mut say_at = Instant::now() + SAY_EVERY;
    loop {
        let overview = ask_patiently(until, "draining", || cluster.overview())?;
        let share = share(&overview, server);
        let left = share.tablets;
        let entry = overview
            .status
            .servers
            .iter()
            .find(|entry| entry.server == server);
        let stays = entry.is_some_and(|e| e.status == ServerStatus::Up && e.draining);
        if is_empty(&share) {
            return Ok(());
        }
        if !stays {
            return Err(Failure::Coordinator(format!(
                "server {server} is not being drained any more: it crashed, or somebody undrained it"
            )));
        }
        if Instant::now() >= until {
            let why = share.waits_for.map(|why| format!("; it waits: {why}"));
            let why = why.unwrap_or_default();
            return Err(Failure::Coordinator(format!(
                "server {server} still owns {left} tablets{why}; draining goes on"
            )));
        }
        if Instant::now() >= say_at {
            say_at += SAY_EVERY;
            eprintln!("{}", progress(&overview, server, all));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

pub(crate) fn undrain(args: &ServerArg, cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let server = names::server(&cluster.overview()?.status, &args.server)?.server;
    cluster.ask(Admin::Undrain { server })?;
    let text = format!("server {server} is drained no more\n");
    say(
        json,
        &text,
        &json!({ "server": server.to_string(), "draining": false }),
    )
}

pub(crate) fn crash(args: &CrashArgs, cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let overview = cluster.overview()?;
    let server = names::server(&overview.status, &args.server.server)?.server;
    cluster.ask(Admin::CrashServer { server })?;
    let left = owned(&overview, server);
    let text = match left {
        0 => format!("server {server} is crashed; it owned nothing\n"),
        left => format!(
            "server {server} is crashed; {left} tablets are being recovered: `duramen status --watch`\n"
        ),
    };
    let value = json!({ "server": server.to_string(), "crashed": true, "tablets": left });
    say(json, &text, &value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `drain --wait` ended while a recovery was about to give the server tablets.
    #[test]
    fn a_server_that_is_about_to_get_tablets_is_not_drained() {
        let of = |tablets, waits_for: Option<&str>| ServerShare {
            server: ServerId::new(2, 1),
            tablets,
            room: None,
            waits_for: waits_for.map(str::to_owned),
        };
        assert!(is_empty(&of(0, None)));
        assert!(!is_empty(&of(1, None)));
        assert!(!is_empty(&of(0, Some("it recovers"))));
    }
}
