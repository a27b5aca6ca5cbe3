//! How requests end: each way to end, with silent replies (`CLIENT REPLY`), EXEC, scripts, flash, a
//! member's keys that nobody serves, and requests that wait.

use super::cluster_member::{Member, keys};
use super::*;
use duramen_disk::Aligned;
use duramen_engine::TableId;
use duramen_engine::flash::{Cold, Fetched};
use std::time::Instant;

/// One turn: its replies, the number of requests that have run, and its end.
fn turn(executor: &mut Executor, client: &mut Client, lines: &str) -> (String, usize, Ending) {
    let input = lines.replace('\n', "\r\n") + "\r\n";
    let (requests, mut out) = (parsed(input.as_bytes()), Vec::new());
    let mut turn = [Turn::new(client, &requests, input.as_bytes(), &mut out)];
    executor.begin_round(1);
    executor.run(&mut turn);
    let (executed, end) = (turn[0].executed, turn[0].ending());
    note_ending(client, end);
    let effects = client.effects.take(0);
    release(effects, &executor.shared, 0, Some((&mut out, 0)));
    let reply = String::from_utf8_lossy(&out).into_owned();
    (reply, executed, end)
}

impl Session {
    fn turn(&mut self, lines: &str) -> (String, usize, Ending) {
        turn(&mut self.executor, &mut self.client, lines)
    }

    /// Runs requests, one a line, each to its end.
    fn lines(&mut self, lines: &str) -> String {
        let input = lines.replace('\n', "\r\n") + "\r\n";
        run(&mut self.executor, &mut self.client, input.as_bytes())
    }

    /// The reply to another client of the same thread.
    fn other(&mut self, line: &str) -> String {
        let mut other = self.server.client(0);
        let input = format!("{line}\r\n");
        run(&mut self.executor, &mut other, input.as_bytes())
    }

    /// How often a command was called.
    fn calls(&mut self, name: &str) -> u64 {
        let info = self.other("INFO commandstats");
        let start = format!("cmdstat_{name}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&start));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("calls"))
    }
}

fn paused(end: Ending) -> bool {
    matches!(end, Ending::Paused { .. })
}

/// A server of one thread whose clients may have so many bytes of output.
fn limited(bytes: usize) -> Session {
    let config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        output_limit_bytes: bytes,
        ..ServerConfig::default()
    };
    Server::with(config).into_session()
}

/// `SKIP` is for the request behind it, although that one waits and is shown again.
#[test]
fn a_silent_request_that_waits_for_elements_is_silent_when_it_ends() {
    for (how, behind) in [("SKIP", "+PONG\r\n"), ("OFF", "")] {
        let mut s = Server::session(1);
        let lines = format!("CLIENT REPLY {how}\nBLPOP q 0\nPING");
        assert_eq!(s.turn(&lines), (String::new(), 1, Ending::Blocked));
        assert_eq!(s.calls("blpop"), 0, "it has not run");
        assert_eq!(s.other("RPUSH q a"), ":1\r\n");
        assert_eq!(s.executor.take_woken(), [s.client.id()]);
        let (reply, executed, end) = s.turn("BLPOP q 0\nPING");
        assert_eq!((&*reply, executed), (behind, 2), "{how}");
        assert_eq!(end, Ending::Open);
        assert_eq!((s.calls("blpop"), s.other("LLEN q")), (1, ":0\r\n".into()));
    }
}

#[test]
fn a_silent_request_in_parts_is_silent_when_it_ends() {
    let mut s = Server::session(1);
    let sets: String = (0..20_000).map(|n| format!("SET k{n} v\n")).collect();
    s.lines(sets.trim_end());
    let (reply, executed, end) = s.turn("CLIENT REPLY SKIP\nKEYS *\nPING");
    assert_eq!((&*reply, executed, end), ("", 1, Ending::Open));
    assert_eq!(s.calls("keys"), 0, "it has not run to its end");
    assert_eq!(s.lines("KEYS *\nPING"), "+PONG\r\n");
    assert_eq!(s.calls("keys"), 1);
    assert!(s.lines("KEYS *\nPING").starts_with("*20000\r\n"));
}

/// A script that takes some milliseconds longer than a slice.
fn long_script() -> Vec<u8> {
    let text = "local n = 0 for i = 1, 3000000 do n = n + i end return 'end'";
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&["EVAL", text, "0"]);
    request
}

#[test]
fn a_silent_script_in_slices_is_silent_when_it_ends() {
    for (skips, reply) in [(false, "$3\r\nend\r\n"), (true, "")] {
        let mut s = Server::session(1);
        if skips {
            assert_eq!(s.turn("CLIENT REPLY SKIP").0, "");
        }
        let script = long_script();
        let part = run_part(&mut s.executor, &mut s.client, &script);
        assert_eq!((&*part, ending(&s.client)), ("", Ending::Open));
        assert_eq!(s.calls("eval"), 0, "it has not run to its end");
        let both = [&script[..], b"PING\r\n"].concat();
        let replies = run(&mut s.executor, &mut s.client, &both);
        assert_eq!(replies, format!("{reply}+PONG\r\n"));
        assert_eq!(s.calls("eval"), 1);
    }
}

#[test]
fn a_silent_request_that_a_pause_delays_is_silent_when_it_runs() {
    for (how, behind) in [("SKIP", "$1\r\n1\r\n"), ("OFF", "")] {
        let mut s = Server::session(1);
        assert_eq!(s.turn(&format!("CLIENT REPLY {how}")).0, "");
        assert_eq!(s.other("CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
        let (reply, executed, end) = s.turn("SET a 1\nGET a");
        assert_eq!((&*reply, executed), ("", 0));
        assert!(paused(end), "{end:?}");
        assert_eq!(s.other("CLIENT UNPAUSE"), "+OK\r\n");
        let (reply, executed, end) = s.turn("SET a 1\nGET a");
        assert_eq!((&*reply, executed), (behind, 2), "{how}");
        assert_eq!(end, Ending::Open);
        assert_eq!(s.calls("set"), 1);
    }
}

/// A pause that began while EXEC stood in the pipeline keeps its queue.
#[test]
fn a_paused_exec_keeps_its_queue_and_is_silent_or_not_as_before() {
    for is_silent in [false, true] {
        let mut s = Server::session(1);
        if is_silent {
            s.lines("CLIENT REPLY OFF");
        }
        s.lines("MULTI\nSET a 1\nGET a");
        s.other("CLIENT PAUSE 100000 WRITE");
        let (reply, executed, end) = s.turn("EXEC\nPING");
        assert_eq!((&*reply, executed), ("", 0));
        assert!(paused(end) && s.client.in_multi());
        s.other("CLIENT UNPAUSE");
        let expected = ["*2\r\n+OK\r\n$1\r\n1\r\n+PONG\r\n", ""][usize::from(is_silent)];
        let (reply, executed, end) = s.turn("EXEC\nPING");
        assert_eq!((&*reply, executed, end), (expected, 2, Ending::Open));
        assert!(!s.client.in_multi());
        assert_eq!((s.calls("exec"), s.calls("set")), (1, 1));
    }
}

#[test]
fn a_silent_request_for_keys_that_nobody_serves_is_silent_when_it_runs() {
    for (how, behind) in [("SKIP", "$1\r\n1\r\n"), ("OFF", "")] {
        let mut member = Member::new(1);
        member.lock();
        let (own, _) = keys();
        let lines = format!("SET {own} 1\nGET {own}");
        let s = &mut member.session;
        assert_eq!(s.turn(&format!("CLIENT REPLY {how}")).0, "");
        let (reply, executed, end) = s.turn(&lines);
        assert_eq!((&*reply, executed), ("", 0));
        assert!(paused(end), "{end:?}");
        member.tell_halves();
        let s = &mut member.session;
        let (reply, executed, end) = s.turn(&lines);
        assert_eq!((&*reply, executed), (behind, 2), "{how}");
        assert_eq!((end, s.calls("set")), (Ending::Open, 1));
    }
}

#[test]
fn an_exec_for_keys_that_nobody_serves_keeps_its_queue() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, _) = keys();
    let queue = format!("MULTI\nSET {own} 1\nINCR {own}");
    member.session.lines(&queue);
    member.lock();
    let s = &mut member.session;
    let (reply, executed, end) = s.turn("EXEC\nPING");
    assert_eq!((&*reply, executed), ("", 0));
    assert!(paused(end) && s.client.in_multi());
    assert_eq!((s.calls("exec"), s.calls("incr")), (0, 0));
    member.tell_halves();
    let s = &mut member.session;
    let replies = s.lines("EXEC\nPING");
    assert_eq!(replies, "*2\r\n+OK\r\n:2\r\n+PONG\r\n");
    assert_eq!((s.calls("exec"), s.calls("incr")), (1, 1));
}

/// The script meets the key when it runs: nothing of it is done, until the key is served again.
#[test]
fn a_script_for_keys_that_nobody_serves_runs_again() {
    let mut member = Member::new(1);
    member.lock();
    let (own, _) = keys();
    let mut request = Vec::new();
    let text = "redis.call('incr', KEYS[1]) return redis.call('incr', KEYS[1])";
    RequestEncoder::new(&mut request).request(&["EVAL", text, "1", &own]);
    let s = &mut member.session;
    assert_eq!(run(&mut s.executor, &mut s.client, &request), "");
    assert!(paused(ending(&s.client)));
    member.tell_halves();
    let s = &mut member.session;
    assert_eq!(run(&mut s.executor, &mut s.client, &request), ":2\r\n");
    assert_eq!((s.calls("eval"), s.calls("incr")), (1, 2));
}

#[test]
fn a_connection_ends_behind_the_request_that_ends_it() {
    for (lines, reply, executed, end) in [
        ("QUIT\nSET a 2", "+OK\r\n", 1, Ending::CloseAfterReply),
        ("POST / HTTP\nSET a 2", "", 1, Ending::CloseNow),
        ("PING\nHost: x\nSET a 2", "+PONG\r\n", 2, Ending::CloseNow),
        (
            "CLIENT REPLY OFF\nQUIT\nSET a 2",
            "",
            2,
            Ending::CloseAfterReply,
        ),
        (
            "MULTI\nQUIT\nSET a 2",
            "+OK\r\n+OK\r\n",
            2,
            Ending::CloseAfterReply,
        ),
    ] {
        let mut s = Server::session(1);
        let ended = (reply.to_owned(), executed, end);
        assert_eq!(s.turn(lines), ended, "{lines}");
        assert_eq!(s.other("EXISTS a"), ":0\r\n", "{lines}");
    }
}

#[test]
fn requests_behind_one_whose_reply_waits_run_in_a_later_turn() {
    let mut s = Server::session(1);
    let (one, two) = (s.server.client(0).id(), s.server.client(0).id());
    let own = s.client.id();
    let (reply, executed, end) = s.turn(&format!("CLIENT KILL ID {one}\nPING"));
    assert_eq!((&*reply, executed, end), (":1\r\n", 1, Ending::Held));
    assert_eq!(s.turn("PING"), ("+PONG\r\n".to_owned(), 1, Ending::Open));
    // In EXEC the whole of it waits.
    s.lines(&format!("MULTI\nCLIENT KILL ID {two}\nPING"));
    let (reply, executed, end) = s.turn("EXEC\nPING");
    let replies = "*2\r\n:1\r\n+PONG\r\n";
    assert_eq!((&*reply, executed, end), (replies, 1, Ending::Held));
    // A client that kills itself too is closed.
    let lines = format!("CLIENT KILL ID {own} SKIPME no\nPING");
    let ended = (":1\r\n".to_owned(), 1, Ending::CloseAfterReply);
    assert_eq!(s.turn(&lines), ended);
    let mut s = Server::session(1);
    let own = s.client.id();
    let ids = [own, s.server.client(0).id()].map(|id| format!("CLIENT KILL ID {id} SKIPME no"));
    s.lines(&format!("MULTI\n{}", ids.join("\n")));
    let ended = ("*2\r\n:1\r\n:1\r\n".to_owned(), 1, Ending::CloseAfterReply);
    assert_eq!(s.turn("EXEC\nPING"), ended);
}

/// A reply that does not fit is an error, if that tells all; else the client is closed.
#[test]
fn a_reply_that_does_not_fit_is_an_error_or_the_end() {
    let limit = 1 << 20;
    let mut s = limited(limit);
    let value = "v".repeat(600_000);
    s.ask_bytes(&[b"SET", b"k", value.as_bytes()]);
    let no = "-ERR the reply does not fit";
    let reply = s.lines("MGET k k k k\nPING");
    assert!(reply.starts_with(no), "{reply:.80}");
    assert!(reply.ends_with("\r\n+PONG\r\n"), "the next one is answered");
    assert_eq!(ending(&s.client), Ending::Open);
    // A script sees the error of its command.
    let script = "local r = redis.pcall('mget', 'k', 'k', 'k', 'k') return r['err'] and 1 or 0";
    assert_eq!(s.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]), ":1\r\n");
    assert_eq!(ending(&s.client), Ending::Open);
    // The effect of an EXEC stays, and cannot be told.
    s.lines("MULTI\nSET a 1\nMGET k k k k\nSET b 1");
    let (reply, executed, end) = s.turn("EXEC\nPING");
    assert_eq!((&*reply, executed, end), ("", 1, Ending::CloseNow));
    assert_eq!(s.other("EXISTS a b"), ":2\r\n");
}

#[test]
fn a_script_in_exec_that_needs_a_table_runs_again_with_it() {
    let mut s = Server::session(1);
    s.lines("MULTI\nSET a 1");
    let script = "redis.call('select', '5') return redis.call('set', 'b', '2')";
    s.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
    s.lines("SET c 1");
    assert_eq!(s.lines("EXEC"), "*3\r\n+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(ending(&s.client), Ending::Open);
    s.expect("EXISTS a c", ":2\r\n");
    s.expect("SELECT 5", "+OK\r\n");
    s.expect("EXISTS b", ":1\r\n");
    let calls = ["exec", "eval", "set", "select"].map(|name| s.calls(name));
    assert_eq!(calls, [1, 2, 4, 2], "with those of the run in vain");
}

/// Nothing of an EXEC is done whose script can never end, and its steps behind it do not run.
#[test]
fn a_script_in_exec_that_fails_for_good_ends_all_of_it() {
    for is_silent in [false, true] {
        let mut s = Server::session(1);
        if is_silent {
            s.lines("CLIENT REPLY OFF");
        }
        s.lines("MULTI\nPUBLISH c m\nSET a 1");
        let script = "return redis.call('setrange', 'b', 5000000, ('x'):rep(100))";
        s.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
        s.lines("SET c 1");
        let reply = s.lines("EXEC\nEXISTS a b c");
        assert_eq!(ending(&s.client), Ending::Open);
        let is_told = reply.starts_with("-EXECABORT") && reply.ends_with("\r\n:0\r\n");
        assert!(
            if is_silent { reply.is_empty() } else { is_told },
            "{reply}"
        );
        assert!(!s.client.in_multi());
        assert_eq!(
            (s.calls("set"), s.other("EXISTS a b c")),
            (1, ":0\r\n".into())
        );
    }
}

#[test]
fn commands_that_wait_do_not_wait_in_exec_and_scripts() {
    let mut s = Server::session(1);
    s.lines("MULTI\nBLPOP q 0\nWAIT 1 0\nBLMOVE q r LEFT LEFT 0");
    let ended = ("*3\r\n*-1\r\n:0\r\n$-1\r\n".to_owned(), 1, Ending::Open);
    assert_eq!(s.turn("EXEC"), ended);
    let script = "return redis.call('blpop', 'q', '0') and 1 or 0";
    assert_eq!(s.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]), ":0\r\n");
    assert_eq!(ending(&s.client), Ending::Open);
}

/// They ran to their end before the client that waited had looked.
#[test]
fn a_turn_ends_behind_a_request_that_wakes_a_client() {
    let mut s = Server::session(1);
    let mut waiting = s.server.client(0);
    let (_, _, end) = turn(&mut s.executor, &mut waiting, "BLPOP q 0");
    assert_eq!(end, Ending::Blocked);
    for lines in ["RPUSH q a\nPING", "MULTI\nRPUSH q a\nEXEC\nPING"] {
        let count = lines.lines().count();
        let (_, executed, end) = s.turn(lines);
        assert_eq!((executed, end), (count - 1, Ending::Open), "{lines}");
        let woken = s.executor.take_woken();
        assert_eq!(woken, [waiting.id()]);
        let (reply, _, _) = turn(&mut s.executor, &mut waiting, "BLPOP q 0");
        assert!(reply.ends_with("$1\r\na\r\n"), "{reply}");
        let (_, _, end) = turn(&mut s.executor, &mut waiting, "BLPOP q 0");
        assert_eq!(end, Ending::Blocked);
    }
}

/// It changes the subscriptions of its client, or ends it: messages of before come first.
#[test]
fn a_request_that_waits_for_messages_of_its_turn_is_silent_or_not_as_before() {
    for (first, reply) in [("PING", "+OK\r\n"), ("CLIENT REPLY OFF", "")] {
        let mut s = Server::session(1);
        let mut subscriber = s.server.client(0);
        turn(&mut s.executor, &mut subscriber, "SUBSCRIBE c");
        let lines = format!("{first}\nPUBLISH c m\nQUIT");
        let (_, executed, end) = s.turn(&lines);
        assert_eq!((executed, end), (2, Ending::Open), "{first}");
        let ended = (reply.to_owned(), 1, Ending::CloseAfterReply);
        assert_eq!(s.turn("QUIT"), ended);
        assert_eq!(s.calls("quit"), 1);
    }
}

/// Locks of many keys find no memory in a full store: the request runs again, alone.
#[test]
fn a_request_that_runs_again_alone_is_silent_and_counted_once() {
    for is_silent in [false, true] {
        let mut s = Server::session(2);
        let value = vec![b'v'; 500_000];
        let mut keys = Vec::new();
        loop {
            let key = format!("key:{}", keys.len());
            if s.ask_bytes(&[b"SET", key.as_bytes(), &value]) != "+OK\r\n" {
                break;
            }
            keys.push(key);
            assert!(keys.len() < 1_000, "64 MiB never fill");
        }
        let before = s.server.shared.threads[0].counters.commands.get();
        let first = if is_silent {
            "CLIENT REPLY SKIP"
        } else {
            "PING"
        };
        let lines = format!("{first}\nDEL {}\nDBSIZE", keys.join(" "));
        let deleted = format!("+PONG\r\n:{}\r\n:0\r\n", keys.len());
        let expected = if is_silent { ":0\r\n" } else { &deleted };
        assert_eq!(s.lines(&lines), expected);
        let ran = s.server.shared.threads[0].counters.commands.get() - before;
        assert_eq!((ran, s.calls("del")), (3, 1));
    }
}

#[test]
fn while_the_data_are_loaded_requests_end_in_the_same_ways() {
    let config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    let shared = super::shared(config).expect("shared state");
    let mut executor = Executor::new(Arc::clone(&shared), 0).expect("an executor");
    let address = "127.0.0.1:1".parse().expect("an address");
    for (lines, reply, executed, end) in [
        (
            "CLIENT REPLY SKIP\nGET k\nCLIENT GETNAME",
            "$-1\r\n",
            3,
            Ending::Open,
        ),
        (
            "CLIENT REPLY OFF\nPING\nQUIT\nPING",
            "",
            3,
            Ending::CloseAfterReply,
        ),
        (
            "CLIENT GETNAME\nPOST / HTTP\nPING",
            "$-1\r\n",
            2,
            Ending::CloseNow,
        ),
    ] {
        let record = Arc::new(ClientRecord::new(1, 0, 0, 3, address, address, 1));
        shared.threads[0].clients.insert(Arc::clone(&record));
        let mut client = Client::new(record);
        let ended = (reply.to_owned(), executed, end);
        assert_eq!(turn(&mut executor, &mut client, lines), ended, "{lines}");
    }
}

/// A server with 4 MiB of memory and flash, and keys that have gone there.
struct OnFlash {
    s: Session,
    _dir: tempfile::TempDir,
    keys: Vec<String>,
}

impl OnFlash {
    fn new() -> OnFlash {
        let dir = tempfile::tempdir().expect("a folder");
        let config = ServerConfig {
            level: Some(Level::Memory),
            threads: 1,
            flash_file: dir.path().join("flash").to_string_lossy().into_owned(),
            flash_bytes: 48 << 20,
            ..ServerConfig::default()
        };
        let tier = Arc::new(Tier::open(&config).expect("opened").expect("a tier"));
        let store = Store::new(Options {
            tiny: true,
            huge_pages: false,
            heads: 1,
            flash: Some(tier.options()),
            ..Options::new(4 << 20)
        })
        .expect("a store");
        let shared = super::shared(config).expect("shared state");
        shared.serve_with(store, None, Some(tier));
        let clock_ms = Arc::default();
        let mut flash = OnFlash {
            s: Server { shared, clock_ms }.into_session(),
            _dir: dir,
            keys: Vec::new(),
        };
        let value = "v".repeat(1000);
        for n in 0..20_000 {
            // Another key in its place of the index may be on flash.
            let (reply, _) = flash.lines(&format!("SET k{n} {n}:{value}"));
            assert_eq!(reply, "+OK\r\n");
        }
        let session = flash.s.executor.session().expect("a session");
        let guard = session.pin();
        let is_cold = |key: &String| {
            let hash = guard.hash(key.as_bytes());
            let cold = guard.pin().cold(TableId::DEFAULT, hash, key.as_bytes());
            cold.expect("a table").is_some()
        };
        let keys: Vec<String> = (0..20_000)
            .map(|n| format!("k{n}"))
            .filter(is_cold)
            .collect();
        drop(guard);
        assert!(keys.len() > 1_000, "{} keys are on flash", keys.len());
        OnFlash { keys, ..flash }
    }

    /// Reads the entries that the client's request waits for, and lends them to the session, as
    /// the reactor does.
    fn fetch(&mut self) {
        let s = &mut self.s;
        let device = s.server.shared.tier().expect("flash").options().device;
        let (mut wanted, _): (Vec<Cold>, _) = s.client.parking.take_wanted();
        assert!(!wanted.is_empty(), "it waits for entries");
        let mut lent = 0;
        while let Some(cold) = wanted.pop() {
            let (at, length) = cold.span();
            let mut memory = Aligned::zeroed(length);
            let bytes = &mut memory.bytes_mut()[..length];
            device.read_at(at, bytes).expect("read");
            let session = s.executor.session().expect("a session");
            match session.fetched(&cold, bytes).expect("these bytes") {
                Fetched::Held => lent += length,
                Fetched::Gone => {}
                Fetched::Longer(longer) => wanted.push(longer),
            }
        }
        s.client.parking.was_lent(lent);
    }

    /// Runs the requests, of which some wait for flash, to their end; returns the replies, and how
    /// often they waited.
    fn run(&mut self, input: &[u8]) -> (String, usize) {
        let requests = parsed(input);
        let (mut out, mut executed, mut waits) = (Vec::new(), 0, 0);
        let until = Instant::now() + Duration::from_secs(60);
        while executed < requests.len() {
            assert!(Instant::now() < until, "it does not end");
            let s = &mut self.s;
            let mut turn = [Turn::new(&mut s.client, &requests, input, &mut out)];
            turn[0].executed = executed;
            s.executor.begin_round(1);
            s.executor.run(&mut turn);
            executed = turn[0].executed;
            let end = turn[0].ending();
            let session = s.executor.session().expect("a session");
            session.forget_fetched();
            if end == Ending::Cold {
                waits += 1;
                self.fetch();
            }
        }
        let effects = self.s.client.effects.take(0);
        release(effects, &self.s.executor.shared, 0, Some((&mut out, 0)));
        (String::from_utf8_lossy(&out).into_owned(), waits)
    }

    fn lines(&mut self, lines: &str) -> (String, usize) {
        let input = lines.replace('\n', "\r\n") + "\r\n";
        self.run(input.as_bytes())
    }
}

fn bulk(key: &str) -> String {
    let value = format!("{}:{}", &key[1..], "v".repeat(1000));
    format!("${}\r\n{value}\r\n", value.len())
}

/// Requests that meet flash have had no effect when they wait, and are counted once.
#[test]
fn a_request_that_waits_for_flash_is_shown_again() {
    let mut flash = OnFlash::new();
    let keys = flash.keys.clone();
    let [a, b, c, d] = [0, 100, 200, 300].map(|n| &*keys[n]);
    let (reply, executed, end) = flash.s.turn(&format!("PING\nGET {a}\nPING"));
    assert_eq!((&*reply, executed, end), ("+PONG\r\n", 1, Ending::Cold));
    assert_eq!(flash.s.calls("get"), 0);
    flash.fetch();
    let lines = format!("GET {a}\nPING");
    assert_eq!(flash.lines(&lines).0, bulk(a) + "+PONG\r\n");
    assert_eq!(flash.s.calls("get"), 1);
    // Commands on several keys fetch all of them at once, before they change one.
    let (reply, waits) = flash.lines(&format!("MGET {a} {b} {c}"));
    assert_eq!(reply, format!("*3\r\n{}{}{}", bulk(a), bulk(b), bulk(c)));
    assert!(waits > 0);
    let (reply, waits) = flash.lines(&format!("DEL {a} {b} {d}\nEXISTS {a} {b} {d}"));
    assert_eq!(reply, ":3\r\n:0\r\n");
    assert!(waits > 0);
    assert_eq!((flash.s.calls("mget"), flash.s.calls("del")), (1, 1));
}

#[test]
fn a_silent_request_that_waits_for_flash_is_silent_when_it_ends() {
    let mut flash = OnFlash::new();
    let key = flash.keys[0].clone();
    let lines = format!("CLIENT REPLY SKIP\nGET {key}\nPING");
    let (reply, waits) = flash.lines(&lines);
    assert_eq!((&*reply, waits > 0), ("+PONG\r\n", true));
    let key = flash.keys[100].clone();
    let lines = format!("CLIENT REPLY OFF\nAPPEND {key} w\nCLIENT REPLY ON\nSTRLEN {key}");
    let (reply, waits) = flash.lines(&lines);
    let length = bulk(&key).lines().nth(1).expect("its value").len() + 1;
    assert_eq!((reply, waits > 0), (format!("+OK\r\n:{length}\r\n"), true));
}

/// EXEC waits as a whole, a script in it too, and keeps its queue meanwhile.
#[test]
fn exec_and_scripts_wait_for_flash_and_run_again() {
    let mut flash = OnFlash::new();
    let keys = flash.keys.clone();
    let [a, b, c] = [0, 100, 200].map(|n| &*keys[n]);
    flash.s.lines(&format!("MULTI\nINCR n\nGET {a}"));
    let (reply, executed, end) = flash.s.turn("EXEC\nPING");
    assert_eq!((&*reply, executed, end), ("", 0, Ending::Cold));
    assert!(flash.s.client.in_multi());
    flash.fetch();
    let (reply, _) = flash.lines("EXEC\nPING");
    assert_eq!(reply, format!("*2\r\n:1\r\n{}+PONG\r\n", bulk(a)));
    let text = "redis.call('incr', 'n') return redis.call('get', KEYS[1])";
    let eval = |key: &str| {
        let mut request = Vec::new();
        RequestEncoder::new(&mut request).request(&["EVAL", text, "1", key]);
        request
    };
    let (reply, waits) = flash.run(&eval(b));
    assert_eq!((reply, waits > 0), (bulk(b), true));
    let queue = [b"MULTI\r\nINCR n\r\n", &eval(c)[..], b"INCR n\r\nEXEC\r\n"].concat();
    let (reply, waits) = flash.run(&queue);
    let expected = format!("*3\r\n:3\r\n{}:5\r\n", bulk(c));
    assert!(
        reply.ends_with(&expected) && waits > 0,
        "{waits} {reply:.200}"
    );
    assert_eq!(flash.s.calls("exec"), 2);
}
