//! Client commands as processes: their output and exit code.
//!
//! The server is `duramen serve`, or redis-server if DURAMEN_TEST_PEER names it: the commands here
//! are plain Redis unless a test states otherwise.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::server::{DURAMEN, Server};
use rustix::process::Signal;

impl Server {
    /// `duramen ARGS` against this server.
    fn ask(&self, args: &[&str]) -> Answer {
        self.ask_with(args, b"")
    }

    fn ask_with(&self, args: &[&str], input: &[u8]) -> Answer {
        let mut command = Command::new(DURAMEN);
        command
            .args(args)
            .env("DURAMEN_PORT", self.port.to_string());
        Answer::of(command, input)
    }
}

/// Result of a process.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Answer {
    pub(crate) fn of(mut command: Command, input: &[u8]) -> Answer {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test runs");
        let mut stdin = process.stdin.take().expect("stdin is a pipe");
        // A command that doesn't read its input may have ended already.
        let _ = stdin.write_all(input);
        drop(stdin);
        let Output {
            status,
            stdout,
            stderr,
        } = process.wait_with_output().expect("the process ends");
        Answer {
            code: status.code(),
            out: stdout,
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn expect(&self, code: i32, out: &str) {
        assert_eq!(
            (self.code, String::from_utf8_lossy(&self.out).as_ref()),
            (Some(code), out),
            "{}",
            self.err
        );
        assert_eq!(code == 0, self.err.is_empty(), "{}", self.err);
    }

    /// The rest of this many seconds: at least half, because the machine may be slow.
    #[track_caller]
    fn expect_left_of(&self, seconds: u64) {
        let out = String::from_utf8_lossy(&self.out);
        let left: u64 = out.trim_end().parse().expect("a number of seconds");
        assert!(left > seconds / 2 && left <= seconds, "{left} of {seconds}");
        self.expect(0, &format!("{left}\n"));
    }

    #[track_caller]
    pub(crate) fn expect_error(&self, code: i32, text: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(text), "{text:?} is not in {:?}", self.err);
    }
}

#[test]
fn values() {
    let server = Server::start(&[]);
    server.ask(&["set", "greeting", "hello"]).expect(0, "");
    server.ask(&["get", "greeting"]).expect(0, "hello\n");
    server.ask(&["get", "-n", "greeting"]).expect(0, "hello");
    server
        .ask(&["get", "greeting", "--json"])
        .expect(0, "\"hello\"\n");
    server.ask(&["append", "greeting", " you"]).expect(0, "9\n");
    server.ask(&["strlen", "greeting"]).expect(0, "9\n");
    server.ask(&["type", "greeting"]).expect(0, "string\n");
    server
        .ask(&["exists", "greeting", "other"])
        .expect(0, "1\n");
    server.ask(&["rename", "greeting", "other"]).expect(0, "");
    server.ask(&["del", "other", "nobody"]).expect(0, "1\n");
    server.ask(&["dbsize"]).expect(0, "0\n");
}

#[test]
fn absent_keys_are_exit_code_1() {
    let server = Server::start(&[]);
    server
        .ask(&["get", "nobody"])
        .expect_error(1, "no such key");
    let json = server.ask(&["get", "nobody", "--json"]);
    assert_eq!((json.code, &*json.out), (Some(1), &b"null\n"[..]));
    for args in [
        ["ttl", "nobody"],
        ["type", "nobody"],
        ["persist", "nobody"],
        ["del", "nobody"],
    ] {
        server.ask(&args).expect_error(1, "no such key");
    }
    assert_eq!(server.ask(&["exists", "nobody"]).code, Some(1));
    assert_eq!(server.ask(&["expire", "nobody", "10s"]).code, Some(1));
}

#[test]
fn conditions() {
    let server = Server::start(&[]);
    server
        .ask(&["set", "k", "1", "--xx"])
        .expect_error(1, "not stored");
    server.ask(&["set", "k", "1", "--nx"]).expect(0, "");
    server
        .ask(&["set", "k", "2", "--nx"])
        .expect_error(1, "not stored");
    server
        .ask(&["set", "k", "2", "--xx", "--get"])
        .expect(0, "1\n");
    server.ask(&["set", "new", "2", "--get"]).expect(0, "");
    server
        .ask(&["set", "absent", "2", "--xx", "--get"])
        .expect_error(1, "not stored");
    server.ask(&["get", "k"]).expect(0, "2\n");
}

#[test]
fn any_bytes_go_in_and_out() {
    let server = Server::start(&[]);
    let value: Vec<u8> = (0..=255u8).cycle().take(100_000).collect();
    let set = server.ask_with(&["set", "blob", "-"], &value);
    set.expect(0, "");
    assert_eq!(server.ask(&["get", "--no-newline", "blob"]).out, value);
    server
        .ask_with(&["set", "short", "-"], b"\xff\0\n")
        .expect(0, "");
    server
        .ask(&["get", "short", "--json"])
        .expect(0, "{\"base64\":\"/wAK\"}\n");
    server
        .ask_with(&["append", "short", "-"], b"x")
        .expect(0, "4\n");
    server.ask_with(&["set", "empty", "-"], b"").expect(0, "");
    server.ask(&["get", "empty"]).expect(0, "\n");
    // `yes | duramen set k -` read for ever.
    server
        .ask_with(&["set", "long", "-"], &vec![b'x'; (1 << 20) + 1])
        .expect_error(2, "longer than 1048576 bytes");
    // A shell can pass a key that is not UTF-8.
    use std::os::unix::ffi::OsStrExt as _;
    let key = std::ffi::OsStr::from_bytes(b"k\xff");
    for (name, value) in [("set", Some("v")), ("get", None)] {
        let mut command = Command::new(DURAMEN);
        command
            .arg(name)
            .arg(key)
            .args(value)
            .env("DURAMEN_PORT", server.port.to_string());
        Answer::of(command, b"").expect(0, if name == "get" { "v\n" } else { "" });
    }
}

#[test]
fn numbers() {
    let server = Server::start(&[]);
    server.ask(&["incr", "n"]).expect(0, "1\n");
    server.ask(&["incr", "n", "41"]).expect(0, "42\n");
    server.ask(&["incr", "n", "-2"]).expect(0, "40\n");
    server.ask(&["decr", "n", "39"]).expect(0, "1\n");
    server.ask(&["incrbyfloat", "f", "1.5"]).expect(0, "1.5\n");
    server
        .ask(&["incrbyfloat", "f", "-0.25"])
        .expect(0, "1.25\n");
    server.ask(&["incr", "n", "--json"]).expect(0, "2\n");
    server
        .ask(&["incr", "f"])
        .expect_error(3, "ERR value is not an integer or out of range");
}

#[test]
fn several_keys_at_once() {
    let server = Server::start(&[]);
    server.ask(&["mset", "a", "1", "b", "2"]).expect(0, "");
    server.ask(&["mget", "a", "b"]).expect(0, "1\n2\n");
    server
        .ask(&["mget", "a", "c", "b", "--json"])
        .expect_error(1, "no such key: c");
    assert_eq!(
        server.ask(&["mget", "a", "c", "b", "--json"]).out,
        b"[\"1\",null,\"2\"]\n"
    );
    server
        .ask(&["mset", "a", "1", "b"])
        .expect_error(2, "the last key, `b`, has no value");
}

#[test]
fn expiry() {
    let server = Server::start(&[]);
    server.ask(&["set", "k", "v"]).expect(0, "");
    server.ask(&["ttl", "k"]).expect(0, "-1\n");
    server.ask(&["expire", "k", "10m"]).expect(0, "1\n");
    server.ask(&["ttl", "k"]).expect_left_of(600);
    assert_eq!(server.ask(&["expire", "k", "20m", "--nx"]).code, Some(1));
    server.ask(&["set", "k", "w", "--keep-ttl"]).expect(0, "");
    server.ask(&["persist", "k"]).expect(0, "1\n");
    server
        .ask(&["persist", "k"])
        .expect_error(1, "never expires");
    server.ask(&["set", "k", "v", "--ttl", "1h"]).expect(0, "");
    server.ask(&["ttl", "k"]).expect_left_of(3600);
    server
        .ask(&["expire", "k", "1w"])
        .expect_error(2, "not a unit of time");
}

#[test]
fn scans_see_all_keys() {
    let server = Server::start(&[]);
    let pairs: Vec<String> = (0..3000)
        .flat_map(|n| [format!("key:{n}"), n.to_string()])
        .collect();
    let args: Vec<&str> = std::iter::once("mset")
        .chain(pairs.iter().map(String::as_str))
        .collect();
    server.ask(&args).expect(0, "");
    let sorted = |out: &[u8]| {
        let mut lines: Vec<String> = String::from_utf8_lossy(out)
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines.dedup();
        lines
    };
    let mut expected: Vec<String> = (0..3000).map(|n| format!("key:{n}")).collect();
    expected.sort();
    assert_eq!(sorted(&server.ask(&["scan"]).out), expected);
    assert_eq!(sorted(&server.ask(&["scan", "--batch", "7"]).out), expected);
    assert_eq!(sorted(&server.ask(&["keys", "*"]).out), expected);
    assert_eq!(sorted(&server.ask(&["scan", "key:123*"]).out).len(), 11);
    assert_eq!(
        server
            .ask(&["scan", "--limit", "5"])
            .out
            .split(|byte| *byte == b'\n')
            .count(),
        6
    );
    server
        .ask(&["scan", "key:77", "--values"])
        .expect(0, "key:77\t77\n");
    server
        .ask(&["scan", "key:77", "--values", "--json"])
        .expect(0, "{\"key\":\"key:77\",\"value\":\"77\"}\n");
    server
        .ask(&["scan", "key:77", "--json"])
        .expect(0, "\"key:77\"\n");
}

/// A line end in a key made `scan | xargs del` delete another key.
#[test]
fn keys_of_a_scan_may_end_with_zero_bytes() {
    let server = Server::start(&[]);
    let mut wire = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    for key in [&b"two\nlines"[..], b"two\0words"] {
        let set = [&b"*3\r\n$3\r\nSET\r\n$9\r\n"[..], key, b"\r\n$1\r\nv\r\n"].concat();
        wire.write_all(&set).unwrap();
        let mut reply = [0; 5];
        wire.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
    let found = server.ask(&["scan", "-0", "two*"]);
    assert_eq!(found.out, b"two\nlines\0");
    assert!(found.err.contains("zero byte"), "{found:?}");
}

#[test]
fn any_command_can_be_called() {
    let server = Server::start(&[]);
    server
        .ask(&["call", "SET", "k", "v", "EX", "600", "NX"])
        .expect(0, "OK\n");
    server.ask(&["call", "SET", "k", "v", "NX"]).expect(0, "\n");
    server
        .ask(&["call", "TTL", "k", "--json"])
        .expect_error(3, "ERR wrong number of arguments");
    server
        .ask(&["--json", "call", "TTL", "k"])
        .expect_error(2, "--json");
    server
        .ask(&["call", "--json", "TTL", "k"])
        .expect_left_of(600);
    server.ask(&["call", "MGET", "k", "x"]).expect(0, "v\n\n");
    server
        .ask(&["call", "NOSUCH"])
        .expect_error(3, "ERR unknown command 'NOSUCH'");
}

#[test]
fn the_server_about_itself() {
    let server = Server::start(&[]);
    let ping = server.ask(&["ping", "-c", "3"]);
    assert_eq!(ping.code, Some(0));
    assert_eq!(
        String::from_utf8_lossy(&ping.out)
            .matches("PONG from 127.0.0.1:")
            .count(),
        3
    );
    let info = server.ask(&["info", "server"]);
    assert!(String::from_utf8_lossy(&info.out).contains("\nredis_version:"));
    let info = server.ask(&["info", "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&info.out).expect("JSON");
    assert_eq!(info["server"]["tcp_port"], server.port);
    assert!(
        info["memory"]["used_memory_rss"]
            .as_i64()
            .is_some_and(|bytes| bytes > 0)
    );
}

#[test]
fn top_without_a_terminal_prints_lines() {
    let server = Server::start(&[]);
    server.ask(&["set", "k", "v"]).expect(0, "");
    let once = server.ask(&["top", "--once", "--json", "--interval", "0.1"]);
    assert_eq!(once.code, Some(0), "{}", once.err);
    let reading: serde_json::Value = serde_json::from_slice(&once.out).expect("JSON");
    assert_eq!(reading["keys"], 1.0);
    assert!(
        reading["ops_per_second"]
            .as_f64()
            .is_some_and(|rate| rate >= 0.0)
    );
    assert!(
        reading["clients"]
            .as_f64()
            .is_some_and(|clients| clients >= 1.0)
    );
    if !server.is_peer() {
        for figure in [
            "utilization",
            "live_bytes",
            "live_limit_bytes",
            "memory_limit_bytes",
            "cleaner_busy",
            "segments_open",
        ] {
            assert!(
                reading[figure].is_number(),
                "{figure} is missing in {reading}"
            );
        }
        assert!(
            reading["latency_since_start"]
                .as_array()
                .is_some_and(|all| !all.is_empty()),
            "{reading}"
        );
    }
    let lines = server.ask(&["top", "--readings", "2", "--interval", "0.1"]);
    assert_eq!(String::from_utf8_lossy(&lines.out).lines().count(), 3);
}

/// On a terminal (made by `script`) top draws a page, and `q` as well as SIGTERM restore the
/// terminal.
#[test]
fn top_on_a_terminal_restores_it() {
    let server = Server::start(&[]);
    for end in [b"q", b"k"] {
        // `timeout`, so that a missing page is a failure and not an endless wait.
        let shell = format!("echo id=$$; stty cols 120 rows 40; exec {DURAMEN} top --interval 0.1");
        let mut process = Command::new("timeout")
            .args(["60", "script", "-qec", &shell, "/dev/null"])
            .env("DURAMEN_PORT", server.port.to_string())
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("timeout and script (of Debian's bsdutils) run");
        let (mut stdin, mut stdout) = (
            process.stdin.take().expect("a pipe"),
            process.stdout.take().expect("a pipe"),
        );
        let mut drawn = Vec::new();
        let mut chunk = [0; 4096];
        let contains =
            |drawn: &[u8], text: &[u8]| drawn.windows(text.len()).any(|window| window == text);
        // The last part of a whole page.
        while !contains(&drawn, b"operations/s") || !contains(&drawn, b"q quit") {
            let bytes = stdout.read(&mut chunk).expect("the terminal is there");
            assert!(bytes > 0, "top ended early: {}", drawn.escape_ascii());
            drawn.extend_from_slice(&chunk[..bytes]);
        }
        if end == b"q" {
            stdin.write_all(b"q").expect("top reads keys");
        } else {
            let text = String::from_utf8_lossy(&drawn);
            let id = text
                .lines()
                .next()
                .and_then(|line| line.trim().strip_prefix("id="));
            let killed = Command::new("kill")
                .args(["-TERM", id.expect("the shell says its id, which is top's")])
                .status();
            assert!(killed.expect("kill runs").success());
        }
        stdout
            .read_to_end(&mut drawn)
            .expect("the terminal is there");
        assert!(process.wait().expect("script ends").success());
        assert!(
            contains(&drawn, b"\x1b[?1049h"),
            "the page has a screen of its own"
        );
        assert!(
            drawn.trim_ascii_end().ends_with(b"\x1b[?1049l\x1b[?25h"),
            "{}",
            drawn.escape_ascii()
        );
    }
}

#[test]
fn passwords() {
    let server = Server::start(&["--requirepass", "s3cret"]);
    server.ask(&["get", "k"]).expect_error(3, "NOAUTH");
    server
        .ask(&["get", "k"])
        .expect_error(3, "DURAMEN_PASSWORD");
    server
        .ask(&["ping", "--password", "wrong"])
        .expect_error(3, "WRONGPASS");
    server
        .ask(&["set", "k", "v", "--password", "s3cret"])
        .expect(0, "");
    server
        .ask(&["get", "k", "--user", "default", "--password", "s3cret"])
        .expect(0, "v\n");
    let mut command = Command::new(DURAMEN);
    command
        .args(["get", "k", "--port", &server.port.to_string()])
        .env("DURAMEN_PASSWORD", "s3cret");
    Answer::of(command, b"").expect(0, "v\n");
    server
        .ask(&["get", "k", "--user", "default"])
        .expect_error(2, "--password");
}

#[test]
fn tables() {
    let server = Server::start(&[]);
    if server.is_peer() {
        return;
    }
    server
        .ask(&["table", "id", "users"])
        .expect_error(3, "no table is called `users`");
    assert_eq!(server.ask(&["table", "create", "users"]).code, Some(0));
    server
        .ask(&["set", "k", "in users", "--table", "users"])
        .expect(0, "");
    server.ask(&["get", "k"]).expect_error(1, "no such key");
    server
        .ask(&["get", "k", "--table", "users"])
        .expect(0, "in users\n");
    // It was one flat list: ["name", "default", "id", 0, …].
    let list = server.ask(&["table", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.out).expect("JSON");
    let table = |id: u32, name: &str, objects: u32| serde_json::json!({ "id": id, "name": name, "level": "memory", "objects": objects });
    assert_eq!(
        list,
        serde_json::json!([table(0, "default", 0), table(1, "users", 1)])
    );
    server.ask(&["table", "list"]).expect(
        0,
        "id     table                    level     objects\n\
         0      default                  memory    0\n\
         1      users                    memory    1\n",
    );
    let dropped = server.ask(&["table", "drop", "users"]);
    assert_eq!(dropped.code, Some(0), "{dropped:?}");
    let said = String::from_utf8_lossy(&dropped.out);
    assert!(
        said.starts_with("dropped table `users` of the server at 127.0.0.1:"),
        "{said}"
    );
    server
        .ask(&["get", "k", "--table", "users"])
        .expect_error(3, "users");
}

#[test]
fn no_server_is_exit_code_4_and_says_what_to_do() {
    // The system never assigns this port as a free one.
    let port = "1";
    let mut command = Command::new(DURAMEN);
    command.args(["get", "k", "--port", port]);
    let answer = Answer::of(command, b"");
    answer.expect_error(4, &format!("127.0.0.1:{port}"));
    answer.expect_error(4, "duramen serve");
}

/// A peer that is not a RESP server, one that never answers, and one that closes the connection.
#[test]
fn strange_servers_are_exit_code_4() {
    for (greeting, close, text) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            false,
            "is this a RESP port?",
        ),
        (b"", false, "--timeout"),
        (b"", true, "closed"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener
            .local_addr()
            .expect("it has an address")
            .port()
            .to_string();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the client connects");
            let _ = stream.write_all(greeting);
            if !close {
                // Until the client has closed the connection.
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
        let mut command = Command::new(DURAMEN);
        // A wrong reply is an error at once, without a timeout.
        let timeout = if greeting.is_empty() { "1" } else { "60" };
        command.args(["get", "k", "--timeout", timeout, "--port", &port]);
        let answer = Answer::of(command, b"");
        assert_eq!(answer.code, Some(4), "{answer:?}");
        if !close {
            // A connection that is closed with unread bytes may also be reset.
            answer.expect_error(4, text);
        }
        peer.join().expect("the peer ends");
    }
}

/// A command that was stopped and continued waited anew each time: stopped once a second it never
/// reported the missing answer.
#[test]
fn stops_do_not_prolong_the_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it has an address").port();
    let mut process = Command::new(DURAMEN)
        .args(["get", "k", "--timeout", "1", "--port", &port.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary under test runs");
    let _stream = listener.accept().expect("the client connects");
    let pid = rustix::process::Pid::from_child(&process);
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = process.try_wait().expect("it can be asked") {
            break Some(status);
        }
        if Instant::now() > deadline {
            break None;
        }
        for signal in [Signal::STOP, Signal::CONT] {
            rustix::process::kill_process(pid, signal).expect("it is not waited for yet");
            std::thread::sleep(Duration::from_millis(100)); // the pace of the stops
        }
    };
    let _ = process.kill();
    let _ = process.wait();
    assert_eq!(status.and_then(|status| status.code()), Some(4));
}
