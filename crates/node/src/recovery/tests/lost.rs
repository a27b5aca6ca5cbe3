//! Segments of which no replica is whole.

use super::*;
use duramen_format::entry::ENTRY_BYTES_MAX;
use duramen_format::loss::examine;
use duramen_format::segment::{HEADER_BYTES, Header};
use std::collections::BTreeSet;

const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];

fn header(capacity: u32) -> Header {
    Header {
        kind: Kind::Head,
        segment: SegmentId(9),
        log: DEAD.number(),
        head: 0,
        capacity,
    }
}

/// A segment with an object for each key.
fn segment() -> Vec<u8> {
    let mut bytes = header(ENTRY_BYTES_MAX as u32).encode().to_vec();
    KEYS.iter().for_each(|key| bytes.extend(object(key)));
    bytes
}

/// With damage in the value of the `n`th object.
fn hurt(bytes: &[u8], n: usize) -> Vec<u8> {
    let mut hurt = bytes.to_vec();
    hurt[HEADER_BYTES + n * object(b"a").len() + 18] ^= 3;
    hurt
}

fn order_of(certificate: Certificate, accepted: Vec<u32>) -> Recover {
    let mut order = order();
    let mut segment = order.segments[0].clone();
    segment.certificate = certificate;
    order.segments = vec![segment].into();
    order.accepted = accepted;
    order
}

/// Each holder says that its replica is bad, and gives its bytes. Returns the outcome.
fn outcome(order: Recover, images: &[Vec<u8>; 2]) -> (PartitionOutcome, u64) {
    outcome_of(order, images, [false; 2])
}

/// `lack_end`: what the holders say of the ends of their replicas.
fn outcome_of(
    order: Recover,
    images: &[Vec<u8>; 2],
    lack_end: [bool; 2],
) -> (PartitionOutcome, u64) {
    outcome_without(order, images, lack_end, Away::Nobody)
}

/// How the second holder is away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    Nobody,
    Silent,
    Down,
}

fn outcome_without(
    order: Recover,
    images: &[Vec<u8>; 2],
    lack_end: [bool; 2],
    away: Away,
) -> (PartitionOutcome, u64) {
    let mut rig = Rig::of(order);
    if away == Away::Down {
        rig.members = members(&SOURCES[..1]);
    }
    let mut rounds = 0;
    loop {
        rounds += 1;
        assert!(rounds < 1000, "it never ends");
        rig.now_us += 100_000;
        let mut effects = rig.poll();
        for asked in effects.requests {
            match &asked.question {
                Peer::ReadReplica(_) => {
                    let reason = "damaged".to_owned();
                    rig.answer(&asked, PeerAnswer::Bad { reason }, Vec::new());
                }
                Peer::ReadRaw { .. } if away == Away::Silent && asked.to == SOURCES[1] => {}
                Peer::ReadRaw { offset, .. } => {
                    let n = SOURCES
                        .iter()
                        .position(|source| *source == asked.to)
                        .unwrap();
                    let (image, offset) = (&images[n], *offset as usize);
                    let piece = image[offset..image.len().min(offset + 40)].to_vec();
                    let length = image.len() as u32;
                    let lacks_end = lack_end[n];
                    rig.answer(&asked, PeerAnswer::Raw { length, lacks_end }, piece);
                }
                other => panic!("{other:?}"),
            }
        }
        let objects = rig._store.engine().tables().objects(TABLE);
        let is_committed = effects.jobs.iter().any(|job| job.name() == "commit");
        if is_committed {
            let done = PartitionOutcome::Replayed {
                creation: SegmentId(0),
                bytes: 0,
                entries: 0,
            };
            return (done, objects);
        }
        effects.jobs.drain(..).for_each(|job| rig.run(job));
        for (_, report) in effects.reports {
            if let ToCoordinator::PartitionDone(PartitionDone { outcome, .. }) = report {
                return (outcome, objects);
            }
        }
    }
}

/// So many segments like the one of an order.
fn repeated(mut order: Recover, count: u64) -> Recover {
    let one = order.segments[0].clone();
    let segments = (0..count).map(|n| RecoverSegment {
        segment: SegmentId(9 + n),
        ..one.clone()
    });
    order.segments = segments.collect::<Vec<_>>().into();
    order
}

/// Nothing of a log was whole: all its segments were fetched at once, from all holders, into memory
/// that nobody counted.
#[test]
fn few_damaged_segments_are_in_memory_at_once() {
    let order = order_of(Certificate::of(&segment()), Vec::new());
    let mut rig = Rig::of(repeated(order, 100));
    let mut fetched = BTreeSet::new();
    for _ in 0..500 {
        rig.now_us += 10_000;
        for asked in rig.poll().requests {
            match &asked.question {
                Peer::ReadReplica(_) => {
                    let reason = "damaged".to_owned();
                    rig.answer(&asked, PeerAnswer::Bad { reason }, Vec::new());
                }
                Peer::ReadRaw { segment, .. } => {
                    fetched.insert(*segment); // it is not answered
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!((1..=4).contains(&fetched.len()), "{fetched:?}");
}

/// damaged::D1, with more segments than are fetched at once.
#[test]
fn all_damaged_segments_are_put_together_in_turn() {
    let whole = segment();
    let images = [hurt(&whole, 0), hurt(&whole, 2)];
    let order = order_of(Certificate::of(&whole), Vec::new());
    let (outcome, objects) = outcome(repeated(order, 7), &images);
    assert!(
        matches!(outcome, PartitionOutcome::Replayed { .. }),
        "{outcome:?}"
    );
    assert_eq!(objects, 3);
}

/// damaged::D1.
#[test]
fn two_damaged_replicas_make_a_whole_segment() {
    let whole = segment();
    let images = [hurt(&whole, 0), hurt(&whole, 2)];
    let (outcome, objects) = outcome(order_of(Certificate::of(&whole), Vec::new()), &images);
    assert!(
        matches!(outcome, PartitionOutcome::Replayed { .. }),
        "{outcome:?}"
    );
    assert_eq!(objects, 3);
}

/// damaged::D2: memory changed two bits before the segment was certified, so all replicas are
/// alike.
#[test]
fn what_no_replica_has_is_told_and_left_out_once_that_is_accepted() {
    let bytes = hurt(&segment(), 1);
    let certificate = Certificate::of(&bytes);
    let images = [bytes.clone(), bytes.clone()];
    let loss = examine(&[bytes], &header(0), certificate)
        .loss
        .expect("a loss");
    for accepted in [vec![], vec![loss.token() ^ 1]] {
        match outcome(order_of(certificate, accepted), &images) {
            (PartitionOutcome::Lost { losses }, 0) => {
                assert_eq!((losses.len(), losses[0].token), (1, loss.token()));
                assert!(losses[0].lines[1].contains("`b`"), "{losses:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let (outcome, objects) = outcome(order_of(certificate, vec![loss.token()]), &images);
    assert!(
        matches!(outcome, PartitionOutcome::Replayed { .. }),
        "{outcome:?}"
    );
    assert_eq!(objects, 2);
}

/// damaged::D5: the second holder has the whole segment. After seven requests in vain the recovery
/// went on without it, and told of the loss as if all had been looked at.
#[test]
fn a_holder_that_did_not_answer_is_named_with_the_loss() {
    let whole = segment();
    let certificate = Certificate::of(&whole);
    let images = [hurt(&whole, 1), whole];
    for away in [Away::Silent, Away::Down] {
        let order = order_of(certificate, Vec::new());
        let (outcome, _) = outcome_without(order, &images, [false; 2], away);
        let PartitionOutcome::Lost { losses } = outcome else {
            panic!("{outcome:?}");
        };
        let told = &losses[0].lines[0];
        assert!(told.contains("segment 9: 3.1 did not answer"), "{told}");
    }
    let (outcome, objects) = outcome(order_of(certificate, Vec::new()), &images);
    assert!(
        matches!(outcome, PartitionOutcome::Replayed { .. }),
        "{outcome:?}"
    );
    assert_eq!(objects, 3);
}

#[test]
fn a_loss_that_nobody_accepted_is_found() {
    let bytes = hurt(&segment(), 1);
    let order = order_of(Certificate::of(&bytes), Vec::new());
    let images = [bytes.clone(), bytes];
    let (outcome, _) = with_bug(Bug::AcceptsUnasked, || outcome(order, &images));
    assert!(
        matches!(outcome, PartitionOutcome::Replayed { .. }),
        "{outcome:?}"
    );
}

/// damaged::D4: each holder has a shorter image with a certificate of its own, that of an older
/// slot, or none at all.
#[test]
fn an_image_that_may_be_shorter_is_not_replayed_unasked() {
    let header = &segment()[..0];
    for image in [segment(), header.to_vec()] {
        let certificate = Certificate::of(&image);
        let order = |is_closed, accepted| {
            let mut order = order_of(certificate, accepted);
            let mut segment = order.segments[0].clone();
            segment.closed = is_closed;
            order.segments = vec![segment].into();
            order
        };
        let images = [image.clone(), image.clone()];
        let token = match outcome_of(order(false, vec![]), &images, [true; 2]) {
            (PartitionOutcome::Lost { losses }, 0) => {
                let told = losses[0].lines.last().expect("a line");
                assert!(told.contains("to an unknown end: any key"), "{told}");
                losses[0].token
            }
            other => panic!("{other:?}"),
        };
        let objects = if image.is_empty() { 0 } else { 3 };
        let is_replayed = |(outcome, found): (PartitionOutcome, u64)| {
            matches!(outcome, PartitionOutcome::Replayed { .. }) && found == objects
        };
        assert!(is_replayed(outcome_of(
            order(false, vec![token]),
            &images,
            [true; 2]
        )));
        if image.is_empty() {
            continue;
        }
        // Another holder knows the end, or the control log does.
        assert!(is_replayed(outcome_of(
            order(false, vec![]),
            &images,
            [true, false]
        )));
        assert!(is_replayed(outcome_of(
            order(true, vec![]),
            &images,
            [true; 2]
        )));
        let unasked = || outcome_of(order(false, vec![]), &images, [true; 2]);
        assert!(
            is_replayed(with_bug(Bug::ShorterCounts, unasked)),
            "the bug is not found"
        );
    }
}
