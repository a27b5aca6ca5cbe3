//! A test's own etcd (Debian's etcd-server, as for the tests of the coordinator's stores). It ends
//! with the test.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Etcd {
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

impl Etcd {
    pub fn start() -> Etcd {
        for _ in 0..5 {
            let mut etcd = Etcd {
                folder: tempfile::tempdir().expect("a folder"),
                port: free_port(),
                process: None,
            };
            if etcd.try_start() {
                return etcd;
            }
        }
        panic!("etcd does not start");
    }

    pub fn store(&self) -> String {
        format!("etcd:http://127.0.0.1:{}", self.port)
    }

    /// False if it ended at once: another process took a port meanwhile.
    fn try_start(&mut self) -> bool {
        let client = format!("http://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", free_port());
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Debian's etcd-server is installed");
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let process = self.process.as_mut().expect("it was started");
            if process.try_wait().expect("it is ours").is_some() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("etcd does not listen");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
