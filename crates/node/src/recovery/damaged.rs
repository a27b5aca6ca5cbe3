//! Segments of which no replica is whole: their bytes are fetched as they are, from every holder,
//! and put together entry by entry (`duramen_format::loss`).
//!
//! **Invariants**
//! - D1: what all replicas together have is replayed, without asking anybody.
//! - D2: what none of them has is reported with its token. It is left out only if the order names
//!   this token. Then a tombstone takes the place of each lost entry, so that no older version of
//!   its key appears.
//! - D4: of an open segment, a replica whose newest slot is lost was longer than its certificate
//!   says. If no holder has another replica, the end of the segment is lost, as in D2.
//! - D5: a report of a loss names the holders that gave no bytes, because they are away or did not
//!   answer: one of them may have a whole replica.
//! - D3: all segments are looked at before the partition fails, so that an operator decides once.

use super::{PATIENCE_US, REST_US, ROUNDS_MAX, Run};
use crate::job::{Job, JobResult, RecoveryCompletion, RunId};
use crate::requests::{PeerCall, PeerRequest};
use duramen_base::ids::{ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::SideError;
use duramen_format::entry;
use duramen_format::hash::KeyHasher;
use duramen_format::loss::{Loss, examine};
use duramen_format::segment::{HEADER_BYTES, Header};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    LOSS_LINES_MAX, PartitionOutcome, Peer, PeerAnswer, RecoverSegment, RecoverTablet, SegmentLoss,
};
use std::collections::BTreeMap;

/// Segments whose replicas are fetched or put together at once: all of them are in memory.
pub(super) const AT_ONCE: usize = 2;

/// Damaged segments of a partition; all but `lost` by the segment's number in the order.
#[derive(Default)]
pub(super) struct DamagedSegments {
    fetched: BTreeMap<usize, Fetched>,
    lost: Vec<SegmentLoss>,
}

/// The replicas of a damaged segment.
struct Fetched {
    /// Holders that are still to be asked, the next one last.
    left: Vec<ServerId>,
    /// Bytes of the next one, as far as they have come.
    current: Vec<u8>,
    images: Vec<Vec<u8>>,
    /// Holders whose replicas were not looked at (D5).
    away: Vec<ServerId>,
    /// A replica ends where its certificate says (D4).
    has_end: bool,
    asked: Option<PeerCall>,
    due_us: u64,
    /// Requests without an answer in a row.
    failed: usize,
    /// A job puts them together.
    is_given: bool,
}

impl Fetched {
    /// Continues with the next holder.
    fn leave(&mut self) {
        self.left.pop();
        self.current.clear();
        (self.asked, self.failed, self.due_us) = (None, 0, 0);
    }
}

impl DamagedSegments {
    /// No replica of this segment is whole. These holders are asked, and those are away.
    pub(super) fn add(&mut self, segment: usize, mut holders: Vec<ServerId>, away: Vec<ServerId>) {
        holders.reverse();
        let fetched = Fetched {
            left: holders,
            current: Vec::new(),
            images: Vec::new(),
            away,
            has_end: false,
            asked: None,
            due_us: 0,
            failed: 0,
            is_given: false,
        };
        self.fetched.insert(segment, fetched);
    }

    /// Whether another segment may be added: it waits for one of these otherwise.
    pub(super) fn has_room(&self) -> bool {
        self.fetched.len() < AT_ONCE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fetched.is_empty()
    }

    pub(super) fn due_us(&self) -> Option<u64> {
        let waiting = self.fetched.values().filter(|of| !of.is_given);
        waiting.map(|of| of.due_us).min()
    }

    /// D2 and D3: the end of the partition, if something is lost.
    pub(super) fn outcome(&mut self) -> Option<PartitionOutcome> {
        let losses = std::mem::take(&mut self.lost);
        (!losses.is_empty()).then_some(PartitionOutcome::Lost { losses })
    }

    pub(super) fn has(&self, call: PeerCall) -> bool {
        self.fetched.values().any(|of| of.asked == Some(call))
    }

    /// The answer of a holder; `None`: it was not reached.
    pub(super) fn answered(
        &mut self,
        now_us: u64,
        call: PeerCall,
        answer: Option<(PeerAnswer, Slice)>,
    ) {
        let mut all = self.fetched.values_mut();
        let Some(of) = all.find(|of| of.asked == Some(call)) else {
            return;
        };
        of.asked = None;
        match answer {
            Some((PeerAnswer::Raw { length, lacks_end }, piece)) => {
                of.current.extend_from_slice(&piece);
                of.has_end |= !lacks_end;
                (of.failed, of.due_us) = (0, now_us);
                if piece.is_empty() || of.current.len() >= length as usize {
                    let image = std::mem::take(&mut of.current);
                    of.images.push(image);
                    of.leave();
                }
            }
            Some((PeerAnswer::Bad { .. }, _)) => of.leave(),
            _ => {
                of.failed += 1;
                of.due_us = now_us + REST_US;
            }
        }
    }
}

impl Run {
    /// Requests the next pieces. Returns false if nothing of a segment can be had.
    pub(super) fn ask_damaged(
        &mut self,
        now_us: u64,
        next: &mut u64,
        requests: &mut Vec<PeerRequest>,
    ) -> bool {
        for (segment, of) in &mut self.damaged.fetched {
            if of.is_given || of.due_us > now_us {
                continue;
            }
            of.failed += usize::from(of.asked.take().is_some());
            if of.failed > ROUNDS_MAX {
                of.away.extend(of.left.last().copied()); // D5
                of.leave();
            }
            let Some(to) = of.left.last().copied() else {
                if of.images.is_empty() {
                    return false;
                }
                continue; // a job comes
            };
            *next += 1;
            let call = PeerCall::Recovery(*next);
            (of.asked, of.due_us) = (Some(call), now_us + PATIENCE_US);
            requests.push(PeerRequest {
                call,
                to,
                question: Peer::ReadRaw {
                    log: self.order.log,
                    segment: self.order.segments[*segment].segment,
                    offset: of.current.len() as u32,
                },
                payload: Slice::default(),
            });
        }
        true
    }

    /// Puts together the replicas of segments for which all holders were asked.
    pub(super) fn put_together(&mut self, id: RunId, hasher: &KeyHasher, jobs: &mut Vec<Job>) {
        let all = self.damaged.fetched.iter_mut();
        let whole = all.filter(|(_, of)| of.left.is_empty() && !of.is_given);
        for (segment, of) in whole {
            of.is_given = true;
            self.jobs += 1;
            let images = std::mem::take(&mut of.images);
            let (has_end, away) = (of.has_end, std::mem::take(&mut of.away));
            let wanted = self.order.segments[*segment].clone();
            let (log, accepted) = (self.order.log, self.order.accepted.clone());
            let (side, tablets) = (self.side.clone(), self.order.tablets.clone());
            let (segment, hasher) = (*segment, hasher.clone());
            jobs.push(Job::new("mend", move || {
                let result = left_of(&images, has_end, log, &wanted, &accepted);
                let result = result.map_err(|loss| reported(&loss, &away));
                let result = result.map(|bytes| {
                    let bytes = cut(&bytes, &wanted, &tablets, &hasher);
                    side.replay(&bytes)
                });
                JobResult::Recovery(id, RecoveryCompletion::PutTogether { segment, result })
            }));
        }
    }

    /// The job of a damaged segment has ended.
    pub(super) fn was_put_together(
        &mut self,
        segment: usize,
        result: Result<Result<u64, SideError>, SegmentLoss>,
    ) {
        self.jobs -= 1;
        self.damaged.fetched.remove(&segment);
        match result {
            Ok(Err(error)) => self.fail(&error),
            Ok(Ok(_)) => self.read += 1,
            Err(loss) => self.damaged.lost.push(loss),
        }
    }
}

/// The entries of a segment that count, one after another.
///
/// # Errors
/// The loss that no operator has accepted (D2).
fn left_of(
    images: &[Vec<u8>],
    has_end: bool,
    log: ServerId,
    wanted: &RecoverSegment,
    accepted: &[u32],
) -> Result<Vec<u8>, Loss> {
    let header = Header {
        kind: wanted.kind,
        segment: wanted.segment,
        log: log.number(),
        head: 0,
        capacity: wanted.certificate.length,
    };
    let mut examined = examine(images, &header, wanted.certificate);
    if !wanted.closed && !has_end && !has_bug(Bug::ShorterCounts) {
        examined.lose_end(wanted.segment, wanted.certificate); // D4
    }
    let is_accepted = |loss: &Loss| accepted.contains(&loss.token());
    match &examined.loss {
        Some(loss) if !is_accepted(loss) && !has_bug(Bug::AcceptsUnasked) => Err(loss.clone()),
        _ => Ok(examined.with_tombstones().split_off(HEADER_BYTES)),
    }
}

/// The loss as a text for the operator, with the holders that gave no bytes.
fn reported(loss: &Loss, away: &[ServerId]) -> SegmentLoss {
    let most = LOSS_LINES_MAX - usize::from(!away.is_empty());
    let mut lines = loss.lines(most);
    let more = lines.len().saturating_sub(most - 1);
    if more > 1 {
        lines.truncate(most - 1);
        lines.push(format!("and {more} lines more"));
    }
    if !away.is_empty() {
        let names: Vec<String> = away.iter().map(ServerId::to_string).collect();
        let line = format!(
            "segment {}: {} did not answer, and may have a whole replica: see that they do, \
             before this loss is accepted",
            loss.segment,
            names.join(", ")
        );
        lines.insert(0, line); // D5
    }
    SegmentLoss {
        segment: loss.segment,
        token: loss.token(),
        lines,
    }
}

/// The entries that belong to these tablets, their parts among them.
fn cut(
    bytes: &[u8],
    of: &RecoverSegment,
    tablets: &[RecoverTablet],
    hasher: &KeyHasher,
) -> Vec<u8> {
    let (mut at, mut wanted) = (0, Vec::new());
    while let Ok(entry) = entry::parse(bytes.get(at..).unwrap_or_default()) {
        let end = at + entry.padded_bytes;
        let route = entry.route(hasher);
        let is_in = |tablet: &RecoverTablet| {
            let range = tablet.range;
            tablet.table == TableId(entry.table).whole()
                && (range.first..=range.last).contains(&route)
                && of.segment >= tablet.creation
        };
        if tablets.iter().any(is_in) {
            wanted.extend_from_slice(&bytes[at..end]);
        }
        at = end;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{Home, KeyRange, RouteHash, SegmentId};
    use duramen_format::certificate::Certificate;
    use duramen_format::entry::NewObject;
    use duramen_format::segment::Kind;

    fn part(home: Home) -> Vec<u8> {
        let key = home.key(1);
        let part = NewObject {
            table: TableId(3).parts().0,
            version: 1,
            expires_at_ms: None,
            key: key.as_bytes(),
            value: b"\0",
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let mut bytes = vec![0; part.padded_bytes()];
        part.write_to(&mut bytes);
        bytes
    }

    #[test]
    fn parts_belong_to_the_tablet_of_their_home() {
        let [inside, outside] = [5, 6].map(|slot| part(Home::draw(slot, &mut || 7)));
        let segment = RecoverSegment {
            segment: SegmentId(9),
            kind: Kind::Head,
            epoch: 0,
            certificate: Certificate::EMPTY,
            closed: true,
            sources: Vec::new(),
        };
        let slot = KeyRange::new(RouteHash::first_of_slot(5), RouteHash::last_of_slot(5));
        let tablet = |table| RecoverTablet {
            table: TableId(table),
            range: slot,
            creation: SegmentId::NONE,
        };
        let (bytes, hasher) = ([&inside[..], &outside].concat(), KeyHasher::new(1));
        assert_eq!(cut(&bytes, &segment, &[tablet(3)], &hasher), inside);
        assert!(cut(&bytes, &segment, &[tablet(4)], &hasher).is_empty());
    }
}
