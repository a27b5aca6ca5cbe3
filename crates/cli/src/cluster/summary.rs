//! The first line of `duramen status`: whether requests are answered, and if not, the remedy.

use duramen_wire::native::message::{Overview, ServerEntry, ServerStatus, Wait};

/// The state of the cluster for its clients: a word, and a line for people.
///
/// `waits` shows one more state: a leader that most servers do not answer declares none of them
/// crashed, and reports this among the waits.
pub(super) fn summary(overview: &Overview, waits: &[Wait]) -> (&'static str, String) {
    let status = &overview.status;
    let is_up = |entry: &&ServerEntry| entry.status == ServerStatus::Up;
    let up = status.servers.iter().filter(is_up);
    let backups = up.filter(|entry| entry.roles.backup).count();
    // A log has no replica on its own server.
    let mut servers = status.servers.iter();
    let one_is_both = servers.any(|entry| entry.roles.master && entry.roles.backup);
    let needed = status.settings.replicas as usize + usize::from(one_is_both);
    let (tablets, unserved) = (overview.tablets, overview.tablets_unserved);
    if status.servers.is_empty() {
        return ("empty", "no server has joined yet".to_owned());
    }
    if backups < needed {
        let more = needed - backups;
        let line = format!(
            "{backups} of the {needed} servers needed are up: requests wait. Start {more} more"
        );
        return ("waits", line);
    }
    if unserved > 0 {
        let line = format!("{unserved} of {tablets} tablets are not served: their requests wait");
        return ("unserved", line);
    }
    if tablets == 0 {
        let line = "no table has tablets yet: `duramen table create db0` makes them";
        return ("empty", line.to_owned());
    }
    let now = waits.iter().filter(|wait| wait.is_now).count();
    if now > 0 {
        let line = format!("each tablet has a server that counts as up; waiting below: {now}");
        return ("unsure", line);
    }
    let line = match backups - needed {
        0 => format!("all is served; {backups} servers are up, and all of them are needed"),
        spare => {
            format!("all is served; {backups} servers are up, {spare} more than are needed")
        }
    };
    ("served", line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{ListVersion, MapVersion, ServerId};
    use duramen_wire::native::message::{Addresses, Roles, Status};

    /// A cluster of so many servers, of which `up` are UP.
    fn overview(replicas: u32, servers: u32, up: u32, of_tablets: (u64, u64)) -> Overview {
        let (tablets, unserved) = of_tablets;
        let entry = |n: u32| ServerEntry {
            server: ServerId::new(n, 1),
            addresses: Addresses {
                native: format!("127.0.0.1:{n}"),
                resp: None,
                plain: None,
                admin: None,
            },
            rack: None,
            roles: Roles {
                master: true,
                backup: true,
            },
            disk: u64::from(n),
            read_bytes_per_s: 0,
            status: if n < up {
                ServerStatus::Up
            } else {
                ServerStatus::Crashed
            },
            draining: false,
            unused: None,
        };
        let mut settings = duramen_coordinator::defaults(1);
        settings.replicas = replicas;
        let status = Status {
            cluster: "test".to_owned(),
            term: 1,
            leader: "127.0.0.1:1".to_owned(),
            list_version: ListVersion(1),
            map_version: MapVersion(1),
            servers: (0..servers).map(entry).collect(),
            tables: Vec::new(),
            tablets: Vec::new(),
            recoveries: Vec::new(),
            migrations: Vec::new(),
            migrations_ended: Vec::new(),
            settings,
            loads: Vec::new(),
        };
        Overview {
            status,
            tablets,
            tablets_unserved: unserved,
            migrations: 0,
            tables: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// With two of five servers down and three replicas no request was answered, and `status`
    /// showed nothing unusual except the state of these servers.
    #[test]
    fn the_first_line_tells_whether_requests_are_answered() {
        for (overview, state, part) in [
            (
                overview(3, 5, 3, (5, 0)),
                "waits",
                "3 of the 4 servers needed are up: requests wait",
            ),
            (overview(3, 5, 1, (5, 4)), "waits", "Start 3 more"),
            (
                overview(3, 5, 4, (5, 2)),
                "unserved",
                "2 of 5 tablets are not served",
            ),
            (
                overview(3, 5, 4, (5, 0)),
                "served",
                "all of them are needed",
            ),
            (
                overview(2, 5, 5, (5, 0)),
                "served",
                "5 servers are up, 2 more than are needed",
            ),
            (overview(2, 5, 5, (0, 0)), "empty", "table create"),
            (overview(2, 0, 0, (0, 0)), "empty", "no server has joined"),
        ] {
            let (found, line) = summary(&overview, &[]);
            assert!(found == state && line.contains(part), "{found}: {line}");
        }
        let wait = |is_now| Wait {
            server: None,
            is_now,
            reason: "3 of 5 servers do not answer this coordinator".to_owned(),
        };
        let healthy = overview(2, 5, 5, (5, 0));
        assert_eq!(summary(&healthy, &[wait(false)]).0, "served");
        assert_eq!(summary(&healthy, &[wait(true)]).0, "unsure");
    }
}
