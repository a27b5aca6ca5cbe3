//! A member of a cluster, with a view made by the test: which requests are served, redirected and
//! refused.

use super::cluster_member::{ME, Member, OTHER, THIRD, keys, slots};
use super::{Server, Session, ending, run};
use crate::command::turn::Ending;
use duramen_base::ids::{KeyRange, TabletsVersion};
use duramen_format::hash::slot;
use duramen_node::{Ranges, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn own_keys_are_served_and_others_are_told_where() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, foreign) = keys();
    let session = &mut member.session;
    session.expect(&format!("SET {own} 1"), "+OK\r\n");
    session.expect(&format!("INCR {own}"), ":2\r\n");
    let moved = format!("-MOVED {} 10.0.0.1:6379\r\n", slot(foreign.as_bytes()));
    for request in ["GET", "STRLEN", "INCR", "TTL", "DURAMEN.READ", "WATCH"] {
        session.expect(&format!("{request} {foreign}"), &moved);
    }
    session.expect(&format!("SET {foreign} 1"), &moved);
    session.expect(&format!("OBJECT ENCODING {foreign}"), &moved);
    // A redirection does not disturb the rest of the connection.
    session.expect(&format!("GET {own}"), "$1\r\n2\r\n");
    session.expect("PING", "+PONG\r\n");
}

#[test]
fn several_keys_must_be_of_one_slot() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, foreign) = keys();
    let session = &mut member.session;
    const CROSSED: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    session.expect(&format!("MSET {{{own}}}a 1 {{{own}}}b 2"), "+OK\r\n");
    session.expect(
        &format!("MGET {{{own}}}a {own}"),
        "*2\r\n$1\r\n1\r\n$-1\r\n",
    );
    session.expect(&format!("MGET {own} {foreign}"), CROSSED);
    session.expect(&format!("DEL {own} other:{own}"), CROSSED);
    session.expect(&format!("COPY {own} other:{own}"), CROSSED);
    session.expect(&format!("RENAME {own} other:{own}"), CROSSED);
    session.expect(&format!("COPY {{{own}}}a {{{own}}}c"), ":1\r\n");
    let moved = format!("-MOVED {} 10.0.0.1:6379\r\n", slot(foreign.as_bytes()));
    session.expect(&format!("MGET {{{foreign}}}a {{{foreign}}}b"), &moved);
    session.expect(&format!("COPY {{{foreign}}}a {{{foreign}}}b"), &moved);
    // More keys than a group hashes ahead.
    let many = |key: &str| {
        let keys: Vec<String> = (0..100).map(|n| format!("{{{key}}}{n}")).collect();
        keys.join(" ")
    };
    session.expect(&format!("EXISTS {}", many(&own)), ":0\r\n");
    session.expect(&format!("EXISTS {}", many(&foreign)), &moved);
    session.expect(&format!("DEL {} {foreign}", many(&own)), CROSSED);
}

/// Keys after their number, and after STORE, are keys.
#[test]
fn all_keys_of_commands_on_types_are_routed() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, foreign) = keys();
    let s = &mut member.session;
    let moved = format!("-MOVED {} 10.0.0.1:6379\r\n", slot(foreign.as_bytes()));
    const CROSSED: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    s.expect(&format!("RPUSH {own} b a"), ":2\r\n");
    for request in [
        format!("LMPOP 1 {foreign} LEFT"),
        format!("ZUNION 1 {foreign}"),
        format!("SORT {foreign}"),
        format!("GEOSEARCH {foreign} FROMLONLAT 1 1 BYRADIUS 1 m"),
    ] {
        s.expect(&request, &moved);
    }
    for request in [
        format!("LMPOP 2 {own} {foreign} LEFT"),
        format!("ZUNIONSTORE {own} 1 {foreign}"),
        format!("SORT {own} ALPHA STORE {foreign}"),
        format!("GEORADIUS {own} 1 1 1 m STORE {foreign}"),
        format!("BITOP NOT {own} {foreign}"),
        format!("SUNION {own} {foreign}"),
    ] {
        s.expect(&request, CROSSED);
    }
    s.expect(&format!("SORT {own} ALPHA STORE {{{own}}}to"), ":2\r\n");
    s.expect_error(
        &format!("SORT {own} BY w*"),
        "ERR BY option of SORT is not allowed in cluster mode",
    );
    let popped = format!("*2\r\n${}\r\n{own}\r\n*1\r\n$1\r\nb\r\n", own.len());
    s.expect(&format!("LMPOP 2 {{{own}}}none {own} LEFT"), &popped);
}

#[test]
fn what_nobody_serves_waits_and_is_told_so_in_the_end() {
    let mut member = Member::new(1);
    member.lock();
    let (own, _) = keys();
    let session = &mut member.session;
    session.expect(&format!("SET {own} 1"), "");
    assert!(matches!(ending(&session.client), Ending::Paused { .. }));
    // The request has not run; it runs when it is presented again.
    member.tell_halves();
    let session = &mut member.session;
    session.expect(&format!("GET {own}"), "$-1\r\n");
    session.expect(&format!("SET {own} 1"), "+OK\r\n");
    member.lock();
    let session = &mut member.session;
    let began = Instant::now();
    let reply = loop {
        let reply = session.ask(&format!("GET {own}"));
        if !reply.is_empty() {
            break reply;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "patience ends");
        std::thread::yield_now();
    };
    assert!(reply.starts_with("-TRYAGAIN "), "{reply}");
    assert!(began.elapsed() >= Duration::from_millis(900));
    // The patience of the next request starts anew.
    session.expect(&format!("GET {own}"), "");
    member.tell_all_gone();
    let moved = format!("-MOVED {} 10.0.0.1:6379\r\n", slot(own.as_bytes()));
    member.session.expect(&format!("GET {own}"), &moved);
}

#[test]
fn a_pipeline_stops_at_what_has_to_wait() {
    let mut member = Member::new(1);
    let half = slots(0, 8191);
    let (own, foreign) = keys();
    // This member's half is served; another member is recovering the other half.
    let tell = |member: &mut Member, recovered| {
        let high = slots(8192, 16_383);
        member.tell(
            &[(half, ME, true), (high, THIRD, recovered)],
            &[half],
            &[half],
        );
    };
    tell(&mut member, false);
    let input = format!("SET {own} 1\r\nGET {foreign}\r\nINCR {own}\r\n");
    let Session {
        executor, client, ..
    } = &mut member.session;
    let reply = run(executor, client, input.as_bytes());
    assert_eq!(reply, "+OK\r\n");
    tell(&mut member, true);
    let session = &mut member.session;
    session.expect(&format!("GET {own}"), "$1\r\n1\r\n");
    let moved = format!("-MOVED {} 10.0.0.2:6379\r\n", slot(foreign.as_bytes()));
    session.expect(&format!("GET {foreign}"), &moved);
}

#[test]
fn who_is_no_member_yet_says_so_after_a_while() {
    let mut member = Member::new(1);
    let session = &mut member.session;
    session.expect("GET a", "");
    session.expect("PING", "+PONG\r\n");
    session.server.shared.commands.adopt_tables(&[]);
    member.tell_halves();
    let session = &mut member.session;
    session.expect_error("GET a", "CLUSTERDOWN Hash slot not served");
}

#[test]
fn transactions_run_where_all_their_keys_are_or_nowhere() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, foreign) = keys();
    let session = &mut member.session;
    let moved = format!("-MOVED {} 10.0.0.1:6379\r\n", slot(foreign.as_bytes()));
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    session.expect("MULTI", "+OK\r\n");
    session.expect(&format!("SET {own} 1"), "+QUEUED\r\n");
    session.expect(&format!("SET {foreign} 1"), &moved);
    session.expect("EXEC", aborted);
    session.expect(&format!("EXISTS {own}"), ":0\r\n");
    session.expect("MULTI", "+OK\r\n");
    session.expect(
        &format!("MGET {own} {foreign}"),
        "-CROSSSLOT Keys in request don't hash to the same slot\r\n",
    );
    session.expect("EXEC", aborted);
    // Each request alone could be served here, but together they use two slots.
    session.expect("MULTI", "+OK\r\n");
    session.expect(&format!("SET {own} 1"), "+QUEUED\r\n");
    let other = (0..)
        .map(|n| format!("other:{n}"))
        .find(|key| slot(key.as_bytes()) < 8192 && slot(key.as_bytes()) != slot(own.as_bytes()))
        .expect("a key");
    session.expect(&format!("SET {other} 1"), "+QUEUED\r\n");
    session.expect(
        "EXEC",
        "-CROSSSLOT Keys in request don't hash to the same slot\r\n",
    );
    session.expect("EXEC", "-ERR EXEC without MULTI\r\n");
    session.expect(&format!("EXISTS {own}"), ":0\r\n");
    session.expect("MULTI", "+OK\r\n");
    session.expect(&format!("SET {own} 1"), "+QUEUED\r\n");
    session.expect(&format!("INCR {own}"), "+QUEUED\r\n");
    session.expect("EXEC", "*2\r\n+OK\r\n:2\r\n");
}

#[test]
fn a_transaction_whose_keys_left_is_redirected_whole_and_one_in_between_waits() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, _) = keys();
    let queue = |session: &mut Session| {
        session.expect("MULTI", "+OK\r\n");
        session.expect(&format!("INCR {own}"), "+QUEUED\r\n");
    };
    queue(&mut member.session);
    member.lock();
    // The request is queued while no server serves its key; EXEC is the command that waits.
    member.session.expect(&format!("INCR {own}"), "+QUEUED\r\n");
    member.session.expect("EXEC", "");
    member.session.expect("EXEC", "");
    member.tell_halves();
    member.session.expect("EXEC", "*2\r\n:1\r\n:2\r\n");
    member.session.expect(&format!("WATCH {own}"), "+OK\r\n");
    queue(&mut member.session);
    member.tell_all_gone();
    let moved = format!("-MOVED {} 10.0.0.1:6379\r\n", slot(own.as_bytes()));
    member.session.expect("EXEC", &moved);
    member.tell_halves();
    let session = &mut member.session;
    session.expect("EXEC", "-ERR EXEC without MULTI\r\n");
    session.expect(&format!("GET {own}"), "$1\r\n2\r\n");
}

#[test]
fn patience_ends_for_transactions_too() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, _) = keys();
    member.session.expect("MULTI", "+OK\r\n");
    member.session.expect(&format!("INCR {own}"), "+QUEUED\r\n");
    member.lock();
    let session = &mut member.session;
    let began = Instant::now();
    let reply = loop {
        let reply = session.ask("EXEC");
        if !reply.is_empty() {
            break reply;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "patience ends");
        std::thread::yield_now();
    };
    assert!(reply.starts_with("-TRYAGAIN "), "{reply}");
    session.expect("EXEC", "-ERR EXEC without MULTI\r\n");
}

#[test]
fn a_watched_key_that_left_counts_as_changed() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, _) = keys();
    let low_without = |member: &mut Member| {
        let at = slot(own.as_bytes());
        let parts = [slots(at, at)];
        let other = (0..8192).find(|slot| *slot != at).expect("a slot");
        let kept = slots(other, other);
        member.tell(
            &[(parts[0], OTHER, true), (kept, ME, true)],
            &[kept],
            &[kept],
        );
        other
    };
    member.session.expect(&format!("WATCH {own}"), "+OK\r\n");
    member.session.expect("MULTI", "+OK\r\n");
    let kept = low_without(&mut member);
    let other = (0..)
        .map(|n| format!("k{n}"))
        .find(|key| slot(key.as_bytes()) == kept)
        .expect("a key");
    let session = &mut member.session;
    session.expect(&format!("SET {other} 1"), "+QUEUED\r\n");
    session.expect("EXEC", "*-1\r\n");
    session.expect(&format!("EXISTS {other}"), ":0\r\n");
    // The same holds if the key has come back by then: it was absent before and is absent now, but
    // its state in between is unknown.
    member.tell_halves();
    member.session.expect(&format!("WATCH {own}"), "+OK\r\n");
    member.session.expect("MULTI", "+OK\r\n");
    member
        .session
        .expect(&format!("SET {own} 1"), "+QUEUED\r\n");
    member.tell_all_gone();
    member.tell_halves();
    member.session.expect("EXEC", "*-1\r\n");
    member.session.expect(&format!("WATCH {own}"), "+OK\r\n");
    member.session.expect("MULTI", "+OK\r\n");
    member
        .session
        .expect(&format!("SET {own} 1"), "+QUEUED\r\n");
    member.session.expect("EXEC", "*1\r\n+OK\r\n");
}

#[test]
fn there_is_one_database_and_tables_are_the_coordinators() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, _) = keys();
    let session = &mut member.session;
    session.expect("SELECT 0", "+OK\r\n");
    session.expect("SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n");
    session.expect(
        "SWAPDB 0 1",
        "-ERR SWAPDB is not allowed in cluster mode\r\n",
    );
    session.expect(
        &format!("MOVE {own} 1"),
        "-ERR MOVE is not allowed in cluster mode\r\n",
    );
    session.expect(
        &format!("COPY {own} {own} DB 1"),
        "-ERR Copying to another database is not allowed in cluster mode\r\n",
    );
    session.expect_error("DURAMEN.TABLE CREATE other", "ERR this server is a member");
    session.expect_error("DURAMEN.TABLE DROP db0", "ERR this server is a member");
    assert!(session.ask("CONFIG GET cluster-enabled").contains("yes"));
    assert!(session.ask("HELLO").contains("cluster"));
    let info = session.ask("INFO");
    for line in ["redis_mode:cluster", "cluster_enabled:1"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    let tables = session.ask("DURAMEN.TABLE LIST");
    assert!(!tables.contains("db1"), "{tables}");
}

/// databases::P3: a large flush takes several rounds, other connections have turns between them,
/// and only the last round replies.
#[test]
fn a_large_flush_is_done_in_rounds() {
    let mut member = Member::new(1);
    member.tell(
        &[(KeyRange::ALL, ME, true)],
        &[KeyRange::ALL],
        &[KeyRange::ALL],
    );
    let session = &mut member.session;
    for n in 0..5000 {
        session.expect(&format!("SET k{n} v"), "+OK\r\n");
    }
    let mut other = session.server.client(0);
    let (mut left, mut rounds) = (5000, 1);
    while session.ask_part("FLUSHALL").is_empty() {
        rounds += 1;
        let answer = run(&mut session.executor, &mut other, b"DBSIZE\r\n");
        let now = answer.trim_matches([':', '\r', '\n']).parse::<u64>();
        let now = now.expect("a number");
        assert!(now < left, "each round deletes something: {now} of {left}");
        left = now;
    }
    assert!(rounds > 2, "{rounds}");
    session.expect("DBSIZE", ":0\r\n");
    session.expect("SET again v", "+OK\r\n");
    session.expect("FLUSHDB", "+OK\r\n");
    session.expect("DBSIZE", ":0\r\n");
}

/// A range is not served any more before the list that says so counts as done. FLUSHALL passed
/// over its keys, which live on at their new owner, and answered OK.
#[test]
fn a_flush_tells_that_keys_left_before_their_list_was_done() {
    let mut member = Member::new(1);
    member.tell(
        &[(KeyRange::ALL, ME, true)],
        &[KeyRange::ALL],
        &[KeyRange::ALL],
    );
    for n in 0..5000 {
        member.session.expect(&format!("SET k{n} v"), "+OK\r\n");
    }
    assert_eq!(member.session.ask_part("FLUSHALL"), "", "it takes rounds");
    member.membership.publish(member.view_without_any());
    let session = &mut member.session;
    session.expect_error(
        "FLUSHALL",
        "TRYAGAIN tablets came to this server or left it",
    );
}

#[test]
fn commands_on_whole_tables_run_on_the_served_keys() {
    let mut member = Member::new(1);
    member.tell(
        &[(KeyRange::ALL, ME, true)],
        &[KeyRange::ALL],
        &[KeyRange::ALL],
    );
    let session = &mut member.session;
    for n in 0..200 {
        session.expect(&format!("SET k{n} v"), "+OK\r\n");
    }
    let low = (0..200)
        .filter(|n| slot(format!("k{n}").as_bytes()) < 8192)
        .count();
    assert!((1..200).contains(&low));
    // The upper half belongs to another member now, and is not purged yet.
    member.tell_halves();
    let session = &mut member.session;
    let shown = |reply: &str| reply.matches("$").count();
    assert_eq!(shown(&session.ask("KEYS *")), low);
    assert_eq!(shown(&session.ask("SCAN 0 COUNT 1000")), low + 1);
    for _ in 0..100 {
        let key = session.ask("RANDOMKEY");
        let key = key.lines().nth(1).expect("a key");
        assert!(slot(key.as_bytes()) < 8192, "{key}");
    }
    session.expect("MULTI", "+OK\r\n");
    session.expect("FLUSHALL", "+QUEUED\r\n");
    let refused = session.ask("EXEC");
    assert!(refused.starts_with("*1\r\n-ERR a member"), "{refused}");
    session.expect("FLUSHALL", "+OK\r\n");
    session.expect("KEYS *", "*0\r\n");
    session.expect("RANDOMKEY", "$-1\r\n");
    // Keys that this member did not serve were not deleted.
    member.tell(
        &[(KeyRange::ALL, ME, true)],
        &[KeyRange::ALL],
        &[KeyRange::ALL],
    );
    let session = &mut member.session;
    assert_eq!(shown(&session.ask("KEYS *")), 200 - low);
    session.expect("DBSIZE", &format!(":{}\r\n", 200 - low));
    session.expect("FLUSHDB", "+OK\r\n");
    session.expect("DBSIZE", ":0\r\n");
}

/// A member that had just joined once answered CLUSTER SLOTS with an empty list, and clients took
/// it for the cluster's map.
#[test]
fn who_asks_a_new_member_for_the_map_asks_again() {
    let mut member = Member::new(1);
    for request in ["CLUSTER SLOTS", "CLUSTER SHARDS"] {
        let told = member.session.ask(request);
        assert!(told.starts_with("-CLUSTERDOWN "), "{told}");
    }
    member.tell_halves();
    assert!(member.session.ask("CLUSTER SLOTS").starts_with("*2"));
}

/// The id of a node in the replies.
fn node_id(slot: u32, generation: u32) -> String {
    format!("{slot:08x}{generation:08x}{:024x}", 0)
}

#[test]
fn cluster_commands_tell_the_map() {
    let mut member = Member::new(1);
    member.tell_halves();
    let session = &mut member.session;
    let (me, other, third) = (node_id(0, 1), node_id(1, 3), node_id(2, 1));
    session.expect("CLUSTER MYID", &format!("$40\r\n{me}\r\n"));
    session.expect("CLUSTER KEYSLOT foo", ":12182\r\n");
    session.expect("CLUSTER KEYSLOT {foo}bar", ":12182\r\n");
    session.expect(
        "CLUSTER SLOTS",
        &format!(
            "*2\r\n*3\r\n:0\r\n:8191\r\n*4\r\n$8\r\n10.0.0.0\r\n:6379\r\n$40\r\n{me}\r\n*0\r\n\
             *3\r\n:8192\r\n:16383\r\n*4\r\n$8\r\n10.0.0.1\r\n:6379\r\n$40\r\n{other}\r\n*0\r\n"
        ),
    );
    let nodes = session.ask("CLUSTER NODES");
    for line in [
        format!("{me} 10.0.0.0:6379@7379 myself,master - 0 0 1 connected 0-8191\n"),
        format!("{other} 10.0.0.1:6379@7379 master - 0 0 3 connected 8192-16383\n"),
        format!("{third} 10.0.0.2:6379@7379 master - 0 0 1 connected\n"),
    ] {
        assert!(nodes.contains(&line), "{line} in {nodes}");
    }
    let shards = session.ask("CLUSTER SHARDS");
    assert!(
        shards.starts_with("*3\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:8191\r\n"),
        "{shards}"
    );
    assert_eq!(shards.matches("online").count(), 3);
    let info = session.ask("CLUSTER INFO");
    for line in [
        "cluster_state:ok\r\n",
        "cluster_slots_assigned:16384\r\n",
        "cluster_known_nodes:3\r\n",
        "cluster_size:2\r\n",
    ] {
        assert!(info.contains(line), "{line} in {info}");
    }
}

#[test]
fn cluster_commands_count_the_keys_of_a_slot() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, _) = keys();
    let session = &mut member.session;
    for n in 0..3 {
        session.expect(&format!("SET {{{own}}}{n} v"), "+OK\r\n");
    }
    let at = slot(own.as_bytes());
    session.expect(&format!("CLUSTER COUNTKEYSINSLOT {at}"), ":3\r\n");
    session.expect("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot\r\n");
    let keys = session.ask(&format!("CLUSTER GETKEYSINSLOT {at} 2"));
    assert!(keys.starts_with("*2\r\n"), "{keys}");
    session.expect(&format!("CLUSTER GETKEYSINSLOT {} 9", at ^ 1), "*0\r\n");
    session.expect_error(
        &format!("CLUSTER GETKEYSINSLOT {at} -1"),
        "ERR Invalid slot or number",
    );
}

#[test]
fn cluster_commands_that_change_a_redis_cluster_are_refused() {
    let mut member = Member::new(1);
    member.tell_halves();
    let other = node_id(1, 3);
    let session = &mut member.session;
    session.expect("CLUSTER LINKS", "*0\r\n");
    session.expect(&format!("CLUSTER REPLICAS {other}"), "*0\r\n");
    session.expect(&format!("CLUSTER COUNT-FAILURE-REPORTS {other}"), ":0\r\n");
    session.expect_error("CLUSTER REPLICAS abc", "ERR Unknown node abc");
    session.expect_error(
        "CLUSTER MEET 10.0.0.9 6379",
        "ERR CLUSTER MEET is not supported: the coordinator",
    );
    session.expect_error(
        "CLUSTER ADDSLOTS 1 2",
        "ERR CLUSTER ADDSLOTS is not supported",
    );
    for request in ["READONLY", "READWRITE", "ASKING"] {
        session.expect(request, "+OK\r\n");
    }
}

#[test]
fn slots_of_a_dead_member_are_told_with_a_server_that_is_alive() {
    let mut member = Member::new(1);
    member.tell_halves();
    let other = node_id(1, 3);
    let (low, high) = (slots(0, 8191), slots(8192, 16_383));
    member.tell(&[(low, ME, true), (high, OTHER, false)], &[low], &[low]);
    let session = &mut member.session;
    let nodes = session.ask("CLUSTER NODES");
    assert!(
        nodes.contains(&format!(
            "{other} 10.0.0.1:6379@7379 master,fail - 0 0 3 disconnected\n"
        )),
        "{nodes}"
    );
    assert!(
        nodes.contains("myself,master - 0 0 1 connected 0-8191 8192-16383"),
        "{nodes}"
    );
    assert!(session.ask("CLUSTER INFO").contains("cluster_state:fail"));
}

#[test]
fn without_a_cluster_its_commands_say_so() {
    let mut session = Server::session(1);
    for request in [
        "CLUSTER INFO",
        "CLUSTER SLOTS",
        "CLUSTER COUNTKEYSINSLOT 1",
        "CLUSTER MEET 10.0.0.1 6379",
        "CLUSTER HELP",
        "READONLY",
        "READWRITE",
        "ASKING",
    ] {
        session.expect(
            request,
            "-ERR This instance has cluster support disabled\r\n",
        );
    }
}

/// membership::M2: a reply that depends on data needs the right to answer; any other reply is sent
/// at once.
#[test]
fn replies_that_tell_of_data_need_a_lease() {
    let mut member = Member::new(1);
    member.tell_halves();
    let (own, foreign) = keys();
    let mut leased = |requests: &str| {
        let Session {
            executor, client, ..
        } = &mut member.session;
        run(executor, client, requests.as_bytes());
        client.wait.take().is_leased()
    };
    for request in ["GET", "SET k", "TTL", "EXISTS"] {
        let request = match request {
            "SET k" => format!("SET {own} 1\r\n"),
            request => format!("{request} {own}\r\n"),
        };
        assert!(leased(&request), "{request}");
    }
    for request in ["DBSIZE", "SCAN 0", "RANDOMKEY", "FLUSHALL"] {
        assert!(leased(&format!("{request}\r\n")), "{request}");
    }
    assert!(leased(&format!("MULTI\r\nGET {own}\r\nEXEC\r\n")));
    assert!(leased(&format!("GET {own}\r\nPING\r\n")));
    for request in ["PING", "CLUSTER SLOTS", "INFO", "HELLO"] {
        assert!(!leased(&format!("{request}\r\n")), "{request}");
    }
    assert!(!leased(&format!("GET {foreign}\r\n")));
    let mut alone = Server::session(1);
    alone.expect("GET a", "$-1\r\n");
    assert!(alone.client.wait.take().is_none());
}

/// membership::M1: after `quiesce` has returned, no write that used an older view follows.
#[test]
fn no_write_follows_once_the_view_was_changed_and_the_store_is_quiet() {
    const ROUNDS: usize = 200;
    let mut member = Member::new(2);
    member.tell_halves();
    let (own, _) = keys();
    let shared = Arc::clone(&member.session.server.shared);
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (stop, written, own) = (Arc::clone(&stop), Arc::clone(&written), own.clone());
        let mut executor = member.session.server.executor(1);
        let mut client = member.session.server.client(1);
        std::thread::spawn(move || {
            let pipeline = format!("INCR {own}\r\nGET {own}\r\n").repeat(40);
            while !stop.load(Ordering::Relaxed) {
                let reply = run(&mut executor, &mut client, pipeline.as_bytes());
                written.fetch_add(reply.matches(':').count() as u64, Ordering::Relaxed);
            }
        })
    };
    let store = Arc::clone(shared.store());
    let mut reader = store.session().expect("a session");
    let mut read = || {
        let guard = reader.pin();
        let object = guard.read(member.table, guard.hash(own.as_bytes()), own.as_bytes());
        object.expect("a table").map_or(0, |object| object.version)
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    for round in 0..ROUNDS {
        let before = written.load(Ordering::Relaxed);
        member.version += 1;
        let gone = View::new(
            ME,
            TabletsVersion(member.version),
            Ranges::default(),
            Ranges::default(),
            Arc::default(),
        );
        let mine = member.membership.view();
        member.membership.publish(Arc::new(gone));
        store.quiesce();
        let then = read();
        for _ in 0..200 {
            assert_eq!(
                read(),
                then,
                "written in round {round} after it was taken away"
            );
        }
        member.membership.publish(mine);
        while written.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < deadline, "the writer goes on");
            std::thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("the writer");
    assert!(read() > 0);
}
