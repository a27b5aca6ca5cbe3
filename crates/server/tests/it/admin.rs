//! Admin HTTP over a real socket: pages, states, limits.

use duramen_config::ServerConfig;
use duramen_engine::TableId;
use duramen_redis::threads::Stop;
use duramen_server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn start() -> Server {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Server {
    Server::start(config_with(change)).expect("server starts")
}

fn config_with(change: impl FnOnce(&mut ServerConfig)) -> ServerConfig {
    let mut config = ServerConfig {
        level: Some(duramen_config::Level::Memory),
        port: 0,
        admin_port: 0,
        threads: 2,
        memory_bytes: 64 << 20,
        huge_pages: false,
        output_pause_bytes: 64 << 20,
        ..ServerConfig::default()
    };
    change(&mut config);
    config
}

fn exchange(server: &Server, request: &str) -> String {
    let address = server.addresses().admin.expect("admin is on");
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("timeout");
    stream.write_all(request.as_bytes()).expect("sends");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("reads");
    reply
}

fn get(server: &Server, path: &str) -> (String, String) {
    let reply = exchange(
        server,
        &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    );
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("status");
    (status.to_owned(), body.to_owned())
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn metrics_count_what_happened() {
    let server = start();
    let mut client = TcpStream::connect(server.addresses().resp[0]).expect("connects");
    client
        .write_all(b"PING\r\nPING\r\nPING\r\n")
        .expect("sends");
    let mut pongs = [0; 21];
    client.read_exact(&mut pongs).expect("reads");
    // The bytes are counted after they were sent.
    let counted = || -> u64 {
        let threads = server.shared().threads.iter();
        threads
            .map(|thread| thread.counters.net_output_bytes.get())
            .sum()
    };
    wait_until("the replies are counted", || counted() == 21);
    let (status, page) = get(&server, "/metrics");
    assert_eq!(status, "200");
    let sum = |name: &str| -> f64 {
        page.lines()
            .filter(|line| line.starts_with(name))
            .map(|line| {
                line.rsplit(' ')
                    .next()
                    .expect("value")
                    .parse::<f64>()
                    .expect("number")
            })
            .sum()
    };
    assert_eq!(sum("duramen_commands_total{"), 3.0);
    assert_eq!(sum("duramen_connections_accepted_total{"), 1.0);
    assert_eq!(sum("duramen_connected_clients "), 1.0);
    assert_eq!(sum("duramen_network_received_bytes_total{"), 18.0);
    assert_eq!(sum("duramen_network_sent_bytes_total{"), 21.0);
    assert_eq!(sum("duramen_memory_budget_bytes "), 67_108_864.0);
    assert!(sum("process_resident_memory_bytes ") > 1e6);
    assert!(page.contains("duramen_command_duration_seconds_bucket{le=\"+Inf\",family=\"read\"}"));
    assert!(page.contains("# TYPE duramen_commands_total counter\n"));
}

#[test]
fn health_and_memory() {
    let server = start();
    assert_eq!(get(&server, "/livez"), ("200".into(), "ok\n".into()));
    assert_eq!(get(&server, "/readyz"), ("200".into(), "ok\n".into()));
    assert!(get(&server, "/").1.contains("/metrics"));
    assert_eq!(get(&server, "/nothing").0, "404");
    let (status, page) = get(&server, "/memory?segments=1");
    assert_eq!(status, "200");
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let parts = page["parts"].as_object().expect("parts");
    let sum: u64 = parts
        .values()
        .map(|part| part.as_u64().expect("bytes"))
        .sum();
    assert_eq!(sum, page["total_bytes"].as_u64().expect("bytes"));
    assert!(page["process"]["resident_bytes"].as_u64().expect("bytes") > 1 << 20);
    let segments = page["segments"].as_array().expect("segments").len() as u64;
    assert_eq!(segments, page["segment_count"].as_u64().expect("count"));
}

/// While clients still take their last replies, load balancers are told to send no new clients.
#[test]
fn not_ready_while_stopping() {
    let server = start();
    let mut client = TcpStream::connect(server.addresses().resp[0]).expect("connects");
    let mut request = b"*2\r\n$4\r\nECHO\r\n$900000\r\n".to_vec();
    request.extend(vec![b'y'; 900_000]);
    request.extend(b"\r\n");
    for _ in 0..16 {
        client.write_all(&request).expect("sends");
    }
    wait_until("there are unsent replies", || {
        let held = &server.shared().threads.clients()[0].output_bytes;
        held.load(std::sync::atomic::Ordering::Relaxed) > 0
    });
    server.stop();
    assert_eq!(get(&server, "/readyz").0, "503");
    assert_eq!(get(&server, "/livez").0, "200");
    server.shared().stop(Stop::AtOnce);
}

#[test]
fn oversized_headers_are_refused() {
    let server = start();
    let header = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let address = server.addresses().admin.expect("admin is on");
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("timeout");
    // The server may close while the rest is being sent.
    let _ = stream.write_all(header.as_bytes());
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"HTTP/1.1 200"));
    assert_eq!(get(&server, "/livez").0, "200");
}

/// `/livez` once answered "ok" while no client got replies any more.
#[test]
fn a_server_with_a_stuck_thread_is_not_alive() {
    let server = start();
    server.shared().watch.set_stuck_after_ms(50);
    let connect = || {
        let mut client = TcpStream::connect(server.addresses().resp[0]).expect("connects");
        client.write_all(b"PING\r\n").expect("sends");
        client.read_exact(&mut [0; 7]).expect("reads");
        client
    };
    // The second goes to the thread that has no connection yet.
    let (mut stuck, mut other) = (connect(), connect());
    let mut session = server.shared().store().session().expect("a session");
    let mut guard = session.pin();
    let hash = guard.hash(b"k");
    guard.lock_keys(&[(TableId::DEFAULT, hash)]).expect("locks");
    stuck.write_all(b"SET k v\r\n").expect("sends");
    wait_until("it is noticed", || get(&server, "/livez").0 == "503");
    assert!(
        get(&server, "/livez")
            .1
            .contains("has not come back to its loop")
    );
    // The other thread still answers, and reports the stuck thread.
    other.write_all(b"DURAMEN.STUCK\r\n").expect("sends");
    let mut told = [0; 512];
    let bytes = other.read(&mut told).expect("reads");
    let told = String::from_utf8_lossy(&told[..bytes]);
    assert!(told.contains("has not come back to its loop"), "{told}");
    guard.unlock_keys();
    drop(guard);
    wait_until("it goes on", || {
        get(&server, "/livez") == ("200".to_owned(), "ok\n".to_owned())
    });
    let mut reply = [0; 5];
    stuck.read_exact(&mut reply).expect("reads");
    assert_eq!(&reply, b"+OK\r\n");
}

/// A page with the value of `Authorization`: its status and head.
fn get_as(server: &Server, path: &str, login: &str) -> (String, String) {
    let reply = exchange(
        server,
        &format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {login}\r\n\r\n"),
    );
    let status = reply.split(' ').nth(1).expect("status");
    (status.to_owned(), reply)
}

// Users and passwords in base64.
const WATCH: &str = "Basic d2F0Y2g6c2VjcmV0"; // watch:secret
const GUEST: &str = "Basic Z3Vlc3Q6c2VjcmV0"; // guest:secret
const WRONG: &str = "Basic d2F0Y2g6Z3Vlc3M="; // watch:guess

/// Everybody saw the figures of a member that did not know the users of its cluster yet.
#[test]
fn a_member_shows_nothing_before_it_has_heard_who_may_see_it() {
    for password in ["", "secret"] {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config_with(|config| {
            config.coordinator = "127.0.0.1:1".to_owned(); // nobody is there
            config.dir = dir.path().to_str().expect("a readable path").to_owned();
            config.requirepass = password.to_owned();
        });
        let server = Server::launch(config, None).expect("it listens");
        let (expected, says) = match password {
            "" => ("503", "has not heard from its coordinator yet"),
            _ => ("401", "log in"),
        };
        for path in ["/metrics", "/memory", "/loading", "/cluster"] {
            let (status, body) = get(&server, path);
            assert_eq!(status, expected, "{path}");
            assert!(body.contains(says), "{path}: {body}");
        }
        // A password of its own decides before.
        let (status, _) = get_as(&server, "/metrics", "Basic OnNlY3JldA==");
        assert_eq!(status, if password.is_empty() { "503" } else { "200" });
        assert_eq!(get(&server, "/livez").0, "200");
        assert_eq!(get(&server, "/readyz").0, "503");
    }
}

fn guarded() -> Server {
    start_with(|config| {
        config.requirepass = "secret".to_owned();
        config.access.users = "user watch on >secret +info\n\
                               user guest on >secret ~* +@all -info"
            .to_owned();
    })
}

#[test]
fn pages_need_a_user_that_may_run_info_and_probes_need_none() {
    let server = guarded();
    for path in ["/metrics", "/memory", "/loading", "/cluster"] {
        let (status, body) = get(&server, path);
        assert_eq!((status.as_str(), body.as_str()), ("401", "log in\n"));
        let (status, reply) = get_as(&server, path, "Bearer x");
        assert_eq!(status, "401");
        assert!(
            reply
                .to_lowercase()
                .contains("www-authenticate: basic realm")
        );
        let (status, reply) = get_as(&server, path, GUEST);
        assert_eq!(status, "403", "{reply}");
        assert!(reply.contains("+info"), "{reply}");
        let expected = if path == "/cluster" { "404" } else { "200" };
        assert_eq!(get_as(&server, path, WATCH).0, expected);
        // The default user, by its password alone.
        assert_eq!(get_as(&server, path, "Basic OnNlY3JldA==").0, expected);
    }
    for path in ["/livez", "/readyz", "/"] {
        assert_eq!(get(&server, path).0, "200");
    }
    let log = resp(
        &server,
        "AUTH secret\r\nACL LOG\r\n",
        "cmd=NULL|name=admin-http",
    );
    assert!(log.contains("guest"), "{log}");
}

/// Sends requests and reads until one of the texts, separated by `|`, has come.
fn resp(server: &Server, requests: &str, until: &str) -> String {
    let mut client = TcpStream::connect(server.addresses().resp[0]).expect("connects");
    let timeout = Some(Duration::from_secs(60));
    client.set_read_timeout(timeout).expect("timeout");
    client.write_all(requests.as_bytes()).expect("sends");
    let mut text = String::new();
    let mut room = [0; 4096];
    while !until.split('|').any(|end| text.contains(end)) {
        let bytes = client.read(&mut room).expect("reads");
        assert_ne!(bytes, 0, "it ended after {text}");
        text.push_str(&String::from_utf8_lossy(&room[..bytes]));
    }
    text
}

#[test]
fn failed_logins_of_http_and_resp_slow_each_other() {
    let server = guarded();
    for _ in 0..5 {
        assert_eq!(get_as(&server, "/metrics", WRONG).0, "401");
    }
    let began = Instant::now();
    assert_eq!(get_as(&server, "/metrics", WRONG).0, "401");
    assert!(
        began.elapsed() >= Duration::from_millis(100),
        "it is slowed"
    );
    let began = Instant::now();
    resp(&server, "AUTH watch guess\r\n", "-WRONGPASS");
    assert!(
        began.elapsed() >= Duration::from_millis(200),
        "as the next one"
    );
    assert_eq!(get_as(&server, "/metrics", WATCH).0, "200");
    // Many at once: the turns of all of them would take longer than a login may wait.
    let statuses: Vec<String> =
        std::thread::scope(|scope| {
            let logins: Vec<_> =
                (0..24)
                    .map(|_| {
                        scope.spawn(|| exchange(&server, &format!(
                "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: {WRONG}\r\n\r\n"
            )))
                    })
                    .collect();
            let status = |reply: String| reply.split(' ').nth(1).unwrap_or_default().to_owned();
            logins
                .into_iter()
                .map(|login| status(login.join().expect("no panic")))
                .collect()
        });
    assert!(
        statuses.iter().any(|status| status == "429"),
        "{statuses:?}"
    );
    assert_eq!(get(&server, "/livez").0, "200");
}

#[test]
fn a_default_user_without_a_password_reads_all_unless_it_may_not() {
    let server = start_with(|config| {
        config.access.users = "user default on nopass ~* +@all -info\n\
                               user watch on >secret +info"
            .to_owned();
    });
    assert_eq!(get(&server, "/metrics").0, "401");
    assert_eq!(get_as(&server, "/metrics", WATCH).0, "200");
}
