//! One segment replica, as the backup keeps it in memory.
//!
//! **Invariants**
//! - R1: bytes `[0, base)` lie in the frame, durably; `base` is a multiple of 4096 unless the replica is closed and flushed.
//!   Bytes `[base, staged)` are in `data`.
//! - R2: `certificate.length <= received <= staged`: certified and committed, committed, taken into the next commit.
//! - R3: every committed byte at or beyond `base` is in a commit of the write-ahead log not older than `wal_from`.
//! - R4: while `flushing`, the flusher alone moves `base` and `frame`.

use std::io;
use std::sync::Arc;

use duramen_base::ids::SegmentId;
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;

use crate::buffer::Buffer;
use crate::types::{Place, ReplicaInfo};

/// What reading a replica found that had been whole.
#[derive(Clone, Debug)]
pub(crate) struct Decay {
    pub(crate) reason: String,
    /// The device gave an error, rather than other bytes.
    pub(crate) unreadable: bool,
}

impl Decay {
    pub(crate) fn wrong(reason: &str) -> Decay {
        Decay {
            reason: reason.to_owned(),
            unreadable: false,
        }
    }

    pub(crate) fn unreadable(error: &io::Error) -> Decay {
        Decay {
            reason: format!("it can't be read: {error}"),
            unreadable: true,
        }
    }
}

/// Bytes of a replica that are in memory.
pub(crate) enum Data {
    /// It may grow.
    Growing(Buffer),
    /// It may grow, but not now: the log writer is writing a part of it straight to its frame.
    Lent(Arc<Buffer>),
    /// It is closed and on its way to its frame.
    Sealed(Arc<Buffer>),
    /// All of it is in its frame.
    InFrame,
}

pub(crate) struct Replica {
    pub(crate) kind: Kind,
    pub(crate) epoch: u64,
    pub(crate) certificate: Certificate,
    pub(crate) closed: bool,
    /// Its opening was committed.
    pub(crate) committed: bool,
    pub(crate) received: u32,
    pub(crate) base: u32,
    pub(crate) data: Data,
    pub(crate) frame: Option<u32>,
    /// Oldest commit that a restart would need for it (R3).
    pub(crate) wal_from: Option<u64>,
    /// Oldest commit with bytes that no certificate covers yet.
    pub(crate) uncertified_from: Option<u64>,
    pub(crate) flushing: bool,
    /// Why its bytes can't be had any more, as found at the restart.
    pub(crate) damaged: Option<String>,
    /// What its frame has become at rest. The replica goes on as before: its master alone knows how to replace it.
    pub(crate) decay: Option<Decay>,
    /// The frame's slot is this replica's.
    pub(crate) in_slot: bool,

    /// Certificate of everything staged, rolled along.
    pub(crate) rolling: Certificate,
    /// Length of the part of `rolling` that a staged or committed certificate covers.
    pub(crate) staged_certified: u32,
    pub(crate) staged_closed: bool,
    /// What `base` will be after the next commit.
    pub(crate) staged_base: u32,
}

impl Replica {
    pub(crate) fn new(kind: Kind, epoch: u64, data: Data) -> Replica {
        Replica {
            kind,
            epoch,
            certificate: Certificate::EMPTY,
            closed: false,
            committed: false,
            received: 0,
            base: 0,
            data,
            frame: None,
            wal_from: None,
            uncertified_from: None,
            flushing: false,
            damaged: None,
            decay: None,
            in_slot: false,
            rolling: Certificate::EMPTY,
            staged_certified: 0,
            staged_closed: false,
            staged_base: 0,
        }
    }

    /// Bytes staged so far.
    pub(crate) fn staged(&self) -> u32 {
        self.rolling.length
    }

    /// Why its bytes can't be had any more.
    pub(crate) fn damage(&self) -> Option<&str> {
        let decay = self.decay.as_ref().map(|decay| decay.reason.as_str());
        self.damaged.as_deref().or(decay)
    }

    pub(crate) fn place(&self) -> Place {
        match self.data {
            Data::InFrame => Place::Frame,
            _ => Place::Wal,
        }
    }

    pub(crate) fn info(&self, segment: SegmentId) -> ReplicaInfo {
        ReplicaInfo {
            segment,
            kind: self.kind,
            epoch: self.epoch,
            length: self.certificate.length,
            crc: self.certificate.crc,
            closed: self.closed,
            place: self.place(),
            damaged: self.damage().is_some(),
        }
    }

    /// Takes the effect of one staged chunk, now that its commit is written.
    pub(crate) fn commit(&mut self, staged: &Staged, lsn: u64) {
        self.committed = true;
        self.received = self.received.max(staged.end);
        self.epoch = self.epoch.max(staged.epoch);
        if let Some(certificate) = staged.certificate {
            self.certificate = certificate;
            self.uncertified_from = None;
        } else {
            self.uncertified_from.get_or_insert(lsn);
        }
        self.closed |= staged.close;
        if let Some(base) = staged.base.filter(|base| *base > self.base) {
            if let Data::Growing(buffer) = &mut self.data {
                buffer.drop_front((base - self.base) as usize);
            }
            self.base = base;
            self.wal_from = Some(lsn); // what was before is in the frame, durably
        }
        self.wal_from.get_or_insert(lsn);
    }
}

/// What a staged chunk will do to its replica once the commit is written.
pub(crate) struct Staged {
    pub(crate) segment: SegmentId,
    pub(crate) epoch: u64,
    pub(crate) end: u32,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) close: bool,
    /// The chunk went straight to the frame: bytes before this lie there.
    pub(crate) base: Option<u32>,
}
