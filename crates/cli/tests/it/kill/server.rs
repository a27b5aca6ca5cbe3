//! One life of a server: started, killed, its log kept.

use duramen_base::random::Random;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub(crate) struct Server {
    process: Mutex<Child>,
    pub(crate) port: u16,
    /// Time until its ready line.
    pub(crate) started_ms: u64,
    folder: PathBuf,
}

impl Server {
    pub(crate) fn start(folder: &Path, mode: &str, random: &mut Random) -> Server {
        let began = Instant::now();
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("log"))
            .expect("a log");
        let threads = 1 + random.below(2);
        let mut process = Command::new(env!("CARGO_BIN_EXE_duramen"))
            .args(["serve", "--port", "0", "--admin=no", "--huge-pages=no"])
            .args([
                "--memory",
                "64mb",
                "--wal-size",
                "16mb",
                "--disk-mode",
                mode,
            ])
            .args(["--threads", &threads.to_string(), "--dir"])
            .arg(folder.join("data"))
            .current_dir(folder)
            .env_remove("DURAMEN_KILL_CYCLES")
            .env_remove("DURAMEN_KILL_SEED")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the server runs");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let port = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("resp="))
            .and_then(|address| address.rsplit(':').next()?.parse().ok());
        let mut server = Server {
            process: Mutex::new(process),
            port: 0,
            started_ms: began.elapsed().as_millis() as u64,
            folder: folder.to_owned(),
        };
        match port {
            Some(port) => server.port = port,
            None => panic!(
                "the server does not start; its directory is kept as {}\n{}",
                keep(folder),
                server.log()
            ),
        }
        server
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.folder
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// SIGKILL; or, with `clean`, SIGTERM, after which it must end by itself with exit code 0.
    /// Returns when it has ended.
    pub(crate) fn end(&self, clean: bool) {
        let mut process = self.process.lock().expect("the process");
        if !clean {
            // It may be gone already.
            let _ = process.kill();
            let _ = process.wait();
            return;
        }
        let term = Command::new("kill")
            .arg(process.id().to_string())
            .status()
            .expect("kill runs");
        assert!(term.success());
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = process.try_wait().expect("it can be asked") {
                assert!(status.success(), "{status}: {}", self.log());
                return;
            }
            assert!(
                Instant::now() < deadline,
                "it does not stop: {}",
                self.log()
            );
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// Copies a directory to a place that outlives the test.
pub(crate) fn keep(dir: &Path) -> String {
    let kept = std::env::temp_dir().join(format!("duramen-kill-{}", std::process::id()));
    let copied = Command::new("cp").arg("-r").arg(dir).arg(&kept).status();
    match copied {
        Ok(status) if status.success() => kept.display().to_string(),
        _ => "nothing (copying failed)".to_owned(),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(false);
    }
}
