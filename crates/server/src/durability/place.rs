//! The paths of a snapshot: where it is written, and the place of the last complete one.

use super::Target;
use crate::config::{DiskMode, ServerConfig};
use duramen::internals::{is_store, remove_store};
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
        std::fs::create_dir_all(folder).map_err(says("make", folder))?;
        remove_store(&self.fresh).map_err(says("remove", &self.fresh))?;
        is_store(then).map_err(says("replace", then))?;
        let report = write(&self.fresh).inspect_err(|_| {
            let _ = remove_store(&self.fresh); // the next snapshot tries again
        })?;
        put_in_place(&self.fresh, then).map_err(says("rename", &self.fresh))?;
        sync_dir(folder).map_err(says("sync", folder))?;
        remove_store(&self.fresh).map_err(says("remove", &self.fresh))?;
        Ok(report)
    }

    /// Removes the remains of a snapshot whose process was killed.
    pub(crate) fn clear(&self) -> std::io::Result<()> {
        self.then
            .as_ref()
            .map_or(Ok(()), |_| remove_store(&self.fresh))
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
            let old = then.with_extension("old");
            remove_store(&old)?;
            std::fs::rename(then, &old)?;
            std::fs::rename(fresh, then)?;
            remove_store(&old)
        }
        Err(error) => Err(error.into()),
    }
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}
