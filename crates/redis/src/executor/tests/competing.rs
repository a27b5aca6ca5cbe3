//! Scripts and transactions on drafts that compete for keys, and those that end without an effect.

use super::*;
use crate::command::drafted::IN_ONE_GO_MAX;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::TableId;
use std::time::Instant;

fn eval(s: &mut Session, script: &str, words: &[&str]) -> String {
    s.ask_bytes(&eval_words(script, words))
}

fn eval_words<'t>(script: &'t str, words: &[&'t str]) -> Vec<&'t [u8]> {
    let mut args: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    args.extend(words.iter().map(|word| word.as_bytes()));
    args
}

fn request(script: &str, words: &[&str]) -> Vec<u8> {
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&eval_words(script, words));
    request
}

/// A part of a script that takes about so many milliseconds here.
fn lasting(s: &mut Session, ms: u64) -> String {
    let script = "local n = 0 for i = 1, 1000000 do n = n + i end return 1";
    let times = (0..5).map(|_| {
        let began = Instant::now();
        assert_eq!(eval(s, script, &["0"]), ":1\r\n");
        began.elapsed()
    });
    let million = times.min().expect("a time").as_micros().max(1) as u64;
    let times = ms * 1_000_000_000 / million;
    format!("do local n = 0 for i = 1, {times} do n = n + i end end")
}

/// How often commands of this name were called, also in vain.
fn calls(s: &mut Session, name: &str) -> u64 {
    let info = s.ask("INFO commandstats");
    let start = format!("cmdstat_{name}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    let calls = line.and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("calls"))
}

/// Shows the requests of all clients again and again, until all but `left` have their replies.
/// Returns these, and the most memory of all that was suspended.
fn all_but(
    left: usize,
    s: &mut Session,
    clients: &mut [Client],
    request: &[u8],
) -> (Vec<String>, usize) {
    let requests = parsed(request);
    let mut outs = vec![Vec::new(); clients.len()];
    let (mut most, mut rounds) = (0, 0);
    while outs.iter().filter(|out| out.is_empty()).count() > left {
        let pairs = clients.iter_mut().zip(&mut outs);
        let mut turns: Vec<Turn<'_>> = pairs
            .filter(|(_, out)| out.is_empty())
            .map(|(client, out)| Turn::new(client, &requests, request, out))
            .collect();
        s.executor.begin_round(turns.len());
        s.executor.run(&mut turns);
        most = most.max(s.executor.thread.scripts.bytes());
        rounds += 1;
        assert!(rounds < 100_000, "they do not end");
    }
    let ended = outs.iter().filter(|out| !out.is_empty());
    let texts = ended.map(|out| String::from_utf8_lossy(out));
    (texts.map(|text| text.into_owned()).collect(), most)
}

/// The script of a queue moves a job to a list that cannot take it. Returns whether the job is
/// where it was each time.
fn a_job_stays() -> bool {
    let mut s = Server::session(1);
    let job = "j".repeat(900);
    while !s
        .ask_bytes(&[b"RPUSH", b"processing", job.as_bytes()])
        .starts_with('-')
    {}
    s.ask_bytes(&[b"RPUSH", b"queue", job.as_bytes()]);
    let script = "local job = redis.call('RPOP', 'queue')
        return redis.pcall('LPUSH', 'processing', job)";
    let reply = eval(&mut s, script, &["0"]);
    assert!(reply.starts_with("-ERR the collection would"), "{reply}");
    let is_left = s.ask("LLEN queue") == ":1\r\n";
    s.ask_bytes(&[b"RPUSH", b"queue", job.as_bytes()]);
    s.expect("MULTI", "+OK\r\n");
    s.ask_bytes(&eval_words(script, &["0"]));
    let reply = s.ask("EXEC");
    let is_whole = s.ask("LLEN queue") == ":2\r\n";
    is_left && is_whole && reply.starts_with("-EXECABORT")
}

/// The job was lost: the client got the error of the push, and the pop was done.
#[test]
fn a_job_that_a_list_cannot_take_stays_where_it_was() {
    assert!(a_job_stays());
}

#[test]
fn scripts_that_stop_halfway_are_found() {
    assert!(!with_bug(Bug::ScriptsStopHalfway, a_job_stays));
}

/// The same, for the memory of the writes of a script.
#[test]
fn a_script_whose_writes_take_too_much_memory_does_nothing() {
    let mut s = Server::session(1);
    s.expect("CONFIG SET script-memory 4mb", "+OK\r\n");
    s.expect("SET queue job", "+OK\r\n");
    let script = "redis.call('DEL', 'queue')
        for i = 1, 10 do redis.pcall('SET', 'k' .. i, ('x'):rep(900000)) end return 1";
    let reply = eval(&mut s, script, &["0"]);
    assert!(reply.starts_with('-'), "{reply}");
    s.expect("EXISTS queue k1", ":1\r\n");
}

/// Each of these scripts was the first for a while, whatever memory the others had, and kept its
/// run when it had lost its keys: hundreds of them took gigabytes.
#[test]
fn scripts_that_have_lost_their_keys_keep_no_memory() {
    let mut s = Server::session(1);
    s.expect("CONFIG SET busy-reply-threshold 100", "+OK\r\n");
    let script = "redis.call('incr', KEYS[1]) local t = {}
        for i = 1, 20000 do t[i] = ('x'):rep(100) .. i end while true do end";
    let request = request(script, &["1", "hot"]);
    let mut clients: Vec<Client> = (0..8).map(|_| s.server.client(0)).collect();
    // All of them stand in line, because of another one.
    let (shared, id) = (std::sync::Arc::clone(&s.server.shared), s.client.id());
    let hash = s.executor.session().expect("a session").pin().hash(b"hot");
    let keys = std::iter::once(hash);
    assert!(shared.commands.reserve(id, keys, Duration::from_millis(50)));
    // The last one competes with nobody, and goes on.
    let (replies, most) = all_but(1, &mut s, &mut clients, &request);
    let are_told = |reply: &String| reply.starts_with("-ERR it ran again and again");
    assert!(replies.iter().all(are_told), "{replies:?}");
    assert!((1 << 20..10 << 20).contains(&most), "{most} bytes");
    let scripts = &mut s.executor.thread.scripts;
    clients
        .iter()
        .for_each(|it| scripts.drop_of(&shared, it.id()));
    assert_eq!(s.executor.thread.scripts.bytes(), 0);
}

/// The time of a run in vain had the slices of all others: with sixteen of these scripts all but
/// one failed after one run. And each had its keys for 100 ms, however long it was.
#[test]
fn long_scripts_on_one_key_all_end() {
    let mut s = Server::session(1);
    let long = lasting(&mut s, 80);
    s.expect("CONFIG SET busy-reply-threshold 1000", "+OK\r\n");
    let script = format!("local v = redis.call('incr', KEYS[1]) {long} return v");
    let mut clients: Vec<Client> = (0..16).map(|_| s.server.client(0)).collect();
    let (replies, _) = all_but(0, &mut s, &mut clients, &request(&script, &["1", "hot"]));
    assert!(replies.iter().all(|it| it.starts_with(':')), "{replies:?}");
    s.expect("GET hot", "$2\r\n16\r\n");
}

/// A key that is absent had the stamp of a count of removals, also those of other keys: such a
/// script failed in a store in which keys expire all the time.
#[test]
fn removals_of_other_keys_do_not_break_a_script_that_makes_keys() {
    let mut s = Server::session(1);
    for n in 0..400 {
        s.ask(&format!("SET other{n} v"));
    }
    let long = lasting(&mut s, 20);
    // A run in vain would be the last.
    s.expect("CONFIG SET busy-reply-threshold 1", "+OK\r\n");
    let script = format!("for i = 1, 2000 do redis.call('set', 'k' .. i, 'v') end {long} return 1");
    let request = request(&script, &["0"]);
    let mut other = s.server.client(0);
    let (mut reply, mut removed) = (String::new(), 0);
    for _ in 0..10_000 {
        reply = run_part(&mut s.executor, &mut s.client, &request);
        if !reply.is_empty() {
            break;
        }
        for n in removed..(removed + 100).min(400) {
            let request = format!("DEL other{n}\r\n");
            run(&mut s.executor, &mut other, request.as_bytes());
        }
        // One that comes and goes is absent when the script ends, as it has seen it.
        run(&mut s.executor, &mut other, b"SET k7 x\r\n");
        run(&mut s.executor, &mut other, b"DEL k7\r\n");
        removed += 100;
    }
    assert_eq!(reply, ":1\r\n");
    assert!(removed >= 200, "it was not suspended");
    s.expect("EXISTS k1 k7 k2000", ":3\r\n");
}

/// Runs a request while another client makes and removes other keys all the time.
fn beside_removals(s: &mut Session, request: &[u8]) -> String {
    let removal = |n: u32| format!("SET other{n} v\r\nDEL other{n}\r\n");
    let removals: String = (0..200).map(removal).collect();
    let mut other = s.server.client(0);
    for _ in 0..100_000 {
        let reply = run_part(&mut s.executor, &mut s.client, request);
        if !reply.is_empty() {
            return reply;
        }
        run(&mut s.executor, &mut other, removals.as_bytes());
    }
    panic!("it does not end");
}

/// The same failed if it only read: it had no locks, and no reservation keeps removals of other
/// keys away.
#[test]
fn removals_of_other_keys_do_not_break_what_only_reads_absent_keys() {
    let mut s = Server::session(1);
    let long = lasting(&mut s, 40);
    let script = format!("for i = 1, 2000 do redis.call('get', 'k' .. i) end {long} return 1");
    let reply = beside_removals(&mut s, &request(&script, &["0"]));
    assert_eq!(reply, ":1\r\n");
    for part in 0..10 {
        let members = (0..3_000).map(|n| format!(" m{}", 3_000 * part + n));
        s.ask(&format!("SADD set{}", members.collect::<String>()));
    }
    s.expect("MULTI", "+OK\r\n");
    for n in 0..1_000 {
        s.expect(&format!("GET k{n}"), "+QUEUED\r\n");
    }
    // Each takes longer than a slice.
    for _ in 0..4 {
        s.expect("SORT set ALPHA LIMIT 0 1", "+QUEUED\r\n");
    }
    let reply = beside_removals(&mut s, b"EXEC\r\n");
    let sorted = "*1\r\n$2\r\nm0\r\n".repeat(4);
    assert_eq!(
        reply,
        format!("*1004\r\n{}{sorted}", "$-1\r\n".repeat(1_000))
    );
}

/// A script that only reads has no locks, and sees a moment only if no key has come meanwhile.
#[test]
fn a_script_that_only_reads_sees_a_key_that_came_and_went() {
    let mut s = Server::session(1);
    let long = lasting(&mut s, 20);
    // A run in vain is the last.
    s.expect("CONFIG SET busy-reply-threshold 1", "+OK\r\n");
    let script = format!("redis.call('get', 'a') {long} redis.call('get', 'b') return 1");
    let request = request(&script, &["0"]);
    let mut other = s.server.client(0);
    let reply = run_part(&mut s.executor, &mut s.client, &request);
    assert_eq!(reply, "");
    for request in ["SET a v", "SET b v", "DEL b", "DEL a"] {
        run(
            &mut s.executor,
            &mut other,
            format!("{request}\r\n").as_bytes(),
        );
    }
    let reply = run(&mut s.executor, &mut s.client, &request);
    assert!(reply.starts_with("-ERR it ran again and again"), "{reply}");
}

/// A short script whose key changed each time held its thread for 5 s, and could not be killed.
#[test]
fn a_script_in_conflict_lets_others_run() {
    let mut s = Server::session(2);
    let stops = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (store, stops) = (
            s.server.shared.data().expect("a store").clone(),
            stops.clone(),
        );
        std::thread::spawn(move || {
            let mut session = store.session().expect("a session");
            let mut n = 0_u64;
            while !stops.load(Ordering::Relaxed) {
                n += 1;
                let mut guard = session.pin();
                let (hash, text) = (guard.hash(b"hot"), n.to_string());
                let done = guard.write(TableId::DEFAULT, hash, b"hot", text.as_bytes(), None);
                done.expect("a write");
            }
        })
    };
    // It ends when its key has changed.
    let script = "local v = redis.call('get', 'hot')
        while redis.call('get', 'hot') == v do end redis.call('set', 'done', 1)";
    let request = request(script, &["0"]);
    let began = Instant::now();
    let mut reply = run_part(&mut s.executor, &mut s.client, &request);
    let took = began.elapsed();
    let mut other = s.server.client(0);
    for _ in 0..1_000 {
        if !reply.is_empty() {
            break;
        }
        run(&mut s.executor, &mut other, b"SCRIPT KILL\r\n");
        reply = run_part(&mut s.executor, &mut s.client, &request);
    }
    stops.store(true, Ordering::Relaxed);
    writer.join().expect("the writer");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(reply.starts_with("-ERR Script killed"), "{reply}");
    s.expect("EXISTS done", ":0\r\n");
}

/// A command that changes more than data was run again each time that the keys of the script were
/// reserved.
#[test]
fn a_transaction_acts_once() {
    let mut s = Server::session(1);
    let holder = s.server.client(0);
    let hash = s.executor.session().expect("a session").pin().hash(b"hot");
    let (keys, time) = (std::iter::once(hash), Duration::from_secs(60));
    assert!(s.server.shared.commands.reserve(holder.id(), keys, time));
    s.expect("MULTI", "+OK\r\n");
    s.expect("CONFIG SET slowlog-max-len 7", "+QUEUED\r\n");
    let script = "EVAL \"return redis.call('incr','hot')\" 0";
    s.expect(script, "+QUEUED\r\n");
    assert_eq!(s.ask_part("EXEC"), "*2\r\n+OK\r\n:1\r\n");
    assert_eq!(calls(&mut s, "config|set"), 1);
    s.server.shared.commands.release(holder.id());
}

/// A script that was suspended failed, as if its keys had changed each time.
#[test]
fn a_script_runs_again_after_swapdb_however_long_it_takes() {
    let mut s = Server::session(1);
    let long = lasting(&mut s, 100);
    s.expect("CONFIG SET busy-reply-threshold 20", "+OK\r\n");
    let script = format!("redis.call('incr', 'a') {long} return redis.call('incr', 'a')");
    let request = request(&script, &["0"]);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(40) {
        assert_eq!(run_part(&mut s.executor, &mut s.client, &request), "");
    }
    let mut other = s.server.client(0);
    let swapped = run(&mut s.executor, &mut other, b"SWAPDB 0 1\r\n");
    assert_eq!(swapped, "+OK\r\n");
    let reply = run(&mut s.executor, &mut s.client, &request);
    assert_eq!(reply, ":2\r\n");
}

/// A transaction whose scripts take 40 ms of processor time, on a processor that four others use.
/// The limit of 100 ms was one of the clock: on a busy machine such transactions failed.
#[test]
fn the_time_of_scripts_in_a_transaction_is_processor_time() {
    let mut s = Server::session(1);
    let long = lasting(&mut s, 20);
    let script = request(&format!("{long} return 1"), &["0"]);
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one).expect("its own processor");
    let stops = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let began = Instant::now();
                while !stops.load(Ordering::Relaxed) && began.elapsed().as_secs() < 60 {
                    std::hint::spin_loop();
                }
            });
        }
        let took = (0..50).find_map(|_| {
            s.expect("MULTI", "+OK\r\n");
            for _ in 0..2 {
                let queued = run(&mut s.executor, &mut s.client, &script);
                assert_eq!(queued, "+QUEUED\r\n");
            }
            let began = Instant::now();
            let reply = s.ask("EXEC");
            let took = began.elapsed();
            if reply != "*2\r\n:1\r\n:1\r\n" {
                stops.store(true, Ordering::Relaxed);
                panic!("{reply} after {took:?}");
            }
            (took > IN_ONE_GO_MAX).then_some(took)
        });
        stops.store(true, Ordering::Relaxed);
        assert!(took.is_some(), "the others left it the processor");
    });
}

/// A script that came later took the place for which another one waited.
#[test]
fn a_script_takes_no_place_for_which_another_one_waits() {
    let mut s = Server::session(1);
    let ask = |s: &mut Session, client: &mut Client| {
        run_part(
            &mut s.executor,
            client,
            &request("while true do end", &["0"]),
        )
    };
    let mut clients: Vec<Client> = (0..18).map(|_| s.server.client(0)).collect();
    for client in clients.iter_mut().take(17) {
        assert_eq!(ask(&mut s, client), "");
    }
    let ids: Vec<u64> = clients.iter().map(Client::id).collect();
    assert!(!s.executor.thread.scripts.has(ids[16]), "it waits");
    s.executor.thread.scripts.drop_of(&s.server.shared, ids[0]);
    assert_eq!(ask(&mut s, &mut clients[16 + 1]), "");
    assert!(!s.executor.thread.scripts.has(ids[17]), "it is behind");
    assert_eq!(ask(&mut s, &mut clients[16]), "");
    assert!(s.executor.thread.scripts.has(ids[16]), "it is the next");
}

/// Each request of a native client in flight that did not wait took the right of those that had.
#[test]
fn each_write_in_flight_waits_for_one_reservation() {
    let mut s = Server::session(1);
    let mut native = s.server.client(0);
    let id = native.id();
    let shared = Arc::clone(&s.server.shared);
    let guard = s.executor.session().expect("a session").pin();
    let keys = [guard.hash(b"a"), guard.hash(b"b")];
    let time = Duration::from_secs(60);
    let holders = [s.server.client(0).id(), s.server.client(0).id()];
    for holder in holders {
        shared.commands.reserve(holder, keys.iter().copied(), time);
    }
    assert!(
        keys.iter()
            .all(|key| native.patience.is_key_put_off(&shared.commands, id, *key))
    );
    shared.commands.release(holders[0]);
    let other = guard.hash(b"other");
    assert!(!native.patience.is_key_put_off(&shared.commands, id, other));
    native.patience.end_key_put_off(other);
    for key in keys {
        assert!(
            !native.patience.is_key_put_off(&shared.commands, id, key),
            "it has waited"
        );
        native.patience.end_key_put_off(key);
        assert!(
            native.patience.is_key_put_off(&shared.commands, id, key),
            "this is another one"
        );
    }
    shared.commands.release(holders[1]);
}

/// Loads of libraries had any memory together, and each had the time of all.
#[test]
fn loads_of_libraries_share_the_memory_of_what_is_suspended() {
    let mut s = Server::session(1);
    s.expect("CONFIG SET script-memory 4mb", "+OK\r\n");
    let text = "#!lua name=lib\nlocal t = {}
        for i = 1, 15000 do t[i] = ('x'):rep(100) .. i end while true do end";
    let mut request = Vec::new();
    RequestEncoder::new(&mut request).request(&["FUNCTION", "LOAD", text]);
    let mut clients: Vec<Client> = (0..8).map(|_| s.server.client(0)).collect();
    let (replies, most) = all_but(0, &mut s, &mut clients, &request);
    let are_told = |reply: &String| reply.contains("timeout");
    assert!(replies.iter().all(are_told), "{replies:?}");
    assert!((1 << 20..9 << 20).contains(&most), "{most} bytes");
    assert_eq!(s.executor.thread.scripts.bytes(), 0);
}
