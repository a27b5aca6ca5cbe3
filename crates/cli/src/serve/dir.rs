//! Checks for data directories that are probably a mistake: a backup that a server would change, a
//! mistyped one that it would create.

use duramen_backup::os::{SUPERBLOCK, is_snapshot};
use duramen_config::{DIR_DEFAULT, DiskMode, Mode, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Most snapshots near a path that are shown.
const SHOWN_MAX: usize = 5;
/// Time for the search for snapshots near a path.
const LOOK_FOR: Duration = Duration::from_secs(1);

/// Refuses a directory that is a snapshot, unless `use_snapshot`, and one that does not exist, if
/// its name looks like a snapshot. Also refuses settings without a directory, if there is the data
/// of an earlier start.
///
/// # Errors
/// The directory that was probably meant.
pub(super) fn check(config: &ServerConfig, use_snapshot: bool) -> Result<(), String> {
    let Some(dir) = config.data_dir() else {
        return check_ignored(config);
    };
    if config.is_member() || config.disk_mode == DiskMode::Raw {
        return Ok(());
    }
    let shown = dir.display();
    if !use_snapshot && is_snapshot(&dir) {
        return Err(format!(
            "`{shown}` is a snapshot, and a server would write to it. Restore it into a directory of its own: \
             `duramen restore {shown} DIR`, then `duramen serve --dir DIR`. Or say --use-snapshot: then it is the \
             server's data directory from now on, and no backup any more"
        ));
    }
    if dir.exists() {
        return Ok(());
    }
    let beside = snapshots_near(&dir);
    if beside.is_empty() && !is_named_as_snapshot(&dir) {
        return Ok(());
    }
    let found = if beside.is_empty() {
        String::new()
    } else {
        format!(" There are snapshots in {}.", list(&beside))
    };
    Err(format!(
        "`{shown}` does not exist, and would become an empty store; by its place or name it was to be a snapshot.{found} \
         To restore one: `duramen restore SNAPSHOT DIR`, then `duramen serve --dir DIR`. If an empty store is meant, \
         make the directory first: `mkdir -p {shown}`"
    ))
}

/// Refuses a store in memory beside the data of an earlier start: a change of `level` alone must
/// not make it look empty.
fn check_ignored(config: &ServerConfig) -> Result<(), String> {
    let is_store = config.mode == Mode::Store;
    if !is_store || !Path::new(DIR_DEFAULT).join(SUPERBLOCK).exists() {
        return Ok(());
    }
    Err(format!(
        "`{DIR_DEFAULT}` in this folder has the data of an earlier start, and a server with `level memory` and no \
         directory would begin empty beside it. To serve that data: `--dir {DIR_DEFAULT}`. To begin empty and in \
         memory: start it in another folder, or move `{DIR_DEFAULT}` away"
    ))
}

/// Whether it is at a place where `SAVE` and people put snapshots.
fn is_named_as_snapshot(dir: &Path) -> bool {
    let names: Vec<String> = dir
        .iter()
        .map(|name| name.to_string_lossy().to_lowercase())
        .collect();
    let is_inside = names.iter().rev().skip(1).any(|name| name == "snapshots");
    is_inside || names.last().is_some_and(|name| name.ends_with("dump"))
}

/// Snapshots in the same folder, and the one of `SAVE` in the default data directory.
fn snapshots_near(dir: &Path) -> Vec<PathBuf> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut found = snapshots_in(parent);
    found.sort();
    let usual = Path::new("duramen-data/snapshots/dump");
    if is_named_as_snapshot(dir) && is_snapshot(usual) {
        found.push(usual.to_owned());
    }
    found
}

/// Snapshots in a folder. A neighbour on a file system that does not answer must not delay a start,
/// so those are left out that are not found within a second.
fn snapshots_in(folder: &Path) -> Vec<PathBuf> {
    let until = Instant::now() + LOOK_FOR;
    let (sender, receiver) = channel();
    let folder = folder.to_owned();
    // Without the thread no snapshot is found.
    let _ = std::thread::Builder::new().spawn(move || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        for path in paths.take_while(|_| Instant::now() < until) {
            if is_snapshot(&path) && sender.send(path).is_err() {
                return;
            }
        }
    });
    let next = || receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
    std::iter::from_fn(|| next().ok()).collect()
}

fn list(paths: &[PathBuf]) -> String {
    let shown = paths.iter().take(SHOWN_MAX);
    let shown: Vec<String> = shown.map(|path| format!("`{}`", path.display())).collect();
    let more = match paths.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    shown.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots() {
        for yes in [
            "snapshots/dump",
            "/d/snapshots/monday",
            "dump",
            "/x/my-dump",
            "Snapshots/a",
        ] {
            assert!(is_named_as_snapshot(Path::new(yes)), "{yes}");
        }
        for no in [
            "duramen-data",
            "/var/lib/duramen",
            "/backup/a",
            "/d/snapshots",
            "dumps",
        ] {
            assert!(!is_named_as_snapshot(Path::new(no)), "{no}");
        }
    }
}
