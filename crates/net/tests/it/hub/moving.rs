//! Questions whose connections move are told from those whose connections stand still.

use super::{TestHub, answer, ask, hub, limits, server, until};
use duramen_net::{Event, Limits, Payload};
use duramen_wire::native::codec::Role;
use std::time::Duration;

/// More than the systems of both sides buffer.
const LARGE: usize = 64 << 20;
const LOOK: Duration = Duration::from_millis(20);

fn large() -> Limits {
    Limits {
        peer_frame_bytes: 2 * LARGE,
        output_bytes: 4 * LARGE,
        pause_bytes: 4 * LARGE,
        ..limits()
    }
}

/// The questions that move, with bytes from the peer or without.
fn moving(client: &mut TestHub, has_received: bool) -> Vec<u64> {
    let moving = client.moving();
    assert!(
        moving.iter().all(|one| one.has_received == has_received),
        "{moving:?}"
    );
    moving.iter().map(|one| one.request).collect()
}

fn look(client: &mut TestHub) -> Vec<u64> {
    let mut events = Vec::new();
    client.poll(Some(LOOK), &mut events);
    let moving = moving(client, false);
    events.iter().for_each(|event| {
        assert!(!matches!(event, Event::Unanswered { .. }), "{event:?}");
    });
    moving
}

/// Looks until nothing moves.
fn stands_still(client: &mut TestHub) {
    let mut still = 0;
    while still < 5 {
        still = if look(client).is_empty() {
            still + 1
        } else {
            0
        };
    }
}

#[test]
fn what_waits_behind_much_data_moves_and_what_a_peer_does_not_read_does_not() {
    let (mut server, address) = server(large());
    let to = address.to_string();
    let mut client = hub(Role::Server, "here", large());
    ask(&mut client, &to, 1, Payload::None);
    until(&mut [&mut server, &mut client], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { request: 1, .. })
    });
    client.moving();
    // The peer reads nothing, as one that is stopped: only its system takes bytes, for a while.
    ask(&mut client, &to, 2, Payload::None);
    ask(&mut client, &to, 3, Payload::Owned(vec![7; LARGE]));
    ask(&mut client, &to, 4, Payload::None);
    stands_still(&mut client);
    // It reads: the large one moves, and the one behind it; the first one is there already.
    let mut events = Vec::new();
    while !events
        .iter()
        .any(|event| matches!(event, Event::Question { .. }))
    {
        server.poll(Some(LOOK), &mut events);
    }
    let mut found = Vec::new();
    while found.is_empty() {
        server.poll(Some(LOOK), &mut events);
        found = look(&mut client);
    }
    assert_eq!(found, [3, 4]);
    // Any answer is a sign for all of them.
    let first = events
        .iter()
        .position(|event| matches!(event, Event::Question { .. }));
    answer(&mut server, &events[first.expect("the small one")]);
    let mut has_come = false;
    while !has_come {
        server.poll(Some(LOOK), &mut events);
        let mut heard = Vec::new();
        client.poll(Some(LOOK), &mut heard);
        has_come = heard
            .iter()
            .any(|event| matches!(event, Event::Answer { request: 2, .. }));
    }
    assert_eq!(moving(&mut client, true), [3, 4]);
}
