//! One segment replica, as the backup keeps it in memory.
//!
//! **Invariants**
//! - R1: bytes `[0, base)` are in the frame, durably; `base` is a multiple of 4096 unless the
//!   replica is closed and flushed. Bytes `[base, received)` before `staged_base` are in `lent`, in
//!   order; bytes `[staged_base, staged)` in `data`. Bytes in neither were written directly to the
//!   frame and are not yet committed.
//! - R2: `certificate.length <= received <= staged`: certified and committed, committed, added to
//!   the next commit.
//! - R3: every committed byte at or beyond `base` is in a commit of the write-ahead log not older
//!   than `wal_from`.
//! - R4: while `flushing`, the flusher alone moves `base` and `frame`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;

use crate::buffer::Buffer;
use crate::types::{Place, ReplicaId, ReplicaInfo};

/// Damage found in a replica that had been whole.
#[derive(Clone, Debug)]
pub(crate) struct Decay {
    pub(crate) reason: String,
    /// The device returned an error, rather than other bytes.
    pub(crate) unreadable: bool,
    /// One flipped bit explains it, so readers still get the bytes as they were written.
    pub(crate) mendable: bool,
}

impl Decay {
    pub(crate) fn wrong(reason: &str) -> Decay {
        Decay {
            reason: reason.to_owned(),
            unreadable: false,
            mendable: false,
        }
    }

    pub(crate) fn mendable(reason: String) -> Decay {
        Decay {
            reason,
            unreadable: false,
            mendable: true,
        }
    }

    pub(crate) fn unreadable(error: &io::Error) -> Decay {
        Decay {
            reason: format!("it can't be read: {error}"),
            unreadable: true,
            mendable: false,
        }
    }
}

/// Bytes of a replica that are in memory.
pub(crate) enum Data {
    /// It may grow.
    Growing(Buffer),
    /// It is closed and being written to its frame.
    Sealed(Arc<Buffer>),
    /// All of it is in its frame.
    InFrame,
}

pub(crate) struct Replica {
    pub(crate) kind: Kind,
    pub(crate) epoch: u64,
    pub(crate) certificate: Certificate,
    pub(crate) closed: bool,
    /// Whether its opening was committed.
    pub(crate) committed: bool,
    pub(crate) received: u32,
    pub(crate) base: u32,
    pub(crate) data: Data,
    /// Bytes that were written to the frame together with the bytes written directly after them,
    /// until these are committed; each with its offset.
    pub(crate) lent: VecDeque<(u32, Arc<Buffer>)>,
    pub(crate) frame: Option<u32>,
    /// Oldest commit that a restart would need for it (R3).
    pub(crate) wal_from: Option<u64>,
    /// Oldest commit with bytes that no certificate covers yet.
    pub(crate) uncertified_from: Option<u64>,
    pub(crate) flushing: bool,
    /// The reason why its bytes are lost, as found at the restart.
    pub(crate) damaged: Option<String>,
    /// Damage of its frame found at rest. The replica is used as before: only its master can
    /// replace it.
    pub(crate) decay: Option<Decay>,
    /// Whether the frame's slot is this replica's.
    pub(crate) in_slot: bool,

    /// Certificate of everything staged, updated with each chunk.
    pub(crate) rolling: Certificate,
    /// Length of the part of `rolling` that a staged or committed certificate covers.
    pub(crate) staged_certified: u32,
    pub(crate) staged_closed: bool,
    /// The value of `base` after everything staged is committed.
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
            lent: VecDeque::new(),
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

    /// The reason why its bytes are lost.
    pub(crate) fn damage(&self) -> Option<&str> {
        let decay = self.decay.as_ref().filter(|decay| !decay.mendable);
        let decay = decay.map(|decay| decay.reason.as_str());
        self.damaged.as_deref().or(decay)
    }

    /// Whether its master has to replace the replica: its bytes are lost, or some are not as
    /// written.
    pub(crate) fn is_to_be_replaced(&self) -> bool {
        self.damaged.is_some() || self.decay.is_some()
    }

    /// Takes the bytes up to `until` for a write to the frame: `more` completes the bytes in memory
    /// to whole blocks, or to `until`. Returns these bytes and their offset; bytes after `until`
    /// will be in `rest`.
    ///
    /// # Panics
    /// If the replica is not growing.
    pub(crate) fn lend(&mut self, more: &[u8], until: u32, mut rest: Buffer) -> (u32, Arc<Buffer>) {
        let from = self.staged_base;
        let Data::Growing(buffer) = &mut self.data else {
            panic!("only what grows is written in parts");
        };
        let whole = (until - from) as usize;
        rest.extend(buffer.bytes().get(whole..).unwrap_or_default());
        let mut given = std::mem::replace(buffer, rest);
        given.truncate(whole);
        given.extend(more);
        let given = Arc::new(given);
        self.lent.push_back((from, given.clone()));
        self.staged_base = until;
        (from, given)
    }

    /// Undoes the last [`lend`](Self::lend) after a failed write. `length`: number of bytes that
    /// were in memory before.
    pub(crate) fn take_back(&mut self, from: u32, given: Arc<Buffer>, length: usize) {
        // A part without bytes may be gone already.
        if self.lent.back().is_some_and(|(begins, _)| *begins == from) {
            self.lent.pop_back();
        }
        let mut buffer = Arc::into_inner(given).expect("the buffer has one owner");
        buffer.truncate(length);
        buffer.extend(self.unlent());
        self.data = Data::Growing(buffer);
        self.staged_base = from;
    }

    /// Bytes from `staged_base` on.
    pub(crate) fn unlent(&self) -> &[u8] {
        match &self.data {
            Data::Growing(buffer) => buffer.bytes(),
            Data::Sealed(buffer) => buffer.bytes(),
            Data::InFrame => &[],
        }
    }

    /// Copies bytes from `from >= base` on; returns their number.
    pub(crate) fn copy_from(&self, from: u32, into: &mut [u8]) -> usize {
        let lent = self.lent.iter().map(|(at, part)| (*at, part.bytes()));
        let parts = lent.chain([(self.staged_base, self.unlent())]);
        let mut done = 0;
        for (at, bytes) in parts {
            let wanted = from as usize + done;
            let Some(bytes) = wanted
                .checked_sub(at as usize)
                .and_then(|skip| bytes.get(skip..))
            else {
                continue;
            };
            let count = bytes.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&bytes[..count]);
            done += count;
        }
        done
    }

    /// Notes that bytes before `base` are in the frame, durably. Returns memory that is not needed
    /// any more.
    pub(crate) fn rebase(&mut self, base: u32) -> Option<Buffer> {
        if let Some(more) = base.checked_sub(self.staged_base)
            && let Data::Growing(buffer) = &mut self.data
        {
            buffer.drop_front(more as usize);
            self.staged_base = base;
        }
        self.base = base;
        let mut unused = None;
        while let Some((from, part)) = self.lent.front()
            && from + part.len() as u32 <= base
        {
            let (_, part) = self.lent.pop_front()?;
            unused = Arc::into_inner(part).or(unused);
        }
        unused
    }

    pub(crate) fn place(&self) -> Place {
        match self.data {
            Data::InFrame => Place::Frame,
            _ => Place::Wal,
        }
    }

    pub(crate) fn info(&self, id: ReplicaId) -> ReplicaInfo {
        ReplicaInfo {
            log: id.log,
            segment: id.segment,
            kind: self.kind,
            epoch: self.epoch,
            length: self.certificate.length,
            crc: self.certificate.crc,
            closed: self.closed,
            place: self.place(),
            damaged: self.damage().is_some(),
        }
    }

    /// Applies one staged chunk after its commit is written. Returns memory that is not needed any
    /// more.
    pub(crate) fn commit(&mut self, staged: &Staged, lsn: u64) -> Option<Buffer> {
        self.committed = true;
        self.received = self.received.max(staged.end);
        self.epoch = self.epoch.max(staged.epoch);
        if let Some(certificate) = staged.certificate {
            self.certificate = certificate;
            self.uncertified_from = None;
        } else if self.received > self.certificate.length {
            self.uncertified_from.get_or_insert(lsn);
        }
        self.closed |= staged.close;
        let mut unused = None;
        if let Some(base) = staged.base.filter(|base| *base > self.base) {
            unused = self.rebase(base);
            self.wal_from = Some(lsn); // earlier bytes are in the frame, durably
        }
        self.wal_from.get_or_insert(lsn);
        unused
    }
}

/// The effect of a staged chunk on its replica once the commit is written.
pub(crate) struct Staged {
    pub(crate) id: ReplicaId,
    pub(crate) epoch: u64,
    pub(crate) end: u32,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) close: bool,
    /// The chunk went directly to the frame: bytes before this offset are there.
    pub(crate) base: Option<u32>,
}
