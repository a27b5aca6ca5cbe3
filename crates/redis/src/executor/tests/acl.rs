//! Users: every command is checked, at queueing and in EXEC, and changed rights hold at once.

use super::*;
use crate::access::changes;
use crate::command::flag;
use crate::command::spec::Spec;
use crate::reply::wait::State as WaitState;
use crate::table::COMMANDS;

/// A request with as few arguments as the command takes.
fn shortest(spec: &Spec) -> String {
    let words: Vec<&str> = spec.name.split('|').collect();
    let args = usize::from(spec.arity.unsigned_abs()).max(words.len());
    match spec.name {
        "xread" => return "xread streams 1 1".to_owned(),
        "xreadgroup" => return "xreadgroup group 1 1 streams 1 1".to_owned(),
        "eval" | "eval_ro" | "evalsha" | "evalsha_ro" | "fcall" | "fcall_ro" => {
            return format!("{} 1 1 1", spec.name);
        }
        _ => {}
    }
    let mut request = words.join(" ");
    for _ in words.len()..args {
        request.push_str(" 1");
    }
    request
}

/// The commands that this server offers and that need a right.
fn checked() -> impl Iterator<Item = &'static Spec> {
    let is_request = |spec: &&Spec| !spec.has(flag::CONTAINER) || spec.name == "command";
    COMMANDS
        .rows()
        .iter()
        .filter(|spec| !spec.is_refused() && !spec.has(flag::NO_AUTH))
        .filter(is_request)
}

/// EXEC says that it has discarded the transaction, whatever the reason.
fn abort(spec: &Spec) -> &'static str {
    match spec.name {
        "exec" => "EXECABORT Transaction discarded because of: ",
        _ => "",
    }
}

#[test]
fn a_user_without_rights_may_run_no_command() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER poor on >p", "+OK\r\n");
    s.expect("AUTH poor p", "+OK\r\n");
    for spec in checked() {
        let reply = s.ask(&shortest(spec));
        let denied = format!(
            "-{}NOPERM User poor has no permissions to run the '{}' command\r\n",
            abort(spec),
            spec.name
        );
        assert_eq!(reply, denied, "{}", spec.name);
    }
    s.expect("AUTH default x", "+OK\r\n");
    let stats = s.ask("INFO stats");
    let denied = format!("acl_access_denied_cmd:{}\r\n", checked().count());
    assert!(stats.contains(&denied), "{stats}");
    let log = s.ask("ACL LOG 1000");
    let kept = checked().count().min(128);
    assert!(log.starts_with(&format!("*{kept}\r\n")), "it is bounded");
}

#[test]
fn a_user_without_keys_may_touch_none() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER poor on >p +@all", "+OK\r\n");
    s.expect("AUTH poor p", "+OK\r\n");
    let needs_keys = |spec: &&Spec| spec.has_keys() && !spec.has(flag::PUBSUB);
    for spec in checked().filter(needs_keys) {
        s.expect(
            &shortest(spec),
            "-NOPERM No permissions to access a key\r\n",
        );
    }
}

/// The steps after it ran with the rights of the removed user, and no reply was sent.
#[test]
fn a_user_that_removes_itself_in_exec_may_do_nothing_more() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER u on >p ~* +@all", "+OK\r\n");
    let mut user = s.server.client(0);
    let queue = b"AUTH u p\r\nMULTI\r\nSET a 1\r\nACL DELUSER u\r\nSET b 1\r\nPING\r\n";
    run(&mut s.executor, &mut user, queue);
    let no = "-NOAUTH Authentication required.\r\n";
    let reply = run(&mut s.executor, &mut user, b"EXEC\r\nSET c 1\r\n");
    assert_eq!(reply, format!("*4\r\n+OK\r\n:1\r\n{no}{no}"));
    assert_eq!(ending(&user), Ending::CloseAfterReply);
    s.expect("EXISTS a b c", ":1\r\n");
}

/// A `SELECT` that EXEC refused had selected the database for the plan of locks and room: the steps
/// after it changed keys that were not locked.
#[test]
fn a_refused_select_in_exec_selects_nothing() {
    let mut s = Server::session(1);
    let mut exec = |rights: &str, is_within: bool, queue: &str| {
        s.expect("ACL SETUSER u reset on >p ~* +@all", "+OK\r\n");
        s.expect("FLUSHALL", "+OK\r\n");
        let mut user = s.server.client(0);
        let change = format!("ACL SETUSER u {rights}\r\n");
        let first = if is_within { &change } else { "" };
        let queue = format!("AUTH u p\r\nSELECT 5\r\nSELECT 0\r\nMULTI\r\n{first}{queue}");
        let replies = run(&mut s.executor, &mut user, queue.as_bytes());
        assert!(!replies.contains('-'), "{replies}");
        if !is_within {
            s.expect(change.trim_end(), "+OK\r\n");
        }
        run(&mut s.executor, &mut user, b"EXEC\r\n")
    };
    let select = "SELECT 5\r\nSET a 1\r\nSELECT 0\r\nGET a\r\n";
    let reply = exec("resettables table:default", false, select);
    let denied = reply.starts_with("*4\r\n-NOPERM ") && reply.contains("to access the table\r\n");
    assert!(
        denied && reply.ends_with("\r\n+OK\r\n+OK\r\n$1\r\n1\r\n"),
        "{reply}"
    );
    let reply = exec(
        "-swapdb",
        false,
        "SWAPDB 0 5\r\nSET a 1\r\nSELECT 5\r\nGET a\r\n",
    );
    let denied = reply.starts_with("*4\r\n-NOPERM ");
    assert!(
        denied && reply.ends_with("\r\n+OK\r\n+OK\r\n$-1\r\n"),
        "{reply}"
    );
    let reply = exec("resettables table:default", true, select);
    let failed = "-ERR an earlier SELECT or SWAPDB of this transaction has failed\r\n";
    assert!(reply.starts_with("*5\r\n+OK\r\n-NOPERM "), "{reply}");
    assert!(
        reply.ends_with(&format!("\r\n{failed}+OK\r\n$-1\r\n")),
        "{reply}"
    );
}

/// Runs a request in a script.
fn in_script(s: &mut Session, request: &str) -> String {
    let mut args: Vec<&[u8]> = vec![b"EVAL", b"return redis.call(unpack(ARGV))", b"0"];
    args.extend(request.split(' ').map(str::as_bytes));
    s.ask_bytes(&args)
}

#[test]
fn a_script_runs_no_command_that_its_user_may_not() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER poor on >p ~* &* +eval", "+OK\r\n");
    s.expect("ACL SETUSER keyless on >p +@all", "+OK\r\n");
    s.expect("AUTH poor p", "+OK\r\n");
    let mut denied = 0;
    let not_here = "-ERR This Redis command is not allowed from script";
    for spec in checked() {
        let reply = in_script(&mut s, &shortest(spec));
        if !reply.starts_with(not_here) {
            let text = format!(
                "-NOPERM ACL failure in script: User poor has no permissions to run the '{}' command",
                spec.name
            );
            assert!(reply.starts_with(&text), "{}: {reply}", spec.name);
            denied += 1;
        }
    }
    assert!(denied > 180, "only {denied} commands were called");
    s.expect("AUTH keyless p", "+OK\r\n");
    for spec in checked().filter(|spec| spec.has_keys() && !spec.has(flag::PUBSUB)) {
        let reply = in_script(&mut s, &shortest(spec));
        let text = "-NOPERM ACL failure in script: No permissions to access a key";
        let is_denied = reply.starts_with(text) || reply.starts_with(not_here);
        assert!(is_denied, "{}: {reply}", spec.name);
    }
    let reply = in_script(&mut s, "publish c m");
    assert!(
        reply.contains("No permissions to access a channel"),
        "{reply}"
    );
}

#[test]
fn a_script_can_ask_whether_its_user_may_run_a_command() {
    let mut s = Server::session(1);
    s.expect(
        "ACL SETUSER w on >p +eval +get +set %R~in:* ~out:*",
        "+OK\r\n",
    );
    s.expect("AUTH w p", "+OK\r\n");
    for (command, reply) in [
        ("'get', 'in:1'", ":1\r\n"),
        ("'set', 'in:1', 'x'", "$-1\r\n"),
        ("'set', 'out:1', 'x'", ":1\r\n"),
        ("'get', 'other'", "$-1\r\n"),
        ("'del', 'out:1'", "$-1\r\n"),
    ] {
        let script = format!("return redis.acl_check_cmd({command})");
        let args = [&b"EVAL"[..], script.as_bytes(), b"0"];
        assert_eq!(s.ask_bytes(&args), reply, "{command}");
    }
    s.expect("GET in:1", "$-1\r\n");
    let args = [&b"EVAL"[..], b"return redis.acl_check_cmd('nope')", b"0"];
    let reply = s.ask_bytes(&args);
    let error = "-ERR Invalid command passed to redis.acl_check_cmd()";
    assert!(reply.starts_with(error), "{reply}");
}

/// The categories of each command in one: a user with all of them but one may not run it.
#[test]
fn every_command_is_in_a_category_that_can_be_denied() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER poor on >p ~* +@all -@fast -@slow", "+OK\r\n");
    s.expect("AUTH poor p", "+OK\r\n");
    for spec in checked() {
        s.expect_error(&shortest(spec), &format!("{}NOPERM User poor", abort(spec)));
    }
}

#[test]
fn keys_are_checked_by_access() {
    let mut s = Server::session(1);
    s.expect("MSET in:1 a out:1 b", "+OK\r\n");
    let rules = "ACL SETUSER w on >p +@all -acl %R~in:* %W~out:*";
    s.expect(rules, "+OK\r\n");
    s.expect("AUTH w p", "+OK\r\n");
    s.expect("GET in:1", "$1\r\na\r\n");
    let denied = "-NOPERM No permissions to access a key\r\n";
    for request in [
        "GET out:1",
        "SET in:1 x",
        "SET out:1 x GET",
        "SET out:1 x IFEQ b",
        "SET out:1 x IFNE b",
        "MGET in:1 in:2 out:1",
        "RENAME in:1 out:1",
        "COPY out:1 in:1",
        "INCR out:1",
        "DEL in:1",
        "GETDEL in:1",
        "DURAMEN.WRITE in:1 x",
        "DURAMEN.READ out:1",
        "DURAMEN.MREMOVE out:1 in:1",
        "EXISTS other",
        "HGET out:1 f",
        "HSET in:1 f v",
        "LMOVE out:1 out:2 LEFT LEFT",
        "LMPOP 2 in:1 out:1 LEFT",
        "LPOP in:1",
        "SINTERSTORE out:1 in:1 out:2",
        "SINTERSTORE in:1 in:2",
        "ZUNION 2 in:1 out:1",
        "ZUNIONSTORE out:1 2 in:1 out:2",
        "ZUNIONSTORE in:1 1 in:1",
        "ZRANGESTORE in:1 in:2 0 -1",
        "BITOP AND out:1 in:1 out:2",
        "BITFIELD in:1 GET u8 0 SET u8 0 1",
        "BITFIELD out:1 GET u8 0",
        "PFMERGE out:1 in:1",
        "SORT in:1 STORE in:2",
        "SORT in:1 BY in:* STORE out:1",
        "SORT_RO in:1 GET in:*",
        "GEORADIUS in:1 0 0 1 km STOREDIST in:2",
        "GEOSEARCHSTORE out:1 out:2 FROMLONLAT 0 0 BYRADIUS 1 km",
        "RESTORE in:1 0 x",
        "DUMP out:1",
        "XCLAIM out:1 g c 0 1-1",
        "XAUTOCLAIM out:1 g c 0 0",
    ] {
        s.expect(request, denied);
    }
    s.expect("COPY in:1 out:2", ":1\r\n");
    s.expect("BITFIELD in:1 OVERFLOW SAT GET u8 0", "*1\r\n:97\r\n");
    s.expect("SORT in:list BY nosort GET # STORE out:list", ":0\r\n");
    s.expect("SUNIONSTORE out:set in:set", ":0\r\n");
    s.expect("LPUSH out:list 1", ":1\r\n");
    s.expect("SET out:1 x", "+OK\r\n");
    s.expect("EXISTS in:1 out:1", ":2\r\n");
}

/// Keys behind a number that the command would refuse, but that begins with one, were not checked:
/// ACL DRYRUN allowed what Redis denies.
#[test]
fn keys_behind_their_number_are_checked_as_by_redis() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER n on >p ~a +zmpop +eval", "+OK\r\n");
    for (request, denied) in [
        ("ZMPOP 1 a MIN", ""),
        ("ZMPOP 1 b MIN", "b"),
        ("ZMPOP 2 a b MIN", "b"),
        ("ZMPOP 2 a MIN", "MIN"),
        ("ZMPOP 01 b MIN", "b"),
        ("ZMPOP 1x b MIN", "b"),
        ("EVAL s +1 b", "b"),
        // There are not so many keys, so there are none.
        ("ZMPOP 9 b MIN", ""),
        ("ZMPOP 0 b MIN", ""),
        ("ZMPOP x b MIN", ""),
    ] {
        let reply = s.ask(&format!("ACL DRYRUN n {request}"));
        match denied {
            "" => assert_eq!(reply, "+OK\r\n", "{request}"),
            key => {
                let text = format!("\r\nUser n has no permissions to access the '{key}' key\r\n");
                assert!(reply.ends_with(&text), "{request}: {reply}");
            }
        }
    }
    s.expect("AUTH n p", "+OK\r\n");
    let denied = "-NOPERM No permissions to access a key\r\n";
    s.expect("ZMPOP 01 b MIN", denied);
    s.expect_error("ZMPOP 01 a MIN", "ERR numkeys");
}

/// It returned the values of all keys to users with a right to a few, or to none.
#[test]
fn a_walk_that_returns_values_needs_the_right_to_all_keys() {
    let mut s = Server::session(1);
    s.expect("SET secret 1", "+OK\r\n");
    s.expect("ACL SETUSER some on >p ~a:* %W~* +@all", "+OK\r\n");
    s.expect("ACL SETUSER all on >p %R~* +@all", "+OK\r\n");
    let dry = "User some has no permissions to access all keys";
    s.expect(
        "ACL DRYRUN some DURAMEN.SCAN 0",
        &format!("${}\r\n{dry}\r\n", dry.len()),
    );
    s.expect("ACL DRYRUN all DURAMEN.SCAN 0", "+OK\r\n");
    s.expect("AUTH all p", "+OK\r\n");
    s.expect("MULTI", "+OK\r\n");
    s.expect("DURAMEN.SCAN 0", "+QUEUED\r\n");
    let mut admin = s.server.client(0);
    run(
        &mut s.executor,
        &mut admin,
        b"ACL SETUSER all resetkeys ~a:*\r\n",
    );
    assert!(s.ask("EXEC").starts_with("*1\r\n-NOPERM "));
    s.expect("AUTH some p", "+OK\r\n");
    let denied = "-NOPERM No permissions to access a key\r\n";
    s.expect("DURAMEN.SCAN 0", denied);
    let script = "return redis.pcall('DURAMEN.SCAN', 0)";
    let reply = s.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
    assert!(reply.starts_with('-'), "{reply}");
    s.expect("MULTI", "+OK\r\n");
    s.expect("DURAMEN.SCAN 0 COUNT 1000", denied);
    s.expect_error("EXEC", "EXECABORT");
    s.expect("SCAN 0", "*2\r\n$1\r\n0\r\n*1\r\n$6\r\nsecret\r\n");
    s.expect("AUTH default x", "+OK\r\n");
    assert!(s.ask("DURAMEN.SCAN 0").contains("secret"));
}

#[test]
fn tables_are_checked_by_name() {
    let mut s = Server::session(1);
    assert!(s.ask("DURAMEN.TABLE CREATE jobs").starts_with(':'));
    s.expect(
        "ACL SETUSER t on >p ~* +@all table:jobs table:db2",
        "+OK\r\n",
    );
    let list = s.ask("ACL LIST");
    assert!(
        list.contains("~* resetchannels table:jobs table:db2 +@all"),
        "{list}"
    );
    s.expect("AUTH t p", "+OK\r\n");
    let denied = "-NOPERM No permissions to access a table\r\n";
    for request in [
        "GET a",
        "SCAN 0",
        "DBSIZE",
        "FLUSHDB",
        "FLUSHALL",
        "SELECT 1",
        "DURAMEN.USE default",
        "DURAMEN.TABLE CREATE other",
        "DURAMEN.TABLE DROP default",
        "SWAPDB 0 2",
        "CLIENT TRACKING ON BCAST",
        "CLIENT TRACKING ON PREFIX a BCAST",
        "MONITOR",
    ] {
        s.expect(request, denied);
    }
    s.expect("SELECT 2", "+OK\r\n");
    s.expect("SET a 1", "+OK\r\n");
    s.expect("MOVE a 0", denied);
    s.expect("COPY a b DB 0", denied);
    s.expect("COPY a b DB 2 DB 0", denied);
    s.expect("COPY a b DB 2 REPLACE db 0", denied);
    s.expect("COPY a b", ":1\r\n");
    s.expect("DURAMEN.USE jobs", "+OK\r\n");
    s.expect("SET a 1", "+OK\r\n");
    s.expect("DBSIZE", ":1\r\n");
}

#[test]
fn a_transaction_is_checked_when_it_is_queued_and_when_it_runs() {
    let server = Server::new(1);
    let (mut executor, mut client, mut admin) =
        (server.executor(0), server.client(0), server.client(0));
    let mut ask = |client: &mut Client, input: &str| {
        run(&mut executor, client, format!("{input}\r\n").as_bytes())
    };
    ask(&mut admin, "ACL SETUSER u on >p ~a +@all");
    ask(&mut client, "AUTH u p");
    assert_eq!(ask(&mut client, "MULTI"), "+OK\r\n");
    assert!(ask(&mut client, "SET b 1").starts_with("-NOPERM No permissions to access a key"));
    assert!(ask(&mut client, "EXEC").starts_with("-EXECABORT"));
    for request in ["MULTI", "SET a 1", "GET a", "DEL a"] {
        ask(&mut client, request);
    }
    ask(&mut admin, "ACL SETUSER u -del resetkeys %W~a");
    let reply = ask(&mut client, "EXEC");
    let late = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and \
                the EXEC call. This command is no longer allowed for the following reason: ";
    let expected = format!(
        "*3\r\n+OK\r\n{late}no permission to touch the specified keys\r\n\
         {late}no permission to execute the command or subcommand\r\n"
    );
    assert_eq!(reply, expected);
    assert_eq!(
        ask(&mut admin, "GET a"),
        "$1\r\n1\r\n",
        "it was not deleted"
    );
    // A step changes the rights of the steps after it.
    ask(&mut admin, "ACL SETUSER u +@all ~*");
    for request in ["MULTI", "ACL SETUSER u -get", "GET a"] {
        ask(&mut client, request);
    }
    let reply = ask(&mut client, "EXEC");
    assert!(
        reply.starts_with("*2\r\n+OK\r\n-NOPERM ACLs rules changed"),
        "{reply}"
    );
}

#[test]
fn changed_rights_hold_for_open_connections() {
    let server = Server::new(1);
    let (mut executor, mut client, mut admin) =
        (server.executor(0), server.client(0), server.client(0));
    let mut ask = |client: &mut Client, input: &str| {
        run(&mut executor, client, format!("{input}\r\n").as_bytes())
    };
    ask(&mut admin, "ACL SETUSER u on >p ~* &* +@all");
    assert_eq!(ask(&mut client, "AUTH u p"), "+OK\r\n");
    assert_eq!(ask(&mut client, "SET a 1"), "+OK\r\n");
    ask(&mut admin, "ACL SETUSER u -@write");
    assert!(ask(&mut client, "SET a 2").starts_with("-NOPERM"));
    ask(&mut admin, "ACL SETUSER u +@all");
    assert_eq!(ask(&mut client, "SET a 2"), "+OK\r\n");
    // A pipeline of the client itself: from the next request on.
    let reply = ask(&mut client, "ACL SETUSER u -get\r\nGET a");
    assert!(reply.starts_with("+OK\r\n-NOPERM User u"), "{reply}");
    // A user that is off keeps its connections, as in Redis.
    ask(&mut admin, "ACL SETUSER u off +@all");
    assert_eq!(ask(&mut client, "GET a"), "$1\r\n2\r\n");
    assert!(ask(&mut admin, "AUTH u p").starts_with("-WRONGPASS"));
    assert_eq!(ask(&mut admin, "ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert_eq!(ask(&mut admin, "ACL DELUSER u"), ":1\r\n");
    assert!(
        admin.wait.take().has_own_end(),
        "its reply waits until they are gone"
    );
    ask(&mut admin, "ACL SETUSER u on >p ~* +@all");
    assert_eq!(
        ask(&mut client, "GET a"),
        "",
        "another user of the same name"
    );
    assert_eq!(ending(&client), Ending::CloseNow);
}

#[test]
fn the_default_user_decides_whether_connections_need_a_password() {
    let server = Server::new(1);
    let (mut executor, mut admin, mut open) =
        (server.executor(0), server.client(0), server.client(0));
    let mut ask = |client: &mut Client, input: &str| {
        run(&mut executor, client, format!("{input}\r\n").as_bytes())
    };
    assert_eq!(ask(&mut open, "GET a"), "$-1\r\n");
    assert_eq!(ask(&mut admin, "CONFIG SET requirepass hush"), "+OK\r\n");
    let digest = duramen_acl::Digest::of(b"hush");
    assert!(
        ask(&mut admin, "ACL LIST")
            .contains(&format!("user default on sanitize-payload #{digest} ~*"))
    );
    assert_eq!(
        ask(&mut open, "GET a"),
        "$-1\r\n",
        "it has logged in before"
    );
    let mut late = server.client(0);
    assert!(ask(&mut late, "GET a").starts_with("-NOAUTH"));
    assert_eq!(ask(&mut late, "AUTH hush"), "+OK\r\n");
    assert_eq!(ask(&mut late, "RESET"), "+RESET\r\n");
    assert!(ask(&mut late, "GET a").starts_with("-NOAUTH"));
    ask(&mut admin, "ACL SETUSER default off");
    assert!(ask(&mut late, "AUTH hush").starts_with("-WRONGPASS"));
    ask(&mut admin, "ACL SETUSER default on nopass -@all +get");
    let mut limited = server.client(0);
    assert_eq!(ask(&mut limited, "GET a"), "$-1\r\n");
    assert!(ask(&mut limited, "SET a 1").starts_with("-NOPERM User default"));
}

/// The replies wait, the other clients do not.
#[test]
fn failed_logins_are_slowed() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER u on >p +@all ~*", "+OK\r\n");
    for n in 0..6 {
        let before_ms = duramen_config::clock::coarse_ms();
        s.expect_error("AUTH u wrong", "WRONGPASS");
        let waits = s.client.wait.take();
        assert_eq!(waits.has_own_end(), n == 5, "{n}");
        if n == 5 {
            let state = |now_ms| waits.state(|_| Level::Synced, None, now_ms);
            let WaitState::Waiting { deadline_ms } = state(before_ms) else {
                panic!("its reply waits");
            };
            assert!(deadline_ms >= before_ms + 100, "{deadline_ms}");
            assert_eq!(state(deadline_ms), WaitState::Over);
        }
    }
    s.expect("AUTH u p", "+OK\r\n");
    s.expect_error("AUTH u wrong", "WRONGPASS");
    assert!(
        !s.client.wait.take().has_own_end(),
        "a success ends the slowing"
    );
}

#[test]
fn denials_are_logged_and_grouped() {
    let mut s = Server::session(1);
    s.expect("ACL SETUSER u on >p ~a +get +acl", "+OK\r\n");
    s.expect_error("AUTH u wrong", "WRONGPASS");
    s.expect_error("AUTH u wrong", "WRONGPASS");
    s.expect("AUTH u p", "+OK\r\n");
    s.expect_error("GET b", "NOPERM");
    s.expect_error("SET a 1", "NOPERM");
    let log = s.ask("ACL LOG");
    assert!(log.starts_with("*3\r\n"), "{log}");
    for part in [
        "$7\r\ncommand\r\n$7\r\ncontext\r\n$8\r\ntoplevel\r\n$6\r\nobject\r\n$3\r\nset\r\n",
        "$3\r\nkey\r\n$7\r\ncontext\r\n$8\r\ntoplevel\r\n$6\r\nobject\r\n$1\r\nb\r\n",
        "$5\r\ncount\r\n:2\r\n$6\r\nreason\r\n$4\r\nauth\r\n",
    ] {
        assert!(log.contains(part), "{part} in {log}");
    }
    s.expect("ACL LOG RESET", "+OK\r\n");
    s.expect("ACL LOG", "*0\r\n");
}

/// ACL SAVE wrote more than 1 MiB, which the next start refused to read.
#[test]
fn users_are_saved_only_if_a_start_can_read_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("users");
    std::fs::write(&file, "user default on nopass ~* &* +@all\n").expect("a file");
    let mut config = ServerConfig {
        level: Some(Level::Memory),
        threads: 1,
        ..ServerConfig::default()
    };
    config.access.aclfile = file.display().to_string();
    let mut s = Server::with(config.clone()).into_session();
    let shared = Arc::clone(&s.server.shared);
    // Each has almost 1 MiB of rules.
    let patterns: Vec<String> = (0..1_000).map(|n| format!("~{n:01000}")).collect();
    let mut add = |n: usize| {
        let name = format!("user{n}");
        let mut args: Vec<&[u8]> = vec![b"ACL", b"SETUSER", name.as_bytes()];
        args.extend(patterns.iter().map(String::as_bytes));
        assert_eq!(s.ask_bytes(&args), "+OK\r\n");
    };
    (0..3).for_each(&mut add);
    assert_eq!(changes::save_users(&shared), Ok(()));
    let saved = std::fs::read(&file).expect("a file");
    assert!(saved.len() > 2 << 20);
    let again = super::shared(config).expect("a start");
    assert_eq!(again.acl().users().print(), shared.acl().users().print());
    (3..17).for_each(&mut add);
    let refused = changes::save_users(&shared).expect_err("they are too long");
    assert!(refused.contains("more than the 16777216"), "{refused}");
    assert_eq!(std::fs::read(&file).expect("a file"), saved);
}
