//! The block of `duramen status` about all that waits, and what may have to.

use duramen_wire::native::message::Wait;
use serde_json::{Value, json};

/// One line for each, those that wait first. Empty if nothing waits, or if the coordinator is too
/// old to report it.
pub(super) fn text(waits: &[Wait]) -> String {
    let line = |wait: &Wait| {
        let what = if wait.is_now { "waiting" } else { "soon" };
        let who = wait.server.map(|server| format!("server {server}: "));
        format!("{what}: {}{}\n", who.unwrap_or_default(), wait.reason)
    };
    let (now, soon): (Vec<&Wait>, Vec<&Wait>) = waits.iter().partition(|wait| wait.is_now);
    now.into_iter().chain(soon).map(line).collect()
}

pub(super) fn as_json(waits: &[Wait]) -> Value {
    let one = |wait: &Wait| {
        json!({
            "server": wait.server.map(|server| server.to_string()),
            "is_now": wait.is_now,
            "reason": wait.reason,
        })
    };
    waits.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::ServerId;

    #[test]
    fn what_waits_now_stands_first() {
        let wait = |server, is_now, reason: &str| Wait {
            server,
            is_now,
            reason: reason.to_owned(),
        };
        let waits = [
            wait(Some(ServerId::new(2, 1)), false, "its memory is 92 % full"),
            wait(None, true, "3 of the 4 servers are up"),
        ];
        assert_eq!(
            text(&waits),
            "waiting: 3 of the 4 servers are up\nsoon: server 2.1: its memory is 92 % full\n"
        );
        assert_eq!(text(&[]), "");
        assert_eq!(as_json(&waits)[0]["server"], "2.1");
        assert_eq!(as_json(&waits)[1]["is_now"], true);
    }
}
