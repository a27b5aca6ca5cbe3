//! Metrics of a coordinator, in the text format of Prometheus.

use crate::Role;
use duramen_tls::seconds_until;
use duramen_wire::native::message::{MembersHealth, Overview, RecoveryPhase, ServerStatus, Wait};
use std::fmt::Write as _;
use std::time::Duration;

/// Peers that were refused, as the hub counts them.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    /// Malformed frames, and hellos.
    pub malformed: u64,
    /// See [`duramen_net::Options::tls_failures`].
    pub by_tls: u64,
    /// Failed logins.
    pub logins: u64,
    /// Requests of users without the right to them.
    pub denied: u64,
}

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

    /// `unanswered`: servers that do not answer, so many that the leader cannot judge.
    /// `certificate`: see [`of_certificate`].
    pub(super) fn text(
        &self,
        cluster: Option<(&Overview, &MembersHealth, &[Wait])>,
        role: &Role,
        refused: Refused,
        unanswered: usize,
        certificate: Option<String>,
    ) -> String {
        let mut text = format!(
            "# HELP duramen_coordinator_build_info 1; the labels say which program this is.\n\
             # TYPE duramen_coordinator_build_info gauge\n\
             duramen_coordinator_build_info{{version=\"{}\",os=\"{}\",arch=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        let mut metrics = self.of_process(role, refused);
        metrics += &certificate.unwrap_or_default();
        if let Some((overview, health, waits)) = cluster {
            metrics += &of_cluster(overview, unanswered);
            metrics += &of_waits(waits);
            metrics += &of_members(health);
        }
        for metric in metrics.lines() {
            let mut parts = metric.splitn(3, ' ');
            let [name, value, help] = [(); 3].map(|()| parts.next().unwrap_or_default());
            let is_counter = name.ends_with("_total");
            let kind = if is_counter { "counter" } else { "gauge" };
            let _ = write!(
                text,
                "# HELP duramen_coordinator_{name} {help}\n\
                 # TYPE duramen_coordinator_{name} {kind}\n\
                 duramen_coordinator_{name} {value}\n"
            );
        }
        text
    }

    /// One metric a line: its name, value and help.
    fn of_process(&self, role: &Role, refused: Refused) -> String {
        let Refused {
            malformed,
            by_tls,
            logins,
            denied,
        } = refused;
        format!(
            "leads {} 1 if this coordinator leads.\n\
             connections {} Connections of servers, clients and tools.\n\
             questions_total {} Questions that were asked here.\n\
             asked_total {} Questions that servers were asked.\n\
             malformed_total {malformed} Hellos and frames that were refused or invalid.\n\
             tls_failures_total {by_tls} Connections that TLS ended: a certificate that is not \
             accepted, or a side without TLS.\n\
             failed_logins_total {logins} Logins with a wrong user or password.\n\
             denied_total {denied} Requests of users that have no right to them.\n\
             leaderships_total {} How often this process began to lead.\n\
             commits_total {} Changes that the store has.\n\
             commit_seconds_total {} Time that the store took for them.\n\
             commit_seconds_max {} Time that the slowest of them took.\n",
            u64::from(*role == Role::Leader),
            self.connections,
            self.questions,
            self.asked,
            self.leaderships,
            self.commits,
            self.commit_time.as_secs_f64(),
            self.commit_longest.as_secs_f64(),
        )
    }
}

/// As [`Figures::of_process`], for the coordinator's certificate, which is valid for so long.
pub(super) fn of_certificate(left_s: i64) -> String {
    format!("tls_certificate_seconds_left {left_s} Time until the certificate expires.\n")
}

/// As [`Figures::of_process`], for the members of a leader.
fn of_members(health: &MembersHealth) -> String {
    let members = health.members.iter();
    let lacking = members.filter(|member| member.users_revision < health.users_revision);
    let members = health.members.iter();
    let refusing = members.filter(|member| member.users_fault.is_some());
    let mut text = format!(
        "users_revision {} Newest revision of the users of the cluster; 0: there are none.\n\
         members_without_users {} Members that have not confirmed the newest users.\n\
         members_refusing_users {} Members whose program does not understand the newest users: the \
         users before them are in force there.\n",
        health.users_revision,
        lacking.count(),
        refusing.count(),
    );
    let members = health.members.iter();
    if let Some(first_s) = members.filter_map(|one| one.certificate_expires_s).min() {
        let left_s = seconds_until(first_s);
        text += &format!(
            "member_certificate_seconds_left {left_s} Time until the first certificate of a member \
             expires, as of its newest connection.\n"
        );
    }
    text
}

/// As [`Figures::of_process`]: `duramen status` has the reasons.
fn of_waits(waits: &[Wait]) -> String {
    let now = waits.iter().filter(|wait| wait.is_now).count();
    format!(
        "waits {now} Reasons why something waits for an operator or for time.\n\
         warnings {} Reasons why something will wait if more is written, or if a server crashes.\n",
        waits.len() - now
    )
}

/// As [`Figures::of_process`], for a leader.
fn of_cluster(overview: &Overview, unanswered: usize) -> String {
    let status = &overview.status;
    let servers = |is: ServerStatus| status.servers.iter().filter(|one| one.status == is).count();
    let recoveries = status.recoveries.iter();
    format!(
        "servers_up {} Members that are up.\n\
         servers_crashed {} Members whose data is not recovered yet.\n\
         servers_unanswered {unanswered} Servers that do not answer this coordinator, if they are \
         so many that it calls none of them crashed.\n\
         tablets {} Tablets of all tables.\n\
         tablets_unserved {} Tablets that no server serves: being recovered, or not yet confirmed \
         by their owners.\n\
         recoveries {} Recoveries under way.\n\
         migrations {} Migrations under way.\n\
         list_version {} Version of the server list.\n\
         map_version {} Version of the tablet map.\n\
         term {} Number of this leadership.\n",
        servers(ServerStatus::Up),
        servers(ServerStatus::Crashed),
        overview.tablets,
        overview.tablets_unserved,
        recoveries
            .filter(|r| r.phase != RecoveryPhase::Done)
            .count(),
        overview.migrations,
        status.list_version,
        status.map_version,
        status.term,
    )
}
