//! What goes into a backup and comes out of it.

use duramen_base::ids::{Level, SegmentId};
use duramen_base::units::{KIB, MIB};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;

/// How files are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Through the page cache.
    #[default]
    Buffered,
    /// Past it (`O_DIRECT`).
    Direct,
    /// One preallocated file or partition that holds everything, past the page cache.
    Raw,
}

/// Who a store belongs to. Written once, at its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the cluster; at most 64 bytes.
    pub cluster: String,
    /// The server's id: random, never 0. It is the log id in segment headers.
    pub server: u64,
    /// Seed of the key hash.
    pub hash_seed: u64,
}

/// Whom a caller expects a store to belong to; `None` accepts anybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub cluster: Option<String>,
    pub server: Option<u64>,
}

/// Sizes, fixed at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a segment, and of a frame's data: a multiple of 4 KiB.
    pub segment_bytes: u32,
    /// Bytes of the write-ahead log: a multiple of 4 KiB, at least [`WAL_BYTES_MIN`].
    pub wal_bytes: u64,
    /// Frames there may be; space for them is taken as they are used.
    pub frames: u32,
}

/// The smallest write-ahead log, in bytes: two header blocks and a commit of a few chunks for each
/// of a few heads.
pub const WAL_BYTES_MIN: u64 = 64 * KIB;

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry {
            segment_bytes: (8 * MIB) as u32,
            wal_bytes: 256 * MIB,
            frames: 1024,
        }
    }
}

/// How a backup behaves; may differ from one start to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A chunk of at least this many bytes goes straight to its frame, and only its certificate
    /// into the write-ahead log. `u32::MAX`: never. 90-traps.md §G: 128 KiB is where writing twice
    /// costs more than a second write.
    pub bypass_bytes: u32,
    /// The background flush empties the write-ahead log down to this part of it, in percent.
    pub wal_fill_percent: u8,
    /// Most memory for copies of what is staged, or committed and not yet in a frame; above it
    /// commits wait for frames. The background flush begins at three quarters of it. `u64::MAX`: as
    /// much as the write-ahead log holds.
    pub memory_bytes: u64,
    /// Closed segments go to their frames past the page cache in mode buffered too: nobody reads
    /// them again but a recovery, and copying them costs the processor several times what the
    /// device needs for them.
    pub frames_past_cache: bool,
    /// A bug to be found by tests.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::planted::Bug>,
}

impl Options {
    /// Memory for copies beside a budget of so many bytes: a thirty-second part, as the process
    /// stays within a tenth above its budget by it; at least four segments of the smallest size, as
    /// two heads fill one each while two are written; no more than the fastest devices take in a
    /// tenth of a second.
    pub fn copies_of(budget_bytes: u64) -> u64 {
        (budget_bytes / 32).clamp(8 * MIB, 512 * MIB)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bypass_bytes: (128 * KIB) as u32,
            wal_fill_percent: 50,
            memory_bytes: u64::MAX,
            frames_past_cache: false,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// Some bytes of a segment on their way to a replica.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    pub segment: SegmentId,
    /// Replication epoch of the segment; a lower one than the replica's is rejected.
    pub epoch: u64,
    pub kind: Kind,
    /// Where in the segment `bytes` start: what was staged before ends there. A repeated chunk
    /// changes nothing.
    pub offset: u32,
    pub bytes: &'a [u8],
    /// Makes everything up to here valid, in one step. Without one, the bytes wait for a later
    /// chunk's, and hold on to their place in the write-ahead log: certify them before it has gone
    /// round, or commits find no room.
    pub certificate: Option<Certificate>,
    /// Creates the replica.
    pub open: bool,
    /// Nothing follows; needs a certificate, here or before, over all bytes.
    pub close: bool,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Number of the commit in the write-ahead log; 0 if nothing was staged.
    pub lsn: u64,
    /// Chunks in it.
    pub chunks: u32,
    /// Bytes of chunks in it.
    pub bytes: u64,
    /// Level that everything committed so far has reached.
    pub level: Level,
}

/// Names a replica. A backup keeps those of many logs; segment ids are unique within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The log id in the segment's header.
    pub log: u64,
    pub segment: SegmentId,
}

/// Where a replica's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the write-ahead log, perhaps with a first part in a frame.
    Wal,
    /// All in its frame.
    Frame,
}

/// A segment replica as this backup holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Whose it is.
    pub log: u64,
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    /// Certified bytes.
    pub length: u32,
    /// CRC32C of them.
    pub crc: u32,
    pub closed: bool,
    pub place: Place,
    /// It is known that its bytes can't be read any more: `read` gives an error. Whether that
    /// matters depends on whether the control log lists the segment.
    pub damaged: bool,
}

impl ReplicaInfo {
    /// Its name.
    pub fn id(&self) -> ReplicaId {
        ReplicaId {
            log: self.log,
            segment: self.segment,
        }
    }

    /// The replica's certificate.
    pub fn certificate(&self) -> Certificate {
        Certificate {
            length: self.length,
            crc: self.crc,
        }
    }
}

/// What one step of scrubbing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScrubStep {
    /// Nothing is on the device.
    Idle,
    /// This one is as it was written.
    Good { segment: SegmentId, bytes: u32 },
    /// This one isn't: see [`take_damaged`](crate::Backup::take_damaged).
    Damaged { segment: SegmentId },
    /// All of the write-ahead log that a restart would read is as it was written.
    GoodLog { bytes: u64 },
    /// A commit isn't.
    DamagedLog(LogDamage),
}

/// A commit in the write-ahead log that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDamage {
    pub lsn: u64,
    pub reason: String,
    /// What it held is in frames now, and no restart reads it. False: it will be tried again.
    pub is_mended: bool,
}

/// A replica that was whole, and was found not to be any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Whose it is.
    pub log: u64,
    pub segment: SegmentId,
    pub kind: Kind,
    /// Where it lies.
    pub frame: Option<u32>,
    /// The device gave an error: when the replica is freed, its frame is not used again in this
    /// run.
    pub unreadable: bool,
    pub reason: String,
}

/// Memory for copies of what is staged, or committed and not yet in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// What they take now.
    pub bytes: u64,
    /// What was allocated for them: a part may not have been touched yet.
    pub reserved_bytes: u64,
    /// What `bytes` is kept below: [`Options::memory_bytes`].
    pub bytes_max: u64,
}

impl std::iter::Sum for Copies {
    fn sum<I: Iterator<Item = Copies>>(all: I) -> Copies {
        all.fold(Copies::default(), |sum, one| Copies {
            bytes: sum.bytes + one.bytes,
            reserved_bytes: sum.reserved_bytes + one.reserved_bytes,
            bytes_max: sum.bytes_max.saturating_add(one.bytes_max),
        })
    }
}

/// Figures of a backup since it was opened, unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub commits: u64,
    pub records: u64,
    /// Bytes of chunks that were committed.
    pub payload_bytes: u64,
    /// Bytes written into the write-ahead log, headers and padding included.
    pub wal_written_bytes: u64,
    /// Bytes written into frames and their slots.
    pub frame_written_bytes: u64,
    pub syncs: u64,
    /// Duration of commits: bucket n counts those of at least 2^n and less than 2^(n+1)
    /// microseconds; the last has no end.
    pub commit_micros: [u64; 24],
    pub wal_bytes: u64,
    /// Bytes of the write-ahead log that a restart would read, now.
    pub wal_used_bytes: u64,
    pub frames: u32,
    pub frames_used: u32,
    pub frame_bytes: u32,
    /// Replicas that are kept now, in frames or not.
    pub replicas: u32,
    /// Replicas of which not everything is in a frame, now.
    pub unflushed: u32,
    /// Closed replicas and parts of open ones written to frames.
    pub flushes: u64,
    /// Times that a commit had to wait for the write-ahead log, or the memory of what waits for
    /// frames, to be emptied.
    pub stalls: u64,
    pub scrubbed: u64,
    pub damaged: u64,
    /// Frames that are used no more, or only if there is no other: reads or writes in them went
    /// wrong.
    pub quarantined: u32,
    pub io_errors: u64,
    /// The reason why the device takes no more writes; empty while it does.
    pub failed: String,
}
