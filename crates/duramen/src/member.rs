//! A member of a cluster, as its node uses it: it opens the store, and reports the answers of the
//! backups.

use crate::durable::{Backups, Commit, Durable, Remote, Replicas};
use crate::hints::Hints;
use crate::load::Loaded;
use crate::writer::LogWriter;
use crate::{Error, Options, Store};
use crate::{control, restart};
use duramen_base::ids::{Level, SegmentId, ServerId};
use duramen_cluster::placement::{Layout, Member};
use duramen_cluster::replication::{BackupId, Config, Found, Master, Placed, Rejection, Ticket};
use duramen_engine::LogOptions;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most calls with data, and most frees, in flight at once.
const WRITES_MAX: usize = 16;
/// Most copies of closed segments in flight at once. One is carried at a time (remote::Q7); a
/// second one takes the place of one for which nothing moves.
const COPIES_MAX: usize = 2;
const FREES_MAX: usize = 3;
/// Fewest segments of a zone when the log is full: a pass needs several victims of one zone.
const ZONE_SEGMENTS_MIN: u64 = 16;
/// Fewest zones of a log that is long enough: with one zone, all of it would be on a few disks, and
/// a recovery would read from these alone.
const ZONES_MIN: u64 = 8;

/// Number of zones of a log with at most so many segments.
fn zones_of(segments: u64, segment_bytes: u64, zone_bytes: u64) -> u64 {
    let wanted = segments.saturating_mul(segment_bytes) / zone_bytes.max(1);
    wanted
        .max(ZONES_MIN)
        .min(segments / ZONE_SEGMENTS_MIN)
        .max(1)
}

/// Options of a member's store.
pub struct MemberOptions {
    /// Engine, levels and figures. The directory belongs to the node, for the replicas of other
    /// members.
    pub store: Options,
    /// The log id: the server's id of this life.
    pub log: u64,
    /// Seed of the cluster's key hash: the same for all members.
    pub hash_seed: u64,
    pub segment_bytes: u32,
    pub replicas: usize,
    pub layout: Layout,
    /// Bytes of a zone; replaces `layout` ([`Layout::Zones`]).
    pub zone_bytes: Option<u64>,
    pub backups: Arc<dyn Backups>,
}

impl Store {
    /// Opens the store of a cluster's member: an empty log, whose replicas are on the backups that
    /// [`LogWriter::backups_up`] adds. Without `threads` nothing happens by itself.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Thread`], [`Error::Misfit`].
    pub fn open_member(options: MemberOptions, threads: bool) -> Result<Arc<Store>, Error> {
        let store = options.store.clone();
        let segment_bytes = u64::from(options.segment_bytes);
        let log = LogOptions {
            disk_segments_max: restart::check_length(&store, segment_bytes, "the log")?,
            level: store.level,
            segment_bytes,
            two_levels: store.two_levels,
            group_bytes_max: 0, // each segment has replicas of its own
            ..LogOptions::new(options.log)
        };
        let (layout, log) = match options.zone_bytes {
            Some(zone_bytes) => {
                let zones = zones_of(log.disk_segments_max, segment_bytes, zone_bytes);
                (Layout::Zones { zones }, LogOptions { zones, ..log })
            }
            None => (options.layout, log),
        };
        let engine = duramen_engine::Store::new(duramen_engine::Options {
            hash_seed: Some(options.hash_seed),
            log: Some(log),
            ..store.engine.clone()
        })?;
        let config = Config {
            replicas: options.replicas,
            one_stream: false,
            writes_max: WRITES_MAX,
            copies_max: COPIES_MAX,
            frees_max: FREES_MAX,
            coordinated: true,
            layout,
            ..Config::one_backup(
                options.log,
                options.segment_bytes,
                restart::CONTROL_ROLL_BYTES.min(options.segment_bytes / 4),
            )
        };
        let master = Master::new(config, control::new_state(), &[], &[]);
        let remote = Remote {
            log: ServerId::from_number(options.log),
            segment_bytes: options.segment_bytes,
            replicas: options.replicas,
            backups: options.backups,
            hints: Hints::new(&store, &engine, options.log).filter(|_| threads),
        };
        let durable = Durable::new(&store, engine, master, Replicas::Remote(remote));
        Store::start(durable, Loaded::default(), store, threads)
    }
}

/// Events of a member of a cluster. Each call is quick; it wakes the waiters.
impl LogWriter {
    fn hear(&self, change: impl FnOnce(&mut Commit)) {
        let Some(remote) = self.durable.remote() else {
            return;
        };
        let common = &self.durable.common;
        let before = common.ended.load(Ordering::Acquire);
        let mut commit = common.lock();
        change(&mut commit);
        let _ = remote.pump(common, &mut commit, Level::Memory); // its failure is in the health
        let is_swapping = commit.is_swapping();
        drop(commit);
        if is_swapping {
            self.background.ring(); // a recovery waits for the next step
        }
        if common.ended.load(Ordering::Acquire) != before {
            self.waiters.tell();
        }
    }

    /// Passes an event to the rules of replication, and does what they allow now. It has no effect
    /// on a single server.
    pub fn master(&self, event: impl FnOnce(&mut Master)) {
        self.hear(|commit| event(&mut commit.master));
    }

    /// A backup has executed a call, or rejects it.
    pub fn answered(&self, ticket: Ticket, answer: Result<Level, Rejection>) {
        self.hear(|commit| match answer {
            Ok(level) => {
                if let Some(segment) = commit.master.replicas().segment_of(ticket) {
                    commit.copies.trust(segment);
                }
                commit.master.replicas_mut().acked(ticket, level);
            }
            Err(why) => {
                if why == Rejection::Damaged
                    && let Some(segment) = commit.master.replicas().segment_of(ticket)
                {
                    commit.copies.suspect(segment);
                    self.durable.common.figures.note_damaged();
                }
                commit.master.rejected(ticket, why);
            }
        });
    }

    /// A backup did not build a survivor, and is sent its bytes instead.
    pub fn recipe_refused(&self, bytes: u64) {
        self.durable.common.figures.note_refused_recipe(bytes);
    }

    /// A backup has synced all data that it had at the time of the request.
    pub fn synced(&self, backup: BackupId) {
        self.hear(|commit| commit.synced(backup));
    }

    /// Servers may get replicas, never this one itself; some are about to be stopped
    /// (placement::L5). Replicas are placed only after all of them are known: with the first alone
    /// there would be no choice.
    pub fn backups_up(&self, members: impl IntoIterator<Item = Member>, retire: &[BackupId]) {
        self.hear(|commit| {
            let members = members.into_iter();
            members.for_each(|member| commit.master.backup_up(member));
            let retire = retire.iter();
            retire.for_each(|backup| commit.master.replicas_mut().backup_retires(*backup));
        });
    }

    /// A server has crashed: its replicas are replaced.
    pub fn backup_lost(&self, backup: BackupId) {
        self.hear(|commit| commit.backup_lost(backup));
    }

    /// A backup is slow: it gets no new replicas, and the segments that are open there are closed.
    /// Returns false if threads were using some of them: the caller tries again.
    pub fn backup_leaves(&self, backup: BackupId) -> bool {
        let mut open = Vec::new();
        self.hear(|commit| open = commit.master.backup_leaves(backup));
        for segment in &open {
            self.durable.common.engine.heads().close(*segment);
        }
        open.is_empty()
    }

    /// A backup requests a decision on these replicas: returns those that it may drop, and those
    /// that count.
    pub fn hand_back(&self, backup: BackupId, found: &[Found]) -> (Vec<SegmentId>, Vec<SegmentId>) {
        let (mut not_needed, mut counted) = (Vec::new(), Vec::new());
        self.hear(|commit| {
            not_needed = commit.master.hand_back(backup, found);
            let all = found.iter().map(|replica| replica.segment);
            counted = all
                .filter(|segment| commit.master.segments().holds(backup, *segment))
                .collect();
        });
        (not_needed, counted)
    }

    /// A backup has found its replicas of these segments damaged: others replace them. Returns
    /// those that still count.
    pub fn replace_damaged(&self, backup: BackupId, segments: &[SegmentId]) -> Vec<SegmentId> {
        let mut counted = segments.to_vec();
        self.hear(|commit| {
            commit.master.replica_damaged(backup, segments);
            counted.retain(|segment| commit.master.segments().holds(backup, *segment));
        });
        counted
    }

    /// Flips these bits in a byte of each copy of a survivor that is being written. Returns their
    /// number.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn flip_survivors(&self, bits: u8) -> usize {
        self.durable.common.lock().copies.flip_survivors(bits)
    }

    /// Number of other servers that hold a write when it has reached its level; `None`: this is not
    /// a member of a cluster.
    pub fn replicas(&self) -> Option<usize> {
        Some(self.durable.remote()?.replicas)
    }

    /// Hints of hot keys, for the code that exchanges them; `None`: this store makes none, and
    /// cannot use those of others.
    pub fn hints(&self) -> Option<&Hints> {
        self.durable.remote()?.hints.as_ref()
    }

    /// How the log's segments lie with its backups, for people.
    pub fn placed(&self) -> Placed {
        self.durable.common.lock().master.replicas_mut().placed()
    }

    /// The backups whose leases are needed for reading.
    pub fn control_holders(&self) -> BTreeSet<BackupId> {
        self.durable.common.lock().master.control_holders()
    }

    /// A text for the operator: the events that the log waits for.
    pub fn describe(&self) -> String {
        self.durable.common.lock().master.describe()
    }
}
