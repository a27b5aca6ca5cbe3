//! Five members, of which one holds hints, sends its own, and searches for a dead one's.

use super::*;
use crate::servers::{list, members};
use duramen_wire::native::message::ServerListUpdate;

const fn server(slot: u32) -> ServerId {
    ServerId::new(slot, 1)
}

const ME: ServerId = server(3);

fn all() -> Members {
    members(&[server(1), server(2), ME, server(4), server(5)])
}

fn blocks(count: usize, byte: u8) -> Vec<u8> {
    vec![byte; count * BLOCK_BYTES]
}

/// The requests that it sends, each with its receiver.
fn poll(
    exchange: &mut HintExchange,
    now_us: u64,
    members: &Members,
    hint: Option<Vec<u8>>,
) -> (Vec<PeerRequest>, Vec<(ServerId, Slice)>) {
    let mut out = Effects::default();
    let found = exchange.poll(now_us, ME, members, || hint.map(Slice::from), &mut out);
    (out.requests, found)
}

fn to(asked: &[PeerRequest]) -> Vec<ServerId> {
    asked.iter().map(|asked| asked.to).collect()
}

#[test]
fn a_hint_is_told_to_the_next_two_until_they_have_it() {
    let mut exchange = HintExchange::new(true);
    let (asked, _) = poll(&mut exchange, 0, &all(), None);
    assert!(asked.is_empty(), "there is nothing to tell");
    let (asked, _) = poll(&mut exchange, LOOK_US, &all(), Some(blocks(1, 1)));
    assert_eq!(to(&asked), [server(4), server(5)]);
    assert!(asked.iter().all(|asked| asked.question == Peer::PutHeat));
    exchange.answered(asked[0].call, Some((PeerAnswer::Heat, Slice::default())));
    exchange.answered(asked[1].call, None);
    let mut now_us = 2 * LOOK_US + AGAIN_US;
    let (asked, _) = poll(&mut exchange, now_us, &all(), None);
    assert_eq!(to(&asked), [server(5)], "the other one has it");
    assert_eq!(asked[0].payload[..], blocks(1, 1));
    // One is gone; the next one follows cyclically.
    let fewer = members(&[server(1), server(2), ME, server(5)]);
    now_us += LOOK_US;
    let (asked, _) = poll(&mut exchange, now_us, &fewer, None);
    assert_eq!(to(&asked), [server(1)]);
    // A change.
    now_us += LOOK_US;
    let (asked, _) = poll(&mut exchange, now_us, &all(), Some(blocks(2, 2)));
    assert_eq!(to(&asked), [server(4), server(5)]);
    // Alone.
    let (asked, _) = poll(&mut exchange, now_us + LOOK_US, &members(&[ME]), None);
    assert!(asked.is_empty());
}

#[test]
fn hints_are_replaced_bounded_and_refused() {
    let everybody: Vec<ServerId> = (0..40).map(server).collect();
    let members = members(&everybody);
    let mut exchange = HintExchange::new(false);
    let refused = |answer| matches!(answer, PeerAnswer::Refused(_));
    assert!(refused(exchange.put(0, server(50), blocks(1, 1), &members)));
    assert!(refused(exchange.put(0, server(1), vec![0; 5], &members)));
    let most = HINT_BYTES_MAX / BLOCK_BYTES;
    let more = blocks(most + 1, 1);
    assert!(refused(exchange.put(0, server(1), more, &members)));
    assert!(exchange.held(0).is_empty());
    assert_eq!(exchange.due_us(), u64::MAX, "there is nothing to forget");

    for (n, id) in everybody.iter().enumerate() {
        let now_us = n as u64;
        let answer = exchange.put(now_us, *id, blocks(most, 1), &members);
        assert_eq!(answer, PeerAnswer::Heat);
        // The first one again and again: only the newest counts, and it is never the oldest.
        let answer = exchange.put(now_us, server(0), blocks(1, n as u8), &members);
        assert_eq!(answer, PeerAnswer::Heat);
        let bytes: usize = exchange.held.values().map(|held| held.blocks.len()).sum();
        assert!(bytes <= HELD_BYTES_MAX, "{bytes}");
    }
    assert_eq!(exchange.get(server(0)).expect("there")[..], blocks(1, 39));
    assert!(exchange.get(server(39)).is_some());
    assert!(exchange.get(server(1)).is_none(), "the oldest went");
    let held = exchange.held(40_000);
    assert!(held.iter().all(|held| held.age_ms == 39), "{held:?}");
    assert!(held.len() <= HELD_BYTES_MAX / HINT_BYTES_MAX + 1);
}

#[test]
fn a_hint_is_forgotten_some_time_after_its_server() {
    let dead = server(2);
    let mut exchange = HintExchange::new(false);
    let mut known = all();
    exchange.put(0, dead, blocks(1, 1), &known);
    let mut version = 1;
    let mut without = |known: &mut Members, gone: bool| {
        version += 1;
        let rest = [server(1), ME, server(4), server(5), dead];
        let rest = &rest[..rest.len() - usize::from(gone)];
        known.apply(&ServerListUpdate::Full(list(version, rest).into()));
    };
    poll(&mut exchange, 10 * FORGET_US, &known, None);
    assert!(exchange.get(dead).is_some(), "as long as it is listed");
    without(&mut known, true);
    poll(&mut exchange, 11 * FORGET_US, &known, None);
    poll(&mut exchange, 12 * FORGET_US - 1, &known, None);
    assert!(
        exchange.get(dead).is_some(),
        "others recover it, or have just"
    );
    poll(&mut exchange, 12 * FORGET_US + LOOK_US, &known, None);
    assert!(exchange.get(dead).is_none());
    assert_eq!(exchange.due_us(), u64::MAX);
}

#[test]
fn who_recovers_asks_one_after_the_other_until_somebody_knows() {
    let (dead, other) = (server(1), server(0));
    let rest = members(&[server(2), ME, server(4), server(5)]);
    let mut exchange = HintExchange::new(true);
    exchange.recovered(dead);
    exchange.recovered(dead);
    exchange.recovered(other);
    assert_eq!(exchange.due_us(), 0);
    let (asked, _) = poll(&mut exchange, 0, &rest, None);
    assert_eq!(to(&asked), [server(2)]);
    assert_eq!(asked[0].question, Peer::GetHeat { server: dead });
    // An older program, which does not support the request.
    exchange.answered(asked[0].call, None);
    let (asked, _) = poll(&mut exchange, 1, &rest, None);
    assert_eq!(to(&asked), [server(4)], "not itself");
    // No answer.
    assert!(poll(&mut exchange, PATIENCE_US, &rest, None).0.is_empty());
    let late = asked[0].call;
    let (asked, _) = poll(&mut exchange, 1 + PATIENCE_US, &rest, None);
    assert_eq!(to(&asked), [server(5)]);
    let hint = Slice::from(blocks(1, 7));
    exchange.answered(late, Some((PeerAnswer::Heat, hint.clone())));
    assert!(
        poll(&mut exchange, 2 + PATIENCE_US, &rest, None)
            .1
            .is_empty()
    );
    exchange.answered(asked[0].call, Some((PeerAnswer::Heat, hint)));
    let (asked, found) = poll(&mut exchange, 3 + PATIENCE_US, &rest, None);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0, &found[0].1[..]), (dead, &blocks(1, 7)[..]));
    // The next one: no server has it.
    assert_eq!(asked[0].question, Peer::GetHeat { server: other });
    let mut next = asked;
    for n in 0..ASKED_MAX as u64 {
        let Some(asked) = next.pop() else { break };
        exchange.answered(asked.call, Some((PeerAnswer::Heat, Slice::default())));
        let (asked, found) = poll(&mut exchange, 4 + n + PATIENCE_US, &rest, None);
        assert!(found.is_empty());
        next = asked;
    }
    assert!(next.is_empty() && exchange.search.is_none() && exchange.wanted.is_empty());
    // A hint that is here needs no request.
    exchange.put(0, server(2), blocks(1, 8), &rest);
    exchange.recovered(server(2));
    let (asked, found) = poll(&mut exchange, 10 + PATIENCE_US, &rest, None);
    assert!(asked.is_empty());
    assert_eq!(found[0].1[..], blocks(1, 8));
    // Without a second tier there is nothing to load from.
    let mut cold = HintExchange::new(false);
    cold.recovered(dead);
    assert!(poll(&mut cold, 0, &rest, None).0.is_empty());
}
