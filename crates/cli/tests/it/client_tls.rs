//! Client commands as processes, against servers with TLS.
//!
//! A story: no command of a server spoke TLS. So with `port 0` and a `tls-port` no `ping`
//! succeeded, hence no health check, no `top`, no `snapshot`.

use crate::client::Answer;
use crate::server::{DURAMEN, Server};
use duramen_tls::{Authority, Request};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const PASSWORD: &str = "s3cret";

/// A server that speaks TLS alone, and the certificates around it.
struct Encrypted {
    _server: Server,
    port: String,
    certs: TempDir,
}

fn issue(authority: &Authority, name: &str, sans: &[&str]) {
    let request = Request {
        name: name.to_owned(),
        sans: sans.iter().map(|san| (*san).to_owned()).collect(),
        days: 3,
    };
    authority.issue(&request).expect("issued");
}

impl Encrypted {
    /// `names`: those in its certificate.
    fn start(names: &[&str], options: &[&str]) -> Encrypted {
        let certs = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(certs.path(), "a test", 3).expect("made");
        issue(&authority, "server", names);
        issue(&authority, "client", &[]);
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("it has an address").port();
        drop(free);
        let (port, file) = (port.to_string(), |name| path(&certs, name));
        let tls = [
            "--tls-port",
            &port,
            "--tls-cert-file",
            &file("server.crt"),
            "--tls-key-file",
            &file("server.key"),
            "--tls-ca-cert-file",
            &file("ca.crt"),
        ];
        let server = Server::start(&[&tls[..], options].concat());
        assert_eq!(server.port, 0, "it speaks TLS alone");
        Encrypted {
            _server: server,
            port,
            certs,
        }
    }

    fn file(&self, name: &str) -> String {
        path(&self.certs, name)
    }

    /// A command whose environment has all that it needs, as that of a container.
    fn by_environment(&self, args: &[&str]) -> Answer {
        let mut command = Command::new(DURAMEN);
        std::fs::write(self.certs.path().join("password"), PASSWORD).expect("written");
        command
            .args(args)
            .env("DURAMEN_TLS", "yes")
            .env("DURAMEN_TLS_PORT", &self.port)
            .env("DURAMEN_PORT", "0")
            .env("DURAMEN_TLS_CA_CERT_FILE", self.file("ca.crt"))
            .env("DURAMEN_TLS_CERT_FILE", self.file("client.crt"))
            .env("DURAMEN_TLS_KEY_FILE", self.file("client.key"))
            .env("DURAMEN_PASSWORD_FILE", self.file("password"));
        Answer::of(command, b"")
    }

    /// `duramen get k --port … MORE`.
    fn get(&self, more: &[&str]) -> Answer {
        let mut command = Command::new(DURAMEN);
        command
            .args(["get", "k", "--timeout", "60", "--port", &self.port])
            .args(more);
        Answer::of(command, b"")
    }
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// A command that has succeeded.
#[track_caller]
fn succeeds(answer: &Answer, args: &[&str]) {
    assert_eq!(answer.code, Some(0), "{args:?}: {answer:?}");
}

/// The names of all commands that `--help` lists.
fn all_commands() -> Vec<String> {
    let mut command = Command::new(DURAMEN);
    command.arg("--help");
    let help = String::from_utf8(Answer::of(command, b"").out).expect("text");
    let (_, rest) = help.split_once("Commands:\n").expect("a list of commands");
    let (list, _) = rest.split_once("\n\n").expect("an end of the list");
    let name = |line: &str| {
        line.strip_prefix("  ")?
            .split(' ')
            .next()
            .map(str::to_owned)
    };
    let names = list.lines().filter_map(name);
    names
        .filter(|name| !name.is_empty() && name != "help")
        .collect()
}

/// Those of servers, by their options.
fn commands_of_servers() -> Vec<String> {
    let asks_a_server = |name: &String| {
        let mut command = Command::new(DURAMEN);
        command.args([name.as_str(), "--help"]);
        let help = Answer::of(command, b"").out;
        String::from_utf8_lossy(&help).contains("DURAMEN_HOST")
    };
    all_commands().into_iter().filter(asks_a_server).collect()
}

#[test]
fn every_command_speaks_tls_and_logs_in() {
    let data = tempfile::tempdir().expect("a folder");
    let dir = path(&data, "data");
    let options = ["--requirepass", PASSWORD, "--dir", &dir];
    let server = Encrypted::start(&["127.0.0.1"], &options);
    let copy = server.file("copy");
    let mut met: Vec<&str> = Vec::new();
    for args in [
        &["ping"][..],
        &["set", "k", "1"],
        &["get", "k"],
        &["mset", "a", "1", "b", "2"],
        &["mget", "a", "b"],
        &["exists", "a"],
        &["del", "a"],
        &["incr", "k"],
        &["decr", "k"],
        &["incrbyfloat", "k", "0.5"],
        &["append", "k", "0"],
        &["strlen", "k"],
        &["expire", "k", "1h"],
        &["ttl", "k"],
        &["persist", "k"],
        &["type", "k"],
        &["rename", "k", "l"],
        &["scan"],
        &["keys"],
        &["dbsize"],
        &["info", "server"],
        &["call", "GET", "l"],
        &["table", "list"],
        &["table", "create", "t"],
        &["top", "--once", "--interval", "0.1"],
        &["snapshot", &copy],
    ] {
        succeeds(&server.by_environment(args), args);
        met.push(args[0]);
    }
    assert!(
        Path::new(&copy).join("superblock").exists(),
        "it was copied"
    );
    for name in commands_of_servers() {
        assert!(
            met.contains(&&*name),
            "`duramen {name}` is not in this test"
        );
    }
    let bench = ["bench", "load", "--seconds", "0.1", "--keys", "100"];
    let bench = [&bench[..], &["--connections", "2", "--preload", "--json"]].concat();
    let answer = server.by_environment(&bench);
    succeeds(&answer, &bench);
    let figures: serde_json::Value = serde_json::from_slice(&answer.out).expect("JSON");
    assert_eq!(figures["errors"], 0, "{figures}");
    let wrong = server.by_environment(&[&bench[..], &["--user", "nobody"]].concat());
    wrong.expect_error(1, "refuses this user or password");
}

#[test]
fn flags_of_certificates_mean_tls() {
    let server = Encrypted::start(&["localhost"], &["--requirepass", PASSWORD]);
    let (ca, certificate, key) = (
        server.file("ca.crt"),
        server.file("client.crt"),
        server.file("client.key"),
    );
    let trusts = ["--tls-ca-cert-file", &ca, "--password", PASSWORD];
    let shows = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
    let both = [trusts, shows].concat();
    // Absent, and so asked for.
    let named = [&both[..], &["--tls-server-name", "localhost"]].concat();
    server.get(&named).expect_error(1, "no such key");
    let host = [&both[..], &["--host", "localhost"]].concat();
    server.get(&host).expect_error(1, "no such key");

    // 127.0.0.1 is not in its certificate.
    let refused = server.get(&both);
    refused.expect_error(4, "it is for");
    refused.expect_error(4, "--tls-server-name");
    let refused = server.get(&[&trusts[..], &["--tls-server-name", "localhost"]].concat());
    refused.expect_error(4, "certificate_required");
    refused.expect_error(4, "--tls-cert-file");
    let half = ["--tls-cert-file", &certificate];
    let half = server.get(&[&trusts[..], &half].concat());
    half.expect_error(2, "add --tls-key-file");
    server.get(&["--tls"]).expect_error(2, "--tls-ca-cert-file");
    let other = tempfile::tempdir().expect("a folder");
    Authority::create(other.path(), "another", 3).expect("made");
    let refused = server.get(&["--tls-ca-cert-file", &path(&other, "ca.crt")]);
    refused.expect_error(4, "signed by no authority");
    // Without TLS.
    server.get(&[]).expect_error(3, "Add --tls");
}

#[test]
fn a_server_without_tls_is_named_and_its_settings_are_no_wish() {
    let server = Server::start(&[]);
    let port = server.port.to_string();
    let certs = tempfile::tempdir().expect("a folder");
    let authority = Authority::create(certs.path(), "a test", 3).expect("made");
    issue(&authority, "server", &["127.0.0.1"]);
    let ask = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(DURAMEN);
        command.args(args).args(["--timeout", "60"]);
        command.env("DURAMEN_PORT", &port);
        command.envs(variables.iter().copied());
        Answer::of(command, b"")
    };
    // A container has the server's settings in its environment; its plain port needs no TLS.
    let (ca, file) = (path(&certs, "ca.crt"), path(&certs, "server.crt"));
    let settings = [
        ("DURAMEN_TLS_PORT", "1"),
        ("DURAMEN_TLS_CERT_FILE", &*file),
        ("DURAMEN_TLS_CA_CERT_FILE", &*ca),
    ];
    succeeds(&ask(&["ping"], &settings), &["ping"]);
    let told = ask(&["ping", "--tls-ca-cert-file", &ca], &[]);
    told.expect_error(4, "does not speak TLS on this port");
    ask(&["ping"], &[("DURAMEN_TLS", "perhaps")]).expect_error(2, "--tls");
    let port = [("DURAMEN_TLS", "yes"), ("DURAMEN_TLS_PORT", "many")];
    ask(&["ping"], &port).expect_error(2, "DURAMEN_TLS_PORT");
    // Nor does a coordinator get a plain connection if TLS is asked for.
    let table = ["table", "list", "--coordinator", "127.0.0.1:1", "--tls"];
    ask(&table, &[]).expect_error(2, "--tls-cert-file");
}
