//! The server under torture: one process, restarted on the same ports.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time from a start to the line `ready`, and from SIGTERM to the end.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Server {
    binary: PathBuf,
    folder: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
    pub(crate) port: u16,
    admin_port: u16,
}

impl Server {
    pub(crate) fn new(binary: &Path, folder: &Path, arguments: Vec<String>) -> Server {
        Server {
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            arguments,
            child: None,
            port: 0,
            admin_port: 0,
        }
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Starts the process and waits for its line `ready`.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(|error| format!("cannot open the server's log: {error}"))?;
        let mut child = Command::new(&self.binary)
            .arg("serve")
            .args(["--port", &self.port.to_string()])
            .args(["--admin-port", &self.admin_port.to_string()])
            .args(&self.arguments)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.binary.display()))?;
        let output = child.stdout.take().expect("piped");
        self.child = Some(child);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.starts_with("ready ") {
                    let _ = tell.send(line);
                }
            }
        });
        let line = told
            .recv_timeout(PATIENCE)
            .map_err(|_| format!("the server is not ready:\n{}", self.log_end()))?;
        let port = |name: &str| {
            let word = line.split(' ').find_map(|word| word.strip_prefix(name))?;
            word.rsplit_once(':')?.1.parse::<u16>().ok()
        };
        self.port = port("resp=").ok_or("no RESP port in the line `ready`")?;
        self.admin_port = port("admin=").ok_or("no admin port in the line `ready`")?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The reason why the process ended, if it has ended.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        Some(format!("the server ended ({status}):\n{}", self.log_end()))
    }

    fn signal(&self, name: &str) {
        if let Some(pid) = self.pid() {
            let _ = Command::new("kill")
                .args([&format!("-{name}"), &pid.to_string()])
                .status();
        }
    }

    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and waits for a clean end.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.signal("TERM");
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(format!("SIGTERM ended with {status}:\n{}", self.log_end()));
                }
                Ok(None) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => {
                    self.child = Some(child);
                    return Err(format!("SIGTERM did not end it:\n{}", self.log_end()));
                }
            }
        }
    }

    /// Resident memory in bytes.
    pub(crate) fn rss(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    }

    /// The pages `/livez` and `/memory`, and the kernel wait of each thread: for a report.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for path in ["/livez", "/memory"] {
            text.push_str(&format!("{path}: {}\n", self.admin(path)));
        }
        let tasks = self
            .pid()
            .and_then(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
        for task in tasks.into_iter().flatten().flatten() {
            let read = |name: &str| {
                let text = std::fs::read_to_string(task.path().join(name));
                text.unwrap_or_default().trim().to_owned()
            };
            text.push_str(&format!("{} {}\n", read("comm"), read("wchan")));
        }
        text + &self.log_end()
    }

    fn admin(&self, path: &str) -> String {
        use std::io::{Read as _, Write as _};
        let ask = || -> std::io::Result<String> {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.admin_port))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        ask().unwrap_or_else(|error| error.to_string())
    }

    fn log_end(&self) -> String {
        let text = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.go_on();
        self.kill();
    }
}
