//! Requests, their repetitions, and the meaning of the answers.

use super::*;
use duramen_base::planted::{Bug, with_bug};
use duramen_wire::native::message::WriteReplica;

const ME: ServerId = ServerId::new(0, 1);
const HOLDER: BackupId = BackupId(7);

/// A segment that is opened, and perhaps closed, with all of its bytes.
fn write(segment: SegmentId, kind: Kind, certified: &[u8], close: bool) -> WriteReplica {
    WriteReplica {
        log: ME,
        segment,
        kind,
        epoch: 0,
        offset: 0,
        certificate: Some(Certificate::of(certified)),
        open: true,
        close,
        primary: false,
        level: Level::Synced,
        capacity: 1 << 20,
    }
}

/// A remote whose queue has one write: the certificate is that of `certified`.
fn with_write(kind: Kind, certified: &[u8], bytes: &[u8]) -> Remote {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let remote = Remote::new(ME, queue.clone());
    queue.ask(ToBackups::Write(Call {
        ticket: Ticket(1),
        to: HOLDER,
        write: write(SegmentId(1), kind, certified, false),
        bytes: Bytes::Here(bytes.into()),
    }));
    remote
}

/// A control segment's bytes are sent, not answered, and sent again: then the first answer arrives.
fn a_late_answer() {
    let mut remote = with_write(Kind::Control, b"control", b"control");
    let mut asked = Vec::new();
    remote.poll(1_000, &mut asked);
    remote.poll(1_000 + PATIENCE_US, &mut asked);
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].call, asked[1].call, "Q1");
    let answer = PeerAnswer::Stored {
        level: Level::Synced,
        leased: true,
    };
    let mut events = Vec::new();
    let late_us = 2_000 + PATIENCE_US;
    remote.answered(
        late_us,
        asked[0].call,
        Some((answer.clone(), Slice::default())),
        &mut events,
    );
    let granted = RemoteEvent::Granted(HOLDER, 1_000);
    let answered = RemoteEvent::Answered(Ticket(1), Ok(Level::Synced));
    assert_eq!(events, [granted, answered], "Q3");
    events.clear();
    remote.answered(
        late_us,
        asked[1].call,
        Some((answer, Slice::default())),
        &mut events,
    );
    assert_eq!(events, [], "Q2");
}

/// The events after a backup has found the bytes of a write to be damaged.
fn damaged_write() -> Vec<RemoteEvent> {
    let mut remote = with_write(Kind::Head, b"data", b"dat0");
    let asked = polled(&mut remote, 1_000);
    let answer = PeerAnswer::Bad {
        reason: String::new(),
    };
    let mut events = Vec::new();
    let answer = Some((answer, Slice::default()));
    remote.answered(2_000, asked[0].call, answer, &mut events);
    events
}

/// remote::Q11: a bit that had flipped in memory, or on the way, lost a healthy backup; and then
/// the next.
#[test]
fn a_backup_that_refuses_damaged_bytes_is_not_lost() {
    let refused = RemoteEvent::Answered(Ticket(1), Err(Rejection::Damaged));
    assert_eq!(damaged_write(), [RemoteEvent::Damaged(HOLDER), refused]);
    let lost = with_bug(Bug::DamageLosesBackups, damaged_write);
    assert_eq!(lost, [RemoteEvent::Lost(HOLDER)]);
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for_first() {
    a_late_answer();
}

#[test]
fn a_lease_from_a_repeated_question_is_found() {
    assert!(std::panic::catch_unwind(|| with_bug(Bug::LateLease, a_late_answer)).is_err());
}

/// Replicas of many closed segments were on a backup that has died: their bytes are requested from
/// others.
fn copies(count: u64) -> (Remote, Vec<PeerRequest>) {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, queue.clone());
    for n in 1..=count {
        queue.ask(ToBackups::Write(Call {
            ticket: Ticket(n),
            to: BackupId(8),
            write: write(SegmentId(n), Kind::Head, b"closed", true),
            bytes: Bytes::At(vec![HOLDER, BackupId(9)]),
        }));
    }
    let mut asked = Vec::new();
    remote.poll(0, &mut asked);
    (remote, asked)
}

fn polled(remote: &mut Remote, now_us: u64) -> Vec<PeerRequest> {
    let mut asked = Vec::new();
    remote.poll(now_us, &mut asked);
    asked
}

/// All of them were requested at once, and were held in memory, 8 MB each: most of a large log.
#[test]
fn closed_segments_are_copied_one_after_the_other() {
    let (mut remote, asked) = copies(3);
    let mut events = Vec::new();
    let mut call = match &asked[..] {
        [one] if one.to.number() == HOLDER.0 => one.call,
        _ => panic!("Q7: {} at once", asked.len()),
    };
    for n in 1..=3 {
        let bytes = Slice::from(&b"closed"[..]);
        remote.answered(1, call, Some((PeerAnswer::Segment, bytes)), &mut events);
        let writes = polled(&mut remote, 1);
        assert!(
            matches!(&writes[..], [one] if one.to.number() == 8 && !one.payload.is_empty()),
            "Q7: its write, and nothing else"
        );
        let stored = PeerAnswer::Stored {
            level: Level::Synced,
            leased: false,
        };
        let answer = Some((stored, Slice::default()));
        remote.answered(1, writes[0].call, answer, &mut events);
        assert_eq!(events.len(), n);
        match &polled(&mut remote, 1)[..] {
            [next] if n < 3 => call = next.call,
            [] if n == 3 => {}
            _ => panic!("Q7: the next one"),
        }
    }
}

#[test]
fn a_copy_that_does_not_end_holds_up_the_others_for_a_while_only() {
    let (mut remote, asked) = copies(2);
    assert_eq!(asked.len(), 1);
    assert_eq!(polled(&mut remote, COPY_US - 1).len(), 1, "again");
    let asked = polled(&mut remote, COPY_US + PATIENCE_US);
    assert_eq!(asked.len(), 2, "Q7: the other one begins");
    // The holder of both is lost before the bytes arrive: the next one is asked for each.
    let mut events = Vec::new();
    remote.lost(0, HOLDER, &mut events);
    let asked = polled(&mut remote, COPY_US + PATIENCE_US);
    assert!(asked.len() == 2 && asked.iter().all(|one| one.to.number() == 9));
    assert_eq!(events, []);
}

/// The number of unanswered requests to a backup, one every `every_us`, until it is silent; None:
/// it never is.
fn silent_after(every_us: u64, hears_others: bool) -> Option<usize> {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, queue.clone());
    queue.ask(ToBackups::Sync(HOLDER));
    (0..100).find(|asked| {
        let now_us = 10_000_000 + every_us * *asked as u64;
        if hears_others {
            remote.heard(now_us);
        }
        remote.poll(now_us, &mut Vec::new());
        remote.silent().contains(&HOLDER)
    })
}

#[test]
fn a_backup_is_silent_by_its_own_fault_only() {
    assert_eq!(silent_after(PATIENCE_US, true), Some(8), "Q8");
    assert_eq!(
        silent_after(PATIENCE_US, false),
        None,
        "nobody answers: this server is cut off"
    );
    assert_eq!(
        silent_after(3 * PATIENCE_US, true),
        None,
        "this server was stopped in between"
    );
}

#[test]
fn an_answer_ends_the_silence_and_a_lost_backup_is_probed() {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, queue.clone());
    let (mut asked, mut events) = (Vec::new(), Vec::new());
    queue.ask(ToBackups::Sync(HOLDER));
    for n in 0..20 {
        remote.heard(n * PATIENCE_US);
        remote.poll(n * PATIENCE_US, &mut asked);
    }
    assert!(remote.silent().contains(&HOLDER));
    remote.lost(20 * PATIENCE_US, HOLDER, &mut events);
    assert!(remote.silent().is_empty());
    asked.clear();
    remote.probe(20 * PATIENCE_US, HOLDER);
    for n in 20..40 {
        remote.heard(n * PATIENCE_US);
        remote.poll(n * PATIENCE_US, &mut asked);
    }
    assert!(
        asked.len() == 20 && remote.silent().is_empty(),
        "a probe may take its time"
    );
    assert_eq!(
        asked[0].payload.len(),
        PROBE_BYTES,
        "a path may pass small packets alone"
    );
    let answer = Some((PeerAnswer::Synced, Slice::default()));
    remote.answered(40 * PATIENCE_US, asked[0].call, answer, &mut events);
    assert_eq!(events, [RemoteEvent::Back(HOLDER, 20 * PATIENCE_US)]);
}

/// A slow link held many copies of one request: none arrived in time, and a healthy backup was
/// called silent.
#[test]
fn a_request_is_not_repeated_while_its_connection_moves() {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, queue.clone());
    queue.ask(ToBackups::Sync(HOLDER));
    let asked = polled(&mut remote, 0);
    let mut now_us = 0;
    for _ in 0..100 {
        now_us += PATIENCE_US / 2;
        remote.heard(now_us);
        remote.moving(now_us, asked[0].call);
        assert!(polled(&mut remote, now_us + PATIENCE_US - 1).is_empty());
    }
    assert!(remote.silent().is_empty(), "Q8");
    // Its disk hangs: nothing moves any more.
    let asked = polled(&mut remote, now_us + PATIENCE_US);
    assert_eq!(asked.len(), 1, "Q1");
    for n in 2..10 {
        remote.heard(now_us + n * PATIENCE_US);
        polled(&mut remote, now_us + n * PATIENCE_US);
    }
    assert!(remote.silent().contains(&HOLDER), "Q8");
}

#[test]
fn a_copy_that_moves_holds_up_the_others() {
    let (mut remote, asked) = copies(2);
    for n in 1..100 {
        remote.moving(n * COPY_US / 2, asked[0].call);
        assert!(polled(&mut remote, n * COPY_US / 2).is_empty(), "Q7");
    }
}

/// Its node answers pings on the connection of leases while its disk hangs.
#[test]
fn a_backup_that_grants_no_lease_is_silent_although_its_connection_moves() {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, queue);
    remote.controls.insert(HOLDER, SegmentId(1));
    let mut asked = Vec::new();
    for n in 0..100 {
        let now_us = n * PATIENCE_US / 4;
        remote.heard(now_us);
        remote.renew(now_us, vec![HOLDER]);
        remote.poll(now_us, &mut asked);
        for one in &asked {
            remote.moving(now_us, one.call);
        }
    }
    assert!(remote.silent().contains(&HOLDER), "Q8");
    assert!(remote.calls.len() < 10, "the old ones are given up");
}

/// A survivor is sent as a recipe, and the backup answers so after this time (remote::Q10). Returns
/// the requests until then, and what the store was told.
fn recipe_answered(answer: Option<PeerAnswer>, at_us: u64) -> (Vec<PeerRequest>, Vec<RemoteEvent>) {
    let queue = Arc::new(Queue::new(Arc::new(|| {})));
    let mut remote = Remote::new(ME, queue.clone());
    queue.ask(ToBackups::Write(Call {
        ticket: Ticket(1),
        to: HOLDER,
        write: write(SegmentId(1), Kind::Survivor, b"survivor", true),
        bytes: Bytes::Built {
            recipe: b"recipe"[..].into(),
            bytes: b"survivor"[..].into(),
        },
    }));
    let (mut asked, mut events) = (polled(&mut remote, 0), Vec::new());
    let answer = answer.map(|answer| (answer, Slice::default()));
    remote.answered(at_us, asked[0].call, answer, &mut events);
    asked.extend(polled(&mut remote, at_us + 1));
    (asked, events)
}

fn recipe(answer: PeerAnswer) -> (Vec<PeerRequest>, Vec<RemoteEvent>) {
    recipe_answered(Some(answer), 1)
}

#[test]
fn a_backup_that_cannot_build_a_survivor_gets_its_bytes() {
    let level = Level::Synced;
    let (asked, events) = recipe(PeerAnswer::Stored {
        level,
        leased: false,
    });
    assert!(matches!(&asked[..], [one] if *one.payload == *b"recipe"));
    assert_eq!(events, [RemoteEvent::Answered(Ticket(1), Ok(level))]);
    let (asked, events) = recipe(PeerAnswer::Bad {
        reason: String::new(),
    });
    let [order, write] = &asked[..] else {
        panic!("{} requests", asked.len());
    };
    assert!(matches!(order.question, Peer::BuildReplica(_)));
    assert!(matches!(write.question, Peer::WriteReplica(_)) && *write.payload == *b"survivor");
    assert!(order.call != write.call, "Q2");
    assert_eq!(events, [RemoteEvent::RecipeRefused(8)]);
    // An older server does not understand the request, or the connection broke.
    let (asked, _) = recipe_answered(None, 1);
    assert!(matches!(&asked[..], [_, write] if *write.payload == *b"survivor"));
    let (asked, events) = recipe(PeerAnswer::Fenced);
    let fenced = RemoteEvent::Answered(Ticket(1), Err(Rejection::Fenced));
    assert!(asked.len() == 1 && events == [fenced, RemoteEvent::Fenced]);
}

/// A recovery kept the readers of a backup busy: survivors waited for it, and with them the writers
/// of other members.
#[test]
fn a_survivor_that_is_not_built_in_time_is_sent_as_bytes() {
    let not_yet = || {
        Some(PeerAnswer::Refused(Refusal::NotReady {
            after_ms: 50,
            reason: String::new(),
        }))
    };
    let (asked, events) = recipe_answered(not_yet(), BUILD_US - 1);
    assert!(asked.len() == 1 && events.is_empty());
    let (asked, events) = recipe_answered(not_yet(), BUILD_US);
    assert!(matches!(&asked[..], [_, write] if *write.payload == *b"survivor"));
    assert_eq!(events, [RemoteEvent::RecipeRefused(8)]);
}
