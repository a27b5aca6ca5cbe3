//! Publish and subscribe, without sockets.

use super::{Server, Session, ending, run};
use crate::command::turn::Ending;
use crate::executor::Executor;
use crate::pubsub::may_keep_subscriptions;
use crate::state::client::Client;
use crate::state::pubsub::subscribers::write_message;
use crate::threads::mailbox::Message;
use crate::threads::publication::Kind;
use duramen_base::planted::{Bug, with_bug};
use duramen_config::{Level, ServerConfig};
use duramen_wire::resp::{Encoder, Protocol};

/// A server of two threads, with a client of each.
struct Pair {
    server: Server,
    executors: [Executor; 2],
    clients: [Client; 2],
}

impl Pair {
    fn new() -> Pair {
        Pair::of(Server::new(2))
    }

    fn of(server: Server) -> Pair {
        Pair {
            executors: [server.executor(0), server.executor(1)],
            clients: [server.client(0), server.client(1)],
            server,
        }
    }

    fn ask(&mut self, who: usize, requests: &str) -> String {
        let input = requests.replace('\n', "\r\n") + "\r\n";
        run(
            &mut self.executors[who],
            &mut self.clients[who],
            input.as_bytes(),
        )
    }

    #[track_caller]
    fn expect(&mut self, who: usize, requests: &str, reply: &str) {
        assert_eq!(self.ask(who, requests), reply, "{requests}");
    }

    /// The messages that a client of a thread gets, as the reactor would append them.
    fn messages(&mut self, who: usize) -> String {
        delivered(&self.server, &self.executors[who], &self.clients[who])
    }
}

/// The messages of a thread's mailbox that this client gets.
pub(super) fn delivered(server: &Server, executor: &Executor, client: &Client) -> String {
    let record = client.record();
    let (mut messages, mut out) = (Vec::new(), Vec::new());
    server.shared.threads[record.thread]
        .mailbox
        .take(&mut messages);
    for message in messages {
        if let Message::Publish(publication) = message {
            for name in publication.names() {
                let mut slots = executor.subscribers().receivers(&publication, name);
                if slots.any(|to| to.0 == record.slot && publication.number >= to.1) {
                    let push = Encoder::new(&mut out, client.protocol());
                    write_message(push, &publication, name);
                }
            }
        }
    }
    String::from_utf8(out).expect("text")
}

/// A reply or a message as an array of strings, where a number begins with a colon.
fn array(items: &[&str]) -> String {
    let mut text = format!("*{}\r\n", items.len());
    for item in items {
        match item.starts_with(':') {
            true => text.push_str(&format!("{item}\r\n")),
            false => text.push_str(&format!("${}\r\n{item}\r\n", item.len())),
        }
    }
    text
}

#[test]
fn messages_reach_the_subscribers_of_other_threads_and_are_counted() {
    let mut pair = Pair::new();
    let replies = array(&["subscribe", "a", ":1"]) + &array(&["subscribe", "b", ":2"]);
    pair.expect(0, "SUBSCRIBE a b", &replies);
    pair.expect(0, "PSUBSCRIBE a*", &array(&["psubscribe", "a*", ":3"]));
    pair.expect(0, "SUBSCRIBE a", &array(&["subscribe", "a", ":3"]));
    pair.expect(
        1,
        "PUBLISH a one\nPUBLISH b two\nPUBLISH c three",
        ":2\r\n:1\r\n:0\r\n",
    );
    let got = array(&["message", "a", "one"])
        + &array(&["pmessage", "a*", "a", "one"])
        + &array(&["message", "b", "two"]);
    assert_eq!(pair.messages(0), got);
    pair.expect(
        1,
        "PUBSUB NUMSUB a b c",
        &array(&["a", ":1", "b", ":1", "c", ":0"]),
    );
    pair.expect(1, "PUBSUB NUMPAT", ":1\r\n");
    pair.expect(1, "PUBSUB CHANNELS b*", &array(&["b"]));
    pair.expect(0, "UNSUBSCRIBE a", &array(&["unsubscribe", "a", ":2"]));
    pair.expect(0, "UNSUBSCRIBE", &array(&["unsubscribe", "b", ":1"]));
    pair.expect(
        0,
        "UNSUBSCRIBE",
        "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:1\r\n",
    );
    pair.expect(0, "PUNSUBSCRIBE", &array(&["punsubscribe", "a*", ":0"]));
    pair.expect(1, "PUBLISH a one", ":0\r\n");
    pair.expect(0, "GET a", "$-1\r\n");
}

#[test]
fn shard_channels_are_apart_from_channels() {
    let mut pair = Pair::new();
    pair.expect(0, "SSUBSCRIBE a", &array(&["ssubscribe", "a", ":1"]));
    pair.expect(0, "SUBSCRIBE a", &array(&["subscribe", "a", ":1"]));
    pair.expect(1, "SPUBLISH a x\nPUBLISH a y", ":1\r\n:1\r\n");
    let got = array(&["smessage", "a", "x"]) + &array(&["message", "a", "y"]);
    assert_eq!(pair.messages(0), got);
    pair.expect(1, "PUBSUB SHARDCHANNELS", &array(&["a"]));
    pair.expect(1, "PUBSUB SHARDNUMSUB a b", &array(&["a", ":1", "b", ":0"]));
    pair.expect(0, "SUNSUBSCRIBE", &array(&["sunsubscribe", "a", ":0"]));
    pair.expect(
        0,
        "SUNSUBSCRIBE",
        "*3\r\n$12\r\nsunsubscribe\r\n$-1\r\n:0\r\n",
    );
    let refused = "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n";
    pair.expect(0, "GET a", refused);
}

/// A message in the mailbox was for clients that subscribed later; and a client that ended its
/// subscription did not get messages that were counted for it.
#[test]
fn a_subscription_has_exact_ends_although_messages_wait_in_the_mailbox() {
    let mut pair = Pair::new();
    let mut second = pair.server.client(0);
    pair.ask(0, "SUBSCRIBE a");
    pair.expect(1, "PUBLISH a one", ":1\r\n");
    run(&mut pair.executors[0], &mut second, b"SUBSCRIBE a\r\n");
    pair.expect(1, "PUBLISH a two", ":2\r\n");
    let ended = pair.ask(0, "UNSUBSCRIBE a\nSUBSCRIBE a");
    let own = array(&["message", "a", "one"])
        + &array(&["message", "a", "two"])
        + &array(&["unsubscribe", "a", ":0"])
        + &array(&["subscribe", "a", ":1"]);
    assert_eq!(ended, own);
    pair.expect(1, "PUBLISH a three", ":2\r\n");
    // Both are clients of one thread: the mailbox is taken once.
    let (mut messages, mut got) = (Vec::new(), Vec::new());
    pair.server.shared.threads[0].mailbox.take(&mut messages);
    let slots = [pair.clients[0].record().slot, second.record().slot];
    for message in messages {
        if let Message::Publish(publication) = message {
            let subscribers = pair.executors[0].subscribers();
            for (slot, since) in subscribers.receivers(&publication, None) {
                let who = slots.iter().position(|known| *known == slot);
                if publication.number >= since {
                    got.push((who.expect("a client"), publication.payload.to_vec()));
                }
            }
        }
    }
    let expected = [(1, &b"two"[..]), (0, b"three"), (1, b"three")];
    assert!(
        got.iter().map(|(who, text)| (*who, &text[..])).eq(expected),
        "{got:?}"
    );
}

/// Each pattern gets the messages from before its end, and no other; the mailbox is looked at once.
#[test]
fn the_ends_of_many_patterns_are_exact() {
    let mut pair = Pair::new();
    pair.ask(0, "SUBSCRIBE ab");
    pair.ask(0, "PSUBSCRIBE a*");
    pair.expect(1, "PUBLISH ab one", ":2\r\n");
    pair.ask(0, "PSUBSCRIBE *b x*");
    pair.expect(1, "PUBLISH ab two\nPUBLISH x three", ":3\r\n:1\r\n");
    let got = array(&["pmessage", "*b", "ab", "two"])
        + &array(&["punsubscribe", "*b", ":3"])
        + &array(&["pmessage", "a*", "ab", "one"])
        + &array(&["pmessage", "a*", "ab", "two"])
        + &array(&["punsubscribe", "a*", ":2"])
        + &array(&["pmessage", "x*", "x", "three"])
        + &array(&["punsubscribe", "x*", ":1"]);
    pair.expect(0, "PUNSUBSCRIBE", &got);
    let got = ["one", "two"].map(|text| array(&["message", "ab", text]));
    assert_eq!(pair.messages(0), got.concat());
}

/// Messages that wait were appended for each of many patterns, whatever `output-limit` says.
#[test]
fn a_client_whose_waiting_messages_do_not_fit_is_closed() {
    let limit = 1 << 20;
    let mut pair = Pair::of(Server::with(ServerConfig {
        level: Some(Level::Memory),
        threads: 2,
        output_limit_bytes: limit,
        ..ServerConfig::default()
    }));
    let patterns: Vec<_> = (1..40).map(|n| "*".repeat(n)).collect();
    pair.ask(0, &format!("PSUBSCRIBE {}", patterns.join(" ")));
    let request = array(&["PUBLISH", "a", &"x".repeat(limit / 10)]);
    let (executor, client) = (&mut pair.executors[1], &mut pair.clients[1]);
    assert_eq!(run(executor, client, request.as_bytes()), ":39\r\n");
    let replies = pair.ask(0, "PUNSUBSCRIBE");
    assert_eq!(ending(&pair.clients[0]), Ending::CloseNow);
    assert!(replies.len() <= 2 * limit, "{} bytes", replies.len());
}

/// redis-server pushes these, so they are no replies that could be switched off.
#[test]
fn confirmations_of_subscriptions_are_not_silent() {
    let mut pair = Pair::new();
    let confirmed = array(&["subscribe", "a", ":1"]) + &array(&["unsubscribe", "a", ":0"]);
    let requests = "CLIENT REPLY OFF\nSUBSCRIBE a\nGET k\nUNSUBSCRIBE a\nGET k\nSUBSCRIBE";
    pair.expect(0, requests, &confirmed);
    let requests = "CLIENT REPLY SKIP\nSUBSCRIBE a\nUNSUBSCRIBE a";
    pair.expect(1, requests, &confirmed);
}

/// The client takes both for failed, and would believe that it has the first channel.
#[test]
fn changes_of_subscriptions_that_look_failed_mislead_a_client() {
    let mut pair = Pair::new();
    pair.ask(0, "SUBSCRIBE a");
    let before = pair.clients[0].mode();
    pair.ask(0, "PING\nUNSUBSCRIBE c");
    assert!(!pair.clients[0].mode().misleads(before));
    pair.ask(0, "SUBSCRIBE b\nUNSUBSCRIBE a");
    assert!(pair.clients[0].mode().misleads(before));
}

#[test]
fn a_request_that_fails_has_published_nothing() {
    let mut pair = Pair::new();
    pair.ask(0, "SUBSCRIBE a");
    pair.expect(
        1,
        "MULTI\nPUBLISH a one\nSET k v\nINCR k\nEXEC",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:1\r\n+OK\r\n-ERR value is not an integer or out of range\r\n",
    );
    assert_eq!(pair.messages(0), array(&["message", "a", "one"]));
    pair.ask(1, "WATCH k");
    pair.server.advance(1);
    let mut other = pair.server.client(1);
    run(&mut pair.executors[1], &mut other, b"SET k w\r\n");
    pair.expect(1, "MULTI\nPUBLISH a two\nEXEC", "+OK\r\n+QUEUED\r\n*-1\r\n");
    pair.expect(
        1,
        "MULTI\nPUBLISH a three\nDISCARD",
        "+OK\r\n+QUEUED\r\n+OK\r\n",
    );
    assert_eq!(pair.messages(0), "");
}

#[test]
fn a_silent_publisher_has_no_reply_and_is_heard() {
    let mut pair = Pair::new();
    pair.ask(0, "SUBSCRIBE a");
    let requests =
        "CLIENT REPLY SKIP\nPUBLISH a one\nPUBLISH a two\nCLIENT REPLY OFF\nPUBLISH a three";
    pair.expect(1, requests, ":1\r\n");
    let got = ["one", "two", "three"].map(|text| array(&["message", "a", text]));
    assert_eq!(pair.messages(0), got.concat());
}

/// `CLIENT REPLY OFF` dropped the replies of `SUBSCRIBE`, for which clients wait.
#[test]
fn a_silent_subscriber_is_told_of_its_subscriptions() {
    let mut pair = Pair::new();
    let requests = "CLIENT REPLY OFF\nSUBSCRIBE a\nPING\nPSUBSCRIBE";
    pair.expect(0, requests, &array(&["subscribe", "a", ":1"]));
    pair.expect(1, "PUBLISH a x", ":1\r\n");
    assert_eq!(pair.messages(0), array(&["message", "a", "x"]));
    pair.expect(0, "UNSUBSCRIBE a", &array(&["unsubscribe", "a", ":0"]));
    pair.expect(0, "PING", "");
}

#[test]
fn subscribing_in_a_transaction_limits_the_connection_after_it() {
    let mut pair = Pair::new();
    let replies = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n".to_owned()
        + &array(&["subscribe", "a", ":1"])
        + "-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n"
        + "+OK\r\n";
    pair.expect(
        0,
        "MULTI\nSUBSCRIBE a\nSSUBSCRIBE a\nSET k v\nEXEC",
        &replies,
    );
    assert!(pair.ask(0, "GET k").starts_with("-ERR Can't execute 'get'"));
    pair.expect(0, "PING", &array(&["pong", ""]));
    pair.expect(0, "PING x", &array(&["pong", "x"]));
    pair.expect(0, "RESET", "+RESET\r\n");
    pair.expect(0, "GET k", "$1\r\nv\r\n");
    pair.expect(1, "PUBLISH a x", ":0\r\n");
}

#[test]
fn resp3_has_pushes_and_allows_everything() {
    let mut pair = Pair::new();
    assert!(pair.ask(0, "HELLO 3").starts_with("%7"));
    pair.expect(
        0,
        "SUBSCRIBE a",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    );
    pair.expect(0, "SET k v\nGET k\nPING", "+OK\r\n$1\r\nv\r\n+PONG\r\n");
    pair.expect(0, "PUBLISH a x", ":1\r\n");
    let message = ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n";
    assert_eq!(pair.messages(0), message);
    assert_eq!(pair.clients[0].protocol(), Protocol::Resp3);
    pair.ask(0, "HELLO 2");
    assert!(pair.ask(0, "GET k").starts_with("-ERR Can't execute 'get'"));
}

fn push(items: &[&str]) -> String {
    array(items).replacen('*', ">", 1)
}

/// A client publishes to itself between its own subscription and the end of that.
fn publishes_between() -> String {
    let mut pair = Pair::new();
    pair.ask(0, "HELLO 3");
    pair.ask(0, "SUBSCRIBE a\nPUBLISH a m\nUNSUBSCRIBE a")
}

/// The reply was 0, and nobody got the message.
#[test]
fn a_message_leaves_before_a_subscription_behind_it_changes() {
    let (begun, ended) = (
        push(&["subscribe", "a", ":1"]),
        push(&["unsubscribe", "a", ":0"]),
    );
    let message = push(&["message", "a", "m"]);
    assert_eq!(
        publishes_between(),
        begun.clone() + ":1\r\n" + &message + &ended
    );
    let mut pair = Pair::new();
    pair.ask(0, "HELLO 3");
    pair.expect(
        0,
        "PUBLISH a m\nSUBSCRIBE a",
        &(":0\r\n".to_owned() + &begun),
    );
    let patterns = push(&["psubscribe", "*", ":2"]);
    pair.expect(
        0,
        "PUBLISH b m\nPSUBSCRIBE *",
        &(":0\r\n".to_owned() + &patterns),
    );
    assert_eq!(pair.messages(0), "");
    for last in ["RESET", "QUIT", "HELLO 2"] {
        let mut pair = Pair::new();
        pair.ask(0, "HELLO 3\nSUBSCRIBE a");
        let replies = pair.ask(0, &format!("PUBLISH a m\n{last}"));
        assert!(replies.starts_with(":1\r\n"), "{last}: {replies}");
    }
    let mut pair = Pair::new();
    pair.ask(0, "HELLO 3");
    pair.ask(0, "PUBLISH a m\nMULTI\nSUBSCRIBE a\nEXEC");
    assert_eq!(pair.messages(0), "");
    pair.expect(
        0,
        "CLIENT REPLY OFF\nPUBLISH a m\nUNSUBSCRIBE a",
        &(message + &ended),
    );
}

#[test]
fn effects_that_are_overtaken_are_found() {
    let replies = with_bug(Bug::EffectsAreOvertaken, publishes_between);
    assert!(replies.contains(":0\r\n>3\r\n$11"), "{replies}");
}

#[test]
fn clients_and_figures_show_subscriptions() {
    let mut session = Server::session(1);
    session.ask("HELLO 3");
    session.ask("SUBSCRIBE a b");
    session.ask("PSUBSCRIBE p*");
    session.ask("SSUBSCRIBE s");
    let info = session.ask("CLIENT INFO");
    assert!(
        info.contains(" flags=P db=0 sub=2 psub=1 ssub=1 "),
        "{info}"
    );
    assert!(session.ask("CLIENT LIST TYPE pubsub").contains("sub=2"));
    session.expect("CLIENT LIST TYPE normal", "=4\r\ntxt:\r\n");
    for (section, field) in [
        ("clients", "pubsub_clients:1\r\n"),
        ("stats", "pubsub_channels:2\r\n"),
        ("stats", "pubsub_patterns:1\r\n"),
        ("stats", "pubsubshard_channels:1\r\n"),
    ] {
        let info = session.ask(&format!("INFO {section}"));
        assert!(info.contains(field), "{info}");
    }
    session.expect("CLIENT KILL TYPE normal SKIPME no", ":0\r\n");
    session.expect("CLIENT KILL TYPE pubsub SKIPME no", ":1\r\n");
}

/// The user may use the channels `news*`, and the pattern `news*` itself.
#[test]
fn channels_need_a_right() {
    let server = Server::new(1);
    let mut executor = server.executor(0);
    let (mut admin, mut client) = (server.client(0), server.client(0));
    let mut ask = |client: &mut Client, request: &str| {
        run(&mut executor, client, format!("{request}\r\n").as_bytes())
    };
    ask(
        &mut admin,
        "ACL SETUSER u on nopass +@all ~* resetchannels &news*",
    );
    assert_eq!(ask(&mut client, "AUTH u x"), "+OK\r\n");
    let denied = "-NOPERM No permissions to access a channel\r\n";
    for (request, is_denied) in [
        ("PUBLISH news x", false),
        ("PUBLISH old x", true),
        ("SPUBLISH old x", true),
        ("SUBSCRIBE news old", true),
        ("PSUBSCRIBE n*", true),
        ("PSUBSCRIBE newsx", true),
        ("PSUBSCRIBE news*", false),
        ("UNSUBSCRIBE old", false),
        ("SSUBSCRIBE old", true),
        ("SSUBSCRIBE news", false),
    ] {
        if ask(&mut client, request) == denied {
            assert!(is_denied, "{request}");
        } else {
            assert!(!is_denied, "{request}");
        }
    }
    let log = ask(&mut admin, "ACL LOG 1");
    assert!(log.contains("$7\r\nchannel\r\n"), "{log}");
    let dryrun = ask(&mut admin, "ACL DRYRUN u PSUBSCRIBE n*");
    assert!(dryrun.contains("User u has no permissions to access the 'n*' channel"));
    assert!(may_keep_subscriptions(&client, &server.shared));
    ask(&mut admin, "ACL SETUSER u resetchannels &news");
    assert!(
        !may_keep_subscriptions(&client, &server.shared),
        "it has the pattern"
    );
    ask(&mut client, "PUNSUBSCRIBE");
    assert!(may_keep_subscriptions(&client, &server.shared));
}

#[test]
fn too_many_subscriptions_change_nothing() {
    let mut session = Server::session(1);
    // A compiled pattern of this length takes some 30 kB.
    let request = format!("PSUBSCRIBE {}", "a".repeat(1024));
    session.ask(&request);
    let mut failed = String::new();
    for n in 0..4_000 {
        let reply = session.ask(&format!("PSUBSCRIBE {n}{}", "a".repeat(1000)));
        if reply.starts_with('-') {
            failed = reply;
            break;
        }
    }
    assert!(
        failed.contains("subscriptions of this connection"),
        "{failed}"
    );
    let patterns = |session: &Session| session.server.shared.pubsub().count(Kind::Pattern);
    let before = patterns(&session);
    session.expect_error(
        &format!("PSUBSCRIBE b {}", "c".repeat(1000)),
        "ERR the subscriptions",
    );
    session.expect_error(
        &format!("PSUBSCRIBE b {}", "c".repeat(1025)),
        "ERR the pattern",
    );
    assert_eq!(patterns(&session), before);
    session.expect("RESET", "+RESET\r\n");
    assert_eq!(patterns(&session), 0);
}
