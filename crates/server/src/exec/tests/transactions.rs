//! Queues of transactions: the tables of one serve the next, and several run in one group.

use super::*;

#[test]
fn a_transaction_has_nothing_of_the_one_before() {
    let mut session = Server::session(1);
    let run = |session: &mut Session, requests: &str| {
        let input = requests.replace("; ", "\r\n") + "\r\n";
        run(&mut session.executor, &mut session.client, input.as_bytes())
    };
    let queued = |count: usize| "+OK\r\n".to_owned() + &"+QUEUED\r\n".repeat(count);
    for round in 0..3 {
        // Other databases, the whole store, another database's copy.
        let reply = run(
            &mut session,
            "MULTI; SELECT 3; SET a 3; FLUSHDB; DBSIZE; EXEC",
        );
        assert_eq!(reply, queued(4) + "*4\r\n+OK\r\n+OK\r\n+OK\r\n:0\r\n");
        let reply = run(
            &mut session,
            "MULTI; SELECT 0; SET a 1; COPY a b DB 3; EXEC",
        );
        assert_eq!(reply, queued(3) + "*3\r\n+OK\r\n+OK\r\n:1\r\n");
        let reply = run(&mut session, "MULTI; GET a; GET b; EXEC");
        assert_eq!(reply, queued(2) + "*2\r\n$1\r\n1\r\n$-1\r\n", "{round}");
        // Refused, given up, empty.
        let reply = run(&mut session, "MULTI; SET a 2; NOSUCH; EXEC");
        assert!(reply.contains("-EXECABORT"), "{reply}");
        let reply = run(&mut session, "MULTI; SET a 2; DISCARD");
        assert_eq!(reply, queued(1) + "+OK\r\n");
        assert_eq!(run(&mut session, "MULTI; EXEC"), queued(0) + "*0\r\n");
        let reply = run(&mut session, "MULTI; GET a; EXEC");
        assert_eq!(reply, queued(1) + "*1\r\n$1\r\n1\r\n");
    }
}

/// A request of more keys than a group holds comes without their hashes, and so do all behind it.
#[test]
fn long_and_short_requests_run_in_one_transaction() {
    let mut session = Server::session(1);
    let names: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let pairs: Vec<String> = names.iter().map(|name| format!("{name} v{name}")).collect();
    let input = format!(
        "MULTI\r\nSET first 1\r\nMSET {}\r\nDEL k7\r\nEXISTS {}\r\nINCR first\r\nEXEC\r\n",
        pairs.join(" "),
        names.join(" ")
    );
    for _ in 0..2 {
        let reply = run(&mut session.executor, &mut session.client, input.as_bytes());
        let replies = "*5\r\n+OK\r\n+OK\r\n:1\r\n:99\r\n:2\r\n";
        assert!(reply.ends_with(replies), "{reply}");
    }
    session.expect("GET k99", "$4\r\nvk99\r\n");
}

/// Each transaction was once a group of its own, with its readings of the clock.
#[test]
fn short_transactions_share_groups_and_long_ones_do_not() {
    let server = Server::new(1);
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let batches = |executor: &mut Executor, client: &mut Client, requests: &str| {
        let before = server.shared.threads[0].counters.batches.get();
        let reply = run(executor, client, requests.repeat(24).as_bytes());
        assert_eq!(reply.matches("*2\r\n").count(), 24, "{reply}");
        server.shared.threads[0].counters.batches.get() - before
    };
    let short = "MULTI\r\nSET a 1\r\nGET b\r\nEXEC\r\n";
    assert_eq!(batches(&mut executor, &mut client, short), 1);
    let long = "MULTI\r\nSET a 1\r\nKEYS *\r\nEXEC\r\n";
    assert!(batches(&mut executor, &mut client, long) >= 24);
    // The queue of an EXEC that comes later counts with it.
    let start = format!("MULTI\r\n{}", "GET a\r\n".repeat(64));
    for _ in 0..2 {
        run(&mut executor, &mut client, start.as_bytes());
        let end = "EXEC\r\nPING\r\n";
        let before = server.shared.threads[0].counters.batches.get();
        let reply = run(&mut executor, &mut client, end.as_bytes());
        assert!(reply.starts_with("*64\r\n") && reply.ends_with("+PONG\r\n"));
        assert_eq!(server.shared.threads[0].counters.batches.get() - before, 2);
    }
}
