//! One process of a test: its output in a file, a limit for its time, and an end that takes all of
//! its own processes along.
//!
//! Invariants:
//! - C1: each process leads a process group, and every group is in `GROUPS` while it runs; so an
//!   interrupted run ends them all.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::process;
use rustix::process::{Pid, Signal, kill_process_group};

/// Running process groups.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// The end of a process.
#[derive(Debug)]
pub(super) struct Ended {
    /// Nothing if its time was over, or if it could not be started.
    pub(super) status: Option<ExitStatus>,
    pub(super) output: String,
    pub(super) time: Duration,
}

/// Runs a command until its end, or until its time is over. Its output goes to a file in `folder`
/// meanwhile.
///
/// # Errors
/// A sentence, if it cannot be started.
pub(super) fn run(command: &mut Command, folder: &Path, limit: Duration) -> Result<Ended, String> {
    let shown = process::show(command);
    let cannot = |error| format!("cannot start `{shown}`: {error}");
    let mut output = tempfile(folder).map_err(cannot)?;
    let also = output.try_clone().map_err(cannot)?;
    let begun = Instant::now();
    // The lock is held over both steps (C1).
    let mut groups_now = groups();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(cannot)?)
        .stderr(also)
        .process_group(0)
        .spawn()
        .map_err(cannot)?;
    let group = Pid::from_child(&child);
    groups_now.push(group);
    drop(groups_now);
    let status = wait(&mut child, begun + limit);
    // Its own children too: a server that outlives its test would disturb the next ones.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    groups().retain(|other| *other != group);
    let output = read(&mut output)
        .map_err(|error| format!("cannot read the output of `{shown}`: {error}"))?;
    Ok(Ended {
        status,
        output,
        time: begun.elapsed(),
    })
}

/// Most bytes of an output that are kept of its beginning, and of its end: a test that prints for
/// ever must not fill the memory.
const KEPT: u64 = 2 << 20;

/// The whole output, or its beginning and its end.
fn read(file: &mut File) -> std::io::Result<String> {
    let length = file.metadata()?.len();
    let (mut bytes, mut end) = (Vec::new(), Vec::new());
    file.seek(SeekFrom::Start(0))?;
    if length <= 2 * KEPT {
        file.read_to_end(&mut bytes)?;
    } else {
        (&mut *file).take(KEPT).read_to_end(&mut bytes)?;
        let left_out = format!("\n… {} bytes left out …\n", length - 2 * KEPT);
        bytes.extend(left_out.as_bytes());
        file.seek(SeekFrom::End(-(KEPT as i64)))?;
        file.take(KEPT).read_to_end(&mut end)?;
        bytes.extend(end);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Ends this process and all processes of tests: for a run that is interrupted. No further one
/// starts.
pub(super) fn end_all(code: i32) -> ! {
    let groups = groups();
    for group in groups.iter() {
        let _ = kill_process_group(*group, Signal::KILL);
    }
    std::process::exit(code)
}

fn groups() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    GROUPS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The longest pause between two looks at a process.
const PAUSE_MAX: Duration = Duration::from_millis(10);

fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut pause = Duration::from_micros(500);
    loop {
        // An error here means that there is nothing to wait for.
        if let Some(status) = child.try_wait().ok()? {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A file without a name.
fn tempfile(folder: &Path) -> std::io::Result<File> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = folder.join(format!("output-{}-{number}", std::process::id()));
    let file = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), &std::env::temp_dir(), limit).unwrap()
    }

    #[test]
    fn output_and_status_are_kept() {
        let ended = shell("echo one; echo two >&2; exit 3", Duration::from_secs(60));
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert_eq!(ended.output, "one\ntwo\n");
    }

    #[test]
    fn a_process_whose_time_is_over_ends_with_its_children() {
        let ended = shell("sleep 1000 & echo $!; wait", Duration::from_millis(300));
        assert!(ended.status.is_none(), "{ended:?}");
        let child = format!("/proc/{}/stat", ended.output.trim());
        let is_running = || match std::fs::read_to_string(&child) {
            // A killed process that nobody has waited for is a zombie.
            Ok(stat) => !stat.contains(") Z "),
            Err(_) => false,
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_running() {
            assert!(Instant::now() < deadline, "{child} still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn of_an_endless_output_both_ends_are_kept() {
        let script = "echo first; head -c 9000000 /dev/zero | tr '\\0' x; echo; echo last";
        let ended = shell(script, Duration::from_secs(60));
        assert!(ended.output.starts_with("first\n") && ended.output.ends_with("\nlast\n"));
        assert!(ended.output.contains("bytes left out") && ended.output.len() < 5_000_000);
    }

    #[test]
    fn what_a_process_leaves_behind_ends_with_it() {
        let ended = shell("sleep 1000 & echo $!", Duration::from_secs(60));
        assert!(ended.status.is_some_and(|status| status.success()));
        assert!(ended.time < Duration::from_secs(60), "{ended:?}");
    }
}
