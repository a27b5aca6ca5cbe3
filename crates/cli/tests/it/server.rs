//! A test's own server: started on a free port, ended with the test.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test.
pub(crate) const DURAMEN: &str = env!("CARGO_BIN_EXE_duramen");

pub(crate) struct Server {
    process: Child,
    /// 0: none without TLS.
    pub(crate) port: u16,
    peer: bool,
    /// Its working directory: in a shared one it would find the data of others.
    _folder: TempDir,
}

impl Server {
    /// `duramen serve`, or redis-server if DURAMEN_TEST_PEER names it, with `options` that both
    /// have.
    pub(crate) fn start(options: &[&str]) -> Server {
        match std::env::var("DURAMEN_TEST_PEER") {
            Ok(program) => Server::start_peer(&program, options),
            Err(_) => Server::start_duramen(options),
        }
    }

    /// Whether it is a peer instead of Duramen.
    pub(crate) fn is_peer(&self) -> bool {
        self.peer
    }

    fn start_duramen(options: &[&str]) -> Server {
        let folder = tempfile::tempdir().expect("a directory");
        let mut process = Command::new(DURAMEN)
            .args([
                "serve",
                "--port",
                "0",
                "--admin-port",
                "0",
                "--memory",
                "64mb",
                "--threads",
                "1",
                "--level",
                "memory",
            ])
            .args(options)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server runs");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the server says that it is ready");
        let address = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("resp="));
        let port = match address {
            Some("-") => Some(0),
            address => address.and_then(|address| address.rsplit(':').next()?.parse().ok()),
        };
        let port = port.unwrap_or_else(|| panic!("no RESP port in {line:?}"));
        Server {
            process,
            port,
            peer: false,
            _folder: folder,
        }
    }

    /// It can't report its port: ports that were free a moment ago are tried until one works.
    fn start_peer(program: &str, options: &[&str]) -> Server {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let folder = tempfile::tempdir().expect("a directory");
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = free.local_addr().expect("it has an address").port();
            drop(free);
            let process = Command::new(program)
                .args([
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--port",
                    &port.to_string(),
                ])
                .args(options)
                .current_dir(&folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("the peer runs");
            let mut server = Server {
                process,
                port,
                peer: true,
                _folder: folder,
            };
            while server
                .process
                .try_wait()
                .expect("it can be asked")
                .is_none()
            {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return server;
                }
                assert!(Instant::now() < deadline, "{program} did not come up");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
