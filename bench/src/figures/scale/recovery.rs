//! Backups that read and divide a dead server's segments, and recovery masters that fetch, replay
//! and replicate them: as in `duramen_node`, with queues in place of work.

use super::cluster::{Cluster, Stage, Then, width};
use super::costs::SEGMENT_BYTES;
use super::machine::{Ns, ns};
use duramen_base::ids::{SegmentId, ServerId};
use duramen_format::segment::Kind;
use duramen_wire::native::message::{PartitionOutcome, Recover, ReplicaEntry};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// As in `duramen_node`: segments that a recovery master reads at once, and the number of next
/// segments that it considers to find an idle backup.
const READS_MAX: usize = 8;
const LOOK_AHEAD: usize = 32;
/// Segments that a backup reads at once: one is divided while the next is read.
const READS_AHEAD: usize = 2;

/// A part of a segment for a recovery master.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub master: usize,
    pub backup: usize,
    pub segment: u32,
    pub bytes: u64,
}

/// A backup's replicas of the dead server's log.
#[derive(Default)]
pub(super) struct Shelf {
    pub replicas: Vec<ReplicaEntry>,
    /// Primaries that are not read yet, in order; and those that are being read.
    unread: VecDeque<u32>,
    reading: BTreeSet<u32>,
    ready: BTreeSet<u32>,
    /// The waiting requests for each segment.
    waiting: BTreeMap<u32, Vec<Piece>>,
    started: bool,
    /// When its disk was done with the log.
    pub read_ns: Ns,
}

impl Shelf {
    pub fn begin(&mut self) {
        let primaries = self.replicas.iter().filter(|entry| entry.primary);
        self.unread = primaries.map(|entry| entry.segment.0 as u32).collect();
    }
}

/// A recovery master's partition.
pub(super) struct Master {
    pub server: usize,
    pub id: ServerId,
    pub order: Recover,
    unread: VecDeque<(u32, usize)>,
    /// Requests in flight, by backup.
    outstanding: BTreeMap<usize, usize>,
    under_way: usize,
    piece_bytes: u64,
    /// Replayed and not shipped yet.
    filled: u64,
    replayed: u64,
    shipping: usize,
    committing: bool,
    pub reported: bool,
    pub serves: bool,
}

impl Cluster {
    /// A backup begins to read its primaries.
    pub fn read_ahead(&mut self, server: usize) {
        self.shelves[server].started = true;
        self.read_on(server);
    }

    fn read_on(&mut self, server: usize) {
        let machine = self.machine();
        while self.shelves[server].reading.len() < READS_AHEAD
            && let Some(segment) = self.shelves[server].unread.pop_front()
        {
            self.shelves[server].reading.insert(segment);
            let stages = vec![
                Stage::Disk(server, ns(SEGMENT_BYTES, machine.disk_read)),
                Stage::Cores(server, ns(SEGMENT_BYTES, machine.costs.divide)),
            ];
            self.begin(stages, Then::Divided(server, segment));
        }
    }

    pub fn divided(&mut self, server: usize, segment: u32) {
        let now = self.now();
        let shelf = &mut self.shelves[server];
        shelf.reading.remove(&segment);
        shelf.ready.insert(segment);
        shelf.read_ns = now;
        let waiting = shelf.waiting.remove(&segment).unwrap_or_default();
        for piece in waiting {
            self.deliver(piece);
        }
        self.read_on(server);
    }

    /// A repeated order changes nothing.
    pub fn start_master(&mut self, server: usize, id: ServerId, order: Recover) {
        let same = |master: &Master| {
            let of = &master.order;
            (of.recovery, of.partition) == (order.recovery, order.partition)
        };
        if self.masters.iter().any(same) {
            return;
        }
        let mut unread: Vec<(u32, usize)> = Vec::new();
        for segment in order.segments.iter().filter(|s| s.kind != Kind::Control) {
            let source = segment.sources.first().map(|id| self.index_of(*id));
            unread.push((segment.segment.0 as u32, source.unwrap_or(server)));
        }
        let partitions = self.partitions_of(&order);
        let master = Master {
            server,
            id,
            unread: unread.into(),
            outstanding: BTreeMap::new(),
            under_way: 0,
            piece_bytes: SEGMENT_BYTES / partitions,
            filled: 0,
            replayed: 0,
            shipping: 0,
            committing: false,
            reported: false,
            serves: false,
            order,
        };
        self.masters.push(master);
        self.fetch(self.masters.len() - 1);
    }

    /// Number of equal parts that the log is divided into: from the order's share of the dead
    /// server's hashes.
    fn partitions_of(&self, order: &Recover) -> u64 {
        let all: u128 = self.dead_width();
        let mine: u128 = order.tablets.iter().map(|tablet| width(tablet.range)).sum();
        (all / mine.max(1)).max(1) as u64
    }

    /// Requests further segments: of the next ones, those for which the backups have the fewest
    /// requests from this master.
    fn fetch(&mut self, master: usize) {
        let latency = self.machine().latency;
        loop {
            let of = &mut self.masters[master];
            if of.under_way >= READS_MAX {
                return;
            }
            let load =
                |(_, backup): &(u32, usize)| of.outstanding.get(backup).copied().unwrap_or(0);
            let next = (0..of.unread.len().min(LOOK_AHEAD)).min_by_key(|at| load(&of.unread[*at]));
            let Some((segment, backup)) = next.and_then(|at| of.unread.remove(at)) else {
                return;
            };
            of.under_way += 1;
            *of.outstanding.entry(backup).or_default() += 1;
            let piece = Piece {
                master,
                backup,
                segment,
                bytes: of.piece_bytes,
            };
            self.begin(vec![Stage::Delay(latency)], Then::Wanted(piece));
        }
    }

    pub fn wanted(&mut self, piece: Piece) {
        let shelf = &mut self.shelves[piece.backup];
        if shelf.ready.contains(&piece.segment) {
            return self.deliver(piece);
        }
        shelf.waiting.entry(piece.segment).or_default().push(piece);
        if !shelf.reading.contains(&piece.segment) {
            // Requested before its turn, or another replica than the one that was read ahead.
            shelf.unread.retain(|segment| *segment != piece.segment);
            shelf.unread.push_front(piece.segment);
            self.read_on(piece.backup);
        }
    }

    /// From a backup's memory into a recovery master's log.
    fn deliver(&mut self, piece: Piece) {
        let machine = self.machine();
        let (costs, bytes) = (machine.costs, piece.bytes);
        let server = self.masters[piece.master].server;
        let stages = vec![
            Stage::Cores(piece.backup, ns(bytes, costs.send)),
            Stage::Outwards(piece.backup, ns(bytes, machine.network)),
            Stage::Delay(machine.latency),
            Stage::Inwards(server, ns(bytes, machine.network)),
            Stage::Cores(server, ns(bytes, costs.receive) + ns(bytes, costs.replay)),
        ];
        self.begin(stages, Then::Replayed(piece));
    }

    pub fn replayed(&mut self, piece: Piece) {
        let of = &mut self.masters[piece.master];
        of.under_way -= 1;
        if let Some(outstanding) = of.outstanding.get_mut(&piece.backup) {
            *outstanding -= 1;
        }
        of.filled += piece.bytes;
        of.replayed += piece.bytes;
        let full = of.filled >= SEGMENT_BYTES;
        self.fetch(piece.master);
        let of = &self.masters[piece.master];
        let last = of.under_way == 0 && of.unread.is_empty();
        if full || last && of.filled > 0 {
            self.ship(piece.master);
        }
    }

    /// A segment of the side log goes to its backups.
    fn ship(&mut self, master: usize) {
        let machine = self.machine();
        let (server, bytes) = (self.masters[master].server, self.masters[master].filled);
        self.masters[master].filled = 0;
        let mut backups = self.place();
        // Never to itself.
        while backups.contains(&server) {
            backups = self.place();
        }
        for backup in backups {
            self.masters[master].shipping += 1;
            let costs = machine.costs;
            let stages = vec![
                Stage::Cores(server, ns(bytes, costs.send)),
                Stage::Outwards(server, ns(bytes, machine.network)),
                Stage::Delay(machine.latency),
                Stage::Inwards(backup, ns(bytes, machine.network)),
                Stage::Cores(backup, ns(bytes, costs.receive) + ns(bytes, costs.keep)),
                Stage::Disk(backup, ns(bytes, machine.disk_write) + machine.sync),
                Stage::Delay(machine.latency),
            ];
            self.begin(stages, Then::Kept(master));
        }
    }

    pub fn kept(&mut self, master: usize) {
        let sync = self.machine().sync;
        let latency = self.machine().latency;
        let of = &mut self.masters[master];
        of.shipping -= 1;
        let whole = of.under_way == 0 && of.unread.is_empty() && of.filled == 0;
        if whole && of.shipping == 0 && !of.committing {
            of.committing = true;
            // One record on three backups.
            let stages = vec![Stage::Delay(2 * latency + 2 * sync)];
            self.begin(stages, Then::Committed(master));
        }
    }

    pub fn committed(&mut self, master: usize) {
        let of = &mut self.masters[master];
        of.reported = true;
        let outcome = PartitionOutcome::Replayed {
            creation: SegmentId(1),
            bytes: of.replayed,
            entries: of.replayed / 1000,
        };
        self.report(master, outcome);
    }
}
