//! A file system that is not mounted when a server starts.

use crate::server::DURAMEN;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest wait for a line.
const DEADLINE: Duration = Duration::from_secs(60);
const WARNING: &str = "is not mounted, though /etc/fstab has it";

/// Starts a server on a directory, in a mount namespace that has this file as `/etc/fstab`, and
/// ends it when one of its lines has the word `until`. Returns all that it has said. `None`: there
/// are no such namespaces here.
fn said(fstab: &Path, dir: &Path, until: &str) -> Option<String> {
    let script = "mount --bind \"$1\" /etc/fstab && shift && exec \"$@\"";
    let mut process = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .args(["sh", "-c", script, "sh"])
        .args([fstab, Path::new(DURAMEN)])
        .args(["serve", "--port", "0", "--admin-port", "0"])
        .args(["--memory", "64mb", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let (tell, lines) = channel();
    let outputs: [Box<dyn Read + Send>; 2] = [
        Box::new(process.stdout.take().expect("a pipe")),
        Box::new(process.stderr.take().expect("a pipe")),
    ];
    for output in outputs {
        let tell = tell.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
    }
    drop(tell);
    let (mut all, mut is_found) = (String::new(), false);
    // It ends when both outputs have ended.
    while let Ok(line) = lines.recv_timeout(DEADLINE) {
        if line.contains(until) {
            is_found = true;
            let _ = process.kill();
        }
        all = all + &line + "\n";
    }
    let _ = process.kill();
    process.wait().expect("it ends");
    let has_none = all.contains("unshare:") || all.contains("mount:");
    assert!(is_found || has_none, "{all}");
    is_found.then_some(all)
}

/// The disk of the data was not mounted after a restart of the machine: the server began with an
/// empty store on the disk of the system, and said nothing.
#[test]
fn a_new_store_where_a_disk_is_missing_is_warned_of() {
    let folder = tempfile::tempdir().expect("a directory");
    let disk = folder.path().join("disk");
    let [planned, other] = ["planned", "other"].map(|name| folder.path().join(name));
    let entry = |point: &Path| format!("UUID=4 {} xfs nofail 0 2\n", point.display());
    std::fs::write(&planned, entry(&disk)).expect("written");
    std::fs::write(&other, entry(Path::new("/mnt/other"))).expect("written");
    let Some(all) = said(&planned, &disk.join("data"), WARNING) else {
        return println!("no mount namespaces here");
    };
    let point = disk.display().to_string();
    let warns = |line: &&str| line.contains(WARNING) && line.contains(&point);
    assert!(all.lines().any(|line| warns(&line)), "{all}");
    let all = said(&other, &disk.join("more"), "ready ").expect("as before");
    assert!(!all.contains(WARNING), "{all}");
}
