//! `duramen restore`: copies a snapshot into a server's data directory; the snapshot stays
//! unchanged.

use super::{Meter, RestoreArgs, StoreDirectory, fsck};
use duramen_backup::Error::{DamagedFile, DamagedSuperblock};
use duramen_backup::Mode;
use duramen_backup::disk::keyed;
use duramen_backup::os::OsDisk;
use duramen_backup::restore::Restore;
use duramen_base::units::MIB;
use duramen_config::format_size;
use duramen_engine::bytes_beside_data;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

pub(super) const HELP: &str = "\
Copies every file, verifies the copy as `duramen fsck` does, and then makes it a data directory.
SNAPSHOT is not changed, and DIR is never overwritten. If the command is interrupted, no server accepts
DIR; the same command starts again from the beginning. It prints how much memory, or memory and flash,
a server needs for the data.

The copy of an encrypted snapshot is encrypted with the same key, or with the new one that is named. A
snapshot that is not encrypted is copied into an encrypted directory by --new-encryption-key-file.

EXAMPLES
  duramen restore /backup/monday /var/lib/duramen
  duramen serve --dir /var/lib/duramen
  duramen restore duramen-data/snapshots/dump restored --json | jq .memory_bytes
  duramen restore plain encrypted --new-encryption-key-file /etc/duramen/key

Exit codes: 0 restored, 1 the snapshot is damaged (nothing is restored), 2 wrong usage, 5 cannot
restore (no snapshot, in use, DIR is not empty, no room, no permission).";

/// Most bytes of index per entry.
const INDEX_BYTES: u64 = 12;
/// Largest part of memory, or of flash, for live data: cleaning needs the rest.
const FULL_PERCENT: u64 = 85;
/// Largest part of the memory that open segments leave, for live data.
const CLEANED_PERCENT: u64 = 97;
/// The usual number of cleaners.
const CLEANERS: usize = 1;
/// Part of `memory` that a server takes for its log buffer and heap.
const BESIDE_BYTES: u64 = 16 * MIB;
/// The smallest `memory` and `flash-size`, and the unit of the printed values.
const STEP_BYTES: u64 = 64 * MIB;
/// Fewest segments for which memory must have room: each thread has one open, and cleaning needs
/// some.
const SEGMENTS_MIN: u64 = 32;

/// A server's needs for the data, if all of it is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerNeeds {
    memory: u64,
    memory_with_flash: u64,
    flash: u64,
}

impl ServerNeeds {
    /// The needs of a server with this number of threads.
    fn of(found: &fsck::Summary, threads: usize) -> ServerNeeds {
        let step = |bytes: u64| bytes.next_multiple_of(STEP_BYTES).max(STEP_BYTES);
        let data = found.bytes * 100 / FULL_PERCENT;
        let index = (found.objects + found.tombstones) * INDEX_BYTES;
        let least = (found.segment_bytes * SEGMENTS_MIN).max(STEP_BYTES);
        let mut memory = step(data + index + BESIDE_BYTES).max(least);
        // More memory has room for the open segments of more threads, up to all of them.
        let open = |memory| bytes_beside_data(memory, found.segment_bytes, threads, CLEANERS);
        while found.bytes * 100 / CLEANED_PERCENT + index + BESIDE_BYTES + open(memory) > memory {
            memory += STEP_BYTES;
        }
        ServerNeeds {
            memory,
            memory_with_flash: step(index * 2 + BESIDE_BYTES + least),
            flash: step(data),
        }
    }
}

/// Returns the exit code, or the reason why nothing was restored.
pub(super) fn run(args: &RestoreArgs) -> Result<ExitCode, String> {
    let began = Instant::now();
    let (place, part) = StoreDirectory::open(&args.snapshot, &args.key)?;
    if part.is_some() {
        return Err(format!(
            "`{}` is a file of a snapshot: name its directory",
            args.snapshot.display()
        ));
    }
    let key = if args.decrypt {
        None
    } else {
        args.new_key.source()?.or_else(|| place.disk.key().cloned())
    };
    let to = keyed(Arc::new(OsDisk::new(&args.dir, Mode::Buffered)), key);
    let restore = match Restore::begin(&*place.disk, to) {
        Ok(restore) => restore,
        Err(error @ (DamagedFile { .. } | DamagedSuperblock { .. })) => {
            return Ok(damaged(args, &[error.damage()], false));
        }
        Err(error) => return Err(error.to_string()),
    };
    if restore.is_resumed() {
        eprintln!(
            "duramen: `{}` holds an unfinished restore or snapshot, which now starts again",
            args.dir.display()
        );
    }
    let total = restore.bytes();
    let mut meter = Meter::new("copying");
    let copied = restore.copy(&mut |done| meter.show(done, total));
    meter.clear();
    copied.map_err(|error| error.to_string())?;
    let mut meter = Meter::new("verifying");
    let checked = fsck::check_copy(restore.disk(), &mut meter);
    meter.clear();
    let found = match checked {
        Ok(found) => found,
        Err(problems) => return Ok(damaged(args, &problems, true)),
    };
    restore.finish().map_err(|error| error.to_string())?;
    print(args, &found, total, began.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// Reports damage. A copy that was begun stays unfinished, so that no server opens it.
fn damaged(args: &RestoreArgs, problems: &[String], is_begun: bool) -> ExitCode {
    let snapshot = args.snapshot.display();
    if args.json {
        println!("{}", json!({ "restored": false, "problems": problems }));
    } else {
        for problem in problems {
            println!("problem: {problem}");
        }
        println!(
            "`{snapshot}` is damaged, and nothing was restored. Take another snapshot, or copy what can be proved of this one \
             (`duramen fsck --repair {snapshot} --out NEW`)"
        );
        if is_begun {
            println!(
                "the unfinished copy in `{}` can be removed",
                args.dir.display()
            );
        }
    }
    ExitCode::from(1)
}

fn print(args: &RestoreArgs, found: &fsck::Summary, bytes: u64, seconds: f64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let needs = ServerNeeds::of(found, threads);
    let dir = args.dir.display();
    if args.json {
        println!(
            "{}",
            json!({
                "restored": true,
                "dir": dir.to_string(),
                "bytes": bytes,
                "segments": found.segments,
                "objects": found.objects,
                "seconds": seconds,
                "memory_bytes": needs.memory,
                "memory_with_flash_bytes": needs.memory_with_flash,
                "flash_bytes": needs.flash,
            })
        );
        return;
    }
    println!(
        "restored: {} MB, {} segments, in {dir} after {seconds:.1} s; every entry was verified",
        bytes >> 20,
        found.segments
    );
    println!(
        "serve it: duramen serve --dir {dir} --memory {}",
        format_size(needs.memory)
    );
    if needs.memory_with_flash < needs.memory {
        println!(
            "      or: duramen serve --dir {dir} --memory {} --flash-file FILE --flash-size {}",
            format_size(needs.memory_with_flash),
            format_size(needs.flash)
        );
    }
    println!("(more than enough if part of the data is dead: deleted, expired or overwritten)");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_follows_from_what_is_there_and_from_the_threads() {
        let found = |bytes, objects, segment_bytes| fsck::Summary {
            segments: 1,
            segment_bytes,
            bytes,
            objects,
            tombstones: 0,
        };
        let small = ServerNeeds::of(&found(1000, 10, 2 * MIB), 2);
        assert_eq!((small.memory, small.flash), (64 * MIB, 64 * MIB));
        let large = ServerNeeds::of(&found(1000 * MIB, 1_000_000, 2 * MIB), 2);
        assert!(
            large.memory > 1200 * MIB && large.memory < 1400 * MIB,
            "{large:?}"
        );
        assert!(large.memory_with_flash < 256 * MIB, "{large:?}");
        assert!(large.flash > 1100 * MIB, "{large:?}");
        // Long segments, from a server with much memory, need room for several of them.
        let long = |bytes, threads| ServerNeeds::of(&found(bytes, 10, 8 * MIB), threads).memory;
        assert_eq!(long(1000, 2), 256 * MIB);
        assert_eq!(long(1000, 64), 256 * MIB);
        // Each thread has one open: many threads take a good part of the memory from data.
        assert!(long(1000 * MIB, 2) < 1300 * MIB);
        assert!(long(1000 * MIB, 16) > 1000 * MIB + 30 * 8 * MIB);
    }
}
