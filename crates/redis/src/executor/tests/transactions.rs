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

/// A server with a set whose SORT takes a millisecond or more, and a large hash.
fn with_large_values() -> Session {
    let mut s = Server::session(1);
    for part in 0..10 {
        let members: String = (0..3_000)
            .map(|n| format!(" m{}", 3_000 * part + n))
            .collect();
        s.ask(&format!("SADD set{members}"));
        let fields: String = (0..2_000)
            .map(|n| format!(" f{} v", 2_000 * part + n))
            .collect();
        s.ask(&format!("HSET hash{fields}"));
    }
    s
}

/// Runs a pipeline to its end, and another client's request behind each round. Returns the replies,
/// and the number of rounds.
fn run_beside(
    s: &mut Session,
    pipeline: &str,
    mut between: impl FnMut(&mut Executor),
) -> (String, u32) {
    let (requests, mut out) = (parsed(pipeline.as_bytes()), Vec::new());
    let (mut executed, mut rounds) = (0, 0);
    while executed < requests.len() {
        let mut turn = [Turn::new(
            &mut s.client,
            &requests,
            pipeline.as_bytes(),
            &mut out,
        )];
        turn[0].executed = executed;
        s.executor.begin_round(1);
        s.executor.run(&mut turn);
        executed = turn[0].executed;
        rounds += 1;
        between(&mut s.executor);
        assert!(rounds < 10_000, "it does not end");
    }
    let effects = s.client.effects.take(0);
    release(effects, &s.server.shared, 0, Some((&mut out, 0)));
    (String::from_utf8(out).expect("text"), rounds)
}

/// 1000 of them took 55 s, in which the thread served nobody else. Later, only if the queue also
/// had a script, or a SORT that reads keys by patterns.
#[test]
fn a_transaction_of_long_reads_lets_others_run_between_them() {
    let mut s = with_large_values();
    let mut other = s.server.client(0);
    let sorts = "SORT set ALPHA LIMIT 0 1\r\n".repeat(60);
    for (first, reply) in [
        ("GET k", "$-1\r\n"),
        ("EVAL \"return 7\" 0", ":7\r\n"),
        ("SORT none BY w_*", "*0\r\n"),
    ] {
        let pipeline = format!(
            "PING\r\nMULTI\r\n{first}\r\n{sorts}PUBLISH none x\r\nGET k\r\nEXEC\r\nPING\r\n"
        );
        let mut asked = 0;
        let (replies, rounds) = run_beside(&mut s, &pipeline, |executor| {
            assert_eq!(run(executor, &mut other, b"GET k\r\n"), "$-1\r\n");
            asked += 1;
        });
        assert!(
            rounds > 5 && asked == rounds,
            "{first}: {rounds} rounds: {replies:.2000}"
        );
        let sorted = "*1\r\n$2\r\nm0\r\n".repeat(60);
        let queued = "+QUEUED\r\n".repeat(63);
        let all = format!("*63\r\n{reply}{sorted}:0\r\n$-1\r\n");
        assert_eq!(replies, format!("+PONG\r\n+OK\r\n{queued}{all}+PONG\r\n"));
    }
}

/// Each suspended EXEC had a draft of its own, up to `script-memory`: forty of them took 2 GB.
#[test]
fn suspended_transactions_share_memory() {
    const CLIENTS: usize = 8;
    let mut s = with_large_values();
    s.expect("CONFIG SET script-memory 4mb", "+OK\r\n");
    s.ask_bytes(&[b"SET", b"big", &vec![b'v'; 100_000]]);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| s.server.client(0)).collect();
    let input = |n: usize| {
        let copy = |k: usize| format!("COPY big own:{n}:{k}\r\nSORT set ALPHA LIMIT 0 1\r\n");
        format!("MULTI\r\n{}EXEC\r\n", (0..30).map(copy).collect::<String>())
    };
    let inputs: Vec<String> = (0..CLIENTS).map(input).collect();
    let all: Vec<Requests> = inputs
        .iter()
        .map(|input| parsed(input.as_bytes()))
        .collect();
    let (mut outs, mut executed) = (vec![Vec::new(); CLIENTS], vec![0; CLIENTS]);
    let (mut most, mut rounds) = (0, 0);
    while executed
        .iter()
        .zip(&all)
        .any(|(executed, all)| *executed < all.len())
    {
        let parts = clients.iter_mut().zip(&all).zip(&inputs).zip(&mut outs);
        let mut turns: Vec<Turn<'_>> = parts
            .map(|(((client, requests), input), out)| {
                Turn::new(client, requests, input.as_bytes(), out)
            })
            .collect();
        for (turn, executed) in turns.iter_mut().zip(&executed) {
            turn.executed = *executed;
        }
        s.executor.begin_round(1);
        s.executor.run(&mut turns);
        executed = turns.iter().map(|turn| turn.executed).collect();
        most = most.max(s.executor.thread.scripts.bytes());
        rounds += 1;
        assert!(rounds < 20_000, "they do not end: {executed:?}");
    }
    assert!((1 << 20..8 << 20).contains(&most), "{most} bytes");
    for out in outs {
        let out = String::from_utf8_lossy(&out);
        assert!(
            out.contains("*60\r\n:1\r\n") && !out.contains('-'),
            "{out:.200}"
        );
    }
    assert_eq!(s.executor.thread.scripts.bytes(), 0);
}

/// A suspended EXEC kept its run through CLIENT PAUSE, and the memory of it kept others out.
#[test]
fn a_pause_drops_the_run_of_a_suspended_transaction() {
    let mut s = with_large_values();
    let mut other = s.server.client(0);
    let sorts = "SORT set ALPHA LIMIT 0 1\r\n".repeat(20);
    let queue = format!("MULTI\r\n{sorts}INCR n\r\n");
    let queued = run(&mut s.executor, &mut s.client, queue.as_bytes());
    assert_eq!(queued, format!("+OK\r\n{}", "+QUEUED\r\n".repeat(21)));
    assert_eq!(s.ask_part("EXEC"), "");
    assert!(s.executor.thread.scripts.bytes() > 0, "it is suspended");
    let pause = b"CLIENT PAUSE 600000 WRITE\r\n";
    assert_eq!(run(&mut s.executor, &mut other, pause), "+OK\r\n");
    assert_eq!(s.ask_part("EXEC"), "");
    assert_eq!(s.executor.thread.scripts.bytes(), 0);
    let goes_on = b"CLIENT UNPAUSE\r\n";
    assert_eq!(run(&mut s.executor, &mut other, goes_on), "+OK\r\n");
    let sorted = "*1\r\n$2\r\nm0\r\n".repeat(20);
    s.expect("EXEC", &format!("*21\r\n{sorted}:1\r\n"));
    s.expect("GET n", "$1\r\n1\r\n");
}

/// A transaction that takes long behind its first write goes on: that is not taken back.
#[test]
fn a_transaction_that_has_written_is_not_run_again() {
    let mut s = with_large_values();
    let sorts = "SORT set ALPHA LIMIT 0 1\r\n".repeat(14);
    for first in ["INCR n\r\n", "GET n\r\nINCR n\r\n"] {
        let pipeline = format!("MULTI\r\n{first}{sorts}EXEC\r\n");
        run_beside(&mut s, &pipeline, |_| {});
    }
    s.expect("GET n", "$1\r\n2\r\n");
}

/// Its slices are of one moment, and writers of its keys do not keep it from its end.
#[test]
fn a_transaction_in_slices_sees_one_moment() {
    let mut s = with_large_values();
    let mut other = s.server.client(0);
    s.ask("SET hot 0");
    let sorts = "SORT set ALPHA LIMIT 0 1\r\n".repeat(20);
    let pipeline = format!("MULTI\r\nGET hot\r\n{sorts}GET hot\r\nINCRBY sum 1\r\nEXEC\r\n");
    let mut written = 0;
    let (replies, rounds) = run_beside(&mut s, &pipeline, |executor| {
        let reply = run(executor, &mut other, b"INCR hot\r\n");
        written += i32::from(!reply.is_empty());
    });
    assert!(
        rounds > 2 && written > 0,
        "{rounds} rounds: {replies:.2000}"
    );
    let (_, shown) = replies.split_once("*23\r\n").expect("the replies of EXEC");
    let value = shown.lines().nth(1).expect("a value");
    let hot = format!("${}\r\n{value}\r\n", value.len());
    let sorted = "*1\r\n$2\r\nm0\r\n".repeat(20);
    assert_eq!(shown, format!("{hot}{sorted}{hot}:1\r\n"));
    s.expect(
        "GET hot",
        &format!("${}\r\n{written}\r\n", written.to_string().len()),
    );
    s.expect("GET sum", "$1\r\n1\r\n");
}

/// Each of them counted the whole hash, and EXEC was refused for its size.
#[test]
fn a_transaction_writes_many_fields_of_a_large_hash() {
    let mut s = with_large_values();
    let mut other = s.server.client(0);
    let sets: String = (0..100)
        .map(|n| format!("HSET hash f{n} new\r\n"))
        .collect();
    let pipeline =
        format!("MULTI\r\nSELECT 1\r\nSET k one\r\nSELECT 0\r\n{sets}HSET hash more x\r\nEXEC\r\n");
    let (replies, rounds) = run_beside(&mut s, &pipeline, |executor| {
        let seen = run(executor, &mut other, b"HGET hash f0\r\n");
        assert!(seen == "$1\r\nv\r\n" || seen == "$3\r\nnew\r\n", "{seen}");
    });
    assert!(rounds > 2, "{rounds} rounds");
    let queued = "+QUEUED\r\n".repeat(104);
    let zeros = ":0\r\n".repeat(100);
    assert_eq!(
        replies,
        format!("+OK\r\n{queued}*104\r\n+OK\r\n+OK\r\n+OK\r\n{zeros}:1\r\n")
    );
    s.expect("HGET hash f99", "$3\r\nnew\r\n");
    s.expect("HLEN hash", ":20001\r\n");
    s.expect("GET k", "$-1\r\n");
    s.expect("SELECT 1", "+OK\r\n");
    s.expect("GET k", "$3\r\none\r\n");
}

/// The plan summed the whole hash twice for each HSET, with the key locked: 500 of them on 50,000
/// fields held the thread for 30 ms.
#[test]
fn a_transaction_sums_a_large_value_once_for_its_plan() {
    let mut s = with_large_values();
    let hash_bytes = s.number("MEMORY USAGE hash") as u64;
    let sets: String = (0..200)
        .map(|n| format!("HSET hash f{n} new\r\n"))
        .collect();
    let begin = format!("MULTI\r\n{sets}");
    run(&mut s.executor, &mut s.client, begin.as_bytes());
    let met = |s: &mut Session| s.executor.session().expect("a store").work().met_bytes();
    let before = met(&mut s);
    assert_eq!(s.ask_part("EXEC"), "", "it goes on in the next round");
    let read = met(&mut s) - before;
    assert!(read < 10 * hash_bytes, "{read} of {hash_bytes}");
    assert!(s.ask("EXEC").starts_with("*200\r\n:0\r\n"));
    s.expect("HGET hash f199", "$3\r\nnew\r\n");
    // This one may not run on a draft, so its plan does not end at the first HSET, and all that it
    // writes to is looked at for damage. Only then it is refused, for its size.
    let twice = sets.repeat(2); // longer together than the store
    let begin = format!("MULTI\r\nCLIENT NO-TOUCH OFF\r\n{twice}");
    run(&mut s.executor, &mut s.client, begin.as_bytes());
    let before = met(&mut s);
    s.expect_error("EXEC", "EXECABORT");
    let read = met(&mut s) - before;
    assert!(
        (hash_bytes..10 * hash_bytes).contains(&read),
        "{read} of {hash_bytes}"
    );
}

/// Sends commands of a transaction; returns the reply of EXEC.
fn exec(session: &mut Session, commands: &[&[&[u8]]]) -> String {
    session.expect("MULTI", "+OK\r\n");
    for command in commands {
        assert_eq!(session.ask_bytes(command), "+QUEUED\r\n", "{command:.80?}");
    }
    session.ask("EXEC")
}

/// Makes the list `queue` so long that it takes no more messages of this length.
fn fill_queue(session: &mut Session, message: &[u8]) {
    while !session
        .ask_bytes(&[b"RPUSH", b"queue", message])
        .starts_with('-')
    {}
}

/// Celery gives back the jobs of a worker that ends: it watches `unacked`, reads the message,
/// takes it out of `unacked` and pushes it to its queue, in one transaction. The queue had become
/// too long: the push alone was refused, and the job was lost.
#[test]
fn a_message_that_its_queue_cannot_take_stays_where_it_was() {
    let mut s = Server::session(1);
    let message = vec![b'm'; 900];
    fill_queue(&mut s, &message);
    let queued = s.ask("LLEN queue");
    s.ask_bytes(&[b"HSET", b"unacked", b"tag", &message]);
    s.expect("ZADD unacked_index 1 tag", ":1\r\n");
    let restore: [&[&[u8]]; 3] = [
        &[b"ZREM", b"unacked_index", b"tag"],
        &[b"HDEL", b"unacked", b"tag"],
        &[b"RPUSH", b"queue", &message],
    ];
    s.expect("WATCH unacked", "+OK\r\n");
    let reply = exec(&mut s, &restore);
    let why = "-EXECABORT Transaction discarded because of: ERR the collection would exceed";
    assert!(reply.starts_with(why), "{reply}");
    s.expect("HEXISTS unacked tag", ":1\r\n");
    s.expect("ZSCORE unacked_index tag", "$1\r\n1\r\n");
    assert_eq!(s.ask("LLEN queue"), queued);
    // A worker takes a message: then there is room.
    s.ask("BRPOP queue 1");
    s.expect("WATCH unacked", "+OK\r\n");
    let again = format!("*3\r\n:1\r\n:1\r\n{queued}");
    assert_eq!(exec(&mut s, &restore), again);
    s.expect("EXISTS unacked unacked_index", ":0\r\n");
    assert_eq!(s.ask("LLEN queue"), queued);
    // Another client changes the watched hash.
    s.expect("WATCH unacked", "+OK\r\n");
    let mut other = s.server.client(0);
    run(&mut s.executor, &mut other, b"HSET unacked x y\r\n");
    assert_eq!(exec(&mut s, &restore), "*-1\r\n");
}

/// A command that only tells something counted as one that cannot be taken back: the transaction
/// was done up to the push that was refused, and the message was lost.
#[test]
fn a_message_stays_where_it_was_whatever_else_is_asked_in_its_transaction() {
    let mut s = Server::session(1);
    let message = vec![b'm'; 900];
    fill_queue(&mut s, &message);
    s.ask_bytes(&[b"HSET", b"unacked", b"tag", &message]);
    for asked in [
        "TIME",
        "PING",
        "UNWATCH",
        "WAIT 0 0",
        "ROLE",
        "LASTSAVE",
        "CLIENT ID",
        "CLIENT LIST",
        "SCRIPT EXISTS x",
        "FUNCTION LIST",
        "PUBSUB NUMSUB x",
        "ACL WHOAMI",
        "CONFIG GET maxmemory",
        "OBJECT HELP",
        "INFO",
        "DBSIZE",
        "RANDOMKEY",
        "SCAN 0",
        "KEYS none",
    ] {
        s.expect("MULTI", "+OK\r\n");
        s.expect(asked, "+QUEUED\r\n");
        s.expect("HDEL unacked tag", "+QUEUED\r\n");
        s.ask_bytes(&[b"RPUSH", b"queue", &message]);
        s.expect_error(
            "EXEC",
            "EXECABORT Transaction discarded because of: ERR the",
        );
        s.expect("HEXISTS unacked tag", ":1\r\n");
    }
}

/// A transaction that runs on a draft sees its own keys in the whole database.
#[test]
fn a_transaction_on_a_draft_counts_its_own_keys() {
    let mut s = Server::session(1);
    let long = vec![b'v'; 600_000];
    s.ask_bytes(&[b"RPUSH", b"long", &long]);
    s.expect("SET old v", "+OK\r\n");
    let commands: [&[&[u8]]; 7] = [
        &[b"DBSIZE"],
        &[b"SET", b"new", b"v"],
        &[b"SET", b"other", b"v"],
        &[b"DEL", b"old"],
        &[b"RPUSH", b"long", b"v"],
        &[b"DBSIZE"],
        &[b"KEYS", b"ne*"],
    ];
    let reply = exec(&mut s, &commands);
    assert_eq!(
        reply,
        "*7\r\n:2\r\n+OK\r\n+OK\r\n:1\r\n:2\r\n:3\r\n*1\r\n$3\r\nnew\r\n"
    );
    s.expect("DBSIZE", ":3\r\n");
}

/// Each command of a transaction that makes a value longer, at the limits of bytes and of
/// elements.
#[test]
fn a_value_that_would_be_too_long_ends_the_whole_transaction() {
    let mut s = Server::session(1);
    let half = vec![b'v'; 600_000];
    s.ask_bytes(&[b"SET", b"text", &half]);
    s.ask("RPUSH pair t t");
    s.ask_bytes(&[b"RPUSH", b"list", &half]);
    s.ask_bytes(&[b"RPUSH", b"other", &half]);
    s.ask_bytes(&[b"HSET", b"hash", b"f", &half]);
    s.ask_bytes(&[b"ZADD", b"sorted", b"1", &half]);
    s.ask_bytes(&[b"XADD", b"stream", b"1-1", b"f", &half]);
    for part in 0..2 {
        let numbers: Vec<String> = (part * 65_536..(part + 1) * 65_536)
            .map(|n| n.to_string())
            .collect();
        let mut add: Vec<&[u8]> = vec![b"SADD", b"set"];
        add.extend(numbers.iter().map(String::as_bytes));
        assert_eq!(s.ask_bytes(&add), ":65536\r\n");
    }
    let mut two: Vec<u8> = half.clone();
    two[0] = b'w';
    let too_long: [&[&[u8]]; 10] = [
        &[b"APPEND", b"text", &half],
        &[b"SETRANGE", b"text", b"1048570", b"0123456789"],
        &[b"SETBIT", b"text", b"8388608", b"1"],
        &[b"RPUSH", b"list", &half],
        &[b"LMOVE", b"other", b"list", b"LEFT", b"RIGHT"],
        &[b"HSET", b"hash", b"g", &half],
        &[b"ZADD", b"sorted", b"1", &two],
        &[b"XADD", b"stream", b"1-2", b"g", &two],
        &[b"SADD", b"set", b"131072"],
        &[
            b"SORT",
            b"pair",
            b"BY",
            b"nosort",
            b"GET",
            b"tex*",
            b"STORE",
            b"sorted_list",
        ],
    ];
    for command in too_long {
        let name = String::from_utf8_lossy(command[0]);
        let reply = exec(
            &mut s,
            &[&[b"SET", b"before", b"1"], command, &[b"INCR", b"after"]],
        );
        assert!(reply.starts_with("-EXECABORT"), "{name}: {reply:.200}");
        s.expect("EXISTS before after", ":0\r\n");
    }
    // Nothing of it is too long, though the values are.
    let reply = exec(
        &mut s,
        &[
            &[b"SET", b"before", b"1"],
            &[b"SREM", b"set", b"131071"],
            &[b"SADD", b"set", b"0", b"x"],
            &[b"HSET", b"hash", b"f", b"short"],
            &[b"LPUSH", b"list", b"a"],
        ],
    );
    assert_eq!(reply, "*5\r\n+OK\r\n:1\r\n:1\r\n:0\r\n:2\r\n");
    // Another error is that of its command alone, as in Redis.
    let reply = exec(&mut s, &[&[b"SADD", b"list", b"a"], &[b"INCR", b"after"]]);
    assert!(reply.starts_with("*2\r\n-WRONGTYPE"), "{reply}");
    s.expect("GET after", "$1\r\n1\r\n");
}
