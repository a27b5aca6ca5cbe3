//! The paths of a snapshot: where it is written, and the place of the last complete one.

use super::Target;
use crate::config::{DiskMode, ServerConfig};
use duramen::internals::{finish_removal, is_copy, remove_copy};
use duramen_base::private::make_dir;
use std::path::{Path, PathBuf};

/// Paths of a snapshot in progress.
pub(crate) struct SnapshotPaths {
    /// The path to which it is written.
    pub(crate) fresh: PathBuf,
    /// The path that it gets when it is complete; it replaces an older snapshot there.
    then: Option<PathBuf>,
}

impl SnapshotPaths {
    pub(crate) fn new(config: &ServerConfig, target: Target) -> Result<SnapshotPaths, String> {
        match target {
            Target::Directory(dir) => Ok(SnapshotPaths {
                fresh: dir,
                then: None,
            }),
            Target::Dump => {
                let folder = if config.snapshot_dir.is_empty() {
                    if config.disk_mode == DiskMode::Raw {
                        return Err(
                            "ERR disk-mode raw has no place for a snapshot: set snapshot-dir"
                                .to_owned(),
                        );
                    }
                    config.data_dir().unwrap_or_default().join("snapshots")
                } else {
                    PathBuf::from(&config.snapshot_dir)
                };
                Ok(SnapshotPaths {
                    fresh: folder.join("dump.new"),
                    then: Some(folder.join("dump")),
                })
            }
        }
    }

    pub(crate) fn shown(&self) -> &Path {
        self.then.as_deref().unwrap_or(&self.fresh)
    }

    /// Writes the snapshot, and lets it replace the last one only when it is complete. So once
    /// there was a snapshot, `dump` is a complete one at any moment. The remains of a failed
    /// snapshot are removed; they would keep space that the log needs.
    pub(crate) fn make<T>(
        &self,
        write: impl FnOnce(&Path) -> Result<T, String>,
    ) -> Result<T, String> {
        let Some(then) = &self.then else {
            return write(&self.fresh);
        };
        let says = |what: &str, path: &Path| {
            let text = format!("cannot {what} {}", path.display());
            move |error: std::io::Error| format!("{text}: {error}")
        };
        let folder = then.parent().unwrap_or(Path::new("/"));
        make_dir(folder).map_err(says("make", folder))?;
        finish_putting(&self.fresh, then).map_err(says("rename", &self.fresh))?;
        remove_copy(&self.fresh).map_err(says("remove", &self.fresh))?;
        is_copy(then).map_err(says("replace", then))?;
        let report = write(&self.fresh).inspect_err(|_| {
            let _ = remove_copy(&self.fresh); // the next snapshot tries again
        })?;
        is_copy(then).map_err(says("replace", then))?; // a server may use it by now
        put_in_place(&self.fresh, then).map_err(says("rename", &self.fresh))?;
        sync_dir(folder).map_err(says("sync", folder))?;
        remove_copy(&self.fresh).map_err(says("remove", &self.fresh))?;
        Ok(report)
    }

    /// Removes the remains of a snapshot whose process was killed.
    pub(crate) fn clear(&self) -> std::io::Result<()> {
        let Some(then) = &self.then else {
            return Ok(());
        };
        finish_putting(&self.fresh, then)?;
        remove_copy(&self.fresh)
    }
}

/// Gives `fresh` the name `then`; a file that had that name gets the name of `fresh`.
fn put_in_place(fresh: &Path, then: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if !then.exists() {
        return std::fs::rename(fresh, then);
    }
    match renameat_with(CWD, fresh, CWD, then, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            // The file system cannot exchange names: for a moment there is no snapshot.
            remove_copy(&old_of(then))?;
            std::fs::rename(then, old_of(then))?;
            finish_putting(fresh, then)
        }
        Err(error) => Err(error.into()),
    }
}

/// The name of a replaced snapshot on a file system that cannot exchange names; no name that
/// people choose.
fn old_of(then: &Path) -> PathBuf {
    let name = then.file_name().unwrap_or_default().display().to_string();
    then.with_file_name(format!(".{name}.replaced"))
}

/// Puts a snapshot in place of one that was moved away; does nothing if none was. Only a complete
/// snapshot lets another one be moved away, so `fresh` is complete if there is nothing at `then`.
fn finish_putting(fresh: &Path, then: &Path) -> std::io::Result<()> {
    let old = old_of(then);
    finish_removal(&old)?;
    if !is_copy(&old)? {
        return Ok(());
    }
    if !then.exists() && fresh.exists() {
        std::fs::rename(fresh, then)?;
    } else if !then.exists() {
        return std::fs::rename(&old, then);
    }
    remove_copy(&old)
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system that cannot exchange names, a kill between the two moves left the older
    /// snapshot and the complete `dump.new`. The next start removed `dump.new`, and there was no
    /// `dump`.
    #[test]
    fn a_snapshot_that_was_being_put_in_place_is_there_after_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let [then, fresh, old] =
            ["dump", "dump.new", ".dump.replaced"].map(|name| folder.path().join(name));
        let make = |dir: &Path, content: &str| {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("LOCK"), content).unwrap();
        };
        let place = SnapshotPaths {
            fresh: fresh.clone(),
            then: Some(then.clone()),
        };
        let held = || std::fs::read_to_string(then.join("LOCK")).ok();
        make(&old, "old");
        make(&fresh, "new");
        place.clear().unwrap();
        assert_eq!(held().as_deref(), Some("new"));
        assert!(!fresh.exists() && !old.exists());
        // The kill came before the first move: what is at `dump.new` may be a part.
        make(&fresh, "part");
        place.clear().unwrap();
        assert_eq!(held().as_deref(), Some("new"));
        assert!(!fresh.exists());
        // Or behind the second one.
        make(&old, "old");
        place.clear().unwrap();
        assert_eq!(held().as_deref(), Some("new"));
        assert!(!old.exists());
    }
}
