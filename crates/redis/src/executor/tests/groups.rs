//! Requests of many connections in one round; the order of replies; reasons for ending a turn.

use super::*;

/// Runs one round: each client's input, in turn.
fn round(executor: &mut Executor, clients: &mut [Client], inputs: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for input in inputs {
        all.push(parsed(input.as_bytes()));
    }
    let mut outs = vec![Vec::new(); clients.len()];
    let mut turns: Vec<Turn<'_>> = clients
        .iter_mut()
        .zip(&all)
        .zip(inputs)
        .zip(&mut outs)
        .map(|(((client, requests), input), out)| {
            Turn::new(client, requests, input.as_bytes(), out)
        })
        .collect();
    executor.run(&mut turns);
    for (turn, requests) in turns.iter().zip(&all) {
        assert_eq!(turn.executed, requests.len());
    }
    drop(turns);
    outs.iter()
        .map(|out| String::from_utf8_lossy(out).into_owned())
        .collect()
}

#[test]
fn every_connection_gets_its_own_replies_in_order() {
    let server = Server::new(1);
    let mut executor = server.executor(0);
    let mut clients: Vec<Client> = (0..50).map(|_| server.client(0)).collect();
    let inputs: Vec<String> = (0..50)
        .map(|client| {
            (0..30)
                .map(|n| format!("SET k{client}:{n} v{n}\r\nGET k{client}:{n}\r\nECHO {client}\r\nDBSIZE\r\nMGET k{client}:{n} x\r\n"))
                .collect()
        })
        .collect();
    let outs = round(&mut executor, &mut clients, &inputs);
    let mut objects = 0;
    for (client, out) in outs.iter().enumerate() {
        let mut expected = String::new();
        for n in 0..30 {
            objects += 1;
            let value = format!("v{n}");
            let echo = client.to_string();
            expected.push_str(&format!(
                "+OK\r\n${}\r\n{value}\r\n${}\r\n{echo}\r\n:{objects}\r\n*2\r\n${}\r\n{value}\r\n$-1\r\n",
                value.len(),
                echo.len(),
                value.len()
            ));
        }
        assert_eq!(*out, expected, "client {client}");
    }
    assert_eq!(
        server.shared.threads[0].counters.commands.get(),
        50 * 30 * 5
    );
}

/// Runs a client's requests turn by turn: the number of requests of each turn, and its replies.
pub(super) fn turns(
    executor: &mut Executor,
    client: &mut Client,
    input: &str,
) -> Vec<(usize, Vec<u8>)> {
    let requests = parsed(input.as_bytes());
    let (mut executed, mut turns) = (0, Vec::new());
    while executed < requests.len() {
        let mut out = Vec::new();
        let mut turn = [Turn::new(client, &requests, input.as_bytes(), &mut out)];
        turn[0].executed = executed;
        executor.run(&mut turn);
        let before = std::mem::replace(&mut executed, turn[0].executed);
        turns.push((executed - before, out));
    }
    turns
}

#[test]
fn a_turn_stops_when_its_replies_pile_up_and_goes_on_later() {
    let server = Server::new(1);
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let value = "v".repeat(300_000);
    let mut set = Vec::new();
    RequestEncoder::new(&mut set).request(&["SET", "k", &value]);
    run(&mut executor, &mut client, &set);
    let turns = turns(&mut executor, &mut client, &"GET k\r\n".repeat(10));
    assert!(
        turns
            .iter()
            .all(|(_, out)| out.len() <= super::super::OUT_BYTES_PER_TURN + 300_020)
    );
    let bytes: usize = turns.iter().map(|(_, out)| out.len()).sum();
    assert_eq!(turns.len(), 3);
    assert_eq!(bytes, 10 * (300_000 + "$300000\r\n\r\n".len()));
}

/// A group of 64 small writes rewrote 64 MB before the clock was read.
#[test]
fn a_turn_stops_when_its_writes_pile_up_and_goes_on_later() {
    let server = Server::new(1);
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let value = "v".repeat(300_000);
    let mut set = Vec::new();
    RequestEncoder::new(&mut set).request(&["SET", "k", &value]);
    run(&mut executor, &mut client, &set);
    let input = "SETRANGE k 0 y\r\n".repeat(10) + &"SET s 1\r\n".repeat(50);
    let turns = turns(&mut executor, &mut client, &input);
    let counts: Vec<usize> = turns.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [4, 4, 52]);
    let expected = ":300000\r\n".repeat(10) + &"+OK\r\n".repeat(50);
    let out: Vec<u8> = turns.into_iter().flat_map(|(_, out)| out).collect();
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

/// Commands that pin the session themselves were not counted.
#[test]
fn a_turn_counts_what_copies_and_transactions_write() {
    for (request, one) in [
        ("COPY k l REPLACE\r\n", 1),
        ("MULTI\r\nAPPEND k y\r\nEXEC\r\n", 3),
    ] {
        let server = Server::new(1);
        let (mut executor, mut client) = (server.executor(0), server.client(0));
        let value = "v".repeat(300_000);
        let mut set = Vec::new();
        RequestEncoder::new(&mut set).request(&["SET", "k", &value]);
        run(&mut executor, &mut client, &set);
        let turns = turns(&mut executor, &mut client, &request.repeat(10));
        let counts: Vec<usize> = turns.iter().map(|(count, _)| *count).collect();
        assert_eq!(counts, [4 * one, 4 * one, 2 * one], "{request}");
    }
}

#[test]
fn nothing_runs_after_quit() {
    let mut s = Server::session(1);
    let out = run(
        &mut s.executor,
        &mut s.client,
        b"SET a 1\r\nQUIT\r\nSET a 2\r\n",
    );
    assert_eq!(out, "+OK\r\n+OK\r\n");
    assert_eq!(ending(&s.client), Ending::CloseAfterReply);
    let mut other = s.server.client(0);
    assert_eq!(
        run(&mut s.executor, &mut other, b"GET a\r\n"),
        "$1\r\n1\r\n"
    );
}

#[test]
fn a_pause_holds_requests_back_and_ends() {
    let server = Server::new(1);
    let (mut executor, mut pauser, mut other) =
        (server.executor(0), server.client(0), server.client(0));
    assert_eq!(
        run(&mut executor, &mut pauser, b"CLIENT PAUSE 100000 WRITE\r\n"),
        "+OK\r\n"
    );
    assert_eq!(
        run(&mut executor, &mut other, b"GET a\r\nSET a 1\r\nGET a\r\n"),
        "$-1\r\n"
    );
    assert!(matches!(ending(&other), Ending::Paused { .. }));
    assert_eq!(run(&mut executor, &mut other, b"PUBLISH a 1\r\n"), "");
    assert_eq!(
        run(&mut executor, &mut pauser, b"CLIENT UNPAUSE\r\n"),
        "+OK\r\n"
    );
    assert_eq!(
        run(&mut executor, &mut other, b"SET a 1\r\nGET a\r\n"),
        "+OK\r\n$1\r\n1\r\n"
    );
    assert_eq!(ending(&other), Ending::Open);
    run(&mut executor, &mut pauser, b"CLIENT PAUSE 100000\r\n");
    assert_eq!(run(&mut executor, &mut other, b"GET a\r\n"), "");
    run(&mut executor, &mut pauser, b"CLIENT UNPAUSE\r\n");
}

#[test]
fn replies_can_be_switched_off() {
    let mut s = Server::session(1);
    let mut ask = |input: &str| run(&mut s.executor, &mut s.client, input.as_bytes());
    assert_eq!(
        ask("CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\n"),
        "$1\r\n1\r\n"
    );
    assert_eq!(
        ask("CLIENT REPLY OFF\r\nSET a 2\r\nNOSUCH\r\nGET a\r\n"),
        ""
    );
    assert_eq!(ask("CLIENT REPLY ON\r\nGET a\r\n"), "+OK\r\n$1\r\n2\r\n");
    assert_eq!(ask("CLIENT REPLY MAYBE\r\n"), "-ERR syntax error\r\n");
}

#[test]
fn strangers_must_give_the_password() {
    let config = ServerConfig {
        level: Some(duramen_config::Level::Memory),
        threads: 1,
        requirepass: "secret".into(),
        ..ServerConfig::default()
    };
    let server = Server::with(config);
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let mut ask = |input: &str| {
        run(
            &mut executor,
            &mut client,
            format!("{input}\r\n").as_bytes(),
        )
    };
    assert_eq!(ask("GET a"), "-NOAUTH Authentication required.\r\n");
    assert!(ask("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(ask("AUTH somebody secret").starts_with("-WRONGPASS"));
    assert_eq!(ask("AUTH default secret"), "+OK\r\n");
    assert_eq!(ask("GET a"), "$-1\r\n");
    assert_eq!(ask("RESET"), "+RESET\r\n");
    assert_eq!(ask("GET a"), "-NOAUTH Authentication required.\r\n");
    assert!(ask("HELLO 3 AUTH default secret SETNAME me").starts_with("%7\r\n"));
    assert_eq!(ask("CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(ask("GET a"), "_\r\n");
}
