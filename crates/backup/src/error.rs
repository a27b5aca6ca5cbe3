//! Errors, grouped by the action that they need from the caller.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use duramen_base::ids::SegmentId;
use duramen_cipher::KeyId;

/// The reason why a backup did not do a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The user has to choose another directory or device, or repair this one. Nothing was written.
    #[error(
        "`{place}` is not a Duramen store: it holds {found}. Choose an empty directory, or the right one"
    )]
    NotDuramen { place: String, found: String },
    #[error("`{place}` holds no store yet. Create one first")]
    Absent { place: String },
    #[error("`{place}` already holds a store. Open it, or choose an empty directory")]
    Exists { place: String },
    #[error(
        "`{place}` belongs to the cluster `{found}`, not to `{expected}`. Set the cluster's name to `{found}`, or choose another directory"
    )]
    OtherCluster {
        place: String,
        found: String,
        expected: String,
    },
    #[error(
        "`{place}` belongs to server {found:016x}, not to {expected:016x}. Choose the directory of this server"
    )]
    OtherServer {
        place: String,
        found: u64,
        expected: u64,
    },
    #[error(
        "`{place}` has format version {found}; this program knows versions up to {known}. Use a newer Duramen"
    )]
    NewerFormat {
        place: String,
        found: u16,
        known: u16,
    },
    #[error(
        "`{place}` has format version {found}, of a build before the first release; this program reads versions {oldest} to {known}. Choose an empty directory, and copy the data by means of the build that wrote them"
    )]
    OlderFormat {
        place: String,
        found: u16,
        oldest: u16,
        known: u16,
    },
    #[error(
        "both copies of the superblock in `{place}` are damaged ({reason}). Restore the directory from a snapshot: without the sizes in the superblock no other part can be read, and `duramen fsck --repair` can copy nothing"
    )]
    DamagedSuperblock { place: String, reason: String },
    #[error(
        "`{place}` holds the beginning of a snapshot or a restore that was never completed, so it is not a store. Restore into it again, or remove it and use another snapshot"
    )]
    Unfinished { place: String },
    #[error(
        "the write-ahead log in `{place}` is damaged at byte {offset}: commit {lsn} was acknowledged and can't be read. Nothing was changed; restore from a snapshot or a replica, or run `duramen fsck`"
    )]
    DamagedWal {
        place: String,
        lsn: u64,
        offset: u64,
    },
    #[error(
        "the file `{file}` in `{place}` is damaged: {reason}. Nothing was changed; restore from a snapshot or a replica, or run `duramen fsck`"
    )]
    DamagedFile {
        place: String,
        file: &'static str,
        reason: String,
    },
    #[error(
        "segment {segment} in `{place}` is damaged: {reason}. Nothing was changed; restore from a snapshot or a replica, or run `duramen fsck`"
    )]
    DamagedSegment {
        place: String,
        segment: SegmentId,
        reason: String,
    },
    #[error(
        "`{place}` has {available} bytes, the store needs {needed}. Use a larger device or smaller sizes"
    )]
    TooSmall {
        place: String,
        needed: u64,
        available: u64,
    },
    #[error(
        "`{place}` is mounted, or part of another device (RAID, LVM, swap), or another process has it alone. Choose another device"
    )]
    Claimed { place: String },
    #[error("no permission to {doing} in `{place}`: {advice}")]
    Permission {
        place: String,
        doing: &'static str,
        advice: String,
    },
    #[error(
        "`{place}` is encrypted with the key {key}, and no key is given. Name it by `encryption-key-file` or `encryption-key-command`"
    )]
    Encrypted { place: String, key: KeyId },
    #[error(
        "`{place}` is encrypted with the key {key}, and the key {given} is given. Name the right one by `encryption-key-file` or `encryption-key-command`"
    )]
    OtherKey {
        place: String,
        key: KeyId,
        given: KeyId,
    },
    #[error(
        "`{place}` is not encrypted, and an encryption key is given. Leave out the key, or make an encrypted copy: `duramen restore {place} NEW --new-encryption-key-file FILE`"
    )]
    NotEncrypted { place: String },
    #[error(
        "the key of `{place}` does not open, although the key {key} is right: the superblock was changed, or is of another store. Restore the directory from a snapshot"
    )]
    DamagedKey { place: String, key: KeyId },
    #[error(transparent)]
    Key(#[from] duramen_cipher::Error),
    #[error(
        "`{place}` is in use by another server. Stop it first; two servers never share a directory"
    )]
    Locked { place: String },

    // The caller waits for space and tries again; nothing was lost, reads go on.
    #[error("`{place}` is full")]
    Full { place: String },

    // Free space, and start again.
    #[error(
        "the files in `{place}` were copied with holes, and the file system has no space to fill them: free some, or copy them again \
         without holes"
    )]
    Holes { place: String },

    // The caller chooses another backup.
    #[error("`{place}` takes no new segments now: it is short of {what}")]
    Busy { place: String, what: &'static str },

    // Other servers recover the caller's log: the caller must end.
    #[error("log {log:016x} is closed here: its server is taken for crashed")]
    Fenced { log: u64 },

    // The device failed: no write will succeed any more, reads continue. Re-replicate, restart on
    // another device.
    #[error(
        "`{place}` has failed and takes no more writes: {reason}. Replace the device, then restart"
    )]
    Failed { place: String, reason: String },

    // One operation failed; the backup continues.
    #[error("cannot {doing} in `{place}`: {source}")]
    Io {
        place: String,
        doing: &'static str,
        source: io::Error,
    },

    // The caller's state differs from this backup's: it has to open a new replica (or has a bug).
    #[error("segment {segment} is not here")]
    UnknownSegment { segment: SegmentId },
    #[error("segment {segment} is at epoch {known}, the chunk has {given}")]
    StaleEpoch {
        segment: SegmentId,
        known: u64,
        given: u64,
    },
    #[error("segment {segment} has {length} bytes, the chunk starts at {offset}")]
    Gap {
        segment: SegmentId,
        length: u32,
        offset: u32,
    },
    #[error("segment {segment} takes {capacity} bytes, the chunk would end at {end}")]
    TooLong {
        segment: SegmentId,
        capacity: u32,
        end: u64,
    },
    #[error("segment {segment}: the certificate given for {length} bytes is not theirs")]
    Certificate { segment: SegmentId, length: u32 },
    #[error(
        "a commit of {needed} bytes does not fit into a write-ahead log of {wal} bytes. Set a larger one"
    )]
    CommitTooLarge { needed: u64, wal: u64 },
    #[error("{what}")]
    Options { what: String },
}

impl Error {
    /// The damage without place and advice, for messages that have their own. (For a segment, only
    /// the reason.)
    pub fn damage(&self) -> String {
        match self {
            Error::DamagedSegment { reason, .. } => reason.clone(),
            Error::DamagedFile { file, reason, .. } => {
                format!("the file `{file}` is damaged: {reason}")
            }
            Error::DamagedWal { lsn, offset, .. } => format!(
                "the write-ahead log is damaged at byte {offset}: commit {lsn} was acknowledged and can't be read"
            ),
            Error::DamagedSuperblock { reason, .. } => {
                format!("both copies of the superblock are damaged: {reason}")
            }
            other => other.to_string(),
        }
    }

    /// A file of a store could not be opened: a missing file is damage.
    pub(crate) fn opening(place: &str, file: &'static str, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::NotFound {
            return Error::damaged_file(place, file, "it is gone".to_owned());
        }
        Error::io(place, "open the files", source)
    }

    /// A file of a store is incomplete, or of another time.
    pub(crate) fn damaged_file(place: &str, file: &'static str, reason: String) -> Error {
        let place = place.to_owned();
        Error::DamagedFile {
            place,
            file,
            reason,
        }
    }

    /// An error of the operating system, sorted by the action that it needs.
    pub fn io(place: &str, doing: &'static str, source: io::Error) -> Error {
        let place = place.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission {
                advice: permission_advice(Path::new(&place)),
                place,
                doing,
            },
            io::ErrorKind::ReadOnlyFilesystem => Error::Permission {
                advice: "its file system is read-only. Mount it for writing, or choose another directory"
                    .to_owned(),
                place,
                doing,
            },
            _ if is_full(&source) => Error::Full { place },
            _ => Error::Io {
                place,
                doing,
                source,
            },
        }
    }
}

/// Advice for a user without access to a directory: often root used it before.
fn permission_advice(place: &Path) -> String {
    let own = rustix::process::geteuid().as_raw();
    let others = |path: &Path| {
        let owner = std::fs::symlink_metadata(path).ok()?.uid();
        (owner != own).then(|| (path.to_owned(), owner))
    };
    let inside = std::fs::read_dir(place).into_iter().flatten().flatten();
    let nearest = place.ancestors().find(|path| path.exists());
    let mut strange = inside.filter_map(|entry| others(&entry.path()));
    let strange = strange.next().or_else(|| others(nearest?));
    match strange {
        Some((path, owner)) => format!(
            "`{}` belongs to user {owner}, and this process runs as user {own}. Run it as that user, give the directory to this one \
             (`chown -R {own} DIRECTORY`), or choose another",
            path.display()
        ),
        None => "its mode forbids it. Change the mode, or choose another directory".to_owned(),
    }
}

/// Whether the error is lack of space, and not a failure.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_decides_the_variant() {
        let sorted = |code| {
            Error::io(
                "/data",
                "open the frames",
                io::Error::from_raw_os_error(code),
            )
        };
        let (denied, read_only, no_space, over_quota, too_large, broken) = (13, 30, 28, 122, 27, 5);
        for code in [denied, read_only] {
            let error = sorted(code);
            assert!(matches!(error, Error::Permission { .. }));
            let text = error.to_string();
            assert!(text.contains("no permission to open the frames in `/data`"));
            assert_eq!(text.contains("read-only"), code == read_only);
        }
        for code in [no_space, over_quota, too_large] {
            assert!(matches!(sorted(code), Error::Full { .. }));
        }
        assert!(matches!(sorted(broken), Error::Io { .. }));
    }
}
