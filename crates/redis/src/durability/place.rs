//! The paths of a snapshot: where it is written, and the place of the last complete one.

use super::Target;
use duramen::internals::{finish_removal, is_copy, remove_copy, store_of};
use duramen_base::private::make_dir;
use duramen_config::{DiskMode, ServerConfig};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const DAY_SECONDS: u64 = 86_400;

/// Paths of a snapshot in progress.
pub(crate) struct SnapshotPaths {
    /// The path to which it is written.
    pub(crate) fresh: PathBuf,
    /// The path that it gets when it is complete; it replaces an older snapshot there.
    then: Option<PathBuf>,
    /// Snapshots that stay in its folder, with this one; 0: nothing is removed.
    keep: usize,
    /// The id of the store; 0: it is not known.
    own: u64,
}

impl SnapshotPaths {
    /// `own`: the id of the store; a place that is only [cleared](Self::clear) needs none: 0.
    pub(crate) fn new(
        config: &ServerConfig,
        target: Target,
        own: u64,
    ) -> Result<SnapshotPaths, String> {
        match target {
            Target::Directory(dir) => Ok(SnapshotPaths {
                fresh: dir,
                then: None,
                keep: 0,
                own,
            }),
            Target::Replacing(dir) => {
                let name = dir.file_name().unwrap_or_default().display();
                Ok(SnapshotPaths {
                    fresh: dir.with_file_name(format!(".{name}.new")),
                    then: Some(dir),
                    keep: 0,
                    own,
                })
            }
            Target::Numbered { folder, keep } => Ok(SnapshotPaths {
                // Other servers may use the folder at the same time.
                fresh: folder.join(format!(".{own:016x}.new")),
                then: Some(folder.join(name_of(SystemTime::now()))),
                keep,
                own,
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
                    keep: 0,
                    own,
                })
            }
        }
    }

    pub(crate) fn shown(&self) -> &Path {
        self.then.as_deref().unwrap_or(&self.fresh)
    }

    /// Writes the snapshot, and lets it replace the last one only when the new one is complete. So
    /// once there was a snapshot, `dump` is a complete one at any moment. The remains of a failed
    /// snapshot are removed: they would keep space that the log needs. A snapshot of another store
    /// stays, because it may be the only snapshot of that store.
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
        self.check_owner(&self.fresh)?;
        remove_copy(&self.fresh).map_err(says("remove", &self.fresh))?;
        is_copy(then).map_err(says("replace", then))?;
        self.check_owner(then)?;
        let report = write(&self.fresh).inspect_err(|_| {
            let _ = remove_copy(&self.fresh); // the next snapshot tries again
        })?;
        if store_of(&self.fresh).ok().flatten() != Some(self.own) {
            return Err(format!(
                "{} was removed or replaced by another server, which uses the same place: give \
                 each a place of its own",
                self.fresh.display()
            ));
        }
        is_copy(then).map_err(says("replace", then))?; // a server may use it by now
        self.check_owner(then).inspect_err(|_| {
            let _ = remove_copy(&self.fresh); // the next snapshot tries again
        })?;
        put_in_place(&self.fresh, then).map_err(says("rename", &self.fresh))?;
        sync_dir(folder).map_err(says("sync", folder))?;
        remove_copy(&self.fresh).map_err(says("remove", &self.fresh))?;
        self.remove_oldest(folder).map_err(|error| {
            let done = then.display();
            format!("the snapshot {done} is complete, but older ones are not removed: {error}")
        })?;
        Ok(report)
    }

    /// Refuses a path with a snapshot of another store, or with the beginning of one.
    fn check_owner(&self, path: &Path) -> Result<(), String> {
        let Some(other) = self.other_store(path) else {
            return Ok(());
        };
        let (shown, own) = (path.display(), self.own);
        let remedy = match self.keep {
            0 => "move it away, or give this server another place for its snapshots",
            _ => "it was made in the same second, so try again",
        };
        Err(format!(
            "{shown} is a snapshot of another store ({other:016x}, and this one is {own:016x}): \
             {remedy}"
        ))
    }

    /// The id of the store in this directory, or of the store of which the directory has a copy, if
    /// it is another store. Other contents belong to no store: [`remove_copy`] refuses them with
    /// the reason.
    fn other_store(&self, dir: &Path) -> Option<u64> {
        let found = store_of(dir).ok().flatten();
        found.filter(|found| *found != self.own)
    }

    /// Removes the oldest of the folder's snapshots of this store that have a name of [`name_of`].
    /// The new snapshot stays, whatever its name is: the clock may have been set back. Snapshots of
    /// other servers, which use the same folder, are not counted.
    fn remove_oldest(&self, folder: &Path) -> std::io::Result<()> {
        if self.keep == 0 {
            return Ok(());
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let is_new = self.then.as_ref().and_then(|then| then.file_name()) == Some(&name);
            let name = name.display().to_string();
            if is_name(&name) && self.other_store(&folder.join(&name)).is_none() {
                found.push((is_new, name));
            }
        }
        found.sort();
        for (_, name) in found.iter().rev().skip(self.keep) {
            let text = |error| std::io::Error::other(format!("{name}: {error}"));
            remove_copy(&folder.join(name)).map_err(text)?;
        }
        Ok(())
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

/// The name of a snapshot that was taken at this time, in UTC: `20261129-201503`. Later ones have
/// greater names.
fn name_of(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (day, second) = (since.as_secs() / DAY_SECONDS, since.as_secs() % DAY_SECONDS);
    let (mut year, mut left) = (1970, day);
    let days_of = |year: u64| {
        let leap =
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        [
            31,
            28 + u64::from(leap),
            31,
            30,
            31,
            30,
            31,
            31,
            30,
            31,
            30,
            31,
        ]
    };
    while left >= days_of(year).iter().sum() {
        left -= days_of(year).iter().sum::<u64>();
        year += 1;
    }
    let mut month = 1;
    for days in days_of(year) {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}{month:02}{:02}-{hour:02}{minute:02}{second:02}",
        left + 1
    )
}

fn is_name(name: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split_once('-');
    parts
        .is_some_and(|(day, time)| day.len() == 8 && time.len() == 6 && digits(day) && digits(time))
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

/// The name of a replaced snapshot on a file system that cannot exchange names. People choose no
/// such name.
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
    use duramen_format::superblock::Superblock;
    use std::time::Duration;

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
            keep: 0,
            own: 5,
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

    #[test]
    fn names_are_times_in_their_order() {
        let at = |seconds| name_of(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101-000000");
        assert_eq!(at(951_782_399), "20000228-235959");
        assert_eq!(at(951_868_799), "20000229-235959");
        assert_eq!(at(951_868_800), "20000301-000000");
        assert_eq!(at(1_798_761_599), "20261231-235959");
        assert_eq!(at(4_107_542_400), "21000301-000000");
        assert!(is_name(&at(1)) && !is_name("dump") && !is_name("20261129-2015030"));
        assert!(!is_name("20261129_201503") && !is_name("2026112x-201503"));
    }

    /// Makes the beginning of a snapshot of this store.
    fn begin(dir: &Path, server: u64) {
        let superblock = Superblock {
            block_bytes: 4096,
            server,
            hash_seed: 1,
            created_ms: 1,
            generation: 2,
            unfinished: true, // so it may be removed without the rest of a snapshot
            wal_bytes: 1 << 20,
            segment_bytes: 2 << 20,
            frames: 8,
            cluster: String::new(),
            encryption: None,
        };
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("superblock"), superblock.encode()).unwrap();
    }

    /// Two servers with one `snapshot-dir` replaced each other's only snapshot; one that began
    /// empty, because its disk was not mounted, replaced the last good one.
    #[test]
    fn the_only_snapshot_of_another_store_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [then, fresh] = ["dump", "dump.new"].map(|name| folder.path().join(name));
        let place = SnapshotPaths {
            fresh: fresh.clone(),
            then: Some(then.clone()),
            keep: 0,
            own: 5,
        };
        let write = |dir: &Path| -> Result<(), String> {
            begin(dir, 5);
            Ok(())
        };
        begin(&then, 7);
        let refused = || place.make(|_| -> Result<(), String> { panic!("it was begun") });
        let why = refused().unwrap_err();
        for id in [5, 7] {
            assert!(why.contains(&format!("{id:016x}")), "{why}");
        }
        assert_eq!(store_of(&then).unwrap(), Some(7));
        // It was moved away. From then on the own one is replaced.
        std::fs::rename(&then, folder.path().join("away")).unwrap();
        place.make(write).unwrap();
        place.make(write).unwrap();
        assert_eq!(store_of(&then).unwrap(), Some(5));
        assert!(!fresh.exists());
        // Another server removed what was just written, and began its own there.
        let taken = |dir: &Path| -> Result<(), String> {
            begin(dir, 7);
            Ok(())
        };
        let why = place.make(taken).unwrap_err();
        assert!(why.contains("by another server"), "{why}");
        let why = refused().unwrap_err();
        assert!(why.contains("dump.new is a snapshot of another"), "{why}");
        assert_eq!(store_of(&fresh).unwrap(), Some(7));
        assert_eq!(store_of(&then).unwrap(), Some(5));
    }

    /// Two servers with one folder removed each other's snapshots.
    #[test]
    fn the_snapshots_of_another_store_stay_and_are_not_counted() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, server| {
            let dir = folder.path().join(name);
            begin(&dir, server);
            dir
        };
        let others = ["20260101-000000", "20260104-000000"].map(|name| make(name, 7));
        let own = ["20260102-000000", "20260103-000000"].map(|name| make(name, 5));
        let place = SnapshotPaths {
            fresh: folder.path().join(".new"),
            then: Some(own[1].clone()),
            keep: 1,
            own: 5,
        };
        place.remove_oldest(folder.path()).unwrap();
        assert!(others.iter().all(|dir| dir.exists()), "another's is gone");
        assert_eq!([own[0].exists(), own[1].exists()], [false, true]);
        // Nor is one replaced that was made in the same second, before or meanwhile.
        let later = folder.path().join("20260105-000000");
        for then in [&others[1], &later] {
            let place = SnapshotPaths {
                fresh: folder.path().join(".new"),
                then: Some(then.clone()),
                keep: 1,
                own: 5,
            };
            let write = |fresh: &Path| {
                begin(fresh, 5);
                begin(&later, 7);
                Ok(())
            };
            let why = place.make(write).unwrap_err();
            assert!(why.contains("in the same second"), "{why}");
            assert_eq!(store_of(then).unwrap(), Some(7));
            assert!(!place.fresh.exists());
        }
    }

    #[test]
    fn the_newest_stay_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "20260101-000000",
            "20260102-000000",
            "20260103-000000",
            "monday",
        ];
        for name in names {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let place = SnapshotPaths {
            fresh: folder.path().join(".new"),
            then: None,
            keep: 2,
            own: 5,
        };
        place.remove_oldest(folder.path()).unwrap();
        let left = names.map(|name| folder.path().join(name).exists());
        assert_eq!(left, [false, true, true, true]);
        // The clock was set back: the new one has the earliest name.
        let new = folder.path().join("20260101-000001");
        std::fs::create_dir(&new).unwrap();
        let set_back = SnapshotPaths {
            fresh: folder.path().join(".new"),
            then: Some(new.clone()),
            keep: 2,
            own: 5,
        };
        set_back.remove_oldest(folder.path()).unwrap();
        let left = names.map(|name| folder.path().join(name).exists());
        assert_eq!(left, [false, false, true, true]);
        assert!(new.exists(), "the snapshot just made was removed");
        // A folder with something else stays, and is named.
        let foreign = folder.path().join("20250101-000000");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("letter"), "dear").unwrap();
        let error = place.remove_oldest(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("20250101-000000") && error.contains("letter"),
            "{error}"
        );
        assert!(foreign.join("letter").exists());
    }
}
