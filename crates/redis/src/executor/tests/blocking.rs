//! Commands that wait for elements, without sockets: the test plays the reactors of two threads.

use super::{Server, ending, run};
use crate::command::turn::Ending;
use crate::executor::Executor;
use crate::state::client::Client;
use crate::threads::mailbox::Message;
use std::time::Duration;

/// A client, and its request that waits.
struct Caller {
    client: Client,
    waits: Option<String>,
    replies: String,
}

struct World {
    server: Server,
    executors: [Executor; 2],
    callers: Vec<Caller>,
    /// The callers whose waiting requests were answered, in order.
    answered: Vec<usize>,
    /// How often a request was shown again.
    shows: usize,
}

impl World {
    /// The callers are on the threads in turn.
    fn new(callers: usize) -> World {
        let server = Server::new(2);
        let caller = |n: usize| Caller {
            client: server.client(n % 2),
            waits: None,
            replies: String::new(),
        };
        World {
            executors: [server.executor(0), server.executor(1)],
            callers: (0..callers).map(caller).collect(),
            server,
            answered: Vec::new(),
            shows: 0,
        }
    }

    /// Sends requests, one per line, of which the last may wait; all that were woken look.
    fn ask(&mut self, who: usize, requests: &str) -> String {
        assert_eq!(self.callers[who].waits, None, "{who} waits already");
        self.show(who, requests);
        self.settle();
        std::mem::take(&mut self.callers[who].replies)
    }

    fn show(&mut self, who: usize, requests: &str) {
        let caller = &mut self.callers[who];
        let thread = caller.client.record().thread;
        let input = requests.replace('\n', "\r\n") + "\r\n";
        let replies = run(
            &mut self.executors[thread],
            &mut caller.client,
            input.as_bytes(),
        );
        caller.replies.push_str(&replies);
        if ending(&caller.client) == Ending::Blocked {
            let last = requests.rsplit('\n').next();
            caller.waits = last.map(str::to_owned);
        } else if caller.waits.take().is_some() {
            self.answered.push(who);
        }
    }

    /// Shows requests again until nobody is woken any more.
    fn settle(&mut self) {
        loop {
            let mut woken = Vec::new();
            for (thread, executor) in self.executors.iter_mut().enumerate() {
                woken.extend(executor.take_woken());
                let mut messages = Vec::new();
                self.server.shared.threads[thread]
                    .mailbox
                    .take(&mut messages);
                woken.extend(messages.into_iter().filter_map(|message| match message {
                    Message::ShowAgain { client } => Some(client),
                    _ => None,
                }));
            }
            if woken.is_empty() {
                return;
            }
            for id in woken {
                let who = self.callers.iter().position(|one| one.client.id() == id);
                self.show_again(who.expect("one of the callers"));
            }
        }
    }

    fn show_again(&mut self, who: usize) {
        if let Some(request) = self.callers[who].waits.clone() {
            self.shows += 1;
            self.show(who, &request);
        }
    }

    /// Sends a request that must wait.
    #[track_caller]
    fn wait(&mut self, who: usize, request: &str) {
        assert_eq!(self.ask(who, request), "", "{request}");
        assert!(self.callers[who].waits.is_some(), "{request}");
    }

    #[track_caller]
    fn expect(&mut self, who: usize, requests: &str, replies: &str) {
        assert_eq!(self.ask(who, requests), replies, "{requests}");
    }

    /// The reply that a waiting caller got.
    #[track_caller]
    fn got(&mut self, who: usize, reply: &str) {
        assert_eq!(std::mem::take(&mut self.callers[who].replies), reply);
        assert_eq!(self.callers[who].waits, None);
    }

    #[track_caller]
    fn still_waits(&self, who: usize) {
        assert_eq!(self.callers[who].replies, "");
        assert!(self.callers[who].waits.is_some());
    }

    /// Its connection is closed.
    fn close(&mut self, who: usize) {
        let caller = &mut self.callers[who];
        caller.waits = None;
        caller.client.end_key_wait(&self.server.shared, true);
        self.settle();
    }

    /// Waits until the time of a waiting request is over.
    fn pass_deadline(&self, who: usize) {
        let deadline_ms = self.callers[who].client.key_wait.deadline_ms();
        while duramen_config::clock::now_ms() < deadline_ms {
            std::thread::yield_now();
        }
    }

    fn keys_waited_for(&self) -> usize {
        self.server.shared.waiters().keys()
    }
}

fn pair(key: &str, item: &str) -> String {
    format!(
        "*2\r\n${}\r\n{key}\r\n${}\r\n{item}\r\n",
        key.len(),
        item.len()
    )
}

#[test]
fn the_oldest_waiter_is_served_first_and_each_push_serves_as_many_as_it_can() {
    let mut world = World::new(7);
    for who in 0..5 {
        world.wait(who, "BLPOP q 0");
    }
    world.expect(6, "RPUSH q a", ":1\r\n");
    world.got(0, &pair("q", "a"));
    world.expect(6, "RPUSH q b c d", ":3\r\n");
    for (who, item) in [(1, "b"), (2, "c"), (3, "d")] {
        world.got(who, &pair("q", item));
    }
    world.still_waits(4);
    world.expect(6, "RPUSH q e f", ":2\r\n");
    world.got(4, &pair("q", "e"));
    assert_eq!(world.answered, [0, 1, 2, 3, 4]);
    assert_eq!(world.shows, 5, "nobody is shown in vain");
    world.expect(5, "BLPOP q 0", &pair("q", "f"));
    assert_eq!(world.keys_waited_for(), 0);
}

#[test]
fn the_first_key_with_elements_is_taken_in_the_order_of_the_request() {
    let mut world = World::new(3);
    world.wait(0, "BRPOP a b a 0");
    assert_eq!(world.keys_waited_for(), 2);
    world.expect(1, "MULTI", "+OK\r\n");
    world.ask(1, "RPUSH b 1 2\nRPUSH a 3");
    world.expect(1, "EXEC", "*2\r\n:2\r\n:1\r\n");
    world.got(0, &pair("a", "3"));
    world.expect(2, "BRPOP a b 0", &pair("b", "2"));
    assert_eq!(world.keys_waited_for(), 0);
}

/// A newcomer finds an element that belongs to a client that waits and was woken.
#[test]
fn nobody_overtakes_a_client_that_waits() {
    let mut world = World::new(3);
    world.wait(0, "BLPOP q 0");
    world.show(2, "RPUSH q a"); // the waiter has not looked yet
    world.show(1, "BLPOP q 0");
    world.settle();
    world.got(0, &pair("q", "a"));
    world.still_waits(1);
    world.expect(2, "RPUSH q b", ":1\r\n:1\r\n");
    world.got(1, &pair("q", "b"));
}

#[test]
fn a_client_that_goes_away_loses_nothing() {
    let mut world = World::new(4);
    world.wait(0, "BLPOP q 0");
    world.wait(1, "BLPOP q 0");
    world.show(2, "RPUSH q a");
    world.close(0); // it was woken and has not looked
    world.got(1, &pair("q", "a"));
    world.wait(3, "BLPOP q 0");
    world.close(3);
    world.expect(2, "LLEN q", ":1\r\n:0\r\n");
    assert_eq!(world.keys_waited_for(), 0);
}

#[test]
fn values_of_other_types_wake_nobody() {
    let mut world = World::new(3);
    world.wait(0, "BLPOP k 0");
    world.wait(1, "BZPOPMIN k 0");
    for request in ["SADD k a", "DEL k", "HSET k a b", "DEL k", "SET k v"] {
        world.ask(2, request);
    }
    world.expect(2, "GETDEL k", "$1\r\nv\r\n");
    assert_eq!(world.shows, 0);
    world.expect(2, "ZADD k 2 b 1 a", ":2\r\n");
    world.still_waits(0);
    world.got(1, "*3\r\n$1\r\nk\r\n$1\r\na\r\n$1\r\n1\r\n");
    // Both types: a waiter of one is not behind those of the other.
    world.expect(1, "BZPOPMAX k 0", "*3\r\n$1\r\nk\r\n$1\r\nb\r\n$1\r\n2\r\n");
    world.expect(2, "RPUSH k x", ":1\r\n");
    world.got(0, &pair("k", "x"));
}

#[test]
fn every_command_that_makes_a_list_or_a_sorted_set_wakes() {
    let lists = [
        "RPUSH k a",
        "LPUSH k a",
        "RPUSH from a\nRENAME from k",
        "RPUSH from a\nRENAMENX from k",
        "RPUSH from a\nCOPY from k",
        "RPUSH from a\nLMOVE from k LEFT RIGHT",
        "RPUSH from a\nRPOPLPUSH from k",
        "RPUSH from a\nBLMOVE from k LEFT RIGHT 0",
        "RPUSH from a\nSORT from ALPHA STORE k",
        "SELECT 1\nRPUSH k a\nMOVE k 0",
        "RESTORE k 0 LIST",
        "MULTI\nRPUSH k a\nEXEC",
        "SELECT 1\nRPUSH k a\nSWAPDB 0 1",
    ];
    let sets = [
        "ZADD k 1 a",
        "ZINCRBY k 1 a",
        "ZADD from 1 a\nZUNIONSTORE k 1 from",
        "ZADD from 1 a\nZINTERSTORE k 1 from",
        "ZADD from 1 a\nZDIFFSTORE k 1 from",
        "ZADD from 1 a\nZRANGESTORE k from 0 -1",
        "GEOADD k 1 1 a",
        "GEOADD from 1 1 a\nGEOSEARCHSTORE k from FROMLONLAT 1 1 BYRADIUS 9 km ASC",
        "GEOADD from 1 1 a\nGEORADIUS from 1 1 9 km STORE k",
    ];
    let all = lists.iter().map(|way| ("BLPOP k 0", way));
    let all = all.chain(sets.iter().map(|way| ("BZPOPMIN k 0", way)));
    for (request, way) in all {
        for writer in [1, 2] {
            let mut world = World::new(3);
            world.wait(0, request);
            if way.starts_with("RESTORE") {
                world.ask(writer, "RPUSH from a");
                let dump = super::run_bytes(
                    &mut world.executors[writer % 2],
                    &mut world.callers[writer].client,
                    &[b"DUMP", b"from"],
                );
                let start = dump.iter().position(|b| *b == b'\n').expect("a length") + 1;
                let value = &dump[start..dump.len() - 2];
                super::run_bytes(
                    &mut world.executors[writer % 2],
                    &mut world.callers[writer].client,
                    &[b"RESTORE", b"k", b"0", value],
                );
                world.settle();
            } else {
                for line in way.split('\n') {
                    let reply = world.ask(writer, line);
                    assert!(!reply.starts_with('-'), "{line}: {reply}");
                }
            }
            assert_eq!(world.callers[0].waits, None, "{way} by {writer}");
            let reply = &world.callers[0].replies;
            assert!(reply.contains("\r\nk\r\n$1\r\na\r\n"), "{way}: {reply}");
        }
    }
}

#[test]
fn a_wait_that_ends_with_an_error_passes_the_element_on() {
    let mut world = World::new(4);
    world.ask(3, "SET string x");
    world.wait(0, "BLMOVE q string LEFT RIGHT 0");
    world.wait(1, "BRPOPLPUSH q to 0");
    world.expect(3, "RPUSH q a", ":1\r\n");
    let reply = std::mem::take(&mut world.callers[0].replies);
    assert!(reply.starts_with("-WRONGTYPE"), "{reply}");
    world.got(1, "$1\r\na\r\n");
    world.expect(3, "LRANGE to 0 -1", "*1\r\n$1\r\na\r\n");
    // An element that is moved wakes those who wait for it there.
    world.wait(2, "BLPOP to2 0");
    world.wait(0, "BLMOVE q to2 LEFT RIGHT 0");
    world.expect(3, "RPUSH q b", ":1\r\n");
    world.got(0, "$1\r\nb\r\n");
    world.got(2, &pair("to2", "b"));
}

#[test]
fn nothing_waits_inside_a_transaction() {
    let mut world = World::new(2);
    let requests = [
        ("BLPOP q 0", "*-1\r\n"),
        ("BLMOVE q to LEFT RIGHT 0", "$-1\r\n"),
        ("BRPOPLPUSH q to 0", "$-1\r\n"),
        ("BLMPOP 0 1 q LEFT", "*-1\r\n"),
        ("BZPOPMIN q 0", "*-1\r\n"),
        ("BZMPOP 0 1 q MIN", "*-1\r\n"),
    ];
    world.expect(0, "MULTI", "+OK\r\n");
    let mut replies = format!("*{}\r\n", requests.len());
    for (request, reply) in requests {
        world.expect(0, request, "+QUEUED\r\n");
        replies.push_str(reply);
    }
    world.expect(0, "EXEC", &replies);
    // It takes what it has put there, although another client waits.
    world.wait(1, "BLPOP q 0");
    world.ask(0, "MULTI\nRPUSH q a\nBLPOP q 0");
    let replies = format!("*2\r\n:1\r\n{}", pair("q", "a"));
    world.expect(0, "EXEC", &replies);
    world.still_waits(1);
}

#[test]
fn times_are_read_as_by_redis() {
    let mut world = World::new(2);
    for (timeout, text) in [
        ("x", "timeout is not a float or out of range"),
        ("nan", "timeout is not a float or out of range"),
        ("", "timeout is not a float or out of range"),
        ("-1", "timeout is negative"),
        ("-0.001", "timeout is negative"),
        ("-inf", "timeout is negative"),
        ("inf", "timeout is out of range"),
        ("1e300", "timeout is out of range"),
        ("9223372036854775", "timeout is out of range"),
        ("92233720368547758", "timeout is out of range"),
    ] {
        let request: Vec<&[u8]> = vec![b"BLPOP", b"q", timeout.as_bytes()];
        let reply = super::run_bytes(
            &mut world.executors[0],
            &mut world.callers[0].client,
            &request,
        );
        let reply = String::from_utf8(reply).expect("text");
        assert_eq!(reply, format!("-ERR {text}\r\n"), "{timeout}");
    }
    world.wait(0, "BLPOP q -0.0001"); // a part of a millisecond: none, and so for ever
    assert_eq!(world.callers[0].client.key_wait.deadline_ms(), 0);
    world.wait(1, "BLPOP q 0.0101");
    let deadline_ms = world.callers[1].client.key_wait.deadline_ms();
    let left_ms = deadline_ms.saturating_sub(duramen_config::clock::now_ms());
    assert!(deadline_ms > 0 && left_ms <= 11, "{left_ms}");
    world.pass_deadline(1);
    world.show_again(1);
    world.got(1, "*-1\r\n");
    world.still_waits(0);
}

#[test]
fn a_wait_is_unblocked_once() {
    let mut world = World::new(3);
    let id = |world: &World, who: usize| world.callers[who].client.id();
    world.wait(0, "BLPOP q 0");
    world.wait(1, "BLMOVE q to LEFT LEFT 0");
    let (first, second) = (id(&world, 0), id(&world, 1));
    world.expect(2, &format!("CLIENT UNBLOCK {first}"), ":1\r\n");
    world.got(0, "*-1\r\n");
    world.expect(2, &format!("CLIENT UNBLOCK {first}"), ":0\r\n");
    world.expect(2, &format!("CLIENT UNBLOCK {second} ERROR"), ":1\r\n");
    world.got(1, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    world.expect(2, "CLIENT UNBLOCK 1000", ":0\r\n");
    world.expect(2, "RPUSH q a", ":1\r\n");
    assert_eq!(world.keys_waited_for(), 0);
}

#[test]
fn a_dropped_table_wakes_with_an_error() {
    let mut world = World::new(2);
    world.ask(0, "DURAMEN.TABLE CREATE t\nDURAMEN.USE t");
    world.wait(0, "BLPOP q 0");
    world.ask(1, "DURAMEN.TABLE DROP t");
    let reply = std::mem::take(&mut world.callers[0].replies);
    assert!(reply.starts_with("-ERR table"), "{reply}");
    assert_eq!(world.keys_waited_for(), 0);
}

/// The requests behind a push in a pipeline come after the clients that it wakes.
#[test]
fn a_waiter_of_the_same_thread_is_before_the_rest_of_a_pipeline() {
    let mut world = World::new(3);
    world.wait(0, "BLPOP q 0");
    let input = b"RPUSH q a\r\nLPOP q\r\n";
    let requests = super::parsed(input);
    let mut out = Vec::new();
    let caller = &mut world.callers[2];
    let mut turn = [crate::executor::Turn::new(
        &mut caller.client,
        &requests,
        input,
        &mut out,
    )];
    world.executors[0].run(&mut turn);
    assert_eq!(turn[0].executed, 1);
    assert_eq!(out, b":1\r\n");
    world.settle();
    world.got(0, &pair("q", "a"));
}

/// The first waiter was told of both keys, and took from the first: nobody was told of the second.
#[test]
fn a_client_that_is_served_from_one_key_passes_the_others_on() {
    for (push, wait, kind) in [("RPUSH", "BLPOP", ""), ("ZADD", "BZPOPMIN", " 1")] {
        let mut world = World::new(3);
        world.wait(0, &format!("{wait} k j i 0"));
        world.wait(1, &format!("{wait} i 0"));
        let pushes = format!("MULTI\n{push} k{kind} a\n{push} i{kind} b\nEXEC");
        world.ask(2, &pushes);
        assert_eq!(world.answered, [0, 1], "{wait}");
        assert!(world.callers[1].replies.contains("\r\nb\r\n"), "{wait}");
        assert_eq!(world.keys_waited_for(), 0);
    }
}

/// A client that waited for two keys, of which a script had reserved one, was not served from the
/// other one, and kept its place there: all behind it waited for the script too.
#[test]
fn a_reserved_key_keeps_elements_of_others_back_only_if_it_has_some() {
    let mut world = World::new(5);
    let [waiter, holder] = [0, 4].map(|who| world.callers[who].client.id());
    let session = world.executors[0].session().expect("a session");
    let hash = session.pin().hash(b"a");
    let shared = world.server.shared.this().expect("it is there");
    let reserve = || {
        let (keys, most) = (std::iter::once(hash), Duration::from_secs(600));
        assert!(shared.commands.reserve(holder, keys, most));
    };
    reserve();
    world.wait(0, "BLPOP a b 0");
    world.wait(1, "BLPOP b 0");
    world.expect(2, "RPUSH b 1 2", ":2\r\n");
    world.got(0, &pair("b", "1"));
    world.got(1, &pair("b", "2"));
    // An element of the reserved key is before those of keys behind it.
    for is_unblocked in [true, false] {
        shared.commands.release(holder);
        world.wait(0, "BLPOP a b 0");
        world.show(3, "RPUSH a x\nRPUSH b y"); // the waiter has not looked yet
        reserve();
        world.settle();
        let waiting = &world.callers[0];
        assert_eq!(waiting.replies, "");
        assert!(matches!(ending(&waiting.client), Ending::Paused { .. }));
        if is_unblocked {
            world.expect(1, &format!("CLIENT UNBLOCK {waiter}"), ":1\r\n");
            world.expect(0, "BLPOP a b 0", "*-1\r\n");
            shared.commands.release(holder);
            world.expect(3, "DEL a b", ":1\r\n:1\r\n:2\r\n");
        } else {
            shared.commands.release(holder);
            world.expect(0, "BLPOP a b 0", &pair("a", "x"));
        }
    }
    assert_eq!(world.keys_waited_for(), 0);
}

/// The time of a request whose first look met a reserved key began again at each look, and CLIENT
/// UNBLOCK did not end its wait.
#[test]
fn the_time_of_a_request_goes_on_before_a_reserved_key() {
    let mut world = World::new(3);
    let [waiter, holder] = [0, 2].map(|who| world.callers[who].client.id());
    let session = world.executors[0].session().expect("a session");
    let hash = session.pin().hash(b"a");
    let shared = world.server.shared.this().expect("it is there");
    world.expect(1, "RPUSH a x", ":1\r\n");
    for request in ["BLPOP a 0.5", "BLPOP a 0"] {
        let (keys, most) = (std::iter::once(hash), Duration::from_secs(600));
        assert!(shared.commands.reserve(holder, keys, most));
        for _ in 0..2 {
            world.expect(0, request, "");
            let ended = ending(&world.callers[0].client);
            assert!(matches!(ended, Ending::Paused { .. }), "{request}");
        }
        match request {
            "BLPOP a 0" => world.expect(1, &format!("CLIENT UNBLOCK {waiter}"), ":1\r\n"),
            _ => world.pass_deadline(0),
        }
        world.expect(0, request, "*-1\r\n");
    }
    shared.commands.release(holder);
    world.expect(0, "BLPOP a 0", &pair("a", "x"));
    assert_eq!(world.keys_waited_for(), 0);
}

/// CLIENT PAUSE kept the end of a wait back; when it was over, an element was taken for a client
/// that had given up.
#[test]
fn a_wait_ends_during_a_pause() {
    let mut world = World::new(3);
    let id = world.callers[0].client.id();
    for (how, reply) in [
        ("TIMEOUT", "*-1\r\n"),
        (
            "ERROR",
            "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n",
        ),
    ] {
        world.wait(0, "BLPOP k 0");
        world.expect(1, "CLIENT PAUSE 100000 WRITE", "+OK\r\n");
        world.expect(1, &format!("CLIENT UNBLOCK {id} {how}"), ":1\r\n");
        world.got(0, reply);
        world.expect(1, "CLIENT UNPAUSE", "+OK\r\n");
    }
    for mode in ["WRITE", "ALL"] {
        world.wait(0, "BLPOP k 0.1");
        world.expect(1, &format!("CLIENT PAUSE 100000 {mode}"), "+OK\r\n");
        world.pass_deadline(0);
        world.show_again(0);
        world.got(0, "*-1\r\n");
        world.expect(1, "CLIENT UNPAUSE", "+OK\r\n");
    }
}

#[test]
fn a_client_whose_time_is_over_takes_nothing() {
    let mut world = World::new(3);
    world.wait(0, "BLPOP k 0.3"); // `wait` and the next one take less
    world.wait(1, "BLPOP k 0");
    world.pass_deadline(0);
    world.expect(2, "RPUSH k a", ":1\r\n");
    world.got(0, "*-1\r\n");
    world.got(1, &pair("k", "a"));
}

/// Each of many readers searched the stream from its start.
#[test]
fn readers_of_a_stream_that_wait_at_different_places_see_what_is_behind_them() {
    let mut world = World::new(6);
    for key in ["k", "other"] {
        let adds: Vec<String> = (1..=200)
            .map(|n| format!("XADD {key} {n}-1 f v{n}"))
            .collect();
        world.ask(0, &adds.join("\n"));
    }
    for who in 1..5 {
        world.wait(who, "XREAD BLOCK 0 STREAMS k other $ $");
    }
    world.wait(5, "XREAD BLOCK 0 COUNT 1 STREAMS k 200-5");
    world.ask(
        0,
        "XADD k 201-1 f x\nXADD other 201-1 f y\nXADD k 202-1 f z",
    );
    let entry =
        |id: &str, value: &str| format!("*2\r\n$5\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\n{value}\r\n");
    let (first, second, third) = (
        entry("201-1", "x"),
        entry("202-1", "z"),
        entry("201-1", "y"),
    );
    for who in 1..5 {
        let replies = std::mem::take(&mut world.callers[who].replies);
        let k = format!("*2\r\n$1\r\nk\r\n*2\r\n{first}{second}");
        let other = format!("*2\r\n$5\r\nother\r\n*1\r\n{third}");
        assert_eq!(replies, format!("*2\r\n{k}{other}"), "{who}");
    }
    world.got(5, &format!("*1\r\n*2\r\n$1\r\nk\r\n*1\r\n{first}"));
}

/// Each of them was shown once, but searched the stream from its start: one XADD took 270 ms.
#[test]
fn an_entry_of_a_stream_shows_each_waiting_reader_once_and_is_searched_once_by_a_thread() {
    const READERS: usize = 500;
    let mut world = World::new(1 + READERS);
    let adds: Vec<String> = (1..=200).map(|n| format!("XADD k {n}-1 f v")).collect();
    world.ask(0, &adds.join("\n"));
    for who in 1..=READERS {
        world.wait(who, "XREAD BLOCK 0 STREAMS k $");
    }
    let searches = |world: &World| {
        let of = |executor: &Executor| executor.thread.stream_place().map_or(0, |it| it.searches);
        world.executors.each_ref().map(of)
    };
    let before = searches(&world);
    world.ask(0, "XADD k 201-1 f v");
    assert_eq!((world.shows, world.answered.len()), (READERS, READERS));
    assert_eq!(searches(&world), before.map(|number| number + 1));
}
