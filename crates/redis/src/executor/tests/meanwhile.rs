//! Others act while an admitted request waits: it is decided anew after the wait.

use super::cluster_member::{Member, keys};
use super::{START_MS, Server, Session, ending, parsed, room, run, run_bytes, run_part};
use crate::command::context::{Context, Failure};
use crate::command::outcome::Unfinished;
use crate::command::reply::{Reply, ReplyState};
use crate::command::spec::Request;
use crate::command::store_access::Access;
use crate::command::turn::{Ending, TurnState};
use crate::executor::Executor;
use crate::reply::wait::State as WaitState;
use crate::script::commands as script;
use crate::state::client::Client;
use crate::state::db::DBS;
use crate::state::shared::commands::global;
use crate::table::COMMANDS;
use crate::transaction;
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, carry, with_bug};
use duramen_engine::TableId;
use std::time::{Duration, Instant};

/// Time in which a request of another thread has come to its wait. If it has not, it waits for
/// nothing, and the test finds no fault.
const COMES: Duration = Duration::from_millis(200);
/// Runs in one of which a planted bug is found.
const RUNS: u32 = 30;

/// The replies to a user who may use the first table alone, and whose FLUSHDB waits while another
/// table is put behind its database.
fn flush_while_swapped() -> (String, bool) {
    let server = Server::new(2);
    let (mut executor, mut admin) = (server.executor(0), server.client(0));
    let setup = b"SELECT 3\r\nSET theirs 1\r\nSELECT 0\r\nSET ours 1\r\n\
        ACL SETUSER u on >p ~* +@all resettables table:default\r\n";
    let replies = run(&mut executor, &mut admin, setup);
    assert_eq!(replies, "+OK\r\n".repeat(5));
    let mut session = server.shared.store().session().expect("a session");
    let guard = session.pin();
    let replies = std::thread::scope(|scope| {
        let flush = scope.spawn(carry(|| {
            let (mut executor, mut user) = (server.executor(1), server.client(1));
            run(&mut executor, &mut user, b"AUTH u p\r\nFLUSHDB\r\n")
        }));
        std::thread::sleep(COMES); // it waits until no guard is left
        let commands = &server.shared.commands;
        let mut places: Vec<Option<TableId>> =
            (0..DBS as u8).map(|db| commands.table(db)).collect();
        places.swap(0, 3);
        commands.set_tables(&places, &guard.order().position());
        drop(guard);
        flush.join().expect("it is answered")
    });
    let theirs = run(&mut executor, &mut admin, b"SELECT 0\r\nEXISTS theirs\r\n");
    (replies, theirs.ends_with(":1\r\n"))
}

/// The right to the table was checked before the wait; after it the command took the table that
/// SWAPDB had put there.
#[test]
fn a_table_that_comes_during_a_wait_needs_its_own_right() {
    let (replies, is_kept) = flush_while_swapped();
    assert!(replies.starts_with("+OK\r\n-NOPERM"), "{replies}");
    assert!(is_kept);
    let is_found = |_| {
        let (replies, is_kept) = with_bug(Bug::RightsAreNotCheckedAgain, flush_while_swapped);
        replies == "+OK\r\n+OK\r\n" && !is_kept
    };
    assert!((0..RUNS).any(is_found));
}

/// Whether a client that waits for two keys of a divided slot is shown again when the second one
/// has left.
fn is_told_of_the_second_key() -> bool {
    let mut member = Member::new(1);
    let (ends, [stays, leaves]) = member.cut_slot();
    member.tell_divided(ends, true);
    let s = &mut member.session;
    assert_eq!(s.ask(&format!("BLPOP {stays} {leaves} 0")), "");
    assert_eq!(ending(&s.client), Ending::Blocked);
    assert!(!s.executor.has_lost_keys(&s.client));
    member.tell_divided(ends, false);
    let s = &mut member.session;
    let is_told = s.executor.has_lost_keys(&s.client);
    s.ask(&format!("BLPOP {stays} {leaves} 0"));
    assert_ne!(
        ending(&s.client),
        Ending::Blocked,
        "shown again, it does not wait for elements"
    );
    is_told
}

/// It waited for ever: only the place of its first key was looked at.
#[test]
fn a_client_that_waits_is_told_of_each_key_that_leaves() {
    assert!(is_told_of_the_second_key());
    assert!(!with_bug(Bug::FirstKeyIsAll, is_told_of_the_second_key));
}

/// Whether a write that waited when CLIENT PAUSE came took effect after the reply to that.
fn is_written_in_the_pause() -> bool {
    let server = Server::new(1);
    let mut session = server.shared.store().session().expect("a session");
    let mut guard = session.pin();
    let keys = [(TableId::DEFAULT, guard.hash(b"another"))];
    guard.lock_keys(&keys).expect("it takes the only head");
    let (mut executor, mut pauser) = (server.executor(0), server.client(0));
    std::thread::scope(|scope| {
        let write = scope.spawn(carry(|| {
            let (mut executor, mut writer) = (server.executor(0), server.client(0));
            run(&mut executor, &mut writer, b"SET k v\r\n")
        }));
        std::thread::sleep(COMES); // it waits for a head
        let paused = run(&mut executor, &mut pauser, b"CLIENT PAUSE 100000 WRITE\r\n");
        assert_eq!(paused, "+OK\r\n");
        let wait = pauser.wait.take();
        let is_answered = || {
            let state = wait.state(|_| Level::Synced, None, START_MS);
            !matches!(state, WaitState::Waiting { .. })
        };
        let deadline = Instant::now() + COMES;
        while !is_answered() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let was_answered = is_answered();
        guard.unlock_keys();
        drop(guard);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_answered() {
            assert!(Instant::now() < deadline, "CLIENT PAUSE is answered");
            std::thread::yield_now();
        }
        let is_there =
            |executor: &mut _, client: &mut _| run(executor, client, b"EXISTS k\r\n") == ":1\r\n";
        let at_the_answer = !was_answered && is_there(&mut executor, &mut pauser);
        write.join().expect("it ends");
        is_there(&mut executor, &mut pauser) != at_the_answer
    })
}

#[test]
fn no_write_takes_effect_after_client_pause_was_answered() {
    assert!(!is_written_in_the_pause());
    let is_found = |_| with_bug(Bug::PauseIsNotLookedAt, is_written_in_the_pause);
    assert!((0..RUNS).any(is_found));
}

/// Whether EXEC that waited at the store's door when a pause began wrote in the pause.
fn is_written_by_exec_in_the_pause() -> bool {
    let server = Server::new(1);
    let mut session = server.shared.store().session().expect("a session");
    let guard = session.pin();
    let replies = std::thread::scope(|scope| {
        let exec = scope.spawn(carry(|| {
            let (mut executor, mut writer) = (server.executor(0), server.client(0));
            let input = b"MULTI\r\nDBSIZE\r\nINCR k\r\nEXEC\r\n";
            run(&mut executor, &mut writer, input)
        }));
        std::thread::sleep(COMES); // it waits until no guard is left
        let now_ms = duramen_config::clock::now_ms();
        let commands = &server.shared.commands;
        commands.pause(now_ms + 100_000, true, now_ms);
        drop(guard);
        exec.join().expect("it ends")
    });
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let is_there = run(&mut executor, &mut client, b"EXISTS k\r\n") == ":1\r\n";
    let is_answered = replies != "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    assert_eq!(is_there, is_answered, "{replies}");
    is_there
}

/// EXEC looked at the pause before it waited for its guard.
#[test]
fn no_exec_takes_effect_after_client_pause_was_answered() {
    assert!(!is_written_by_exec_in_the_pause());
    let is_found = |_| with_bug(Bug::PauseIsNotLookedAt, is_written_by_exec_in_the_pause);
    assert!((0..RUNS).any(is_found));
}

/// Whether a script that was admitted before a pause began writes in the pause.
fn is_written_by_a_script_in_the_pause() -> bool {
    let mut s = Server::session(1);
    s.expect("PING", "+PONG\r\n");
    let mut input = Vec::new();
    let text = "return redis.call('set', KEYS[1], 'v')";
    duramen_wire::resp::RequestEncoder::new(&mut input).request(&["EVAL", text, "1", "k"]);
    let requests = parsed(&input);
    let now_ms = duramen_config::clock::now_ms();
    let commands = &s.server.shared.commands;
    commands.pause(now_ms + 100_000, true, now_ms);
    let Session {
        server,
        executor,
        client,
    } = &mut s;
    let Executor {
        session, thread, ..
    } = executor;
    let (spec, table) = (
        COMMANDS.find(b"eval").expect("EVAL"),
        client.table(&server.shared),
    );
    let (mut out, mut replies) = (Vec::new(), ReplyState::default());
    let mut ctx = Context {
        request: Request {
            spec,
            args: requests.args(0, &input),
            hashes: &[],
        },
        commands: &COMMANDS,
        reply: Reply::new(&mut out, client.protocol(), &mut replies),
        client,
        turn: &mut TurnState::default(),
        shared: &server.shared,
        thread,
        table,
        locked: false,
    };
    let session = session.as_mut().expect("a session");
    let done = script::eval(&mut ctx, Access::Session(session));
    assert!(done.is_ok() || done.is_err_and(|failure| failure.yields()));
    let mut other = s.server.client(0);
    let is_there = run(&mut s.executor, &mut other, b"EXISTS k\r\n") == ":1\r\n";
    s.server.shared.commands.unpause();
    assert_eq!(run(&mut s.executor, &mut s.client, &input), "+OK\r\n");
    is_there
}

/// Scripts looked at the pause before they waited for a guard.
#[test]
fn no_script_takes_effect_after_client_pause_was_answered() {
    assert!(!is_written_by_a_script_in_the_pause());
    let is_found = |_| with_bug(Bug::PauseIsNotLookedAt, is_written_by_a_script_in_the_pause);
    assert!((0..RUNS).any(is_found));
}

/// A queue counted as one that writes nothing, by the flags of its function when it was queued.
#[test]
fn a_transaction_is_paused_by_what_its_functions_may_do_now() {
    let mut s = Server::session(1);
    let load = |flags: &str| {
        format!(
            "#!lua name=l\nredis.register_function{{function_name='f', callback=function(k) return 1 end{flags}}}"
        )
    };
    let reads = load(", flags={'no-writes'}");
    assert_eq!(
        s.ask_bytes(&[b"FUNCTION", b"LOAD", reads.as_bytes()]),
        "$1\r\nl\r\n"
    );
    s.expect("MULTI", "+OK\r\n");
    s.expect("FCALL f 1 k", "+QUEUED\r\n");
    let mut admin = s.server.client(0);
    let mut input = Vec::new();
    let writes = load("");
    let load = [&b"FUNCTION"[..], b"LOAD", b"REPLACE", writes.as_bytes()];
    duramen_wire::resp::RequestEncoder::new(&mut input).request(&load);
    run(&mut s.executor, &mut admin, &input);
    run(
        &mut s.executor,
        &mut admin,
        b"CLIENT PAUSE 100000 WRITE\r\n",
    );
    s.expect("EXEC", "");
    assert!(matches!(ending(&s.client), Ending::Paused { .. }));
    run(&mut s.executor, &mut admin, b"CLIENT UNPAUSE\r\n");
    s.expect("EXEC", "*1\r\n:1\r\n");
}

/// A thread that saw the end of a pause ended the new one that had come in between.
#[test]
fn the_end_of_a_pause_does_not_end_the_next_one() {
    let server = Server::new(1);
    let commands = &server.shared.commands;
    commands.pause(10, true, 1);
    assert_eq!(commands.paused(9), Some((10, true)));
    commands.pause(100, false, 20);
    assert_eq!(commands.paused(20), Some((100, false)));
    assert_ne!(commands.gate() & global::PAUSED, 0);
    assert_eq!(commands.paused(100), None);
    assert_eq!(commands.gate() & global::PAUSED, 0);
}

/// The later one replaced the pause that went on, and let requests through.
#[test]
fn a_pause_makes_the_one_before_neither_shorter_nor_weaker() {
    let server = Server::new(1);
    let commands = &server.shared.commands;
    commands.pause(100, false, 1);
    commands.pause(10, true, 2);
    assert_eq!(commands.paused(50), Some((100, false)));
    commands.pause(200, true, 3);
    assert_eq!(commands.paused(150), Some((200, false)));
    commands.unpause();
    assert_eq!(commands.paused(4), None);
    assert_eq!(commands.gate() & global::PAUSED, 0);
    commands.pause(100, true, 5);
    commands.pause(10, false, 6);
    assert_eq!(commands.paused(50), Some((100, false)));
    commands.pause(u64::MAX, true, 100);
    assert_eq!(commands.paused(101), Some((u64::MAX >> 1, true)));
}

/// The reply of WATCH for a key that left after the request was routed.
fn watch_of_a_key_that_has_left(leave: fn(&mut Member)) -> Result<(), Failure> {
    let mut member = Member::new(1);
    member.tell_halves();
    let (key, _) = keys();
    let input = format!("WATCH {key}\r\n");
    let requests = parsed(input.as_bytes());
    let args = requests.args(0, input.as_bytes());
    member.session.expect("PING", "+PONG\r\n");
    leave(&mut member);
    let Session {
        server,
        executor,
        client,
    } = &mut member.session;
    let Executor {
        session, thread, ..
    } = executor;
    let mut guard = session.as_mut().expect("a session").pin();
    let hashes = [guard.hash(key.as_bytes())];
    let (spec, table) = (
        COMMANDS.find(b"watch").expect("WATCH"),
        client.table(&server.shared),
    );
    let (mut out, mut replies) = (Vec::new(), ReplyState::default());
    let mut ctx = Context {
        request: Request {
            spec,
            args,
            hashes: &hashes,
        },
        commands: &COMMANDS,
        reply: Reply::new(&mut out, client.protocol(), &mut replies),
        client,
        turn: &mut TurnState::default(),
        shared: &server.shared,
        thread,
        table,
        locked: false,
    };
    let done = transaction::commands::watch(&mut ctx, &mut guard);
    drop(guard);
    assert_eq!(
        client.transaction.watched().len(),
        usize::from(done.is_ok())
    );
    done
}

/// It was watched as a key that nobody changes here: EXEC could not tell that another member had
/// changed it.
#[test]
fn a_key_that_has_left_since_it_was_routed_is_not_watched() {
    assert!(watch_of_a_key_that_has_left(|_| {}).is_ok());
    for leave in [Member::tell_all_gone as fn(&mut Member), Member::lock] {
        let done = watch_of_a_key_that_has_left(leave);
        let moves = |failure| matches!(failure, Failure::Unfinished(Unfinished::Moving(_)));
        assert!(done.is_err_and(moves));
    }
}

/// The cluster had declared the member crashed: its log failed, EXEC was shown again, and had lost
/// its queue by then ("EXEC without MULTI").
#[test]
fn a_transaction_of_a_fenced_member_keeps_its_queue() {
    let mut member = Member::of(room::logged(false));
    member.tell_halves();
    let (key, _) = keys();
    let s = &mut member.session;
    s.expect("MULTI", "+OK\r\n");
    s.expect(&format!("SET {key} 1"), "+QUEUED\r\n");
    let store = s.server.shared.store();
    store.log().expect("a log").disk_failed();
    s.expect("EXEC", "");
    assert!(s.client.in_multi());
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut reply = String::new();
    while reply.is_empty() {
        assert!(Instant::now() < deadline, "its patience ends");
        reply = s.ask("EXEC");
    }
    assert!(reply.starts_with("-CLUSTERDOWN "), "{reply}");
    s.expect("EXEC", "-ERR EXEC without MULTI\r\n");
}

/// DROP had looked whether its table is that of database 0, and SWAPDB came in between: database 0
/// had no table then.
#[test]
fn a_table_is_not_dropped_beside_an_exchange_that_makes_it_that_of_database_0() {
    let server = Server::new(2);
    let (mut executor, mut client) = (server.executor(0), server.client(0));
    let setup = b"SET k zero\r\nSELECT 3\r\nSET k three\r\nSELECT 0\r\n";
    run(&mut executor, &mut client, setup);
    let dropped = std::thread::scope(|scope| {
        let mut session = server.shared.store().session().expect("a session");
        let guard = session.pin();
        // An exchange is half done.
        let commands = &server.shared.commands;
        let held = commands.lock_places();
        let mut places: Vec<Option<TableId>> =
            (0..DBS as u8).map(|db| commands.table(db)).collect();
        let drop_it = scope.spawn(carry(|| {
            let (mut executor, mut client) = (server.executor(1), server.client(1));
            run(&mut executor, &mut client, b"DURAMEN.TABLE DROP db3\r\n")
        }));
        std::thread::sleep(COMES); // it waits for the exchange
        places.swap(0, 3);
        commands.set_tables(&places, &guard.order().position());
        drop((held, guard));
        drop_it.join().expect("it is answered")
    });
    let refused = "-ERR this is the table of database 0 since a SWAPDB";
    assert!(dropped.starts_with(refused), "{dropped}");
    let reply = run(&mut executor, &mut client, b"GET k\r\n");
    assert_eq!(reply, "$5\r\nthree\r\n");
}

/// Loads a function `f`, instead of the last one, that sets `k`. `body`: what it does before it
/// returns.
fn load(s: &mut Session, client: &mut Client, value: &str, body: &str) {
    let text = format!(
        "#!lua name=l\nredis.register_function('f', function() redis.call('set', 'k', '{value}')
            {body} return '{value}' end)"
    );
    let words = [&b"FUNCTION"[..], b"LOAD", b"REPLACE", text.as_bytes()];
    assert_eq!(run_bytes(&mut s.executor, client, &words), b"$1\r\nl\r\n");
}

/// Once FUNCTION LOAD REPLACE or DELETE is answered, nothing that the old function did takes
/// effect: a suspended call begins again with the new one, also one whose run was in vain and that
/// has no draft (script::run::L4).
#[test]
fn a_function_that_is_replaced_while_its_call_is_suspended_does_nothing_more() {
    const CALL: &[u8] = b"FCALL f 0\r\n";
    for (is_in_vain, is_deleted) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut s = Server::session(1);
        let mut admin = s.server.client(0);
        let long = "redis.call('get', 'hot') local n = 0 for i = 1, 5000000 do n = n + i end";
        load(&mut s, &mut admin, "old", long);
        let id = s.client.id();
        assert_eq!(run_part(&mut s.executor, &mut s.client, CALL), "");
        while is_in_vain && s.executor.thread.scripts.has_run(id) {
            run(&mut s.executor, &mut admin, b"INCR hot\r\n");
            assert_eq!(run_part(&mut s.executor, &mut s.client, CALL), "");
        }
        assert!(s.executor.thread.scripts.has(id), "it is suspended");
        if is_deleted {
            run(&mut s.executor, &mut admin, b"FUNCTION DELETE l\r\n");
        } else {
            load(&mut s, &mut admin, "new", "");
        }
        let reply = run(&mut s.executor, &mut s.client, CALL);
        let (expected, left) = match is_deleted {
            true => ("-ERR Function not found\r\n", "$-1\r\n"),
            false => ("$3\r\nnew\r\n", "$3\r\nnew\r\n"),
        };
        assert_eq!(reply, expected, "{is_in_vain}");
        s.expect("GET k", left);
        assert!(!s.executor.thread.scripts.has(id));
        assert_eq!(s.executor.thread.scripts.bytes(), 0);
    }
}
