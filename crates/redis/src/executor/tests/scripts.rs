//! Scripts, without sockets.

use super::*;
use crate::state::interpreters::Running;
use crate::state::script::cache::limits;
use duramen_script::Machine;
use std::time::Instant;

/// Runs a script with these keys and arguments.
fn eval(s: &mut Session, script: &str, words: &[&str]) -> String {
    let mut args: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    args.extend(words.iter().map(|word| word.as_bytes()));
    s.ask_bytes(&args)
}

#[test]
fn commands_of_a_script_do_not_wait() {
    let mut s = Server::session(1);
    s.expect("RPUSH list a b", ":2\r\n");
    s.expect("XGROUP CREATE stream g $ MKSTREAM", "+OK\r\n");
    for (script, reply) in [
        (
            "return redis.call('blpop','none','list',0)",
            "*2\r\n$4\r\nlist\r\n$1\r\na\r\n",
        ),
        ("return redis.call('blpop','none',0)", "$-1\r\n"),
        (
            "return redis.call('blmove','none','list','LEFT','LEFT',0)",
            "$-1\r\n",
        ),
        (
            "return redis.call('xreadgroup','GROUP','g','c','BLOCK',0,'STREAMS','stream','>')",
            "$-1\r\n",
        ),
        (
            "redis.call('rpush','none','x') return redis.call('blpop','none',0)[2]",
            "$1\r\nx\r\n",
        ),
    ] {
        assert_eq!(eval(&mut s, script, &["0"]), reply, "{script}");
        assert_eq!(ending(&s.client), Ending::Open, "{script}");
    }
    s.expect("EXISTS none", ":0\r\n");
}

#[test]
fn a_script_is_done_whole_or_not_at_all() {
    let mut s = Server::session(1);
    // Its writes before an error stay, as in Redis.
    let script = "redis.call('set','a',1) redis.call('lpush','a',1)";
    let reply = eval(&mut s, script, &["0"]);
    assert!(reply.starts_with("-WRONGTYPE"), "{reply}");
    s.expect("GET a", "$1\r\n1\r\n");
    // More than a group can hold: nothing is done.
    let script = "redis.call('set','b',1) for n = 1, 100 do redis.call('set','big' .. n,('x'):rep(1000000)) end";
    let reply = eval(&mut s, script, &["0"]);
    assert!(reply.starts_with('-'), "{reply}");
    s.expect("EXISTS b big1", ":0\r\n");
    s.expect("GET a", "$1\r\n1\r\n");
}

#[test]
fn settings_of_scripts_change_at_once() {
    let mut s = Server::session(1);
    let long = "local t = {} for n = 1, 100000 do t[n] = {n} end return #t";
    assert_eq!(eval(&mut s, long, &["0"]), ":100000\r\n");
    s.expect("CONFIG SET script-memory 1mb", "+OK\r\n");
    let reply = eval(&mut s, long, &["0"]);
    assert!(reply.contains("not enough memory"), "{reply}");
    assert_eq!(eval(&mut s, "return 5", &["0"]), ":5\r\n");
    s.expect("CONFIG SET lua-time-limit 7", "+OK\r\n");
    s.expect(
        "CONFIG GET busy-reply-threshold",
        "*2\r\n$20\r\nbusy-reply-threshold\r\n$1\r\n7\r\n",
    );
    s.expect_error(
        "CONFIG SET busy-reply-threshold -1",
        "ERR CONFIG SET failed",
    );
}

/// Each script of an EXEC had 100 ms of its own, while EXEC was alone in the store.
#[test]
fn the_scripts_of_one_exec_share_their_time() {
    let mut s = Server::session(1);
    s.expect("MULTI", "+OK\r\n");
    s.expect("DBSIZE", "+QUEUED\r\n");
    s.expect("SET k v", "+QUEUED\r\n");
    let loops: [&[u8]; 3] = [b"EVAL", b"while true do end", b"0"];
    for _ in 0..100 {
        assert_eq!(s.ask_bytes(&loops), "+QUEUED\r\n");
    }
    let began = std::time::Instant::now();
    s.expect_error("EXEC", "ERR the scripts of a transaction take too long");
    // They took 10 s. It needs the clock, because a script's time is of the clock.
    let took = began.elapsed();
    assert!(took.as_secs() < 7, "{took:?}");
    s.expect("EXISTS k", ":0\r\n");
    // So do those of one that runs in slices.
    s.expect("MULTI", "+OK\r\n");
    s.expect("SET k v", "+QUEUED\r\n");
    let script = b"local t = os.clock() while os.clock() < t + 0.03 do end";
    let waits: [&[u8]; 3] = [b"EVAL", script, b"0"];
    for _ in 0..60 {
        assert_eq!(s.ask_bytes(&waits), "+QUEUED\r\n");
    }
    s.expect_error("EXEC", "ERR the scripts of a transaction take too long");
    s.expect("EXISTS k", ":0\r\n");
}

/// A key that others change all the time: the script ran again and again, and never ended.
#[test]
fn a_long_script_ends_beside_a_steady_writer() {
    let mut s = Server::session(1);
    let mut writer = s.server.client(0);
    let script = "local v = redis.call('incr', 'hot') local n = 0
        for i = 1, 3000000 do n = n + i end return v";
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&[b"EVAL", script.as_bytes(), b"0"]);
    let (mut written, mut waited) = (0, 0);
    let reply = (0..10_000)
        .map(|_| {
            match run_part(&mut s.executor, &mut writer, b"INCR hot\r\n").as_str() {
                "" => waited += 1,
                _ => written += 1,
            }
            assert!(!run_part(&mut s.executor, &mut writer, b"GET hot\r\n").is_empty());
            run_part(&mut s.executor, &mut s.client, &request)
        })
        .find(|reply| !reply.is_empty())
        .expect("an end");
    assert!(waited > 0, "the writer had to wait");
    assert_eq!(reply, format!(":{}\r\n", written + 1));
    // Its reservation has ended with it.
    s.expect(
        "GET hot",
        &format!(
            "${}\r\n{}\r\n",
            (written + 1).to_string().len(),
            written + 1
        ),
    );
    assert_eq!(
        run_part(&mut s.executor, &mut writer, b"INCR hot\r\n"),
        format!(":{}\r\n", written + 2)
    );
}

/// How often scripts and transactions have run INCR, in vain too.
fn increments(s: &mut Session) -> u64 {
    let info = s.ask("INFO commandstats");
    let line = info.lines().find(|line| line.starts_with("cmdstat_incr:"));
    let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
    calls.and_then(|calls| calls.parse().ok()).expect("calls")
}

/// Sixteen clients whose scripts use one key ran them for nothing, again and again: each commit
/// broke the runs of all others, and a script that had waited for a reservation broke later ones.
#[test]
fn scripts_on_one_key_run_one_after_the_other() {
    const CLIENTS: usize = 16;
    const EACH: usize = 8;
    let mut s = Server::session(1);
    let script = "local v = redis.call('incr', KEYS[1]) local n = 0
        for i = 1, 400000 do n = n + i end return v";
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&["EVAL", script, "1", "hot"]);
    let requests = parsed(&request);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| s.server.client(0)).collect();
    let mut outs = vec![Vec::new(); CLIENTS];
    let (mut done, mut rounds) = (vec![0; CLIENTS], 0);
    while done.iter().any(|done| *done < EACH) {
        let pairs = clients.iter_mut().zip(&mut outs).enumerate();
        let pairs = pairs.filter(|(n, _)| done[*n] < EACH);
        let (numbers, mut turns): (Vec<usize>, Vec<Turn<'_>>) = pairs
            .map(|(n, (client, out))| (n, Turn::new(client, &requests, &request, out)))
            .unzip();
        s.executor.begin_round(turns.len());
        s.executor.run(&mut turns);
        for (n, turn) in numbers.iter().zip(&turns) {
            done[*n] += turn.executed;
        }
        rounds += 1;
        assert!(rounds < 20_000, "they do not end: {done:?}");
    }
    let all: String = outs
        .iter()
        .map(|out| String::from_utf8_lossy(out))
        .collect();
    assert!(!all.contains('-'), "{all}");
    let total = (CLIENTS * EACH) as u64;
    s.expect(
        "GET hot",
        &format!("${}\r\n{total}\r\n", total.to_string().len()),
    );
    let runs = increments(&mut s);
    assert!(runs <= total + total / 2, "{runs} runs of {total} scripts");
}

/// Each kind of write to a reserved key waits, and all others go on.
#[test]
fn writes_to_reserved_keys_wait_and_others_go_on() {
    let mut s = Server::session(1);
    let mut other = s.server.client(0);
    let (id, other_id) = (s.client.id(), other.id());
    let hash = s.executor.session().expect("a session").pin().hash(b"hot");
    let shared = std::sync::Arc::clone(&s.server.shared);
    let hold = || {
        let keys = std::iter::once(hash);
        shared.commands.reserve(id, keys, Duration::from_secs(60))
    };
    let mut ask = |s: &mut Session, request: &str| {
        hold();
        run_part(&mut s.executor, &mut other, request.as_bytes())
    };
    for request in [
        "SET hot 1",
        "DEL cold hot",
        "MSET a 1 hot 2",
        "LPUSH hot a",
        "SPOP hot",
    ] {
        assert_eq!(ask(&mut s, &format!("{request}\r\n")), "", "{request}");
    }
    let script = "EVAL \"return redis.call('set', 'hot', 1)\" 0\r\n";
    assert_eq!(ask(&mut s, script), "");
    s.executor
        .thread
        .scripts
        .drop_of(&s.server.shared, other_id);
    assert_eq!(
        ask(&mut s, "MULTI\r\nSET a 1\r\nSET hot 1\r\n"),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n"
    );
    assert_eq!(ask(&mut s, "EXEC\r\n"), "");
    assert_eq!(ask(&mut s, "DISCARD\r\n"), "+OK\r\n");
    assert_eq!(ask(&mut s, "GET hot\r\n"), "$-1\r\n");
    assert_eq!(ask(&mut s, "SET cold 1\r\n"), "+OK\r\n");
    let reads = "EVAL \"return redis.call('get', 'hot')\" 0\r\n";
    assert_eq!(ask(&mut s, reads), "$-1\r\n");
    shared.commands.release(id);
    let request = b"SET hot 1\r\n";
    assert_eq!(run_part(&mut s.executor, &mut other, request), "+OK\r\n");
}

/// A script or EXEC that stood in line for keys and had never run was not known to belong to its
/// client: it ran after that had gone.
#[test]
fn what_stands_in_line_ends_with_its_client() {
    let mut s = Server::session(1);
    let (shared, id) = (std::sync::Arc::clone(&s.server.shared), s.client.id());
    let hash = s.executor.session().expect("a session").pin().hash(b"hot");
    let eval = "EVAL \"return redis.call('incr', KEYS[1])\" 1 hot\r\n";
    let exec = format!("MULTI\r\n{eval}EXEC\r\n");
    for (request, answered) in [(eval, ""), (exec.as_str(), "+OK\r\n+QUEUED\r\n")] {
        let (keys, time) = (std::iter::once(hash), Duration::from_secs(600));
        assert!(shared.commands.reserve(id, keys, time));
        let mut other = s.server.client(0);
        let reply = run_part(&mut s.executor, &mut other, request.as_bytes());
        assert_eq!(reply, answered);
        assert!(!s.executor.thread.scripts.has(other.id()), "it has not run");
        assert_eq!(s.executor.script_of(&other), Some(false), "{request}");
        // As its connection is closed.
        s.executor.end_subscriptions(&mut other);
        assert_eq!(s.executor.script_of(&other), None);
        assert_eq!(s.executor.thread.scripts.bytes(), 0);
        shared.commands.release(id);
        assert!(!shared.commands.has_reserved(), "nobody is in line");
    }
    s.expect("GET hot", "$-1\r\n");
}

/// A request that counts as many keys waited for every reservation, whatever its keys, and without
/// an end if the script whose reservation it was had none.
#[test]
fn a_write_to_many_keys_waits_for_its_own_keys_alone() {
    let mut s = Server::session(1);
    let mut other = s.server.client(0);
    let id = s.client.id();
    let hash = s.executor.session().expect("a session").pin().hash(b"hot");
    let commands = &s.server.shared.commands;
    let time = Duration::from_secs(60);
    commands.reserve(id, std::iter::once(hash), time);
    let keys: String = (0..300).map(|n| format!(" k{n}")).collect();
    let mut ask = |request: &str| {
        let reply = run_part(&mut s.executor, &mut other, request.as_bytes());
        match reply.strip_prefix("+OK\r\n+QUEUED\r\n+QUEUED\r\n") {
            Some(reply) => reply.to_owned(),
            None => reply,
        }
    };
    let exec = |request: &str| format!("MULTI\r\nSET cold 1\r\n{request}EXEC\r\n");
    let (cold, hot) = (format!("DEL{keys}\r\n"), format!("DEL{keys} hot\r\n"));
    assert_eq!(ask(&cold), ":0\r\n");
    assert_eq!(ask(&exec(&cold)), "*2\r\n+OK\r\n:0\r\n");
    assert_eq!(
        ask("LMPOP 0 LEFT\r\n"),
        "-ERR wrong number of arguments for 'lmpop' command\r\n"
    );
    assert!(ask("LMPOP 0 k LEFT\r\n").starts_with("-ERR numkeys"));
    (0..3).for_each(|_| assert_eq!(ask(&hot), ""));
    assert_eq!(ask(&exec(&hot)), "");
    // It has the right of reserved::V3: scripts that take turns do not keep it out.
    commands.release(id);
    commands.reserve(id, std::iter::once(hash), time);
    assert_eq!(ask("EXEC\r\n"), "*2\r\n+OK\r\n:0\r\n");
    // A reservation whose time is over bars nobody, and costs nobody a look.
    commands.release(id);
    commands.reserve(id, std::iter::once(hash), Duration::ZERO);
    assert_eq!(ask(&hot), ":0\r\n");
    assert!(!commands.has_reserved());
}

const ENDLESS: &str = "EVAL \"while true do end\" 0\r\n";

/// As many endless scripts as a thread has places for; their clients.
fn endless(s: &mut Session) -> Vec<Client> {
    (0..16)
        .map(|_| {
            let mut client = s.server.client(0);
            assert_eq!(
                run_part(&mut s.executor, &mut client, ENDLESS.as_bytes()),
                ""
            );
            client
        })
        .collect()
}

/// Sixteen endless scripts stopped all scripts of a thread.
#[test]
fn a_short_script_ends_whatever_other_scripts_there_are() {
    let mut s = Server::session(1);
    let _clients = endless(&mut s);
    s.expect("EVAL \"return redis.call('incr', 'a')\" 0", ":1\r\n");
    s.expect("EVAL \"return 7\" 0", ":7\r\n");
}

#[test]
fn a_long_script_waits_for_a_place_and_is_told_so_in_the_end() {
    let mut s = Server::session(1);
    let clients = endless(&mut s);
    let long = "local n = 0 for i = 1, 1000000 do n = n + i end return redis.call('incr', 'a')";
    let (mut first, mut second) = (s.server.client(0), s.server.client(0));
    let request = format!("EVAL \"{long}\" 0\r\n");
    let mut ask = |client: &mut Client| run_part(&mut s.executor, client, request.as_bytes());
    assert_eq!(
        (ask(&mut first), ask(&mut second)),
        (String::new(), String::new())
    );
    assert_eq!(ask(&mut second), "");
    // The place of a client that has gone goes to the first that waits.
    let gone = clients.first().expect("a client").id();
    s.executor.thread.scripts.drop_of(&s.server.shared, gone);
    let mut ask = |client: &mut Client| run_part(&mut s.executor, client, request.as_bytes());
    assert_eq!(ask(&mut second), "");
    let reply = (0..10_000)
        .map(|_| ask(&mut first))
        .find(|reply| !reply.is_empty());
    assert_eq!(reply.as_deref(), Some(":1\r\n"));
    let reply = (0..10_000)
        .map(|_| ask(&mut second))
        .find(|reply| !reply.is_empty());
    assert_eq!(reply.as_deref(), Some(":2\r\n"));
    // Without a place there is an end of the patience.
    let mut last = s.server.client(0);
    assert_eq!(run_part(&mut s.executor, &mut last, ENDLESS.as_bytes()), "");
    s.expect("CONFIG SET busy-reply-threshold 1", "+OK\r\n");
    let mut ask = |client: &mut Client| run_part(&mut s.executor, client, request.as_bytes());
    assert_eq!(ask(&mut first), "");
    // The threshold, now 1 ms, is time of the real clock; any longer time does as well.
    std::thread::sleep(Duration::from_millis(5));
    let reply = ask(&mut first);
    assert!(reply.starts_with("-BUSY "), "{reply}");
    s.expect("GET a", "$1\r\n2\r\n");
}

/// The oldest script that waited for a place was paused, and kept all others out.
#[test]
fn a_waiting_script_that_is_not_shown_keeps_nobody_out() {
    let mut s = Server::session(1);
    let clients = endless(&mut s);
    let long = "local n = 0 for i = 1, 1000000 do n = n + i end return redis.call('incr', 'a')";
    let request = format!("EVAL \"{long}\" 0\r\n");
    let (mut paused, mut other) = (s.server.client(0), s.server.client(0));
    for client in [&mut paused, &mut other] {
        assert_eq!(run_part(&mut s.executor, client, request.as_bytes()), "");
    }
    let gone = clients.first().expect("a client").id();
    s.executor.thread.scripts.drop_of(&s.server.shared, gone);
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    let mut reply = String::new();
    while reply.is_empty() && std::time::Instant::now() < deadline {
        reply = run_part(&mut s.executor, &mut other, request.as_bytes());
    }
    assert_eq!(reply, ":1\r\n");
}

/// Sixteen clients show one request for some rounds. Returns the most that their suspended scripts
/// held together, as `bytes` counts it.
fn most_suspended(s: &mut Session, request: &[u8], bytes: fn(&Running) -> usize) -> usize {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 100;
    let requests = parsed(request);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| s.server.client(0)).collect();
    let mut outs = vec![Vec::new(); CLIENTS];
    let mut most: usize = 0;
    for _ in 0..ROUNDS {
        let pairs = clients.iter_mut().zip(&mut outs);
        let mut turns: Vec<Turn<'_>> = pairs
            .map(|(client, out)| Turn::new(client, &requests, request, out))
            .collect();
        s.executor.begin_round(turns.len());
        s.executor.run(&mut turns);
        let suspended = s.executor.thread.scripts.all_suspended();
        most = most.max(suspended.map(bytes).sum::<usize>());
    }
    most
}

/// The messages of a suspended script counted for nobody: sixteen requests of 120 bytes took 1 GB.
#[test]
fn messages_of_suspended_scripts_share_memory() {
    const MEMORY: usize = 16 << 20;
    let mut s = Server::session(1);
    s.expect("CONFIG SET script-memory 16mb", "+OK\r\n");
    let script = "local x = ('x'):rep(2 ^ 17)
        for n = 1, 110 do redis.call('PUBLISH', 'c', x) end while true do end";
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&["EVAL", script, "0"]);
    let most = most_suspended(&mut s, &request, |script| script.effects.bytes());
    // Each check of their memory may let one of them take all of its own, and the oldest goes on.
    assert!((1 << 20..=3 * MEMORY).contains(&most), "{most} bytes");
}

/// The copies of a suspended script's arguments counted for nobody: if to make them took the slice,
/// sixteen requests of the longest kind took their memory once more.
#[test]
fn arguments_of_suspended_scripts_share_memory() {
    const MEMORY: usize = 16 << 20;
    let mut s = Server::session(1);
    s.expect("CONFIG SET script-memory 16mb", "+OK\r\n");
    let text = [b'v'; 60];
    let mut args = vec![&b"EVAL"[..], b"while true do end", b"0"];
    args.extend(std::iter::repeat_n(&text[..], 100_000));
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&args);
    let most = most_suspended(&mut s, &request, |script| script.job_bytes);
    assert!((6_000_000..=2 * MEMORY).contains(&most), "{most} bytes");
}

#[test]
fn scripts_that_need_no_place_are_found() {
    let is_suspended = || {
        let mut s = Server::session(1);
        let _clients = endless(&mut s);
        let id = s.client.id();
        let reply = run_part(&mut s.executor, &mut s.client, ENDLESS.as_bytes());
        assert_eq!(reply, "");
        s.executor.thread.scripts.has(id)
    };
    assert!(!is_suspended());
    let bug = duramen_base::planted::Bug::ScriptsNeedNoPlace;
    assert!(
        duramen_base::planted::with_bug(bug, is_suspended),
        "not found"
    );
}

/// A script waits until few interpreters hold memory that nobody uses; one that needs no new
/// interpreter goes on.
#[test]
fn scripts_wait_until_old_interpreters_are_dropped() {
    const REQUEST: &str = "EVAL \"return 7\" 0";
    let mut s = Server::session(1);
    let shared = Arc::clone(&s.server.shared);
    let discard = |number: usize| {
        for _ in 0..number {
            let machine = Machine::new(limits(1 << 20)).expect("memory for a stack");
            shared.scripts().discard(machine);
        }
    };
    let held = shared.scripts().hold_discards();
    discard(5);
    assert_eq!(s.ask_part(REQUEST), "");
    assert_eq!(s.ask_part(REQUEST), "");
    drop(held);
    let began = Instant::now();
    let mut reply = String::new();
    while reply.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "it waits on");
        reply = s.ask_part(REQUEST);
    }
    assert_eq!(reply, ":7\r\n");
    // It has left its interpreter for the next one.
    let held = shared.scripts().hold_discards();
    discard(5);
    s.expect(REQUEST, ":7\r\n");
    drop(held);
}

/// Any user with EVAL could raise the alert of a full store.
#[test]
fn errors_that_a_script_makes_count_as_no_want_of_memory() {
    let mut s = Server::session(1);
    for script in [
        "return redis.error_reply('OOM x')",
        "error({err='OOM x'})",
        "return {err='EXECABORT y: OOM x'}",
    ] {
        let reply = eval(&mut s, script, &["0"]);
        assert!(reply.starts_with('-') && reply.contains("OOM x"), "{reply}");
    }
    let shared = Arc::clone(&s.server.shared);
    assert_eq!(shared.figures.refusals().count(), 0);
    s.executor.thread.note_error(&shared, "OOM x");
    assert_eq!(shared.figures.refusals().count(), 1);
}
