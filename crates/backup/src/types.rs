//! Input and output types of a backup.

use duramen_base::ids::{Level, SegmentId};
use duramen_base::units::{KIB, MIB};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_format::wal::Record;

/// The write mode of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Through the page cache.
    #[default]
    Buffered,
    /// Past the page cache (`O_DIRECT`).
    Direct,
    /// One preallocated file or partition that holds everything, past the page cache.
    Raw,
}

/// The owner of a store. Written once, at its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the cluster; at most 64 bytes.
    pub cluster: String,
    /// The server's id: random, never 0. It is the log id in segment headers.
    pub server: u64,
    /// Seed of the key hash.
    pub hash_seed: u64,
}

/// The owner that a caller expects; `None` accepts any.
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
    /// Maximum number of frames; their space is allocated when they are used.
    pub frames: u32,
}

/// The smallest write-ahead log, in bytes: two header blocks and a commit of a few chunks for each
/// of a few heads.
pub const WAL_BYTES_MIN: u64 = 64 * KIB;
/// The largest write-ahead log, in bytes: sums with it do not overflow.
pub(crate) const WAL_BYTES_MAX: u64 = 1 << 50;

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry {
            segment_bytes: (8 * MIB) as u32,
            wal_bytes: 256 * MIB,
            frames: 1024,
        }
    }
}

/// Settings of a backup; may differ from one start to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A chunk of at least this many bytes goes directly to its frame, and only its certificate
    /// into the write-ahead log. `u32::MAX`: never. From 128 KiB on, writing the bytes twice costs
    /// more than a second write (docs/traps.md, trap 18).
    pub bypass_bytes: u32,
    /// The background flush empties the write-ahead log down to this part of it, in percent.
    pub wal_fill_percent: u8,
    /// Maximum memory for copies of chunks that are staged, or committed and not yet in a frame;
    /// above it commits wait for frames. The background flush begins at three quarters of it.
    /// `u64::MAX`: the size of the write-ahead log.
    pub memory_bytes: u64,
    /// Closed segments go to their frames past the page cache in mode buffered too: only a recovery
    /// reads them again, and copying them costs the processor several times the device's time.
    pub frames_past_cache: bool,
}

impl Options {
    /// Memory for copies beside a memory budget of `budget_bytes`: a thirty-second part, so that
    /// the process stays within a tenth above its budget; at least four segments of the smallest
    /// size, since two heads fill one each while two are written; at most the bytes that the
    /// fastest devices write in a tenth of a second.
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
        }
    }
}

/// Bytes of a segment, to be added to its replica.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    pub segment: SegmentId,
    /// Replication epoch of the segment; a lower one than the replica's is rejected.
    pub epoch: u64,
    pub kind: Kind,
    /// Offset in the segment where `bytes` start: the end of the bytes staged before. A repeated
    /// chunk changes nothing.
    pub offset: u32,
    pub bytes: &'a [u8],
    /// Makes all bytes up to its length valid, in one step. Bytes without a certificate wait for a
    /// later chunk's, and keep their place in the write-ahead log: certify them before the log has
    /// gone round, or commits find no room.
    pub certificate: Option<Certificate>,
    /// Whether the chunk creates the replica.
    pub open: bool,
    /// Whether no chunk follows. This needs a certificate, in this chunk or before, over all bytes.
    pub close: bool,
}

impl Chunk<'_> {
    /// The record of the chunk in the write-ahead log, with the bytes `payload` from `offset` on;
    /// all bytes before them are in `frame`, if there is one.
    pub(crate) fn record<'p>(
        &self,
        log: u64,
        offset: u32,
        payload: &'p [u8],
        frame: Option<u32>,
    ) -> Record<'p> {
        Record {
            segment: self.segment,
            log,
            epoch: self.epoch,
            offset,
            payload,
            certificate: self.certificate,
            open: self.open,
            close: self.close,
            kind: self.kind,
            frame,
        }
    }

    /// Whether it is a copy of a closed segment that has lost a replica (replication::O11).
    pub fn is_refill(&self) -> bool {
        self.open && self.close && self.epoch > 0 && self.kind != Kind::Control
    }

    /// Whether the whole segment arrives in one piece. A survivor always does, also if its close
    /// comes later (replication::O11).
    pub(crate) fn is_whole(&self) -> bool {
        self.close || self.kind == Kind::Survivor
    }
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Number of the commit in the write-ahead log; 0 if nothing was staged.
    pub lsn: u64,
    /// Chunks in it.
    pub chunks: u32,
    /// Bytes of chunks in it.
    pub bytes: u64,
    /// Level that all commits so far have reached.
    pub level: Level,
}

/// Names a replica. A backup keeps replicas of many logs; segment ids are unique within one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The log id in the segment's header.
    pub log: u64,
    pub segment: SegmentId,
}

/// The place of a replica's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the write-ahead log, perhaps with a first part in a frame.
    Wal,
    /// All in its frame.
    Frame,
}

/// A segment replica in this backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// The log that it belongs to.
    pub log: u64,
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    /// Certified bytes.
    pub length: u32,
    /// CRC32C of the certified bytes.
    pub crc: u32,
    pub closed: bool,
    pub place: Place,
    /// Its bytes are known to be unreadable: `read` gives an error. Whether that matters depends on
    /// whether the control log lists the segment.
    pub damaged: bool,
}

impl ReplicaInfo {
    /// The name of the replica.
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

/// The result of one scrub step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScrubStep {
    /// No data is on the device.
    Idle,
    /// This replica is as it was written.
    Good { segment: SegmentId, bytes: u32 },
    /// This replica differs: see [`take_damaged`](crate::Reader::take_damaged).
    Damaged { segment: SegmentId },
    /// All bytes of the write-ahead log that a restart would read are as they were written.
    GoodLog { bytes: u64 },
    /// A commit differs.
    DamagedLog(LogDamage),
}

/// A commit in the write-ahead log that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDamage {
    pub lsn: u64,
    pub reason: String,
    /// Whether its data are in frames now, so that no restart reads the commit. If not, the repair
    /// will be tried again.
    pub is_mended: bool,
}

/// A replica that was whole, and was found damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The log that it belongs to.
    pub log: u64,
    pub segment: SegmentId,
    pub kind: Kind,
    /// The frame of its bytes.
    pub frame: Option<u32>,
    /// The device returned an error: when the replica is freed, its frame is not used again in this
    /// run.
    pub unreadable: bool,
    pub reason: String,
}

/// Memory for copies of chunks that are staged, or committed and not yet in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Bytes in use.
    pub bytes: u64,
    /// Bytes allocated: a part may not have been touched yet.
    pub reserved_bytes: u64,
    /// Maximum of `bytes`: [`Options::memory_bytes`].
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

/// The damage that is known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownDamage {
    /// Damaged replicas of all logs, until they are freed or written again.
    pub replicas: Vec<ReplicaId>,
    /// As [`Stats::scrub_rounds`], at the same moment.
    pub scrub_rounds: u64,
}

/// Statistics of a backup since it was opened, unless a field says otherwise.
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
    /// microseconds; the last bucket has no end.
    pub commit_micros: [u64; 24],
    pub wal_bytes: u64,
    /// Bytes of the write-ahead log that a restart would read, now.
    pub wal_used_bytes: u64,
    pub frames: u32,
    pub frames_used: u32,
    pub frame_bytes: u32,
    /// Closed replicas wait for a frame, for which the file system has no space.
    pub lacks_space: bool,
    /// Replicas that are kept now, in frames or not.
    pub replicas: u32,
    /// Replicas that are not completely in a frame now.
    pub unflushed: u32,
    /// Closed replicas and parts of open ones written to frames.
    pub flushes: u64,
    /// Number of times that a commit had to wait for room in the write-ahead log or in the memory
    /// for copies.
    pub stalls: u64,
    pub scrubbed: u64,
    /// Rounds of the scrubber that have ended: each verifies every replica in a frame.
    pub scrub_rounds: u64,
    pub damaged: u64,
    /// Flipped bits that were put back for readers, or at the start.
    pub flipped_bits: u64,
    /// Frames that are no longer used, or only if there is no other: reads or writes in them
    /// failed.
    pub quarantined: u32,
    pub io_errors: u64,
    /// The reason why the device accepts no more writes; empty while it does.
    pub failed: String,
}

impl Stats {
    /// Frames that more replicas may take: none while the file system has no space for one.
    pub fn frames_free(&self) -> u32 {
        let taken = self.replicas.max(self.frames_used) + self.quarantined;
        match self.lacks_space {
            true => 0,
            false => self.frames.saturating_sub(taken),
        }
    }
}
