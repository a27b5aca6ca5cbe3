//! The bytes of a member's log that are on their way to the backups.

use super::Common;
use duramen_base::ids::SegmentId;
use duramen_cluster::replication::{BackupId, Master, Send};
use duramen_engine::Store as Engine;
use duramen_format::certificate::Certificate;
use duramen_format::mend;
use duramen_format::segment::Kind;
use duramen_wire::native::Slice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Survivors that are written at once: the rate at which a recovery reaches the disks.
const SURVIVORS_MAX: usize = 4;
/// Buffers for survivors: those in flight, and some whose last copy is still being sent; and those
/// that are kept when none is in flight.
const SPARE_MAX: usize = 2 * SURVIVORS_MAX;
const SPARE_KEPT: usize = 1;
/// Unit of their lengths: survivors are about equally long.
const SPARE_UNIT: usize = 1 << 20;

/// The source of a call's bytes.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// The bytes themselves.
    Here(Slice),
    /// A survivor, and the recipe with which a backup that has its victims builds it. A backup that
    /// cannot build it gets the bytes.
    Built { recipe: Slice, bytes: Slice },
    /// Not in memory any more: each of these backups has the whole segment, closed.
    At(Vec<BackupId>),
}

/// Copies of survivors that are being written, and of the last call's bytes.
#[derive(Default)]
pub(crate) struct Copies {
    survivors: BTreeMap<SegmentId, Survivor>,
    /// Memory for the next ones, because fresh memory is slow to touch.
    spare: Vec<Arc<Vec<u8>>>,
    /// The bytes of the last call: all replicas get the same bytes.
    last: Option<(SegmentId, u32, u32, Slice)>,
    /// A backup got bytes of these that did not match their certificates (durable::remote::J5).
    suspects: BTreeSet<SegmentId>,
}

/// A survivor that is being written.
struct Survivor {
    certificate: Certificate,
    bytes: Slice,
    /// Its recipe and victims, if the origin of its entries is known.
    recipe: Option<(Slice, Vec<SegmentId>)>,
    /// Whether it belongs to a side log: then no pass filled it.
    is_side: bool,
}

impl Copies {
    /// A backup has found bytes of this segment damaged.
    pub fn suspect(&mut self, segment: SegmentId) {
        self.suspects.insert(segment);
    }

    /// A backup has found bytes of this segment sound.
    pub fn trust(&mut self, segment: SegmentId) {
        self.suspects.remove(&segment);
    }

    /// Whether survivors are being written.
    pub fn has_survivors(&self) -> bool {
        !self.survivors.is_empty()
    }

    /// Whether this is a survivor of a pass, and is being written.
    pub fn is_of_pass(&self, segment: SegmentId) -> bool {
        let survivor = self.survivors.get(&segment);
        survivor.is_some_and(|survivor| !survivor.is_side)
    }

    /// The next call sends other bytes.
    pub fn forget_last(&mut self) {
        self.last = None;
    }

    /// Forgets a survivor. Returns whether it was being written.
    pub fn remove(&mut self, segment: SegmentId) -> bool {
        self.survivors.remove(&segment).is_some()
    }

    /// Survivors whose replicas all have them: they are not copied any more.
    pub fn take_written(&mut self, master: &Master) -> Vec<(SegmentId, Certificate)> {
        let written = self.survivors.extract_if(.., |id, _| master.is_safe(*id));
        let written = written.map(|(segment, survivor)| (segment, survivor.certificate));
        written.collect()
    }

    /// Passes a few survivors at a time to the rules, each as a whole. Returns whether there were
    /// any.
    pub fn write_more(&mut self, common: &Common, master: &mut Master) -> bool {
        let mut any = false;
        while self.survivors.len() < SURVIVORS_MAX {
            let Some(ready) = common.log().another_survivor() else {
                break;
            };
            let Some(bytes) = common.sound_survivor(ready.segment, ready.bytes) else {
                common.give_up_damaged(ready.segment);
                continue;
            };
            let certificate = Certificate::of(&bytes);
            master.opened(ready.segment, Kind::Survivor, 0);
            master.appended(ready.segment, certificate);
            master.closed(ready.segment);
            let recipe = ready.parts.as_deref().and_then(|parts| {
                let recipe = parts.encode(|id| master.segments().closed_certificate(id))?;
                let victims: BTreeSet<SegmentId> = parts.victims().collect();
                Some((recipe.into(), victims.into_iter().collect()))
            });
            let survivor = Survivor {
                certificate,
                bytes: copied(&mut self.spare, &bytes),
                recipe,
                is_side: ready.is_side,
            };
            self.survivors.insert(ready.segment, survivor);
            any = true;
        }
        if self.survivors.is_empty() {
            self.spare.truncate(SPARE_KEPT);
        }
        any
    }

    /// The bytes of a call (durable::remote::J4). `None`: no copy exists.
    pub fn bytes_of(&mut self, common: &Common, master: &mut Master, send: &Send) -> Option<Bytes> {
        let (segment, from, to) = (send.segment, send.from, send.certificate.length);
        if from == to {
            return Some(Bytes::Here(Slice::default()));
        }
        let is_suspect = self.suspects.contains(&segment);
        if is_suspect && let Some(survivor) = self.survivors.get_mut(&segment) {
            verify_survivor(common, master, send, survivor)?;
        }
        if let Some(survivor) = self.survivors.get(&segment)
            && let Some((recipe, victims)) = &survivor.recipe
            && send.open
            && send.close
            && victims
                .iter()
                .all(|id| master.segments().has_whole(send.backup, *id))
        {
            let (recipe, bytes) = (recipe.clone(), survivor.bytes.clone());
            return Some(Bytes::Built { recipe, bytes });
        }
        if let Some((known, at, end, bytes)) = &self.last
            && (*known, *at, *end) == (segment, from, to)
        {
            return Some(Bytes::Here(bytes.clone()));
        }
        let range = from as usize..to as usize;
        let bytes: Slice = match self.survivors.get(&segment) {
            Some(survivor) => survivor.bytes.part(range),
            _ if send.kind == Kind::Control => master.control().bytes(segment)[range].into(),
            _ => match common.log().unclosed_bytes(segment, from, to) {
                Some(_) if is_suspect => {
                    let all = common.log().unclosed_bytes(segment, 0, to)?;
                    certified(&common.engine, master, send, all.to_vec())?[range].into()
                }
                Some(bytes) => bytes.into(),
                None => {
                    // Waits for flash only if there is no other copy (swap::D7): other threads wait
                    // for the commit meanwhile.
                    let holders = master.segments().holders(segment);
                    let last = holders.is_empty();
                    match unswapped(&common.engine, send, last) {
                        Some(bytes) => bytes.into(),
                        None => return (!last).then_some(Bytes::At(holders)),
                    }
                }
            },
        };
        self.last = Some((segment, from, to, bytes.clone()));
        Some(Bytes::Here(bytes))
    }

    /// Flips these bits in a byte of each survivor, for tests. Returns their number.
    #[cfg(debug_assertions)]
    pub fn flip_survivors(&mut self, bits: u8) -> usize {
        for survivor in self.survivors.values_mut() {
            let mut bytes = survivor.bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= bits;
            survivor.bytes = bytes.into();
        }
        self.survivors.len()
    }
}

/// The bytes of a durable survivor that is not swapped in yet, from memory or flash, as they were
/// certified (swap::D7). One flipped bit of an entry is put back. `None`: neither of both has them.
#[cold]
fn unswapped(engine: &Engine, send: &Send, may_wait: bool) -> Option<Vec<u8>> {
    let to = send.certificate.length;
    let mut all = engine
        .segments()
        .unswapped_bytes(send.segment, 0, to, may_wait)?;
    if Certificate::of(&all) != send.certificate {
        let mended = mend::segment(&mut all, send.kind, usize::MAX).ok()?;
        if Certificate::of(&all) != send.certificate {
            return None;
        }
        for bit in mended {
            engine.segments().tell_mended(send.segment, bit.to_string());
        }
    }
    all.drain(..send.from as usize);
    Some(all)
}

/// The bytes of a whole segment as they were certified for a send. `None`: that is impossible, and
/// this life ends (durable::remote::J5).
#[cold]
fn certified(
    engine: &Engine,
    master: &mut Master,
    send: &Send,
    mut all: Vec<u8>,
) -> Option<Vec<u8>> {
    let is_right = |all: &[u8]| Certificate::of(all) == send.certificate;
    if is_right(&all) {
        return Some(all);
    }
    let mended = mend::segment(&mut all, send.kind, usize::MAX);
    if let Ok(mended) = mended
        && is_right(&all)
    {
        for bit in mended {
            engine.segments().tell_mended(send.segment, bit.to_string());
        }
        return Some(all);
    }
    let what = "it does not match its certificate any more, and this server's log ends here";
    engine.segments().tell_damage(send.segment, what.to_owned());
    master.fail(format!(
        "segment {} in memory does not match its certificate",
        send.segment
    ));
    None
}

/// The copy of a survivor that is being written matches its certificate now (durable::remote::J5).
#[cold]
fn verify_survivor(
    common: &Common,
    master: &mut Master,
    send: &Send,
    survivor: &mut Survivor,
) -> Option<()> {
    if Certificate::of(&survivor.bytes) != send.certificate {
        let bytes = common.log().unwritten_survivor(send.segment)?;
        survivor.bytes = certified(&common.engine, master, send, bytes.to_vec())?.into();
    }
    Some(())
}

/// durable::remote::J4, in reused memory if a buffer is free.
fn copied(spare: &mut Vec<Arc<Vec<u8>>>, bytes: &[u8]) -> Slice {
    let free = spare
        .iter_mut()
        .position(|buffer| Arc::get_mut(buffer).is_some());
    let mut buffer = free.map(|at| spare.swap_remove(at)).unwrap_or_default();
    let into = Arc::get_mut(&mut buffer).expect("the buffer has one owner");
    into.clear();
    into.reserve_exact(bytes.len().next_multiple_of(SPARE_UNIT));
    into.extend_from_slice(bytes);
    if spare.len() < SPARE_MAX {
        spare.push(buffer.clone());
    }
    Slice::of(buffer, 0..bytes.len())
}
