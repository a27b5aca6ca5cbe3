//! Tools for a data directory that no server uses: `duramen fsck`, `duramen log dump`, `duramen
//! restore`.
//!
//! They read the directory, and never write to it: not even to the lock file, whose lock they hold
//! meanwhile. Two commands do write: `duramen key rotate` writes to the superblock, even while a
//! server runs, and `duramen accept-loss --token` writes a list of the data that the next start
//! leaves out.

mod accept;
mod dump;
mod fsck;
mod key;
mod repair;
mod restore;

pub(crate) use accept::{AcceptArgs, run as accept_loss};
pub(crate) use key::KeyCommand;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, Subcommand, ValueEnum};
use duramen_backup::Mode;
use duramen_backup::disk::{Disk, keyed};
use duramen_backup::os::OsDisk;
use duramen_base::lock::lock_alone;
use duramen_base::open::open_to_read;
use key::{KeyArgs, NewKeyArgs};
use std::fs::{File, TryLockError};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// There is nothing to read: no store, in use, no permission.
const EXIT_CANNOT_LOOK: u8 = 5;

const CODES: &str = "\
Exit codes: 0 sound, 1 damaged, 2 wrong usage, 5 cannot be read (no store, in use, no permission).";

#[derive(Args)]
#[command(after_help = FSCK_HELP)]
pub(crate) struct FsckArgs {
    /// A data directory; with disk-mode raw, a partition or file.
    dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Copy the provable part of it into a new directory, and list the unproved rest.
    #[arg(long, requires = "out")]
    repair: bool,
    /// The new directory; it must not exist, or be empty.
    #[arg(long, value_name = "NEW", requires = "repair")]
    out: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
}

const FSCK_HELP: &str = "\
Reads every byte of a data directory that no server uses, and verifies it: superblock, write-ahead
log, segments, every entry, and whether all segments that the control log lists exist. Writes
nothing.

--repair copies a store that a server refuses into a new directory: each entry whose checksum is
right. DIR is not changed. Lost bytes may have held newer values or deletions. A key for which this is
possible is copied too, and is listed in the file NEW.unproved.

EXAMPLES
  duramen fsck /var/lib/duramen
  duramen fsck --repair /var/lib/duramen --out /var/lib/duramen-repaired
  duramen fsck /backup/monday --json | jq .problems
  duramen fsck /var/lib/duramen --encryption-key-file /etc/duramen/key

Exit codes: 0 sound (--repair: all was copied and proved), 1 damaged (--repair: something is lost or
unproved), 2 wrong usage, 5 cannot be read (no store, in use, no permission) or --repair could not
write.";

#[derive(Args)]
#[command(after_help = restore::HELP)]
pub(crate) struct RestoreArgs {
    /// A snapshot, or any data directory that no server uses.
    snapshot: PathBuf,
    /// The new data directory; it must not exist, or be empty.
    dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    new_key: NewKeyArgs,
    /// Do not encrypt the copy of an encrypted snapshot.
    #[arg(long, conflicts_with_all = ["new_encryption_key_file", "new_encryption_key_command"])]
    decrypt: bool,
}

#[derive(Subcommand)]
pub(crate) enum LogCommand {
    /// Print the log of a data directory that no server uses.
    #[command(after_help = CODES)]
    Dump(DumpArgs),
}

#[derive(Args)]
pub(crate) struct DumpArgs {
    /// A data directory, one of the files in it, or the file or partition of disk-mode raw.
    path: PathBuf,
    /// Only this part.
    #[arg(long, value_enum)]
    part: Option<StorePart>,
    /// Only this segment.
    #[arg(long, value_name = "ID")]
    segment: Option<u64>,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    key: KeyArgs,
}

/// A part of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StorePart {
    Superblock,
    /// Commits of the write-ahead log and their records.
    Wal,
    /// Contents of the frames on disk.
    Frames,
    /// Control records and entries, segment by segment.
    Segments,
}

pub(crate) fn fsck(args: &FsckArgs) -> ExitCode {
    match StoreDirectory::open(&args.dir, &args.key) {
        Ok((place, _)) => match &args.out {
            Some(out) => repair::run(&place, out, args.json),
            None => fsck::run(&place, args.json),
        },
        Err(why) => cannot_look(&why),
    }
}

pub(crate) fn log(command: &LogCommand) -> ExitCode {
    let LogCommand::Dump(args) = command;
    match StoreDirectory::open(&args.path, &args.key) {
        Ok((place, part)) => {
            let part = args.part.or(part);
            dump::run(&place, part, args.segment, args.json)
        }
        Err(why) => cannot_look(&why),
    }
}

pub(crate) fn key(command: &KeyCommand) -> ExitCode {
    match key::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => cannot_look(&why),
    }
}

pub(crate) fn restore(args: &RestoreArgs) -> ExitCode {
    match restore::run(args) {
        Ok(code) => code,
        Err(why) => cannot_look(&why),
    }
}

fn cannot_look(why: &str) -> ExitCode {
    eprintln!("duramen: {why}");
    ExitCode::from(EXIT_CANNOT_LOOK)
}

/// Bytes in JSON.
fn text_or_base64(bytes: &[u8]) -> serde_json::Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => serde_json::json!({ "base64": BASE64.encode(bytes) }),
    }
}

/// The place of a store.
struct StoreDirectory {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// Keep servers away: that of the lock file, if there is one, and that of the directory, as the
    /// file may have been deleted.
    _lock: Vec<File>,
}

impl StoreDirectory {
    /// The store at `path`, and the part of it that `path` names.
    fn open(path: &Path, key: &KeyArgs) -> Result<(StoreDirectory, Option<StorePart>), String> {
        let kind =
            std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if kind.is_dir() {
            let lock = lock_dir(path)?;
            return Ok((StoreDirectory::new(path, Mode::Buffered, lock, key)?, None));
        }
        let part = match path.file_name().and_then(|name| name.to_str()) {
            Some("superblock") => Some(StorePart::Superblock),
            Some("wal") => Some(StorePart::Wal),
            Some("frames") => Some(StorePart::Frames),
            _ => None,
        };
        if let (Some(part), Some(dir)) = (part, path.parent())
            && dir.join("superblock").exists()
        {
            let lock = lock_dir(dir)?;
            let store = StoreDirectory::new(dir, Mode::Buffered, lock, key)?;
            return Ok((store, Some(part)));
        }
        let lock = lock(path, path)?.into_iter().collect();
        Ok((StoreDirectory::new(path, Mode::Raw, lock, key)?, None))
    }

    fn new(
        path: &Path,
        mode: Mode,
        lock: Vec<File>,
        key: &KeyArgs,
    ) -> Result<StoreDirectory, String> {
        Ok(StoreDirectory {
            path: path.to_owned(),
            disk: keyed(Arc::new(OsDisk::new(path, mode)), key.source()?),
            _lock: lock,
        })
    }
}

/// Takes the locks that a server takes in this directory. Not every file system can lock a
/// directory.
fn lock_dir(dir: &Path) -> Result<Vec<File>, String> {
    let mut locks: Vec<File> = lock(&dir.join("LOCK"), dir)?.into_iter().collect();
    let opened = File::open(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    match lock_alone(&opened) {
        Ok(()) => locks.push(opened),
        Err(TryLockError::WouldBlock) => return Err(in_use(dir)),
        Err(TryLockError::Error(_)) => {}
    }
    Ok(locks)
}

fn in_use(place: &Path) -> String {
    format!(
        "{} is in use by a server: stop it first, or look at a snapshot of it",
        place.display()
    )
}

/// Takes a lock that servers take; fails if a server has it.
fn lock(file: &Path, place: &Path) -> Result<Option<File>, String> {
    let file = match open_to_read(file) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    match lock_alone(&file) {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(in_use(place)),
        Err(TryLockError::Error(error)) => {
            Err(format!("{}: cannot lock it: {error}", place.display()))
        }
    }
}

/// Shows progress on a terminal.
struct Meter {
    doing: &'static str,
    shown: Option<Instant>,
    live: bool,
}

impl Meter {
    /// Interval of changes of the line.
    const EVERY: Duration = Duration::from_millis(100);

    fn new(doing: &'static str) -> Meter {
        Meter {
            doing,
            shown: None,
            live: io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, done: u64, total: u64) {
        if self.live
            && self
                .shown
                .is_none_or(|shown| shown.elapsed() >= Meter::EVERY)
        {
            self.shown = Some(Instant::now());
            let percent = (done * 100).checked_div(total).unwrap_or(100);
            eprint!("\r\x1b[2K{}: {percent} % of {} MB", self.doing, total >> 20);
            let _ = io::stderr().flush();
        }
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            eprint!("\r\x1b[2K");
        }
    }
}
