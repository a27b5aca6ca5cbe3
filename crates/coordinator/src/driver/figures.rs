//! Metrics of a coordinator, in the text format of Prometheus.

use crate::Role;
use duramen_wire::native::message::{Overview, RecoveryPhase, ServerStatus};
use std::fmt::Write as _;
use std::time::Duration;

/// Counters of the process, over all its leaderships.
#[derive(Default)]
pub(super) struct Figures {
    pub questions: u64,
    pub asked: u64,
    pub connections: u64,
    pub commits: u64,
    pub leaderships: u64,
    /// Start of the commit that is in progress.
    since: Option<Duration>,
    commit_time: Duration,
    commit_longest: Duration,
}

impl Figures {
    pub(super) fn committing(&mut self, at: Duration) {
        self.since = Some(at);
    }

    pub(super) fn committed(&mut self, at: Duration) {
        if let Some(since) = self.since.take() {
            let took = at.saturating_sub(since);
            self.commit_time += took;
            self.commit_longest = self.commit_longest.max(took);
        }
    }

    /// Age of the commit that is in progress.
    pub(super) fn store_waits(&self, at: Duration) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| at.saturating_sub(since))
    }

    /// A new leadership begins: commits of the last one are not answered any more.
    pub(super) fn leading(&mut self) {
        self.leaderships += 1;
        self.since = None;
    }

    /// One line per metric, each with its help. `malformed`: malformed frames, counted by the hub.
    /// `unanswered`: servers that do not answer, so many that the leader cannot judge.
    pub(super) fn text(
        &self,
        overview: Option<&Overview>,
        role: &Role,
        malformed: u64,
        unanswered: usize,
    ) -> String {
        let mut out = format!(
            "# HELP duramen_coordinator_build_info 1; the labels say which program this is.\n\
             # TYPE duramen_coordinator_build_info gauge\n\
             duramen_coordinator_build_info{{version=\"{}\",os=\"{}\",arch=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        let mut line = |name: &str, kind: &str, help: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(out, "# HELP duramen_coordinator_{name} {help}");
            let _ = writeln!(out, "# TYPE duramen_coordinator_{name} {kind}");
            let _ = writeln!(out, "duramen_coordinator_{name} {value}");
        };
        let leads = u64::from(*role == Role::Leader);
        line("leads", "gauge", "1 if this coordinator leads.", &leads);
        line(
            "connections",
            "gauge",
            "Connections of servers, clients and tools.",
            &self.connections,
        );
        line(
            "questions_total",
            "counter",
            "Questions that were asked here.",
            &self.questions,
        );
        line(
            "asked_total",
            "counter",
            "Questions that servers were asked.",
            &self.asked,
        );
        line(
            "malformed_total",
            "counter",
            "Hellos and frames that were refused or invalid.",
            &malformed,
        );
        line(
            "leaderships_total",
            "counter",
            "How often this process began to lead.",
            &self.leaderships,
        );
        line(
            "commits_total",
            "counter",
            "Changes that the store has.",
            &self.commits,
        );
        let seconds = self.commit_time.as_secs_f64();
        line(
            "commit_seconds_total",
            "counter",
            "Time that the store took for them.",
            &seconds,
        );
        let longest = self.commit_longest.as_secs_f64();
        line(
            "commit_seconds_max",
            "gauge",
            "Time that the slowest of them took.",
            &longest,
        );
        let Some(overview) = overview else {
            return out;
        };
        let status = &overview.status;
        let up = status
            .servers
            .iter()
            .filter(|e| e.status == ServerStatus::Up);
        line("servers_up", "gauge", "Members that are up.", &up.count());
        let crashed = status
            .servers
            .iter()
            .filter(|e| e.status == ServerStatus::Crashed);
        line(
            "servers_crashed",
            "gauge",
            "Members whose data is not recovered yet.",
            &crashed.count(),
        );
        line(
            "servers_unanswered",
            "gauge",
            "Servers that do not answer this coordinator, if they are so many that it calls none of them crashed.",
            &unanswered,
        );
        line(
            "tablets",
            "gauge",
            "Tablets of all tables.",
            &overview.tablets,
        );
        line(
            "tablets_unserved",
            "gauge",
            "Tablets that no server serves: being recovered, or not yet confirmed by their owners.",
            &overview.tablets_unserved,
        );
        let under_way = status
            .recoveries
            .iter()
            .filter(|r| r.phase != RecoveryPhase::Done);
        line(
            "recoveries",
            "gauge",
            "Recoveries under way.",
            &under_way.count(),
        );
        line(
            "migrations",
            "gauge",
            "Migrations under way.",
            &overview.migrations,
        );
        line(
            "list_version",
            "gauge",
            "Version of the server list.",
            &status.list_version,
        );
        line(
            "map_version",
            "gauge",
            "Version of the tablet map.",
            &status.map_version,
        );
        line("term", "gauge", "Number of this leadership.", &status.term);
        out
    }
}
