//! `duramen snapshot`: requests a copy, then follows it until it is complete.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use duramen_wire::resp::Reply;
use serde_json::json;

use super::print::Printer;
use super::{Servers, SnapshotArgs};
use crate::failure::Failure;

/// Interval of progress requests.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Status of a snapshot, as the server reports it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    state: String,
    dir: String,
    bytes_done: u64,
    bytes_total: u64,
}

impl Status {
    fn parse(info: &str) -> Status {
        let field = |name: &str| {
            info.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(found, _)| *found == name)
                .map(|(_, value)| value.trim_end().to_owned())
        };
        let number = |name| field(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Status {
            state: field("duramen_snapshot_state").unwrap_or_default(),
            dir: field("duramen_snapshot_dir").unwrap_or_default(),
            bytes_done: number("duramen_snapshot_bytes_done"),
            bytes_total: number("duramen_snapshot_bytes_total"),
        }
    }

    fn ask(server: &mut Servers) -> Result<Status, Failure> {
        let reply = server.ask(&["INFO", "persistence"])?;
        let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default());
        Ok(Status::parse(&text))
    }
}

/// The request for a snapshot in this absolute path.
fn request(args: &SnapshotArgs, dir: &Path) -> Vec<Vec<u8>> {
    let mut words = vec![
        b"DURAMEN.SNAPSHOT".to_vec(),
        dir.as_os_str().as_bytes().to_vec(),
    ];
    if args.replace {
        words.push(b"REPLACE".to_vec());
    }
    if let Some(number) = args.keep {
        words.extend([b"KEEP".to_vec(), number.to_string().into_bytes()]);
    }
    words
}

/// Follows a snapshot until it has ended.
fn follow(server: &mut Servers) -> Result<Status, Failure> {
    let live = io::stderr().is_terminal();
    let status = loop {
        let status = Status::ask(server)?;
        if live {
            let (done, total) = (status.bytes_done >> 20, status.bytes_total >> 20);
            eprint!("\r\x1b[2Ksnapshot: {done} of {total} MB");
            let _ = io::stderr().flush();
        }
        if status.state != "running" {
            break status;
        }
        std::thread::sleep(ASK_EVERY);
    };
    if live {
        eprint!("\r\x1b[2K");
    }
    Ok(status)
}

pub(super) fn run(
    args: &SnapshotArgs,
    server: &mut Servers,
    out: &mut Printer,
) -> Result<(), Failure> {
    // Relative to the user's working directory, not to the server's.
    let dir = std::path::absolute(&args.dir).map_err(|reason| Failure::Input {
        what: format!("the directory {}", args.dir.display()),
        reason,
    })?;
    let began = Instant::now();
    let words = request(args, &dir);
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let reply: Reply = server.ask(&words)?;
    if args.background {
        return out.done(&reply);
    }
    let status = follow(server)?;
    let made = Path::new(&status.dir);
    let is_ours = match args.keep {
        None => made == dir,
        Some(_) => made.parent() == Some(&*dir),
    };
    if !is_ours {
        return Err(Failure::Server(format!(
            "another snapshot has begun, in {}: it is not known whether the one in {} is complete; `duramen fsck` tells",
            status.dir,
            dir.display()
        )));
    }
    if status.state != "ok" {
        let why = status.state.trim_start_matches("failed: ");
        return Err(Failure::Server(format!(
            "no snapshot in {}, as the server sees its file system: {why}",
            dir.display()
        )));
    }
    if is_elsewhere(made) {
        eprintln!("{}", elsewhere(made));
    }
    let seconds = began.elapsed().as_secs_f64();
    if out.is_json() {
        return out.json(&json!({
            "dir": status.dir,
            "bytes": status.bytes_done,
            "seconds": seconds,
        }));
    }
    let text = format!(
        "{} MB in {} after {seconds:.1} s",
        status.bytes_done >> 20,
        status.dir
    );
    out.line(text.as_bytes())
}

/// Whether this process sees no such directory, though the server has made it: the server is on
/// another machine, or in another container.
fn is_elsewhere(dir: &Path) -> bool {
    matches!(dir.try_exists(), Ok(false))
}

fn elsewhere(dir: &Path) -> String {
    format!(
        "note: {} is in the file system of the server (its machine or container), and not seen \
         from here. In a container without a volume there it ends with the container",
        dir.display()
    )
}

#[cfg(test)]
mod tests {
    use super::{Status, is_elsewhere};

    #[test]
    fn a_snapshot_in_another_file_system_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(!is_elsewhere(dir.path()));
        assert!(is_elsewhere(&dir.path().join("copy")));
    }

    #[test]
    fn the_status_is_read_from_info() {
        let info = "# Persistence\r\nloading:0\r\nduramen_snapshot_dir:/b/c:d\r\nduramen_snapshot_bytes_done:7\r\n\
            duramen_snapshot_bytes_total:9\r\nduramen_snapshot_state:failed: no space\r\n";
        let status = Status::parse(info);
        assert_eq!(status.dir, "/b/c:d");
        assert_eq!((status.bytes_done, status.bytes_total), (7, 9));
        assert_eq!(status.state, "failed: no space");
        assert_eq!(Status::parse(""), Status::default());
    }
}
