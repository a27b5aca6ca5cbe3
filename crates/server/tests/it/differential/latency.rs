//! LATENCY: the same commands, one of which takes long, and the same forms of replies. Their
//! numbers are times, and stand as `N`.

use super::{Peer, both};
use std::time::{Duration, Instant};

/// Two texts of this length take several milliseconds to compare, at either server.
const TEXT_BYTES: usize = 2_000;

/// The reply with each run of digits as `N`.
fn without_numbers(reply: &str) -> String {
    let mut kept = String::new();
    for character in reply.chars() {
        match character.is_ascii_digit() {
            false => kept.push(character),
            true if kept.ends_with('N') => {}
            true => kept.push('N'),
        }
    }
    kept
}

/// The replies to requests of which one takes long, and the event of this one alone: on a busy
/// machine others take long too.
fn replies(peer: &mut Peer) -> Vec<String> {
    let mut replies = Vec::new();
    let requests = [
        "CONFIG SET latency-monitor-threshold 3600000",
        "LATENCY RESET",
        "LATENCY LATEST",
        "LATENCY HISTORY command",
        "LATENCY GRAPH command",
        "LATENCY GRAPH nosuch",
        "LATENCY RESET nosuch command",
        "CONFIG SET latency-monitor-threshold -1",
        "CONFIG GET latency-monitor-threshold",
        "CONFIG SET latency-monitor-threshold 1",
        "LCS a b LEN",
        "CONFIG SET latency-monitor-threshold 0",
        "CONFIG GET latency-monitor-threshold",
        "LATENCY HISTORY command",
        "LATENCY HISTORY COMMAND",
        "LATENCY GRAPH command",
        "LATENCY RESET nosuch command command",
        "LATENCY HISTORY command",
        "LATENCY HISTORY",
        "LATENCY GRAPH",
        "LATENCY LATEST x",
    ];
    for request in requests {
        let reply = peer.ask(request);
        let is_of_settings = request.starts_with("CONFIG SET") && reply.starts_with('-');
        // The first resets events of before, and errors of settings have texts of their own.
        replies.push(match request == "LATENCY RESET" || is_of_settings {
            true => reply.chars().take(1).collect(),
            false => without_numbers(&reply),
        });
    }
    replies
}

#[test]
fn slow_commands_are_events_as_in_redis() {
    let Some((server, redis)) = both() else {
        return;
    };
    let [mut ours, mut theirs] = [server.addresses().resp[0], redis.address].map(Peer::connect);
    for peer in [&mut ours, &mut theirs] {
        peer.ask(&format!("SET a {}", "ab".repeat(TEXT_BYTES / 2)));
        peer.ask(&format!("SET b {}", "ba".repeat(TEXT_BYTES / 2)));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (our, their) = (replies(&mut ours), replies(&mut theirs));
        assert!(their[13].starts_with("*N"), "{}", their[13]);
        if our == their {
            break;
        }
        // Another request of one of the two took long, in another second.
        assert!(
            Instant::now() < deadline,
            "Duramen: {our:#?}\nRedis: {their:#?}"
        );
    }
    server.stop();
    server.wait().expect("stops");
}
