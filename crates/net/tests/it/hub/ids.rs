//! Tests of cluster ids: they keep two clusters of one name apart.

use super::*;

const ONE: ClusterId = ClusterId(1 << 100 | 1);
const TWO: ClusterId = ClusterId(2 << 100 | 2);

fn of(role: Role, id: ClusterId) -> TestHub {
    let mut hub = hub(role, "here", limits());
    hub.set_cluster_id(id);
    hub
}

/// Sends a question. Returns its outcome for `asker`, and the foreign peers of `asked`.
fn asks(
    asker: &mut TestHub,
    asked: &mut TestHub,
    at: SocketAddr,
    request: u64,
) -> (Result<ClusterId, Reason>, Vec<(Role, ClusterId)>) {
    ask(asker, &at.to_string(), request, Payload::None);
    let (mut ended, mut met) = (None, Vec::new());
    until(&mut [asked, asker], |n, hub, event| {
        answer(hub, &event);
        match event {
            Event::Answer { cluster_id, .. } => ended = Some(Ok(cluster_id)),
            Event::Unanswered {
                requests, reason, ..
            } if requests == [request] => ended = Some(Err(reason)),
            Event::Foreign {
                role, cluster_id, ..
            } => {
                assert_eq!(n, 0);
                met.push((role, cluster_id));
            }
            _ => {}
        }
        // The refused side has sent its id before.
        match &ended {
            Some(Ok(_)) => true,
            Some(Err(_)) => !met.is_empty(),
            None => false,
        }
    });
    (ended.expect("it ended"), met)
}

#[test]
fn sides_that_know_different_ids_do_not_talk_and_both_hear_of_it() {
    let none = ClusterId::NONE;
    for (asking, asked, is_well) in [
        (ONE, ONE, true),
        (none, ONE, true),
        (ONE, none, true),
        (none, none, true),
        (ONE, TWO, false),
    ] {
        let mut server = of(Role::Coordinator, asked);
        let at = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut other = of(Role::Server, asking);
        let (ended, met) = asks(&mut other, &mut server, at, 1);
        match is_well {
            true => assert_eq!((ended, met), (Ok(asked), Vec::new())),
            false => {
                let reason = ended.expect_err("two clusters");
                assert!(reason.is_denial() && !reason.is_sign_of_death());
                let text = reason.to_string();
                assert!(
                    text.contains(&ONE.to_string()) && text.contains(&TWO.to_string()),
                    "{text}"
                );
                assert_eq!(met, [(Role::Server, ONE)]);
            }
        }
    }
}

/// Members that connected before the coordinator had read its store.
#[test]
fn who_connected_before_the_id_was_known_comes_back_and_hears_it() {
    let mut server = of(Role::Coordinator, ClusterId::NONE);
    let at = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut friend = of(Role::Server, ONE);
    let mut foreign = of(Role::Server, TWO);
    let mut tool = of(Role::Client, ClusterId::NONE);
    for hub in [&mut friend, &mut foreign] {
        assert_eq!(asks(hub, &mut server, at, 1).0, Ok(ClusterId::NONE));
    }
    tool.ask(&at.to_string(), Role::Client, 1, Payload::None, |out| {
        encode_peer(out, &envelope(1), &Peer::Ping { nonce: 1 }, 0);
    });
    until(&mut [&mut server, &mut tool], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { .. })
    });
    server.set_cluster_id(ONE);
    server.greet_again();
    let mut closed = 0;
    let mut events = Vec::new();
    server.poll(STEP, &mut events);
    for event in events.drain(..) {
        closed += u32::from(matches!(event, Event::Closed { .. }));
    }
    assert_eq!(closed, 2, "the tool stays");
    for hub in [&mut friend, &mut foreign] {
        until(&mut [hub], |_, _, event| {
            matches!(event, Event::Unanswered { .. })
        });
    }
    assert_eq!(asks(&mut friend, &mut server, at, 2), (Ok(ONE), vec![]));
    let (ended, met) = asks(&mut foreign, &mut server, at, 2);
    assert!(ended.is_err());
    assert_eq!(met, [(Role::Server, TWO)]);
    // Setting the same id again closes no connection, on either side.
    server.set_cluster_id(ONE);
    server.greet_again();
    friend.set_cluster_id(ONE);
    assert_eq!(asks(&mut friend, &mut server, at, 3), (Ok(ONE), vec![]));
    // A side that gets its id closes connections whose other side has sent another id.
    friend.set_cluster_id(TWO);
    until(&mut [&mut friend], |_, _, event| {
        matches!(event, Event::Unanswered { .. })
    });
}
