//! `duramen rebalance`, and the line of `duramen status` about the balance.

use super::shown::bytes;
use super::{Cluster, ask_patiently, names, place, say, unfit};
use crate::arguments::Duration;
use crate::failure::Failure;
use clap::Args;
use duramen_base::ids::ServerId;
use duramen_client::{Admin, AdminAnswer};
use duramen_wire::native::message::{
    BalanceStatus, MigrationPhase, MigrationStatus, PlannedMove, Status,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;

#[derive(Args)]
pub(crate) struct RebalanceArgs {
    /// Only print what would move.
    #[arg(long)]
    dry_run: bool,
    /// Return when all of it has moved, and print the progress to standard error each second.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// With --wait: stop waiting after this time; the moves continue.
    #[arg(long, default_value = "1h", value_name = "TIME", requires = "wait")]
    wait_for: Duration,
}

pub(super) const HELP: &str = "\
EXAMPLES
  duramen rebalance --dry-run             what would move
  duramen rebalance --wait

Each server should have the same share of the data, or, if their memory differs much, a share in
proportion to it. Whole slots move; they are served meanwhile. Of four servers one takes part in a
move, and rests after it as long as the move took. Nothing moves while a crashed server is
recovered or a server is drained.

The coordinator does the same without this command when the shares have differed by more than a
quarter for 15 s in which no server has come or gone, unless it was started with --balance=no.

Exit codes: 0 begun (--wait: done), 2 wrong usage, 3 refused (--wait: or not all of it was done),
4 no coordinator answered.";

/// Interval of the lines about the progress.
const SAY_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

pub(super) fn run(args: &RebalanceArgs, cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let is_dry = args.dry_run;
    let moves = match cluster.ask(Admin::Rebalance { is_dry })? {
        AdminAnswer::Moves(moves) => moves,
        other => return Err(unfit(&other)),
    };
    if args.wait {
        wait(cluster, args.wait_for)?;
    }
    let overview = cluster.overview()?;
    if args.wait && !cluster.balance()?.unwrap_or_default().is_even {
        has_moved(&overview.status.migrations_ended, &moves)?;
    }
    let text = text(&overview.status, &moves, is_dry);
    say(json, &text, &as_json(&overview.status, &moves, is_dry))
}

fn text(status: &Status, moves: &[PlannedMove], is_dry: bool) -> String {
    if moves.is_empty() {
        return "every server has about its share: nothing moves\n".to_owned();
    }
    let all: u64 = moves.iter().map(|one| one.bytes).sum();
    let verb = if is_dry { "would move" } else { "move" };
    let plural = if moves.len() == 1 { "range" } else { "ranges" };
    let mut out = format!("{} {plural} {verb}, about {}\n", moves.len(), bytes(all));
    for one in moves {
        let _ = writeln!(
            out,
            "{} to {}  {} {}, about {}",
            one.from,
            one.to,
            names::of_table(status, one.table),
            place::show(&one.range),
            bytes(one.bytes)
        );
    }
    out
}

fn as_json(status: &Status, moves: &[PlannedMove], is_dry: bool) -> Value {
    let one = |one: &PlannedMove| {
        json!({
            "table": names::of_table(status, one.table),
            "first_hash": one.range.first.to_string(),
            "last_hash": one.range.last.to_string(),
            "from": one.from.to_string(),
            "to": one.to.to_string(),
            "bytes": one.bytes,
        })
    };
    let moves: Vec<Value> = moves.iter().map(one).collect();
    json!({ "dry_run": is_dry, "moves": moves })
}

/// Waits until nothing is left to move.
fn wait(cluster: &Cluster, patience: Duration) -> Result<(), Failure> {
    let until = Instant::now() + std::time::Duration::from_millis(patience.ms);
    let mut say_at = Instant::now() + SAY_EVERY;
    loop {
        let balance = ask_patiently(until, "balancing", || cluster.balance())?;
        let balance = balance.unwrap_or_default();
        if balance.moves_left == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Failure::Coordinator(format!(
                "{} moves are left; they go on",
                balance.moves_left
            )));
        }
        if Instant::now() >= say_at {
            say_at += SAY_EVERY;
            eprintln!("{}", line(&balance));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Checks that all moves of a plan have succeeded: the plan may have ended for another reason.
fn has_moved(ended: &[MigrationStatus], moves: &[PlannedMove]) -> Result<(), Failure> {
    let is_done = |one: &&PlannedMove| {
        ended.iter().any(|of| {
            let is_it =
                (of.table, of.range, of.from, of.to) == (one.table, one.range, one.from, one.to);
            is_it && of.phase == MigrationPhase::Done
        })
    };
    match moves.iter().filter(|one| !is_done(one)).count() {
        0 => Ok(()),
        missing => Err(Failure::Coordinator(format!(
            "{missing} of {} moves were not done: a server or the coordinator has crashed, or a \
             move failed; `duramen status` has the reason, and the shares are uneven",
            moves.len()
        ))),
    }
}

/// The line of `duramen status`.
pub(super) fn line(balance: &BalanceStatus) -> String {
    let left = match balance.moves_left {
        0 if balance.is_even => return "balance: every server has about its share".to_owned(),
        0 if !balance.is_automatic => "uneven, and --balance=no: `duramen rebalance`".to_owned(),
        0 => "uneven".to_owned(),
        1 => format!("1 move left, about {}", bytes(balance.bytes_left)),
        n => format!("{n} moves left, about {}", bytes(balance.bytes_left)),
    };
    let why = balance.waits_for.as_ref();
    let why = why.map_or(String::new(), |why| format!("; it waits: {why}"));
    format!("balance: {left}{why}")
}

pub(super) fn status_json(balance: &BalanceStatus) -> Value {
    let share = |(server, weight, share): &(ServerId, u64, u64)| {
        let server = server.to_string();
        json!({ "server": server, "weight": weight, "share": share })
    };
    let shares: Vec<Value> = balance.shares.iter().map(share).collect();
    json!({
        "automatic": balance.is_automatic,
        "even": balance.is_even,
        "moves_left": balance.moves_left,
        "bytes_left": balance.bytes_left,
        "waits_for": balance.waits_for,
        "shares": shares,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{KeyRange, MigrationId, TableId};

    /// A crash in the middle of the plan ended it, and `--wait` called it done.
    #[test]
    fn a_plan_is_done_when_each_of_its_moves_is() {
        let planned = PlannedMove {
            table: TableId(1),
            range: KeyRange::ALL,
            from: ServerId::new(1, 1),
            to: ServerId::new(2, 1),
            bytes: 5,
        };
        let mut ended = MigrationStatus {
            migration: MigrationId(7),
            table: planned.table,
            range: planned.range,
            from: planned.from,
            to: planned.to,
            phase: MigrationPhase::Done,
            bytes: 5,
            bytes_total: 5,
            entries: 1,
            elapsed_ms: 10,
            reason: None,
        };
        assert!(has_moved(&[], &[]).is_ok());
        assert!(has_moved(&[ended.clone()], &[planned]).is_ok());
        let missing = has_moved(&[], &[planned]);
        assert!(matches!(missing, Err(Failure::Coordinator(_)))); // exit code 3
        ended.phase = MigrationPhase::GivenUp;
        assert!(has_moved(&[ended], &[planned]).is_err());
    }

    #[test]
    fn the_line_tells_what_is_left_and_why() {
        let mut balance = BalanceStatus {
            is_even: true,
            ..BalanceStatus::default()
        };
        assert_eq!(line(&balance), "balance: every server has about its share");
        balance.is_even = false;
        assert!(line(&balance).contains("--balance=no"));
        balance.is_automatic = true;
        balance.waits_for = Some("server 2.1 is being drained".to_owned());
        assert!(line(&balance).ends_with("uneven; it waits: server 2.1 is being drained"));
        (balance.moves_left, balance.bytes_left, balance.waits_for) = (3, 10 << 20, None);
        assert_eq!(line(&balance), "balance: 3 moves left, about 10mb");
    }
}
