//! Reading of replicas for recoveries, and building of survivors: the backup service names them,
//! and any thread reads or builds. Recoveries go first.

use crate::backup_service::{BackupService, Reply, invalid};
use crate::builds::{AGAIN_MS, BuildJob, Ordered};
use duramen_backup::{Backup, Error, Lookup, ReplicaId, Sorted, Spare, WantedKeys};
use duramen_base::ids::{SegmentId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::hash::KeyHasher;
use duramen_wire::native::Slice;
use duramen_wire::native::message::{Peer, PeerAnswer, ReadReplica, Refusal, WriteReplica};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes in one answer to [`Peer::ReadReplica`], whatever the request allows.
const ENTRIES_BYTES_MAX: u32 = 8 << 20;
/// Delay before a repeated request for a replica that is being read.
const READ_AGAIN_MS: u32 = 5;
/// Bytes in one answer to [`Peer::ReadRaw`].
const RAW_BYTES: u32 = 1 << 20;

/// Replicas to be read.
pub struct ReplicaRead {
    backup: Arc<Backup>,
    work: Work,
}

enum Work {
    /// A recovery waits for this one.
    Sort {
        log: ServerId,
        id: ReplicaId,
        hasher: KeyHasher,
        spare: Arc<Spare>,
    },
    /// A survivor is built from others.
    Build(BuildJob),
}

/// The end of a [`ReplicaRead`].
pub struct ReplicaWasRead(Done);

enum Done {
    Sorted {
        log: ServerId,
        id: ReplicaId,
        result: Result<Sorted, Error>,
    },
    Built {
        id: ReplicaId,
        result: Result<Vec<u8>, String>,
    },
}

impl ReplicaRead {
    /// Reads the replica and orders its entries, or builds a survivor. `scratch` grows to the size
    /// of a segment.
    pub fn run(self, scratch: &mut Vec<u8>) -> ReplicaWasRead {
        ReplicaWasRead(match self.work {
            Work::Sort {
                log,
                id,
                hasher,
                spare,
            } => Done::Sorted {
                log,
                id,
                result: self
                    .backup
                    .reader()
                    .read_sorted(id, &hasher, scratch, &spare),
            },
            Work::Build(job) => Done::Built {
                id: job.id(),
                result: job.run(&self.backup, scratch),
            },
        })
    }
}

impl<T> BackupService<T> {
    /// The next replica to read, of those that recoveries wait for, or the next survivor to build.
    /// The caller reports its end to [`was_read`](Self::was_read).
    pub fn next_read(&mut self, now_us: u64) -> Option<ReplicaRead> {
        // Each log has a share: so none waits for memory of replicas which the masters of another
        // log do not request.
        let bytes_max = self.config.ahead_bytes / self.ahead.len().max(1);
        let mut logs = self.ahead.iter_mut();
        let wanted = logs.find_map(|(log, ahead)| {
            Some(Work::Sort {
                log: *log,
                id: ahead.wanted(now_us, bytes_max)?,
                hasher: self.hasher.clone(),
                spare: Arc::clone(ahead.spare()),
            })
        });
        let work = wanted.or_else(|| self.builds.next().map(Work::Build))?;
        let backup = Arc::clone(&self.backup);
        Some(ReplicaRead { backup, work })
    }

    /// A read has ended. Its log may not be here any more. Answers to masters that wait for a
    /// survivor are output here, or by [`run`](Self::run).
    pub fn was_read(&mut self, now_us: u64, read: ReplicaWasRead, out: &mut Vec<Reply<T>>) {
        match read.0 {
            Done::Sorted { log, id, result } => {
                if let Some(ahead) = self.ahead.get_mut(&log) {
                    ahead.done(now_us, id.segment, result);
                }
            }
            Done::Built { id, result } => {
                if let Some(ordered) = self.builds.built(id) {
                    self.was_built(now_us, ordered, result, out);
                }
            }
        }
    }

    /// Reads one replica on this thread; returns whether there was one.
    pub fn read_step(&mut self, now_us: u64, out: &mut Vec<Reply<T>>) -> bool {
        let Some(read) = self.next_read(now_us) else {
            return false;
        };
        let read = read.run(&mut self.scratch);
        self.was_read(now_us, read, out);
        true
    }
}

impl<T> BackupService<T> {
    /// A master orders a survivor.
    pub(crate) fn ask_build(
        &mut self,
        tag: T,
        sender: ServerId,
        write: &WriteReplica,
        recipe: &[u8],
        out: &mut Vec<Reply<T>>,
    ) {
        if let Err(answer) = self.may_write(sender, write) {
            return out.push(reply(tag, answer));
        }
        if !write.open || !write.close || write.offset > 0 || write.certificate.is_none() {
            return out.push(reply(tag, bad("only whole survivors are built")));
        }
        let mut waiting = self.builds.waiting.iter();
        if waiting.any(|ordered| ordered.write == *write && !ordered.is_cancelled) {
            let answer = PeerAnswer::Refused(Refusal::NotReady {
                after_ms: AGAIN_MS,
                reason: "the survivor is being built".to_owned(),
            });
            return out.push(reply(tag, answer));
        }
        if !self.builds.has_room(recipe.len()) {
            return out.push(reply(tag, bad("too many survivors wait to be built")));
        }
        self.builds.waiting.push_back(Ordered {
            tag,
            write: *write,
            recipe: recipe.to_vec(),
            is_cancelled: false,
        });
    }

    /// A survivor is built, or cannot be.
    fn was_built(
        &mut self,
        now_us: u64,
        ordered: Ordered<T>,
        built: Result<Vec<u8>, String>,
        out: &mut Vec<Reply<T>>,
    ) {
        let Ordered {
            tag,
            mut write,
            is_cancelled,
            ..
        } = ordered;
        let is_it = |bytes: &Vec<u8>| Some(Certificate::of(bytes)) == write.certificate; // builds::BU1
        let answer = match built {
            _ if is_cancelled => bad("the survivor was freed, or its bytes have come"),
            Ok(bytes) if is_it(&bytes) || has_bug(Bug::BuildsUnverified) => {
                write.certificate = Some(Certificate::of(&bytes));
                let sender = write.log;
                if has_bug(Bug::BuiltNotStored) {
                    let (level, leased) = (write.level, false);
                    let answer = PeerAnswer::Stored { level, leased };
                    return out.push(reply(tag, answer));
                }
                return self.write(now_us, tag, sender, &write, &bytes, out); // builds::BU2
            }
            Ok(_) => bad("the survivor has another certificate"),
            Err(reason) => bad(&reason),
        };
        out.push(reply(tag, answer));
    }
}

impl<T> BackupService<T> {
    /// Entries of a partition, or bytes of a replica.
    pub(crate) fn read_for_recovery(&mut self, question: &Peer) -> (PeerAnswer, Slice) {
        match question {
            Peer::ReadReplica(read) => self.read(read),
            Peer::ReadRaw {
                log,
                segment,
                offset,
            } => {
                let (answer, payload) = self.read_raw(*log, *segment, *offset);
                (answer, payload.into())
            }
            _ => (invalid("this reads nothing"), Slice::default()),
        }
    }

    fn read(&mut self, read: &ReadReplica) -> (PeerAnswer, Slice) {
        let Some(ahead) = self.ahead.get_mut(&read.log) else {
            return (invalid("this log is not being recovered"), Slice::default());
        };
        let bad = |reason: &str| {
            (
                PeerAnswer::Bad {
                    reason: reason.to_owned(),
                },
                Slice::default(),
            )
        };
        match ahead.get(read.segment) {
            Lookup::NotYet => (
                PeerAnswer::NotYet {
                    after_ms: READ_AGAIN_MS,
                },
                Slice::default(),
            ),
            Lookup::Bad => bad("the replica is missing or damaged"),
            Lookup::Ready(sorted) if sorted.info.certificate() != read.certificate => {
                bad("the replica has another certificate") // backup_service::B5
            }
            Lookup::Ready(sorted) => {
                let (answer, payload) = cut(&sorted, read);
                ahead.given(read.segment, payload.len());
                (answer, payload)
            }
        }
    }

    /// A piece of a replica as it is here, for a recovery without a whole one.
    fn read_raw(
        &mut self,
        log: ServerId,
        segment: SegmentId,
        offset: u32,
    ) -> (PeerAnswer, Vec<u8>) {
        if !self.ahead.contains_key(&log) {
            return (invalid("this log is not being recovered"), Vec::new());
        }
        let id = ReplicaId {
            log: log.number(),
            segment,
        };
        let segment_bytes = self.backup.geometry().segment_bytes as usize;
        self.scratch.resize(segment_bytes, 0);
        match self.backup.reader().read_raw(id, &mut self.scratch) {
            Ok(info) => {
                let length = info.length;
                let end = offset.saturating_add(RAW_BYTES).min(length) as usize;
                let piece = self.scratch.get(offset as usize..end).unwrap_or_default();
                let lacks_end = info.damaged && !info.closed;
                (PeerAnswer::Raw { length, lacks_end }, piece.to_vec())
            }
            Err(error) => (bad(&error.to_string()), Vec::new()),
        }
    }
}

/// The next entries of the requested range, whole ones, at least one. Consecutive entries are not
/// copied.
fn cut(sorted: &Arc<Sorted>, read: &ReadReplica) -> (PeerAnswer, Slice) {
    let bytes_max = read.bytes_max.min(ENTRIES_BYTES_MAX) as usize;
    let mut skip = read.offset as usize;
    let (mut entries, mut bytes, mut next) = (0, 0, None);
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for tablet in &read.tablets {
        let wanted = WantedKeys {
            table: tablet.table.0,
            keys: tablet.range,
            since: tablet.creation,
        };
        let length = sorted.range(&wanted).len();
        if skip >= length {
            skip -= length;
            continue;
        }
        let room = bytes_max.saturating_sub(bytes);
        let Some((piece, count)) = sorted.piece(&wanted, skip, room) else {
            return (invalid("no entry begins there"), Slice::default());
        };
        if entries > 0 && piece.len() > room {
            next = Some(read.offset + bytes as u32);
            break;
        }
        (bytes, entries) = (bytes + piece.len(), entries + count);
        let is_whole = skip + piece.len() == length;
        match pieces.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => pieces.push(piece),
        }
        if !is_whole {
            next = Some(read.offset + bytes as u32);
            break;
        }
        skip = 0;
    }
    if skip > 0 && pieces.is_empty() {
        return (invalid("no entry begins there"), Slice::default());
    }
    let payload = match pieces.as_slice() {
        [piece] => Slice::of(sorted.clone(), piece.clone()),
        pieces => {
            let all = (**sorted).as_ref();
            let parts: Vec<&[u8]> = pieces.iter().map(|piece| &all[piece.clone()]).collect();
            parts.concat().into()
        }
    };
    (PeerAnswer::Entries { next, entries }, payload)
}

fn reply<T>(tag: T, answer: PeerAnswer) -> Reply<T> {
    Reply {
        tag,
        answer,
        payload: Slice::default(),
    }
}

fn bad(reason: &str) -> PeerAnswer {
    PeerAnswer::Bad {
        reason: reason.to_owned(),
    }
}
