//! Questions, their repetitions, and what the answers mean.

use super::*;
use duramen_cluster::replication::Send;

const ME: ServerId = ServerId::new(0, 1);
const HOLDER: BackupId = BackupId(7);

/// A control segment's bytes are sent, nobody answers, and they are sent again: then the first answer comes.
fn a_late_answer(planted: Planted) {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, 1 << 20, queue.clone());
    remote.planted = planted;
    queue.send(Call {
        log: ME.number(),
        send: Send {
            ticket: Ticket(1),
            backup: HOLDER,
            segment: SegmentId(1),
            kind: Kind::Control,
            epoch: 0,
            from: 0,
            certificate: Certificate::of(b"control"),
            open: true,
            close: false,
            primary: false,
        },
        level: Level::Synced,
        bytes: Bytes::Here(b"control"[..].into()),
    });
    let mut asked = Vec::new();
    remote.poll(1_000, &mut asked);
    remote.poll(1_000 + PATIENCE_US, &mut asked);
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].call, asked[1].call, "Q1");
    let answer = PeerAnswer::Stored {
        level: Level::Synced,
        leased: true,
    };
    let mut heard = Vec::new();
    let late_us = 2_000 + PATIENCE_US;
    remote.answered(
        late_us,
        asked[0].call,
        Some((answer.clone(), Slice::default())),
        &mut heard,
    );
    let granted = Heard::Granted(HOLDER, 1_000);
    let answered = Heard::Answered(Ticket(1), Ok(Level::Synced));
    assert_eq!(heard, [granted, answered], "Q3");
    heard.clear();
    remote.answered(
        late_us,
        asked[1].call,
        Some((answer, Slice::default())),
        &mut heard,
    );
    assert_eq!(heard, [], "Q2");
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for_first() {
    a_late_answer(Planted::default());
}

#[cfg(feature = "planted")]
#[test]
fn a_lease_from_a_repeated_question_is_found() {
    let planted = || a_late_answer(Planted::one(Bug::LateLease));
    assert!(std::panic::catch_unwind(planted).is_err());
}
