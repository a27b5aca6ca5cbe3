//! One child process: its ready line, its log, its end.

use crate::signals::Order;
use duramen_base::ids::ServerId;
use rustix::process::{Pid, Signal};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Names the process that started this one, for [`tie_to_parent`]. (Not `DURAMEN_…`: those are
/// settings.)
const PARENT_ENV: &str = "UP_OF_DURAMEN_PID";
/// Lines of a log that are shown when a child fails to start.
const LAST_WORDS: usize = 12;

/// In a child of `duramen up`: makes the kernel end this process when the parent is gone, for any
/// reason. (The parent's first thread starts all children, and lives as long as the process.)
pub(crate) fn tie_to_parent() {
    let parent = std::env::var(PARENT_ENV).ok();
    let Some(parent) = parent.and_then(|text| text.parse::<i32>().ok()) else {
        return;
    };
    // Best effort: without it a killed `up` leaves its children.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    let now = rustix::process::getppid().map(Pid::as_raw_pid);
    if now != Some(parent) {
        // The parent ended before the call.
        std::process::exit(0);
    }
}

/// A child process; see the file's head.
pub(super) struct Child {
    name: String,
    words: Vec<String>,
    process: std::process::Child,
    log: PathBuf,
    line: Receiver<String>,
    ready: Option<String>,
    ended: Option<ExitStatus>,
    is_reported: bool,
    /// The time at which it is to be started again, if it has ended.
    pub(super) due: Option<Instant>,
    /// A server's id at the coordinator; `None` before it has joined, and for a coordinator.
    member: Option<ServerId>,
}

/// The flags of addresses, and the fields of the ready line with what was chosen for port 0.
const PORTS: [(&str, &str); 3] = [
    ("--port", "resp"),
    ("--native-port", "native"),
    ("--admin-port", "admin"),
];
const ADDRESSES: [(&str, &str); 2] = [("--listen", "coordinator"), ("--admin", "admin")];

/// The end of a child process, as it is reported.
pub(super) struct Ended {
    name: String,
    pid: u32,
    status: ExitStatus,
    log: PathBuf,
}

impl Child {
    pub(super) fn start(name: &str, words: &[String], log: &Path) -> Result<Child, String> {
        // This empties the log of an earlier run.
        File::create(log).map_err(|error| format!("cannot make the log of {name}: {error}"))?;
        Child::run(name, words, log)
    }

    fn run(name: &str, words: &[String], log: &Path) -> Result<Child, String> {
        let failed = |what: &str| {
            let what = format!("cannot {what} {name}");
            move |error: std::io::Error| format!("{what}: {error}")
        };
        let program = std::env::current_exe().map_err(failed("find the program of"))?;
        let file = OpenOptions::new().append(true).open(log);
        let file = file.map_err(failed("open the log of"))?;
        let mut process = Command::new(program)
            .args(words)
            .env(PARENT_ENV, std::process::id().to_string())
            // These variables are for `up`, not for its children.
            .env_remove("DURAMEN_CONFIG")
            .env_remove("DURAMEN_COORDINATOR")
            .env_remove("DURAMEN_CLUSTER")
            .env_remove("DURAMEN_CLUSTER_TOKEN_FILE")
            .env_remove(crate::notify::SOCKET_ENV)
            .env_remove("DURAMEN_TLS_CERT_FILE")
            .env_remove("DURAMEN_TLS_KEY_FILE")
            .env_remove("DURAMEN_TLS_CA_CERT_FILE")
            .current_dir(log.parent().unwrap_or(Path::new(".")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            // Ctrl-C reaches this process, which passes it on, once.
            .process_group(0)
            .spawn()
            .map_err(failed("start"))?;
        let (tell, line) = std::sync::mpsc::channel();
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = tell.send(line);
                }
            });
        }
        Ok(Child {
            name: name.to_owned(),
            words: words.to_vec(),
            process,
            log: log.to_owned(),
            line,
            ready: None,
            ended: None,
            is_reported: false,
            due: None,
            member: None,
        })
    }

    /// Starts it again after its end, with the addresses that it had. If that fails, it is due
    /// again after `pause`.
    pub(super) fn start_again(&mut self, pause: Duration) {
        let flags = if self.is_coordinator() {
            &ADDRESSES[..]
        } else {
            &PORTS[..]
        };
        let mut words = self.words.clone();
        for (flag, field) in flags {
            let at = words.iter().position(|word| word == flag);
            let said = self.said(field).filter(|said| said != "-");
            if let (Some(at), Some(said)) = (at, said) {
                let port = said.rsplit(':').next().unwrap_or_default().to_owned();
                words[at + 1] = if self.is_coordinator() { said } else { port };
            }
        }
        match Child::run(&self.name, &words, &self.log) {
            Ok(mut new) => {
                eprintln!("{} is started again, pid {}", new.name, new.pid());
                new.member = self.member;
                *self = new;
            }
            Err(why) => {
                eprintln!("{why}");
                self.due = Some(Instant::now() + pause);
            }
        }
    }

    /// Records that it has joined the cluster; its name is its number there from now on. (In its
    /// later lives the generation differs.)
    pub(super) fn is_member(&mut self, member: ServerId) {
        self.name = format!("server {}", member.slot);
        self.member = Some(member);
    }

    pub(super) fn member(&self) -> String {
        self.member
            .map_or_else(String::new, |member| member.to_string())
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn is_coordinator(&self) -> bool {
        self.words.first().is_some_and(|word| word == "coordinator")
    }

    /// Whether it has printed its ready line.
    pub(super) fn is_ready(&mut self) -> bool {
        while self.ready.is_none() {
            match self.line.try_recv() {
                Ok(line) if line.starts_with("ready ") => self.ready = Some(line),
                Ok(_) => {}
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// The value of this field in its ready line.
    pub(super) fn said(&self, name: &str) -> Option<String> {
        let words = self.ready.as_deref()?.split_whitespace();
        let mut fields = words.filter_map(|word| word.split_once('='));
        let found = fields.find(|(key, _)| *key == name)?;
        Some(found.1.to_owned())
    }

    fn look(&mut self) {
        if self.ended.is_none() {
            // It is our child: the call can't fail.
            self.ended = self.process.try_wait().ok().flatten();
        }
    }

    fn how(&self, status: ExitStatus) -> Ended {
        Ended {
            name: self.name.clone(),
            pid: self.pid(),
            status,
            log: self.log.clone(),
        }
    }

    /// Its end, reported once.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        self.look();
        let status = self.ended.filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(self.how(status))
    }

    pub(super) fn tell_to_stop(&mut self) {
        self.signal(Signal::TERM);
    }

    pub(super) fn tell_to_reload(&mut self) {
        self.signal(Signal::HUP);
    }

    fn signal(&mut self, signal: Signal) {
        self.look();
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let (None, Some(pid)) = (self.ended, pid) {
            // This fails if the child has ended a moment ago.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Waits for its end, and kills it when that has lasted too long; returns the end, if it was
    /// not reported yet.
    pub(super) fn wait(&mut self, patience: &mut Patience<'_>) -> Option<Ended> {
        loop {
            self.look();
            if self.ended.is_some() {
                return self.ended();
            }
            if patience.is_over() {
                eprintln!("{} does not end: killing it", self.name);
                self.signal(Signal::KILL);
                let _ = self.process.wait();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The time that children have for their end.
pub(super) struct Patience<'a> {
    pub(super) until: Instant,
    pub(super) signals: &'a Receiver<Order>,
    /// Whether a second signal came.
    pub(super) is_hurried: bool,
}

impl Patience<'_> {
    fn is_over(&mut self) -> bool {
        self.is_hurried |= self.signals.try_iter().any(|order| order == Order::Stop);
        self.is_hurried || Instant::now() >= self.until
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.look();
        if self.ended.is_none() {
            // This fails if the child has ended by itself meanwhile.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

impl Ended {
    /// Whether it failed.
    pub(super) fn is_bad(&self) -> bool {
        !self.status.success()
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(LAST_WORDS);
        lines[from..].join("\n")
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended { name, pid, .. } = self;
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "{name} (pid {pid}) ended with code {code}"),
            (_, Some(signal)) => write!(f, "{name} (pid {pid}) was ended by signal {signal}"),
            _ => write!(f, "{name} (pid {pid}) ended"),
        }
    }
}
