//! Peers that have not proved themselves: they receive nothing secret, and keep no other peer out.

use super::*;

/// A program that connected to a cluster with a token, and sent nothing, once got the token in the
/// first bytes that it received.
#[test]
fn a_stranger_hears_nothing_before_it_has_proved_itself() {
    let token = b"a token of this cluster".to_vec();
    let mut options = Options::new(Role::Server, "a name of its own");
    options.token = token.clone();
    options.limits.hello = Duration::from_millis(300);
    let mut server: TestHub = Hub::new(options).unwrap();
    let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut guess = opening();
    guess.extend(opening()); // no proof
    for (bytes, least) in [
        (vec![], 0),
        (opening(), OPENING_BYTES),
        (guess, OPENING_BYTES),
    ] {
        let mut peer = TcpStream::connect(address).expect("connects");
        peer.write_all(&bytes).unwrap();
        let reader = std::thread::spawn(move || {
            let mut heard = Vec::new();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            peer.read_to_end(&mut heard).map(|_| heard)
        });
        let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
        while !reader.is_finished() && Instant::now() < deadline {
            server.poll(STEP, &mut events);
        }
        assert!(events.is_empty(), "{events:?}");
        let heard = reader.join().unwrap().expect("until the end");
        let tells = |what: &[u8]| heard.windows(what.len()).any(|window| window == what);
        assert!(
            !tells(b"token of this") && !tells(b"name of its own"),
            "{heard:?}"
        );
        assert!(heard.len() >= least && (least > 0 || heard.is_empty()));
    }
    // Another token, or none: refused, and the reason is the token.
    for wrong in [&b"a token of this clusteR"[..], b""] {
        let mut stranger = Options::new(Role::Server, "a name of its own");
        stranger.token = wrong.to_vec();
        let mut stranger: TestHub = Hub::new(stranger).unwrap();
        ask(&mut stranger, &address.to_string(), 1, Payload::None);
        until(&mut [&mut server, &mut stranger], |n, _, event| {
            let Event::Unanswered { reason, .. } = event else {
                panic!("{event:?}");
            };
            assert_eq!((n, reason), (1, Reason::Token));
            true
        });
    }
    assert!(server.offences() >= 3);
    let mut friend = Options::new(Role::Server, "a name of its own");
    friend.token = token;
    let mut friend: TestHub = Hub::new(friend).unwrap();
    ask(&mut friend, &address.to_string(), 1, Payload::None);
    until(&mut [&mut server, &mut friend], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { request: 1, .. })
    });
}

/// 4,096 connections on which nothing was ever sent once kept every member out of the native port.
#[test]
fn silent_connections_keep_nobody_out_who_proves_itself() {
    let (mut server, address) = server(Limits {
        connections: 2,
        strangers: 4,
        ..limits()
    });
    let mut other = hub(Role::Server, "here", limits());
    ask(&mut other, &address.to_string(), 1, Payload::None);
    until(&mut [&mut server, &mut other], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { .. })
    });
    let mut silent: Vec<TcpStream> = Vec::new();
    for n in 0..20 {
        let peer = TcpStream::connect(address).expect("connects");
        (&peer).write_all(&opening()[..n]).unwrap();
        peer.set_nonblocking(true).unwrap();
        silent.push(peer);
        server.poll(STEP, &mut Vec::new());
    }
    // The oldest ones are closed, at most four stay; a known peer stays connected, and another can
    // connect.
    let (deadline, mut ended) = (Instant::now() + PATIENCE, 0);
    while ended < 16 && Instant::now() < deadline {
        let mut events = Vec::new();
        server.poll(STEP, &mut events);
        assert!(events.is_empty(), "{events:?}");
        ended = silent
            .iter_mut()
            .map(has_ended)
            .filter(|ended| *ended)
            .count();
    }
    assert_eq!(ended, 16);
    ask(&mut other, &address.to_string(), 2, Payload::None);
    until(&mut [&mut server, &mut other], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { request: 2, .. })
    });
    is_well(&mut server, address);
}
