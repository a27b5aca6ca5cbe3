//! The server's information commands and its settings.

use super::*;
use duramen_config::Mode;

#[test]
fn info_has_the_usual_sections_and_says_what_is_durable() {
    let mut s = Server::session(2);
    s.ask("SET a 1");
    s.ask("GET a");
    let info = s.ask("INFO");
    for line in [
        "# Server",
        "redis_version:7.4.0",
        "# Clients",
        "# Memory",
        "# Persistence",
        "duramen_level:memory",
        "# Stats",
        "keyspace_hits:1",
        "# Replication",
        "role:master",
        "# CPU",
        "# Keyspace",
        "db0:keys=1,expires=0,avg_ttl=0",
    ] {
        assert!(info.contains(&format!("\r\n{line}")), "{line} in {info}");
    }
    assert!(!info.contains("# Commandstats"));
    let stats = s.ask("INFO commandstats");
    assert!(stats.contains("cmdstat_set:calls=1,"), "{stats}");
    assert!(!stats.contains("# Server"));
    s.expect("CONFIG RESETSTAT", "+OK\r\n");
    assert!(!s.ask("INFO commandstats").contains("cmdstat_set"));
    assert!(s.ask("INFO all").contains("# Commandstats"));
}

#[test]
fn config_is_read_by_pattern_and_set_all_or_nothing() {
    let mut s = Server::session(1);
    assert!(s.ask("CONFIG GET max*").contains("maxmemory"));
    s.expect("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
    s.expect("CONFIG GET nosuch*", "*0\r\n");
    s.expect("CONFIG SET slowlog-max-len 7", "+OK\r\n");
    s.expect(
        "CONFIG GET slowlog-max-len",
        "*2\r\n$15\r\nslowlog-max-len\r\n$1\r\n7\r\n",
    );
    s.expect_error(
        "CONFIG SET slowlog-max-len 9 nosuch 1",
        "ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'",
    );
    s.expect_error("CONFIG SET slowlog-max-len 9 slowlog-max-len 8", "ERR CONFIG SET failed (possibly related to argument 'slowlog-max-len') - duplicate parameter");
    s.expect_error(
        "CONFIG SET slowlog-max-len many",
        "ERR CONFIG SET failed (possibly related to argument 'slowlog-max-len') - ",
    );
    s.expect_error(
        "CONFIG SET port 1",
        "ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config",
    );
    s.expect(
        "CONFIG GET slowlog-max-len",
        "*2\r\n$15\r\nslowlog-max-len\r\n$1\r\n7\r\n",
    );
    // Each setting alone did not fit the other's old value: the request was refused half-way.
    s.expect("CONFIG SET output-pause 512mb output-limit 1gb", "+OK\r\n");
    s.expect("CONFIG SET output-limit 256mb output-pause 1mb", "+OK\r\n");
    s.expect_error(
        "CONFIG SET maxclients 7 output-pause 512mb",
        "ERR CONFIG SET failed - output-pause",
    );
    s.expect(
        "CONFIG GET maxclients",
        "*2\r\n$10\r\nmaxclients\r\n$5\r\n10000\r\n",
    );
    s.expect("CONFIG SET appendonly no", "+OK\r\n");
    s.expect_error("CONFIG SET appendonly yes", "ERR CONFIG SET failed");
    s.expect(
        "CONFIG REWRITE",
        "-ERR The server is running without a config file\r\n",
    );
    s.expect(
        "CONFIG GET requirepass",
        "*2\r\n$11\r\nrequirepass\r\n$0\r\n\r\n",
    );
}

#[test]
fn slow_requests_are_logged() {
    let mut s = Server::session(1);
    s.expect("SLOWLOG LEN", ":0\r\n");
    s.expect("CONFIG SET slowlog-log-slower-than 0", "+OK\r\n");
    s.expect("SET a 1", "+OK\r\n");
    s.expect("CONFIG SET slowlog-log-slower-than -1", "+OK\r\n");
    s.ask("GET a");
    let log = s.ask("SLOWLOG GET");
    assert!(log.contains("$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n"), "{log}");
    assert!(!log.contains("$3\r\nGET\r\n$1\r\na\r\n"), "{log}");
    s.expect("SLOWLOG RESET", "+OK\r\n");
    s.expect("SLOWLOG LEN", ":0\r\n");
    s.expect(
        "SLOWLOG GET -2",
        "-ERR count should be greater than or equal to -1\r\n",
    );
}

#[test]
fn the_command_table_describes_itself() {
    let mut s = Server::session(1);
    let count = s.number("COMMAND COUNT");
    assert!(count > 80);
    assert!(s.ask("COMMAND").starts_with(&format!("*{count}\r\n")));
    let get = s.ask("COMMAND INFO get nosuch");
    assert!(
        get.starts_with(
            "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n"
        ),
        "{get}"
    );
    assert!(get.ends_with("$-1\r\n"));
    s.expect(
        "COMMAND GETKEYS MSET a 1 b 2",
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    );
    s.expect("COMMAND GETKEYS OBJECT ENCODING k", "*1\r\n$1\r\nk\r\n");
    s.expect(
        "COMMAND GETKEYS PING",
        "-ERR The command has no key arguments\r\n",
    );
    s.expect(
        "COMMAND GETKEYS NOSUCH x",
        "-ERR Invalid command specified\r\n",
    );
    s.expect(
        "COMMAND GETKEYS GET a b",
        "-ERR Invalid number of arguments specified for command\r\n",
    );
    assert!(
        s.ask("COMMAND DOCS get")
            .contains("Returns the value of a key.")
    );
    assert!(!s.ask("COMMAND DOCS get").contains("differences"));
    assert!(
        s.ask("COMMAND DOCS unlink")
            .contains("differences\r\n$18\r\nThe same as `DEL`.")
    );
    assert!(s.ask("COMMAND LIST FILTERBY PATTERN xx*").starts_with("*0"));
    assert!(s.ask("COMMAND LIST").contains("\r\nclient|list\r\n"));
    assert!(
        s.ask("COMMAND LIST FILTERBY ACLCAT transaction")
            .contains("watch")
    );
}

#[test]
fn clients_are_listed_named_and_killed() {
    let mut s = Server::session(1);
    s.expect("CLIENT SETNAME me", "+OK\r\n");
    s.expect("CLIENT GETNAME", "$2\r\nme\r\n");
    s.expect_error(
        "CLIENT SETNAME \"a b\"",
        "ERR Client names cannot contain spaces",
    );
    s.expect("CLIENT SETINFO LIB-NAME test", "+OK\r\n");
    let id = s.number("CLIENT ID");
    let list = s.ask("CLIENT LIST");
    assert!(
        list.contains(&format!("id={id} addr=127.0.0.1:1 ")),
        "{list}"
    );
    assert!(
        list.contains(" name=me ") && list.contains(" lib-name=test "),
        "{list}"
    );
    assert!(list.contains(" cmd=client|list "), "{list}");
    let other = s.server.client(0);
    s.expect(&format!("CLIENT KILL ID {}", other.id()), ":1\r\n");
    s.expect("CLIENT KILL ID 999", ":0\r\n");
    s.expect("CLIENT KILL 1.2.3.4:5", "-ERR No such client\r\n");
    s.expect(
        "CLIENT KILL ID 0",
        "-ERR client-id should be greater than 0\r\n",
    );
    assert_eq!(ending(&s.client), Ending::Open);
    s.expect(&format!("CLIENT KILL ID {id} SKIPME no"), ":1\r\n");
    assert_eq!(ending(&s.client), Ending::CloseAfterReply);
}

/// `EXEC` stood before the commands that it runs.
#[test]
fn monitors_see_what_others_send() {
    let server = Server::new(1);
    let (mut executor, mut watcher, mut other) =
        (server.executor(0), server.client(0), server.client(0));
    assert_eq!(run(&mut executor, &mut watcher, b"MONITOR\r\n"), "+OK\r\n");
    run(
        &mut executor,
        &mut other,
        b"SET a \"x\\ny\"\r\nMULTI\r\nGET a\r\nEXEC\r\nMULTI\r\nNOSUCH\r\nEXEC\r\nAUTH secret\r\n",
    );
    let mut messages = Vec::new();
    server.shared.threads[0].mailbox.take(&mut messages);
    let lines: Vec<String> = messages
        .iter()
        .map(|message| match message {
            crate::threads::mailbox::Message::Push { client, bytes } => {
                assert_eq!(*client, watcher.id());
                String::from_utf8_lossy(bytes).into_owned()
            }
            other => panic!("{other:?}"),
        })
        .flat_map(|lines| {
            lines
                .split_inclusive('\n')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    let text: Vec<&str> = lines
        .iter()
        .filter_map(|line| Some(line.split_once("] ")?.1))
        .collect();
    assert_eq!(
        text,
        [
            "\"SET\" \"a\" \"x\\ny\"\r\n",
            "\"MULTI\"\r\n",
            "\"GET\" \"a\"\r\n",
            "\"EXEC\"\r\n",
            "\"MULTI\"\r\n",
            "\"EXEC\"\r\n",
            "\"AUTH\" \"(redacted)\"\r\n"
        ]
    );
    run(&mut executor, &mut watcher, b"RESET\r\n");
    server.shared.threads[0].mailbox.take(&mut messages);
    run(&mut executor, &mut other, b"GET a\r\n");
    messages.clear();
    server.shared.threads[0].mailbox.take(&mut messages);
    assert!(messages.is_empty());
}

#[test]
fn small_operations_answer_truthfully() {
    let mut s = Server::session(1);
    s.expect("ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    for name in ["REPLICAOF", "slaveof"] {
        s.expect(&format!("{name} no ONE"), "+OK\r\n");
        s.expect_error(&format!("{name} 127.0.0.1 6379"), "ERR ");
        s.expect_error(&format!("{name} NO"), "ERR wrong number of arguments");
    }
    s.expect("WAIT 1 0", ":0\r\n");
    s.expect("WAITAOF 0 1 0", "*2\r\n:0\r\n:0\r\n");
    s.expect_error("WAITAOF 1 0 0", "ERR WAITAOF cannot be used");
    s.expect_error("SAVE", "ERR nothing is saved");
    s.expect_error("BGSAVE", "ERR nothing is saved");
    s.expect("LASTSAVE", ":0\r\n");
    s.expect("SHUTDOWN ABORT", "-ERR No shutdown in progress.\r\n");
    s.expect_error("SHUTDOWN SAVE", "ERR nothing is saved");
    s.expect("SET k 12", "+OK\r\n");
    s.expect("OBJECT ENCODING k", "$3\r\nint\r\n");
    s.expect("OBJECT REFCOUNT k", ":1\r\n");
    s.expect("OBJECT ENCODING nosuch", "$-1\r\n");
    assert!(s.number("MEMORY USAGE k") > 8);
    s.expect("MEMORY USAGE nosuch", "$-1\r\n");
    assert!(s.ask("MEMORY STATS").contains("keys.count\r\n:1\r\n"));
    assert!(s.ask("MEMORY DOCTOR").contains("1 objects take"));
    assert!(s.ask("LATENCY DOCTOR").contains("set "));
    assert!(s.ask("LATENCY HISTOGRAM set").contains("calls\r\n:1\r\n"));
    s.expect("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
    s.expect_error(
        "HELLO x",
        "ERR Protocol version is not an integer or out of range",
    );
    s.expect("SHUTDOWN", "");
    assert_eq!(ending(&s.client), Ending::CloseAfterReply);
    assert_eq!(
        s.server.shared.watch.stopping(),
        crate::threads::Stop::Graceful
    );
}

/// A text of 2,000 bytes: to compare two of them takes several milliseconds.
const TEXT_REPEATS: usize = 1_000;

#[test]
fn commands_that_reach_the_threshold_are_events() {
    let mut s = Server::session(1);
    s.expect(&format!("SET a {}", "ab".repeat(TEXT_REPEATS)), "+OK\r\n");
    s.expect(&format!("SET b {}", "ba".repeat(TEXT_REPEATS)), "+OK\r\n");
    s.ask("LCS a b LEN");
    s.expect("LATENCY LATEST", "*0\r\n");
    assert!(s.ask("LATENCY DOCTOR").contains("Events are not recorded"));
    s.expect("CONFIG SET latency-monitor-threshold 1", "+OK\r\n");
    s.ask("LCS a b LEN");
    // On a busy machine another command may take as long.
    s.expect("CONFIG SET latency-monitor-threshold 3600000", "+OK\r\n");
    assert!(s.ask("LATENCY HISTORY command").contains("*2\r\n:"));
    assert!(s.ask("LATENCY LATEST").contains("*4\r\n$7\r\ncommand\r\n:"));
    assert!(s.ask("LATENCY GRAPH command").contains("command - high "));
    assert!(s.ask("LATENCY DOCTOR").contains("samples, mean "));
    s.expect("LATENCY HISTORY nosuch", "*0\r\n");
    s.expect_error(
        "LATENCY GRAPH nosuch",
        "ERR No samples available for event 'nosuch'",
    );
    s.expect("LATENCY RESET nosuch", ":0\r\n");
    s.expect("LATENCY RESET command", ":1\r\n");
    s.ask("LCS a b LEN");
    s.expect("LATENCY HISTORY command", "*0\r\n");
    s.expect_error(
        "LATENCY GRAPH command",
        "ERR No samples available for event 'command'",
    );
}

#[test]
fn reads_are_counted_for_eviction_as_the_client_wants() {
    let mut s = Server::session(1);
    s.expect("SET k v", "+OK\r\n");
    s.expect_error(
        "OBJECT FREQ k",
        "ERR An LFU maxmemory policy is not selected",
    );
    s.expect("CONFIG SET maxmemory-policy allkeys-lfu", "+OK\r\n");
    s.expect("OBJECT FREQ k", ":0\r\n");
    s.expect("GET k", "$1\r\nv\r\n");
    for uncounted in ["EXISTS k", "TYPE k", "TTL k", "OBJECT ENCODING k"] {
        s.ask(uncounted);
    }
    s.expect("OBJECT FREQ k", ":1\r\n");
    s.expect("CLIENT NO-TOUCH ON", "+OK\r\n");
    s.expect("GET k", "$1\r\nv\r\n");
    s.expect("OBJECT FREQ k", ":1\r\n");
    s.expect("TOUCH k", ":1\r\n");
    s.expect("OBJECT FREQ k", ":2\r\n");
    s.expect("CLIENT NO-TOUCH OFF", "+OK\r\n");
    s.expect("GET k", "$1\r\nv\r\n");
    s.expect("OBJECT FREQ k", ":3\r\n");
    s.expect("CLIENT NO-TOUCH ON", "+OK\r\n");
    s.expect("RESET", "+RESET\r\n");
    s.expect("GET k", "$1\r\nv\r\n");
    s.expect("OBJECT FREQ k", ":4\r\n");
    s.expect("OBJECT FREQ nosuch", "$-1\r\n");
    s.expect_error(
        "OBJECT IDLETIME k",
        "ERR An LFU maxmemory policy is selected",
    );
    s.expect("CONFIG SET maxmemory-policy allkeys-lru", "+OK\r\n");
    s.expect_error("OBJECT IDLETIME k", "ERR OBJECT IDLETIME is not supported");
    s.expect_error(
        "OBJECT FREQ k",
        "ERR An LFU maxmemory policy is not selected",
    );
    s.expect_error("CLIENT NO-TOUCH maybe", "ERR syntax error");
}

#[test]
fn the_mode_and_the_policy_are_one_setting() {
    let server = Server::with(ServerConfig {
        mode: Mode::Cache,
        threads: 1,
        ..ServerConfig::default()
    });
    let mut s = server.into_session();
    let value = |of: &str| format!("$%\r\n{of}\r\n").replace('%', &of.len().to_string());
    let shown = |s: &mut Session, mode: &str, policy: &str| {
        assert!(s.ask("CONFIG GET mode").ends_with(&value(mode)));
        assert!(
            s.ask("CONFIG GET maxmemory-policy")
                .ends_with(&value(policy))
        );
        assert!(s.ask("CONFIG GET level").ends_with(&value("memory")));
    };
    shown(&mut s, "cache", "allkeys-lru");
    s.expect("CONFIG SET mode store", "+OK\r\n");
    shown(&mut s, "store", "noeviction");
    s.expect("CONFIG SET maxmemory-policy allkeys-random", "+OK\r\n");
    shown(&mut s, "cache", "allkeys-random");
    s.expect_error(
        "CONFIG SET maxmemory-policy volatile-lru",
        "ERR CONFIG SET failed (possibly related to argument 'maxmemory-policy') - maxmemory-policy: `volatile-lru`",
    );
    s.expect("CONFIG SET maxmemory-policy noeviction", "+OK\r\n");
    shown(&mut s, "store", "noeviction");
}

/// Each held its thread for tens of milliseconds where there were thousands of clients or users.
#[test]
fn long_lists_of_clients_and_users_go_on_in_later_rounds() {
    let mut s = Server::session(1);
    let clients: Vec<Client> = (0..1_000).map(|_| s.server.client(0)).collect();
    let ids = |list: &str| -> Vec<u64> {
        let lines = list.lines().filter_map(|line| line.strip_prefix("id="));
        let ids = lines.filter_map(|line| line.split(' ').next());
        ids.map(|id| id.parse().expect("a number")).collect()
    };
    assert_eq!(s.ask_part("CLIENT LIST"), "");
    let [first, .., last] = &clients[..] else {
        panic!("there are many");
    };
    last.record().note_gone(); // it is not shown yet
    let shown = ids(&s.ask("CLIENT LIST"));
    assert_eq!(shown.len(), 1_000);
    assert!(shown.is_sorted() && !shown.contains(&last.id()));
    let some = format!("CLIENT LIST ID {} {}", first.id(), last.id());
    assert_eq!(ids(&s.ask_part(&some)), [first.id(), last.id()]);
    s.expect_error("CLIENT LIST TYPE nosuch", "ERR Unknown client type");
    for n in 0..600 {
        s.expect(&format!("ACL SETUSER u{n:03}"), "+OK\r\n");
    }
    assert_eq!(s.ask_part("ACL LIST"), "");
    let mut admin = s.server.client(0);
    let late = run(&mut s.executor, &mut admin, b"ACL SETUSER late\r\n");
    assert_eq!(late, "+OK\r\n");
    let list = s.ask("ACL LIST");
    assert!(list.starts_with("*601\r\n") && !list.contains("user late "));
    assert_eq!(list.matches("\r\nuser u").count(), 600);
    // In a transaction each is one moment.
    let mut in_exec = |request: &str| {
        s.expect("MULTI", "+OK\r\n");
        s.expect(request, "+QUEUED\r\n");
        s.ask("EXEC")
    };
    assert_eq!(ids(&in_exec("CLIENT LIST")).len(), 1_002);
    assert!(in_exec("ACL LIST").starts_with("*1\r\n*602\r\n"));
}
