//! The time of turns (`pace`).

use super::*;
use crate::executor::pace::TURN_TIME;
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

/// Whether a writer of another thread, in a store that is a third full, writes more than fits into
/// memory while one group of costly reads runs. For that, what it has overwritten must come free.
fn a_writer_goes_on_beside_a_group() -> bool {
    const VALUES: usize = 320;
    const WRITES: usize = 1_500; // of 64 KiB: half as much again as the store has
    let server = Server::new(2);
    let (mut executor, mut reader) = (server.executor(0), server.client(0));
    let set = |n: usize| {
        [
            b"SET".to_vec(),
            format!("v{n}").into_bytes(),
            vec![b'v'; 64 << 10],
        ]
    };
    let write = |executor: &mut Executor, client: &mut Client, n: usize| {
        let words = set(n % VALUES);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        assert_eq!(run_bytes(executor, client, &words), b"+OK\r\n");
    };
    (0..VALUES).for_each(|n| write(&mut executor, &mut reader, n));
    let members: Vec<String> = (0..60_000).map(|n| n.to_string()).collect();
    for part in members.chunks(3_000) {
        let add = format!("SADD s {}\r\n", part.join(" "));
        run(&mut executor, &mut reader, add.as_bytes());
    }
    // A turn of a test has no end, so it is one group.
    let group =
        "SET begun 1\r\n".to_owned() + &"SORT s ALPHA LIMIT 0 1\r\nGET ended\r\n".repeat(31);
    let replies = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut executor, mut client) = (server.executor(1), server.client(1));
            while run(&mut executor, &mut client, b"EXISTS begun\r\n") != ":1\r\n" {
                std::thread::yield_now();
            }
            (0..WRITES).for_each(|n| write(&mut executor, &mut client, n));
            run(&mut executor, &mut client, b"SET ended 1\r\n");
        });
        let replies = run(&mut executor, &mut reader, group.as_bytes());
        writer.join().expect("no write is refused");
        replies
    });
    replies.ends_with("$1\r\n1\r\n")
}

/// pace::P2. The guard of a group was there until the group ended: nothing came free for the
/// writers of all threads, which stood, and were refused in a store with room.
#[test]
fn writers_go_on_beside_costly_reads() {
    assert!((0..10).any(|_| a_writer_goes_on_beside_a_group()));
}
