//! Reads the write-ahead log, from its tail to its end, and distinguishes its end from damage.
//!
//! The log ends where the next commit is missing, both behind the last one and at the start of the
//! ring. If a later commit, or a clean shutdown, proves that the missing commit had been durable,
//! the log did not end here: it was damaged (wal::W3). Clients' bytes are in the ring too, also
//! at the start of blocks: a block counts as a commit only with the salt of its generation
//! (wal::W5). Used by restart and by the offline tools; writes nothing.
//!
//! **Invariant**
//! - S1: one flipped bit of a commit is put back (format::mend). In its head: the salt, the lsn and
//!   the sum of the body prove it. In its body: only if the commit is known to have been durable.
//!   Else a power cut may have torn it, and torn bytes look like one flipped bit now and then.

use duramen_base::planted::{Bug, has_bug};
use duramen_format::mend;
use duramen_format::wal::{
    BLOCK_BYTES, COMMIT_BYTES, Commit, Damage, HEADER_AT, Header, RING_AT, Record, Salts,
};

use crate::buffer::Buffer;
use crate::disk::BLOCK_BYTES as BLOCK;
use crate::error::Error;
use crate::region::Region;

/// Bytes read at once: several parts in flight together, since after a kill the whole ring is
/// searched.
const WINDOW_BYTES: usize = 4 << 20;

/// The end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The lsn that the next commit gets.
    pub(crate) lsn: u64,
    /// Bytes of the ring from the first commit to the end, skipped ones included.
    pub(crate) bytes: u64,
    /// Greatest generation seen.
    pub(crate) generation: u64,
    /// Commits of which a flipped bit was put back (S1).
    pub(crate) mended: u64,
}

/// The next commit in the ring, which has a sound head and body.
struct Next {
    at: u64,
    commit: Commit,
    /// The body, if it or the head had a flipped bit. Otherwise the body is in the ring.
    body: Option<Vec<u8>>,
}

/// A commit for the visitor.
pub(crate) struct Found<'a> {
    pub(crate) commit: Commit,
    /// Bytes from the tail to its start.
    pub(crate) offset: u64,
    pub(crate) records: Vec<Record<'a>>,
    /// The body, if it or the head had a flipped bit (S1).
    pub(crate) mended: Option<&'a [u8]>,
}

/// Reads the header blocks. Returns the newer valid one, if there is any, and the number of damaged
/// ones: unreadable, or written and not valid. One flipped bit of a block is put back: what the
/// block says is true even if a power cut tore it.
pub(crate) fn headers(wal: &Region, server: u64) -> (Option<Header>, u32) {
    let (mut best, mut broken, mut damaged): (Option<Header>, _, _) = (None, Vec::new(), 0);
    let mut meet = |header: Header| {
        let newest = best.as_ref().map_or(0, |best| best.sequence);
        if best.is_none() || newest < header.sequence {
            best = Some(header);
        }
    };
    for at in HEADER_AT {
        let mut block = vec![0; BLOCK_BYTES];
        if wal.read_at(at, &mut block).is_err() {
            damaged += 1;
            continue;
        }
        match Header::decode(&block) {
            Ok(header) if header.server == server => meet(header),
            _ if block.iter().all(|byte| *byte == 0) => {}
            _ => {
                damaged += 1;
                broken.push(block);
            }
        }
    }
    for mut block in broken {
        if mend::block(&mut block).is_some()
            && let Ok(header) = Header::decode(&block)
            && header.server == server
            && !has_bug(Bug::FlippedIsTorn)
        {
            meet(header);
        }
    }
    (best, damaged)
}

/// A window of the ring that moves to the requested range.
pub(crate) struct Reader<'a> {
    wal: &'a Region,
    ring_bytes: u64,
    start: u64,
    /// The window is aligned, so bytes that are in no cache are read past the cache, in parts side
    /// by side.
    window: Buffer,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(wal: &'a Region, wal_bytes: u64) -> Reader<'a> {
        let ring_bytes = wal_bytes - RING_AT;
        Reader {
            wal,
            ring_bytes,
            start: 0,
            window: Buffer::with_capacity(WINDOW_BYTES.min(ring_bytes as usize)),
        }
    }

    /// `length` bytes at `at` of the ring; `None` if the ring ends before.
    fn get(&mut self, at: u64, length: usize) -> std::io::Result<Option<&[u8]>> {
        if at + length as u64 > self.ring_bytes {
            return Ok(None);
        }
        let held = self.start..self.start + self.window.len() as u64;
        if !(held.contains(&at) && at + length as u64 <= held.end) {
            let wanted = (length.max(WINDOW_BYTES) as u64)
                .next_multiple_of(BLOCK)
                .min(self.ring_bytes - at);
            self.start = at;
            // After an error only the needed blocks are read: an unreadable block must not hide
            // those before it.
            let needed = (length as u64).next_multiple_of(BLOCK);
            if self.fill(at, wanted).is_err() {
                self.fill(at, needed.min(wanted))?;
            }
        }
        let from = (at - self.start) as usize;
        Ok(self.window.bytes().get(from..from + length))
    }

    fn fill(&mut self, at: u64, bytes: u64) -> std::io::Result<()> {
        self.window.resize(bytes as usize);
        let read = self.wal.read_at(RING_AT + at, self.window.bytes_mut());
        if read.is_err() {
            self.window.clear();
        }
        read
    }

    /// The head of a commit at `at` of the ring, if there is one.
    fn head(&mut self, at: u64) -> std::io::Result<Option<Commit>> {
        let block = self.get(at, COMMIT_BYTES)?;
        Ok(block.and_then(|block| Commit::decode(block).ok()))
    }

    /// The body that belongs to a head.
    fn body(&mut self, at: u64, commit: &Commit) -> std::io::Result<Option<&[u8]>> {
        let whole = self.get(at, COMMIT_BYTES + commit.body_bytes as usize)?;
        Ok(whole.and_then(|whole| whole.get(COMMIT_BYTES..)))
    }
}

/// Visits every commit from the header's tail on. `durable_lsn`: commits up to it are known to have
/// been durable.
///
/// # Errors
/// [`Error::DamagedWal`] if commits that had been durable can't be read; the visitor's;
/// [`Error::Io`].
pub(crate) fn scan(
    reader: &mut Reader<'_>,
    place: &str,
    header: &Header,
    (look_ahead, durable_lsn): (bool, u64),
    visit: &mut dyn FnMut(&Found<'_>) -> Result<(), Error>,
) -> Result<End, Error> {
    let io = |source| Error::io(place, "read the write-ahead log", source);
    let mut end = End {
        lsn: header.tail_lsn,
        bytes: 0,
        generation: header.tail_generation,
        mended: 0,
    };
    let tail = header.tail_at - RING_AT;
    let mut at = tail;
    loop {
        let mut next = next(reader, &header.salts, at, &end).map_err(io)?;
        if next.is_none() && !has_bug(Bug::FlippedIsTorn) {
            let is_proved = end.lsn <= durable_lsn || end.lsn < header.end_lsn;
            let proof = (is_proved, look_ahead);
            next = mended(reader, &header.salts, at, &end, proof).map_err(io)?;
        }
        let Some(next) = next else { break };
        let (start, commit) = (next.at, next.commit);
        let skipped = match start == at {
            true => 0,
            false => reader.ring_bytes - at,
        };
        let offset = end.bytes + skipped;
        if offset + commit.padded_bytes() > reader.ring_bytes {
            break; // longer than the ring: not the log's continuation
        }
        let body = match &next.body {
            Some(body) => body,
            None => reader.body(start, &commit).map_err(io)?.unwrap_or(&[]),
        };
        let Ok(records) = commit.records(body) else {
            break;
        };
        visit(&Found {
            commit,
            offset,
            records,
            mended: next.body.as_deref(),
        })?;
        end = End {
            lsn: commit.lsn + 1,
            bytes: offset + commit.padded_bytes(),
            generation: commit.generation,
            mended: end.mended + u64::from(next.body.is_some()),
        };
        at = (start + commit.padded_bytes()) % reader.ring_bytes;
    }
    let damaged = |lsn| Error::DamagedWal {
        place: place.to_owned(),
        lsn,
        offset: RING_AT + at,
    };
    if header.end_lsn > end.lsn {
        return Err(damaged(end.lsn));
    }
    if header.end_lsn != end.lsn
        && look_ahead
        && was_durable(reader, &header.salts, &end).map_err(io)?
    {
        return Err(damaged(end.lsn)); // wal::W3: it had been durable
    }
    Ok(end)
}

/// The next commit with a sound head and body (wal::W2), and its place.
fn next(
    reader: &mut Reader<'_>,
    salts: &Salts,
    at: u64,
    end: &End,
) -> std::io::Result<Option<Next>> {
    for place in [at, 0] {
        let Some(commit) = reader.head(place)? else {
            continue;
        };
        if !is_next(&commit, salts, end) {
            continue;
        }
        let sound = match reader.body(place, &commit)? {
            Some(body) => !matches!(commit.records(body), Err(Damage::Checksum)),
            None => false,
        };
        if sound {
            return Ok(Some(Next {
                at: place,
                commit,
                body: None,
            }));
        }
    }
    Ok(None)
}

fn is_next(commit: &Commit, salts: &Salts, end: &End) -> bool {
    salts.has(commit) && commit.lsn == end.lsn && commit.generation >= end.generation
}

/// As [`next`], of commits with one flipped bit (S1). `is_proved`: the commit at the end had been
/// durable. `look_ahead`: whether later commits may prove that.
fn mended(
    reader: &mut Reader<'_>,
    salts: &Salts,
    at: u64,
    end: &End,
    (is_proved, look_ahead): (bool, bool),
) -> std::io::Result<Option<Next>> {
    for place in [at, 0] {
        let Some(mut head) = reader.get(place, COMMIT_BYTES)?.map(<[u8]>::to_vec) else {
            continue;
        };
        let in_head = mend::block(&mut head).is_some();
        let commit = Commit::decode(&head).ok();
        let Some(commit) = commit.filter(|commit| is_next(commit, salts, end)) else {
            continue;
        };
        let Some(body) = reader.body(place, &commit)? else {
            continue;
        };
        let mut body = body.to_vec();
        let in_body = !in_head
            && (is_proved || look_ahead && was_durable(reader, salts, end)?)
            && mend::body(&mut body, commit.body_crc).is_some();
        if (in_head || in_body) && commit.records(&body).is_ok() {
            return Ok(Some(Next {
                at: place,
                commit,
                body: Some(body),
            }));
        }
    }
    Ok(None)
}

/// Heads of the commits in the ring that are newer than the one at the end, at any place. A power
/// cut may leave some; otherwise the commit at the end is damaged.
pub(crate) fn commits_behind(
    reader: &mut Reader<'_>,
    salts: &Salts,
    end: &End,
) -> std::io::Result<Vec<Commit>> {
    let mut behind = Vec::new();
    let mut at = 0;
    while at < reader.ring_bytes {
        if let Some(commit) = reader.head(at)?
            && salts.has(&commit)
            && commit.generation >= end.generation
            && commit.lsn > end.lsn
        {
            behind.push(commit);
        }
        at += BLOCK;
    }
    Ok(behind)
}

/// Whether any commit in the ring proves that the one at the end had been durable.
fn was_durable(reader: &mut Reader<'_>, salts: &Salts, end: &End) -> std::io::Result<bool> {
    let behind = commits_behind(reader, salts, end)?;
    Ok(behind.iter().any(|commit| commit.durable_lsn >= end.lsn))
}

/// Every commit in the ring that is sound by itself and not older than `from`, with its body, at
/// any place. For damage that a restart cannot handle. Without `salts`, every block with the form
/// of a commit counts as one.
pub(crate) fn sound_commits(
    reader: &mut Reader<'_>,
    salts: Option<&Salts>,
    from: u64,
) -> Vec<(Commit, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = 0;
    // A damaged or forged superblock may give the ring more bytes than the file has.
    let there = reader.wal.bytes().unwrap_or(u64::MAX);
    let end = reader.ring_bytes.min(there.saturating_sub(RING_AT));
    while at < end {
        let head = reader.head(at).ok().flatten();
        let commit =
            head.filter(|commit| salts.is_none_or(|salts| salts.has(commit)) && commit.lsn >= from);
        let body = commit.and_then(|commit| {
            let body = reader.body(at, &commit).ok().flatten()?;
            commit.records(body).is_ok().then(|| body.to_vec())
        });
        at += match (commit, body) {
            (Some(commit), Some(body)) => {
                found.push((commit, body));
                commit.padded_bytes()
            }
            _ => BLOCK,
        };
    }
    found
}
