//! `duramen status`: an overview of the cluster, once or repeatedly.

use super::shown::{bytes, span};
use super::summary::summary;
use super::{Cluster, balance, names, place, say, table, tablet, waits};
use crate::arguments::interval;
use crate::failure::Failure;
use clap::Args;
use duramen_base::ids::ServerId;
use duramen_tls::days_until;
use duramen_wire::native::message::{
    BalanceStatus, ClusterSettings, MemberHealth, MembersHealth, MigrationPhase, MigrationStatus,
    Overview, RecoveryPhase, RecoveryStatus, ServerEntry, ServerShare, ServerStatus, Status, Wait,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Repeat at this interval in seconds, until interrupted.
    #[arg(long, num_args = 0..=1, default_missing_value = "1", value_name = "SECONDS", value_parser = interval)]
    watch: Option<f64>,
    /// List all tablets, regardless of their number.
    #[arg(long)]
    tablets: bool,
}

pub(super) const HELP: &str = "\
EXAMPLES
  duramen status
  duramen status --watch                  again each second
  duramen status --coordinator 10.0.0.1:7400,10.0.0.2:7400
  duramen status --json | jq '.servers[] | select(.state != \"up\")'
  duramen status --watch 5 --json >> status.jsonl
  duramen status --tablets                every tablet

A tablet is `served` when its owner has reported that it serves it. Before that its owner is `opening`
it, or other servers are `recovering` it. More than 40 tablets are counted instead of listed, and
`tablets` is null with --json.

Servers are named slot.generation: a server that comes back keeps its slot and gets a higher generation.

Exit codes: 0 done, 2 wrong usage, 3 the coordinator refused, 4 no coordinator answered.";

/// Most tablets that are listed by default; more are only counted.
const TABLETS_SHOWN: u64 = 40;
const TABLETS_SHOWN_JSON: u64 = 1024;

pub(crate) fn run(args: &StatusArgs, cluster: &Cluster, json: bool) -> Result<(), Failure> {
    let Some(seconds) = args.watch else {
        let seen = look(args, cluster, json)?;
        return say(json, &seen.text(), &seen.as_json());
    };
    let live = !json && io::stdout().is_terminal();
    loop {
        // A failover may come between two looks: `--watch` then prints a message and continues.
        match look(args, cluster, json) {
            Ok(seen) if live => {
                // Cursor home; each line is cleared at its end, and the rest below the last one.
                let page = seen.text().replace('\n', "\x1b[K\n");
                say(false, &format!("\x1b[H{page}\x1b[J"), &Value::Null)?;
            }
            Ok(seen) => {
                say(json, &seen.text(), &seen.as_json())?;
                if !json {
                    io::stdout().write_all(b"\n").map_err(Failure::stdout)?;
                }
            }
            Err(failure @ (Failure::NoCoordinator { .. } | Failure::NotReady { .. })) => {
                eprintln!("duramen: {failure}");
            }
            Err(failure) => return Err(failure),
        }
        std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
    }
}

/// A cluster as its coordinator reports it. An old coordinator does not report all of it.
struct Seen {
    overview: Overview,
    health: Option<MembersHealth>,
    waits: Vec<Wait>,
    balance: Option<BalanceStatus>,
}

impl Seen {
    fn text(&self) -> String {
        let balance = self.balance.as_ref();
        text(&self.overview, self.health.as_ref(), &self.waits, balance)
    }

    fn as_json(&self) -> Value {
        let mut json = as_json(&self.overview, self.health.as_ref(), &self.waits);
        json["balance"] = self
            .balance
            .as_ref()
            .map_or(Value::Null, balance::status_json);
        json
    }
}

/// Fetches tablets only if they are shown.
fn look(args: &StatusArgs, cluster: &Cluster, json: bool) -> Result<Seen, Failure> {
    let mut overview = cluster.overview()?;
    let (health, waits) = (cluster.health()?, cluster.waits()?);
    let balance = cluster.balance()?;
    let most = if json {
        TABLETS_SHOWN_JSON
    } else {
        TABLETS_SHOWN
    };
    if args.tablets || overview.tablets <= most {
        overview = cluster.whole()?;
    }
    Ok(Seen {
        overview,
        health,
        waits,
        balance,
    })
}

/// Whether all tablets are included, and not only counted.
fn is_whole(overview: &Overview) -> bool {
    overview.status.tablets.len() as u64 >= overview.tablets
}

fn text(
    overview: &Overview,
    health: Option<&MembersHealth>,
    waits: &[Wait],
    balance: Option<&BalanceStatus>,
) -> String {
    let mut out = String::new();
    let status = &overview.status;
    let _ = writeln!(out, "{}", summary(overview, waits).1);
    let _ = writeln!(
        out,
        "cluster {}, led by {} (term {}); list version {}, map version {}",
        status.cluster, status.leader, status.term, status.list_version, status.map_version
    );
    let settings = &status.settings;
    let _ = writeln!(
        out,
        "{} replicas, segments of {}, pings every {} ms, read leases of {} ms",
        settings.replicas,
        bytes(u64::from(settings.segment_bytes)),
        settings.ping_interval_ms,
        settings.read_lease_ms
    );
    out.push_str(&waits::text(waits));
    if let Some(balance) = balance.filter(|_| overview.tablets > 0) {
        let _ = writeln!(out, "{}", balance::line(balance));
    }
    out.push('\n');
    servers(&mut out, overview, health);
    out.push('\n');
    out.push_str(&table::lines(overview));
    out.push('\n');
    if is_whole(overview) {
        out.push_str(&tablet::lines(status, None));
    } else {
        let (count, unserved) = (overview.tablets, overview.tablets_unserved);
        let _ = writeln!(
            out,
            "{count} tablets, {unserved} of them not served: `duramen status --tablets` lists them"
        );
    }
    if !status.recoveries.is_empty() {
        out.push('\n');
        recoveries(&mut out, status);
    }
    if !status.migrations.is_empty() || !status.migrations_ended.is_empty() {
        out.push('\n');
        migrations(&mut out, status);
        let more = overview
            .migrations
            .saturating_sub(status.migrations.len() as u64);
        if more > 0 {
            let _ = writeln!(out, "and {more} more");
        }
    }
    out
}

fn state(entry: &ServerEntry) -> &'static str {
    match (entry.status, entry.draining) {
        (ServerStatus::Crashed, _) => "crashed",
        (ServerStatus::Up, true) => "draining",
        (ServerStatus::Up, false) => "up",
    }
}

fn roles(entry: &ServerEntry) -> &'static str {
    match (entry.roles.master, entry.roles.backup) {
        (true, true) => "master+backup",
        (true, false) => "master",
        (false, true) => "backup",
        (false, false) => "none",
    }
}

/// The share of a server; empty if it is unknown.
pub(super) fn share(overview: &Overview, server: ServerId) -> ServerShare {
    let mut all = overview.servers.iter();
    let found = all.find(|share| share.server == server).cloned();
    found.unwrap_or(ServerShare {
        server,
        tablets: 0,
        room: None,
        waits_for: None,
    })
}

/// Bytes and records of a server's tablets, as it has reported them last.
pub(super) fn load_of(status: &Status, server: ServerId) -> (u64, u64) {
    let found = status.loads.iter().find(|load| load.server == server);
    found.map_or((0, 0), |load| (load.bytes, load.records))
}

/// The state of a member, if it is known.
fn of_member(health: Option<&MembersHealth>, server: ServerId) -> Option<&MemberHealth> {
    let mut members = health?.members.iter();
    members.find(|member| member.server == server)
}

/// Certificates that are valid for longer are not mentioned.
const CERTIFICATE_DAYS: i64 = 30;

/// The points about a member that an operator should know, one line each.
fn concerns(health: Option<&MembersHealth>, server: ServerId) -> Vec<String> {
    let (Some(all), Some(member)) = (health, of_member(health, server)) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    let (newest, own) = (all.users_revision, member.users_revision);
    match &member.users_fault {
        Some(fault) => lines.push(format!(
            "has the users of revision {own}: its program does not understand those of revision \
             {newest}: {fault}"
        )),
        None if own < newest => lines.push(format!(
            "has not confirmed the users of revision {newest} yet, but of {own}"
        )),
        None => {}
    }
    match member.certificate_expires_s.map(days_until) {
        Some(days) if days < 0 => lines.push("its certificate has expired".to_owned()),
        Some(days) if days < CERTIFICATE_DAYS => {
            lines.push(format!("its certificate expires in {days} days"));
        }
        _ => {}
    }
    lines
}

fn servers(out: &mut String, overview: &Overview, health: Option<&MembersHealth>) {
    let status = &overview.status;
    let _ = writeln!(
        out,
        "{:<8} {:<9} {:<14} {:<10} {:>7} {:>9} {:>8}  {:<22} {:<22} admin",
        "server", "state", "roles", "rack", "tablets", "data", "replicas", "native", "resp"
    );
    for entry in &status.servers {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let share = share(overview, entry.server);
        let replicas = share.room.map(|room| room.replicas.to_string());
        let _ = writeln!(
            out,
            "{:<8} {:<9} {:<14} {:<10} {:>7} {:>9} {:>8}  {:<22} {:<22} {}",
            entry.server.to_string(),
            state(entry),
            roles(entry),
            or_none(&entry.rack),
            share.tablets,
            bytes(load_of(status, entry.server).0),
            or_none(&replicas),
            entry.addresses.native,
            or_none(&entry.addresses.resp),
            or_none(&entry.addresses.admin),
        );
        let sharing = share.room.map_or(0, |room| room.segments_sharing_rack);
        if sharing > 0 {
            let _ = writeln!(
                out,
                "         {sharing} segments of its log have copies that share a rack"
            );
        }
        if let Some(why) = share.waits_for {
            let _ = writeln!(out, "         is not drained further: {why}");
        }
        for line in concerns(health, entry.server) {
            let _ = writeln!(out, "         {line}");
        }
    }
    if status.servers.is_empty() {
        out.push_str("none yet: start one with `duramen serve --coordinator …`\n");
    }
}

fn phase(phase: RecoveryPhase) -> &'static str {
    match phase {
        RecoveryPhase::Collecting => "collecting",
        RecoveryPhase::Incomplete => "incomplete",
        RecoveryPhase::Replaying => "replaying",
        RecoveryPhase::WaitingForLease => "lease",
        RecoveryPhase::Done => "done",
    }
}

/// Milliseconds until everything is replayed, at the speed so far.
fn left_ms(recovery: &RecoveryStatus) -> Option<u64> {
    let is_known = recovery.phase == RecoveryPhase::Replaying && recovery.bytes > 0;
    let left = recovery.bytes_total.saturating_sub(recovery.bytes);
    let product = u128::from(left) * u128::from(recovery.elapsed_ms);
    is_known.then(|| (product / u128::from(recovery.bytes.max(1))) as u64)
}

fn recoveries(out: &mut String, status: &Status) {
    let _ = writeln!(
        out,
        "{:<9} {:<11} {:>11} {:>19} {:>12} {:>8} {:>8}",
        "recovery", "phase", "partitions", "bytes", "entries", "since", "left"
    );
    for recovery in &status.recoveries {
        let left = left_ms(recovery).map_or_else(|| "-".to_owned(), span);
        let _ = write!(
            out,
            "{:<9} {:<11} {:>11} {:>19} {:>12} {:>8} {:>8}",
            format!("of {}", recovery.server),
            phase(recovery.phase),
            format!("{}/{}", recovery.partitions_done, recovery.partitions),
            format!("{}/{}", bytes(recovery.bytes), bytes(recovery.bytes_total)),
            recovery.entries,
            span(recovery.elapsed_ms),
            left
        );
        if let Some(what) = &recovery.waits_for {
            let _ = write!(out, "  waits for {what}");
        }
        out.push('\n');
    }
}

/// Migrations that have ended, the last ones; JSON has all that the coordinator knows.
const ENDED_SHOWN: usize = 16;

fn migrations(out: &mut String, status: &Status) {
    let _ = writeln!(
        out,
        "{:<14} {:<18} {:<10} {:>19} {:>12} {:>8}  range",
        "migration", "table", "phase", "bytes", "entries", "since"
    );
    let older = status.migrations_ended.len().saturating_sub(ENDED_SHOWN);
    let ended = status.migrations_ended.iter().skip(older);
    for migration in ended.chain(&status.migrations) {
        let _ = write!(
            out,
            "{:<14} {:<18} {:<10} {:>19} {:>12} {:>8}  {}",
            format!("{} to {}", migration.from, migration.to),
            names::of_table(status, migration.table),
            migration_phase(migration.phase),
            format!(
                "{}/{}",
                bytes(migration.bytes),
                bytes(migration.bytes_total)
            ),
            migration.entries,
            span(migration.elapsed_ms),
            place::show(&migration.range)
        );
        if let Some(why) = &migration.reason {
            let _ = write!(out, ": {why}");
        }
        out.push('\n');
    }
}

fn migration_phase(phase: MigrationPhase) -> &'static str {
    match phase {
        MigrationPhase::Waiting => "waiting",
        MigrationPhase::Copying => "copying",
        MigrationPhase::Switching => "switching",
        MigrationPhase::Done => "done",
        MigrationPhase::GivenUp => "given up",
    }
}

pub(super) fn as_json(
    overview: &Overview,
    health: Option<&MembersHealth>,
    waits: &[Wait],
) -> Value {
    let status = &overview.status;
    let tablets = is_whole(overview).then(|| {
        let all = status.tablets.iter().map(|t| tablet::as_json(status, t));
        all.collect::<Vec<Value>>()
    });
    let list = |values: Vec<Value>| Value::from(values);
    let (state, line) = summary(overview, waits);
    json!({
        "state": state,
        "summary": line,
        "cluster": status.cluster,
        "leader": status.leader,
        "term": status.term,
        "list_version": status.list_version.0,
        "map_version": status.map_version.0,
        "settings": settings_json(&status.settings),
        "users_revision": health.map(|health| health.users_revision),
        "waits": waits::as_json(waits),
        "servers": list(
            status.servers.iter().map(|e| server_json(overview, health, e)).collect(),
        ),
        "tables": list(status.tables.iter().map(|t| table::as_json(overview, t)).collect()),
        "tablets": tablets,
        "tablets_count": overview.tablets,
        "tablets_unserved": overview.tablets_unserved,
        "recoveries": list(status.recoveries.iter().map(recovery_json).collect()),
        "migrations": list(status.migrations.iter().map(|m| migration_json(status, m)).collect()),
        "migrations_ended": list(status.migrations_ended.iter().map(|m| migration_json(status, m)).collect()),
    })
}

fn settings_json(settings: &ClusterSettings) -> Value {
    json!({
        "replicas": settings.replicas,
        "segment_bytes": settings.segment_bytes,
        "ping_interval_ms": settings.ping_interval_ms,
        "ping_timeout_ms": settings.ping_timeout_ms,
        "verdict_timeout_ms": settings.verdict_timeout_ms,
        "read_lease_ms": settings.read_lease_ms,
        "client_lease_ms": settings.client_lease_ms,
        "partition_bytes": settings.partition_bytes,
        "partition_records": settings.partition_records,
        "rpc_window": settings.rpc_window,
        "copyset_scatter": settings.layout.copyset_scatter(),
        "zone_bytes": settings.layout.zone_bytes(),
    })
}

fn server_json(overview: &Overview, health: Option<&MembersHealth>, entry: &ServerEntry) -> Value {
    let (bytes, records) = load_of(&overview.status, entry.server);
    let member = of_member(health, entry.server);
    let share = share(overview, entry.server);
    json!({
        "server": entry.server.to_string(),
        "state": state(entry),
        "master": entry.roles.master,
        "backup": entry.roles.backup,
        "rack": entry.rack,
        "native": entry.addresses.native,
        "resp": entry.addresses.resp,
        "plain": entry.addresses.plain,
        "admin": entry.addresses.admin,
        "tablets": share.tablets,
        "replicas": share.room.map(|room| room.replicas),
        "segments_sharing_rack": share.room.map(|room| room.segments_sharing_rack),
        "used_bytes": share.room.map(|room| room.used_bytes),
        "limit_bytes": share.room.map(|room| room.limit_bytes),
        "drain_waits_for": share.waits_for,
        "bytes": bytes,
        "records": records,
        "read_bytes_per_s": entry.read_bytes_per_s,
        "users_revision": member.map(|member| member.users_revision),
        "users_fault": member.and_then(|member| member.users_fault.clone()),
        "certificate_expires_unix_s": member.and_then(|member| member.certificate_expires_s),
    })
}

fn recovery_json(recovery: &RecoveryStatus) -> Value {
    json!({
        "server": recovery.server.to_string(),
        "phase": phase(recovery.phase),
        "partitions": recovery.partitions,
        "partitions_done": recovery.partitions_done,
        "bytes": recovery.bytes,
        "bytes_total": recovery.bytes_total,
        "entries": recovery.entries,
        "elapsed_ms": recovery.elapsed_ms,
        "left_ms": left_ms(recovery),
        "waits_for": recovery.waits_for,
    })
}

fn migration_json(status: &Status, migration: &MigrationStatus) -> Value {
    json!({
        "migration": migration.migration.0.to_string(),
        "table": names::of_table(status, migration.table),
        "first_hash": migration.range.first.to_string(),
        "last_hash": migration.range.last.to_string(),
        "from": migration.from.to_string(),
        "to": migration.to.to_string(),
        "phase": migration_phase(migration.phase),
        "bytes": migration.bytes,
        "bytes_total": migration.bytes_total,
        "entries": migration.entries,
        "elapsed_ms": migration.elapsed_ms,
        "reason": migration.reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{RecoveryId, ServerId};

    #[test]
    fn members_with_old_users_or_old_certificates_are_named() {
        let server = ServerId::new(0, 1);
        let days = |days: i64| Some(days * 86_400 + 3_600 - days_until(0) * 86_400);
        let member = |revision, fault: Option<&str>, certificate_expires_s| MembersHealth {
            users_revision: 7,
            members: vec![MemberHealth {
                server,
                users_revision: revision,
                users_fault: fault.map(str::to_owned),
                certificate_expires_s,
            }],
        };
        let lines = |health: MembersHealth| concerns(Some(&health), server);
        assert_eq!(lines(member(7, None, None)), [""; 0]);
        assert_eq!(lines(member(7, None, days(300))), [""; 0]);
        let lagging = lines(member(6, None, days(5)));
        assert!(lagging[0].contains("has not confirmed") && lagging[1].contains("expires in"));
        let refusing = lines(member(6, Some("Unknown command"), days(-2)));
        assert!(refusing[0].contains("Unknown command") && refusing[1].contains("has expired"));
        assert_eq!(concerns(None, server), [""; 0]);
    }

    #[test]
    fn what_is_left_follows_from_the_speed_so_far() {
        let mut recovery = RecoveryStatus {
            recovery: RecoveryId(1),
            server: ServerId::new(0, 1),
            phase: RecoveryPhase::Replaying,
            partitions: 2,
            partitions_done: 0,
            bytes: 250,
            bytes_total: 1000,
            entries: 5,
            elapsed_ms: 100,
            waits_for: None,
        };
        assert_eq!(left_ms(&recovery), Some(300));
        recovery.bytes = 0;
        assert_eq!(left_ms(&recovery), None);
    }
}
