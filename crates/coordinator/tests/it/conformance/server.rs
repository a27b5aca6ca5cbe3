//! An etcd process for one test, and a proxy in front of it that holds requests back.

use duramen_coordinator::{Etcd, EtcdAccess};
use duramen_tls::{Identity, Settings};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait; beyond it the test fails.
const DEADLINE: Duration = Duration::from_secs(60);

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

/// The etcd process. It ends with the test.
pub struct Server {
    folder: tempfile::TempDir,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
    /// The certificates of one that speaks TLS; and the access to it.
    certificates: Option<PathBuf>,
    access: EtcdAccess,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(None)
    }

    /// `certificates`: a folder that `duramen cert` could have made: it speaks TLS with them.
    pub fn start_with(certificates: Option<&Path>) -> Server {
        let identity = certificates.map(|folder| {
            let settings = Settings {
                ca_file: folder.join("ca.crt"),
                ..Settings::default()
            };
            Arc::new(Identity::load(settings).expect("an authority"))
        });
        for _ in 0..5 {
            let mut server = Server {
                folder: tempfile::tempdir().expect("a folder"),
                client_port: free_port(),
                peer_port: free_port(),
                process: None,
                certificates: certificates.map(Path::to_owned),
                access: EtcdAccess {
                    identity: identity.clone(),
                    login: None,
                },
            };
            if server.try_start() {
                return server;
            }
        }
        panic!("etcd does not start; its last words are above");
    }

    /// Makes the user `root`, and asks for logins from now on.
    pub fn require_logins(&mut self, password: &str) {
        let user = format!(r#"{{"name":"root","password":"{password}"}}"#);
        for (path, body) in [
            ("user/add", &*user),
            ("role/add", r#"{"name":"root"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            let answer = self.ask(&format!("/v3/auth/{path}"), body);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        self.access.login = Some(("root".to_owned(), password.to_owned()));
    }

    pub fn access(&self) -> EtcdAccess {
        self.access.clone()
    }

    fn url(&self, port: u16) -> String {
        let is_secure = self.certificates.is_some() && port == self.client_port;
        let scheme = if is_secure { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{port}")
    }

    /// False if it ended at once: another process took one of its ports meanwhile.
    fn try_start(&mut self) -> bool {
        let url = |port: u16| self.url(port);
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a file");
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &url(self.client_port)])
            .args(["--advertise-client-urls", &url(self.client_port)])
            .args(["--listen-peer-urls", &url(self.peer_port)])
            .args(["--initial-advertise-peer-urls", &url(self.peer_port)])
            .args([
                "--initial-cluster",
                &format!("default={}", url(self.peer_port)),
            ])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(folder) = &self.certificates {
            command.arg("--cert-file").arg(folder.join("etcd.crt"));
            command.arg("--key-file").arg(folder.join("etcd.key"));
        }
        let process = command.spawn();
        self.process = Some(process.expect("Debian's etcd-server is installed"));
        self.is_ready()
    }

    fn is_ready(&mut self) -> bool {
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            let process = self.process.as_mut().expect("it was started");
            if process.try_wait().expect("it is ours").is_some() {
                let log = std::fs::read_to_string(self.folder.path().join("log"));
                println!("{}", log.unwrap_or_default());
                return false;
            }
            let mut store = self.store("ready", "test");
            if duramen_cluster::coordinator::store::MetaStore::leader(&mut store).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("etcd does not answer");
    }

    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    pub fn store(&self, cluster: &str, name: &str) -> Etcd {
        Etcd::new(&[self.endpoint()], cluster, name)
            .with_access(self.access())
            .with_lease(Duration::from_millis(600))
    }

    /// Sends a request to its JSON gateway; returns the answer's text.
    pub fn ask(&self, path: &str, body: &str) -> String {
        let mut socket = TcpStream::connect(self.endpoint()).expect("etcd is there");
        let mut secure = self.access.identity.as_deref().map(|identity| {
            let socket = socket.try_clone().expect("it can be shared");
            duramen_tls::Stream::connect(identity, "127.0.0.1", socket).expect("its certificate")
        });
        let stream: &mut dyn ReadWrite = match &mut secure {
            Some(secure) => secure,
            None => &mut socket,
        };
        let length = body.len();
        let question = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream
            .write_all(question.as_bytes())
            .expect("etcd is there");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it is ours");
        }
    }

    /// Starts it again with the data on its disk.
    pub fn restart(&mut self) {
        // Another process's connection may hold one of its ports for a moment.
        let until = Instant::now() + DEADLINE;
        while !self.try_start() {
            assert!(Instant::now() < until, "etcd does not start again");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[derive(Default)]
struct HeldRequests {
    holds: bool,
    kept: Vec<Vec<u8>>,
}

/// A proxy for one request at a time per connection.
pub struct Holding {
    endpoint: String,
    target: String,
    held: Arc<Mutex<HeldRequests>>,
    /// Number of requests that are still passed on; then connections are cut.
    left: Arc<AtomicUsize>,
    /// Added delay per request, in milliseconds.
    delay_ms: Arc<AtomicUsize>,
}

impl Holding {
    pub fn before(server: &Server) -> Holding {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let holding = Holding {
            endpoint: listener.local_addr().expect("it is bound").to_string(),
            target: server.endpoint(),
            held: Arc::default(),
            left: Arc::new(AtomicUsize::new(usize::MAX)),
            delay_ms: Arc::default(),
        };
        let (target, held, left, delay_ms) = (
            holding.target.clone(),
            Arc::clone(&holding.held),
            Arc::clone(&holding.left),
            Arc::clone(&holding.delay_ms),
        );
        // The thread ends with the process: no client connects to it after its test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&target) else {
                    continue;
                };
                let (held, left) = (Arc::clone(&held), Arc::clone(&left));
                let delay_ms = Arc::clone(&delay_ms);
                std::thread::spawn(move || pass(client, server, &held, &left, &delay_ms));
            }
        });
        holding
    }

    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Holds requests back from now on, and answers none.
    pub fn hold(&self) {
        self.held.lock().expect("nobody panicked").holds = true;
    }

    /// Passes on the requests that were held back, and returns their number.
    pub fn pass_on(&self) -> usize {
        let kept = std::mem::take(&mut self.held.lock().expect("nobody panicked").kept);
        for question in &kept {
            let mut stream = TcpStream::connect(&self.target).expect("etcd is there");
            stream.write_all(question).expect("etcd is there");
            stream
                .set_read_timeout(Some(DEADLINE))
                .expect("it can be set");
            stream.read_exact(&mut [0; 1]).expect("an answer");
        }
        kept.len()
    }

    /// Adds a delay to each request from now on.
    pub fn delay(&self, ms: usize) {
        self.delay_ms.store(ms, Ordering::SeqCst);
    }

    /// After this many more requests, all connections are cut.
    pub fn cut_after(&self, questions: usize) {
        self.left.store(questions, Ordering::SeqCst);
    }
}

/// Length of the request at the start of these bytes, once its head is complete.
fn length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).expect("a head is text");
    let named = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.eq_ignore_ascii_case("content-length");
        is_it.then(|| value.trim().parse::<usize>().expect("a length"))
    });
    Some(head + named.unwrap_or(0))
}

/// Passes requests on, each as a whole.
fn pass(
    mut client: TcpStream,
    mut server: TcpStream,
    held: &Mutex<HeldRequests>,
    left: &AtomicUsize,
    delay_ms: &AtomicUsize,
) {
    let mut buffer = vec![0; 1 << 20];
    let mut back = server.try_clone().expect("it can be shared");
    let mut to_client = client.try_clone().expect("it can be shared");
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut to_client);
        let _ = to_client.shutdown(std::net::Shutdown::Both);
    });
    loop {
        let mut question = Vec::new();
        while length(&question).is_none_or(|length| question.len() < length) {
            match client.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
                Ok(count) => question.extend_from_slice(&buffer[..count]),
            }
        }
        let cut = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if cut.is_err() {
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = server.shutdown(std::net::Shutdown::Both);
            return;
        }
        std::thread::sleep(Duration::from_millis(delay_ms.load(Ordering::SeqCst) as u64));
        let mut held = held.lock().expect("nobody panicked");
        if held.holds {
            held.kept.push(question);
        } else if server.write_all(&question).is_err() {
            return;
        }
    }
}
