//! The time of turns (`pace`).

use super::*;
use crate::pace::TURN_TIME;
use duramen_base::planted::{Bug, with_bug};

/// A pipeline of requests that take long, and a short one of another client, in one round: how many
/// of the long ones have run.
fn costly_requests_of_a_round() -> usize {
    let server = Server::new(1);
    let mut executor = Executor {
        group: Group::new(TURN_TIME),
        ..server.executor(0)
    };
    let (mut costly, mut short) = (server.client(0), server.client(0));
    let members: Vec<String> = (0..30_000).map(|n| format!("member:{n:05}")).collect();
    for part in members.chunks(3_000) {
        run(
            &mut executor,
            &mut costly,
            format!("SADD s {}\r\n", part.join(" ")).as_bytes(),
        );
    }
    let pipeline = "SORT s ALPHA LIMIT 0 1\r\n".repeat(32);
    let (long, ping) = (parsed(pipeline.as_bytes()), parsed(b"GET a\r\n"));
    let (mut long_out, mut short_out) = (Vec::new(), Vec::new());
    let mut turns = [
        Turn::new(&mut costly, &long, pipeline.as_bytes(), &mut long_out),
        Turn::new(&mut short, &ping, b"GET a\r\n", &mut short_out),
    ];
    executor.run(&mut turns);
    assert_eq!(
        turns[1].executed, 1,
        "the other client has its turn in the same round"
    );
    turns[0].executed
}

#[test]
fn a_turn_ends_behind_the_request_in_which_its_time_is_over() {
    let ran = costly_requests_of_a_round();
    assert!((1..8).contains(&ran), "{ran} of 32");
}

#[test]
fn turns_without_an_end_are_found() {
    assert_eq!(
        with_bug(Bug::TurnsHaveNoEnd, costly_requests_of_a_round),
        32
    );
}
