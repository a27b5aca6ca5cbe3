//! Hubs that communicate with each other, and with misbehaving peers.

mod ids;
mod local;
mod moving;
mod names;
mod strangers;
mod tls;

use duramen_base::ids::{ClusterId, ListVersion, TabletsVersion};
use duramen_net::{Event, Hub, Limits, Message, Options, Payload, Reason};
use duramen_wire::native::codec::{
    Credentials, Envelope, Handshake, OPENING_BYTES, Opening, Parsed, Progress, Question, Reply,
    Role, decode_question, decode_reply, encode_peer, encode_peer_answer, fresh_nonce, parse_frame,
};
use duramen_wire::native::message::{Peer, PeerAnswer};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

type TestHub = Hub<u32>;

const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Option<Duration> = Some(Duration::from_millis(2));

fn limits() -> Limits {
    Limits {
        output_bytes: 1 << 20,
        pause_bytes: 64 << 10,
        pause_questions: 8,
        hello: PATIENCE,
        ..Limits::default()
    }
}

/// For peers that send no hello. All others have more time: a machine may stand still for longer.
fn impatient() -> Limits {
    Limits {
        hello: Duration::from_millis(500),
        ..limits()
    }
}

fn hub(role: Role, cluster: &str, limits: Limits) -> TestHub {
    let options = Options {
        limits,
        ..Options::new(role, cluster)
    };
    Hub::new(options).expect("a hub")
}

fn server(limits: Limits) -> (TestHub, SocketAddr) {
    let mut hub = hub(Role::Server, "here", limits);
    let address = hub.listen("127.0.0.1:0".parse().unwrap()).expect("listens");
    (hub, address)
}

fn envelope(request: u64) -> Envelope {
    Envelope {
        request,
        ..Envelope::default()
    }
}

/// A question with `bytes` of payload; its nonce is its number.
fn ask(hub: &mut TestHub, to: &str, request: u64, payload: Payload) {
    let (envelope, bytes) = (envelope(request), payload.len());
    hub.ask(to, Role::Server, request, payload, |out| {
        encode_peer(out, &envelope, &Peer::Ping { nonce: request }, bytes);
    });
}

fn pong(nonce: u64) -> PeerAnswer {
    PeerAnswer::Pong {
        nonce,
        list_version: ListVersion(1),
        tablets_version: TabletsVersion(1),
    }
}

/// Answers a question with a pong and its own payload.
fn answer(hub: &mut TestHub, event: &Event<u32>) {
    if let Event::Question {
        connection,
        message,
        ..
    } = event
    {
        let nonce = nonce_of(message);
        let payload = Payload::Owned(message.payload().to_vec());
        let (envelope, bytes) = (message.header().envelope, payload.len());
        hub.reply(*connection, payload, |out| {
            encode_peer_answer(out, &envelope, &pong(nonce), bytes);
        });
    }
}

fn nonce_of(message: &Message) -> u64 {
    match decode_question(&message.frame()) {
        Ok(Question::Peer(Peer::Ping { nonce })) => nonce,
        other => panic!("{other:?}"),
    }
}

/// Polls all hubs until `enough` accepts an event.
fn until(
    hubs: &mut [&mut TestHub],
    mut enough: impl FnMut(usize, &mut TestHub, Event<u32>) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while Instant::now() < deadline {
        for (n, hub) in hubs.iter_mut().enumerate() {
            hub.poll(STEP, &mut events);
            let mut is_enough = false;
            for event in events.drain(..) {
                is_enough |= enough(n, hub, event);
            }
            if is_enough {
                return;
            }
        }
    }
    panic!("it does not come to that");
}

/// Whether the server still works: another hub gets an answer from it.
fn is_well(server: &mut TestHub, address: SocketAddr) {
    let mut other = hub(Role::Server, "here", limits());
    ask(&mut other, &address.to_string(), 77, Payload::None);
    until(&mut [server, &mut other], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { request: 77, .. })
    });
}

/// An opening made by the test.
fn opening() -> Vec<u8> {
    let mut bytes = Vec::new();
    Opening::new(Role::Server, [9; 32]).encode(&mut bytes);
    bytes
}

fn here(token: &[u8]) -> Credentials<'_> {
    let cluster = "here";
    let id = ClusterId::NONE;
    Credentials { cluster, token, id }
}

/// A peer made by the test: connects, and does the handshake while the hub is polled. Returns the
/// peer, and the last proof, which is not sent yet. `None`: the hub ended it.
fn shake(
    hub: &mut TestHub,
    address: SocketAddr,
    role: Role,
    ours: Credentials<'_>,
) -> Option<(TcpStream, Vec<u8>)> {
    let mut peer = TcpStream::connect(address).expect("connects");
    peer.set_nodelay(true).unwrap();
    peer.set_nonblocking(true).unwrap();
    let nonce = fresh_nonce().expect("random numbers");
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let mut handshake = Handshake::dial(role, nonce, &mut out);
    let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
    while Instant::now() < deadline {
        let sent = peer.write(&out).unwrap_or_default();
        out.drain(..sent);
        hub.poll(STEP, &mut events);
        let is_end = |event: &Event<u32>| matches!(event, Event::Closed { .. });
        assert!(
            events.drain(..).all(|event| is_end(&event)),
            "nobody is known before the handshake is over"
        );
        let mut chunk = [0; 4096];
        match peer.read(&mut chunk) {
            Ok(0) => return None,
            Ok(read) => input.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        match handshake.advance(ours, &input, &mut out).ok()? {
            Progress::Waiting { used } => drop(input.drain(..used)),
            Progress::Done { .. } => return Some((peer, out)),
        }
    }
    panic!("the handshake does not end");
}

/// A peer that has proved itself to the hub once it sends these bytes.
fn known(hub: &mut TestHub, address: SocketAddr) -> (TcpStream, Vec<u8>) {
    let made = shake(hub, address, Role::Server, here(b""));
    let (peer, proof) = made.expect("it is of this cluster");
    peer.set_nonblocking(false).unwrap();
    (peer, proof)
}

fn ping(request: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let question = Peer::Ping { nonce: request };
    encode_peer(&mut bytes, &envelope(request), &question, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn questions_and_answers_of_any_size_come_whole_and_in_order() {
    let (mut server, address) = server(Limits::default());
    let mut client = hub(Role::Server, "here", Limits::default());
    let sizes = [0, 1, 4096, 4097, 70_000, 3 << 20, 0, 20 << 20, 5];
    let payload = |n: usize| -> Vec<u8> { (0..sizes[n]).map(|at| (at * 7 + n) as u8).collect() };
    for n in 0..sizes.len() {
        let bytes = match n % 2 {
            0 => Payload::Owned(payload(n)),
            _ => Payload::Shared(payload(n).into()),
        };
        ask(&mut client, &address.to_string(), n as u64 + 1, bytes);
    }
    let mut next = 0;
    until(&mut [&mut server, &mut client], |_, hub, event| {
        answer(hub, &event);
        if let Event::Answer {
            request, message, ..
        } = event
        {
            assert_eq!(request, next as u64 + 1);
            let reply = decode_reply(&message.frame()).expect("an answer");
            assert_eq!(reply, Reply::Peer(pong(request)));
            assert!(message.payload() == payload(next), "payload {next}");
            next += 1;
        }
        next == sizes.len()
    });
}

#[test]
fn a_conversation_may_be_cut_anywhere() {
    let (mut server, address) = server(limits());
    let mut frames = Vec::new();
    for n in 1..=3 {
        frames.extend(ping(n, &[n as u8; 9]));
    }
    for cut in 0..=frames.len() {
        let (mut peer, mut bytes) = known(&mut server, address);
        bytes.extend(&frames);
        peer.write_all(&bytes[..cut]).unwrap();
        let mut events = Vec::new();
        server.poll(STEP, &mut events);
        server.poll(STEP, &mut events);
        peer.write_all(&bytes[cut..]).unwrap();
        let mut nonces = Vec::new();
        let mut look = |event: &Event<u32>| {
            if let Event::Question { message, .. } = event {
                assert_eq!(message.payload(), &[nonce_of(message) as u8; 9]);
                nonces.push(nonce_of(message));
            }
            nonces.len() == 3
        };
        let enough = events.iter().any(&mut look);
        if !enough {
            until(&mut [&mut server], |_, _, event| look(&event));
        }
        assert_eq!(nonces, [1, 2, 3], "cut at {cut}");
    }
}

/// Whether the other side has closed this connection, which is non-blocking.
fn has_ended(peer: &mut TcpStream) -> bool {
    match peer.read(&mut [0; 4096]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Flips several bits of every byte of the last proof and of a frame: the connection ends, and the
/// hub continues.
#[test]
fn whatever_is_flipped_ends_that_connection_and_nothing_else() {
    let (mut server, address) = server(limits());
    let proof_bytes = known(&mut server, address).1.len();
    let frame = ping(1, b"");
    let mut closed = 0;
    for at in 0..proof_bytes + frame.len() {
        for mask in [1, 0x80, 0xff] {
            let (mut peer, mut bytes) = known(&mut server, address);
            bytes.extend(&frame);
            bytes[at] ^= mask;
            peer.write_all(&bytes).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            peer.set_nonblocking(true).unwrap();
            let (mut is_accepted, mut is_reported, mut is_over) = (false, false, false);
            let deadline = Instant::now() + PATIENCE;
            let mut events = Vec::new();
            // Its end is reported if it was accepted; otherwise nothing is reported.
            while !is_over || is_accepted != is_reported {
                assert!(Instant::now() < deadline, "byte {at}: it does not end");
                server.poll(STEP, &mut events);
                for event in events.drain(..) {
                    match event {
                        Event::Accepted { .. } => {
                            assert!(at >= proof_bytes, "byte {at} is under the tag");
                            is_accepted = true;
                        }
                        Event::Closed { reason, .. } => {
                            assert!(is_accepted);
                            is_reported = true;
                            closed += usize::from(matches!(reason, Reason::Frame(_)));
                        }
                        Event::Question { .. } => panic!("byte {at} is under the checksum"),
                        other => panic!("{other:?}"),
                    }
                }
                is_over |= has_ended(&mut peer);
            }
        }
    }
    assert!(closed > 50, "{closed} frames were malformed");
    is_well(&mut server, address);
}

#[test]
fn a_length_that_is_only_said_takes_no_memory() {
    let (mut server, address) = server(Limits::default());
    let mut peers: Vec<_> = (0..64).map(|_| known(&mut server, address)).collect();
    for (peer, proof) in &mut peers {
        let mut frame = ping(1, b"");
        frame[..4].copy_from_slice(&(60u32 << 20).to_le_bytes());
        proof.extend(frame);
        peer.write_all(proof).unwrap();
    }
    let mut accepted = 0;
    until(&mut [&mut server], |_, _, event| {
        accepted += usize::from(matches!(event, Event::Accepted { .. }));
        accepted == peers.len()
    });
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find(|line| line.starts_with("VmRSS"));
    let kib: u64 = resident
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|kib| kib.parse().ok())
        .expect("a number");
    assert!(
        kib < 1 << 20,
        "{kib} KiB are in use: 64 frames of 60 MiB were promised"
    );
    is_well(&mut server, address);
}

/// Reads an opening and the error frame after it; returns the error's text.
fn goodbye(peer: &mut TcpStream) -> String {
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).expect("until the end");
    let Some(rest) = bytes.get(OPENING_BYTES..) else {
        assert_eq!(bytes, b"", "no whole opening");
        return String::new();
    };
    let Ok(Parsed::Frame { frame, .. }) = parse_frame(rest, 1 << 20) else {
        return String::new();
    };
    match decode_reply(&frame) {
        Ok(Reply::Trouble(trouble)) => trouble.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_is_not_wanted_is_told_why() {
    let (mut server, address) = server(limits());
    let mut future = opening();
    future[8] = 7;
    future[10] = 9;
    let old = b"DURAMENN\x01\0\x01\0\x02\x04\0\0here".to_vec();
    let cases = [
        (future, "update the older program"),
        (old, "versions 1 to 1"),
        (b"PING\r\n".to_vec(), "native protocol"),
    ];
    for (bytes, why) in cases {
        let mut peer = TcpStream::connect(address).expect("connects");
        let reader = std::thread::spawn(move || {
            peer.write_all(&bytes).unwrap();
            goodbye(&mut peer)
        });
        let mut events = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while !reader.is_finished() && Instant::now() < deadline {
            server.poll(STEP, &mut events);
        }
        assert!(events.is_empty(), "{events:?}");
        let told = reader.join().unwrap();
        assert!(told.contains(why), "{told}");
    }
    // A link reports it to the sender of the question.
    let mut stranger = hub(Role::Server, "there", limits());
    ask(&mut stranger, &address.to_string(), 5, Payload::None);
    until(
        &mut [&mut server, &mut stranger],
        |n, _, event| match event {
            Event::Unanswered {
                requests, reason, ..
            } => {
                assert_eq!((n, requests), (1, vec![5]));
                assert!(reason.to_string().contains("cluster"), "{reason}");
                true
            }
            other => panic!("{other:?}"),
        },
    );
    is_well(&mut server, address);
}

#[test]
fn who_says_no_hello_is_let_go() {
    let (mut server, address) = server(impatient());
    let mut peer = TcpStream::connect(address).expect("connects");
    peer.write_all(&opening()[..5]).unwrap();
    let reader = std::thread::spawn(move || goodbye(&mut peer));
    let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
    while !reader.is_finished() && Instant::now() < deadline {
        server.poll(STEP, &mut events);
    }
    assert_eq!(reader.join().unwrap(), "");
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn who_takes_no_answers_is_not_read_from_and_then_cut() {
    let (mut server, address) = server(limits());
    let (mut peer, proof) = known(&mut server, address);
    peer.write_all(&proof).unwrap();
    peer.set_nonblocking(true).unwrap();
    let question = ping(1, &[7; 1000]);
    // The peer sends questions as long as it can, and reads nothing.
    let mut questions: usize = 0;
    let mut connection = None;
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    let mut idle = 0;
    while idle < 20 || questions < 8 {
        assert!(Instant::now() < deadline, "it is read from for ever");
        let before = questions;
        while let Ok(bytes) = peer.write(&question) {
            if bytes < question.len() {
                peer.set_nonblocking(false).unwrap();
                // The rest is sent once the server reads again, at the latest when it closes the
                // connection.
                break;
            }
        }
        peer.set_nonblocking(true).unwrap();
        server.poll(STEP, &mut events);
        for event in events.drain(..) {
            if let Event::Question { connection: id, .. } = event {
                connection = Some(id);
                questions += 1;
            }
        }
        idle = if questions == before { idle + 1 } else { 0 };
    }
    assert!(questions < 200, "{questions} questions wait for answers");
    let id = connection.expect("somebody asked");
    for _ in 0..questions {
        let payload = Payload::Owned(vec![0; 1 << 19]);
        let bytes = payload.len();
        server.reply(id, payload, |out| {
            encode_peer_answer(out, &envelope(1), &pong(1), bytes);
        });
    }
    until(&mut [&mut server], |_, _, event| {
        matches!(
            event,
            Event::Closed {
                reason: Reason::Slow,
                ..
            }
        )
    });
    is_well(&mut server, address);
}

#[test]
fn there_are_never_more_connections_than_allowed() {
    let (mut server, address) = server(Limits {
        connections: 4,
        ..limits()
    });
    let mut peers = Vec::new();
    for n in 0..8 {
        let (mut peer, proof) = known(&mut server, address);
        peer.write_all(&proof).unwrap();
        let reader = (n >= 4).then(|| {
            let mut peer = peer.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut told = Vec::new();
                peer.set_read_timeout(Some(PATIENCE)).unwrap();
                peer.read_to_end(&mut told).map(|_| told)
            })
        });
        let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
        let mut is_accepted = false;
        while Instant::now() < deadline && !is_accepted {
            server.poll(STEP, &mut events);
            is_accepted = events
                .drain(..)
                .any(|event| matches!(event, Event::Accepted { .. }));
            if reader.as_ref().is_some_and(|reader| reader.is_finished()) {
                break;
            }
        }
        assert_eq!(is_accepted, n < 4);
        if let Some(reader) = reader {
            let told = reader.join().unwrap().expect("until the end");
            let Ok(Parsed::Frame { frame, .. }) = parse_frame(&told, 1 << 20) else {
                panic!("no reason");
            };
            assert!(matches!(decode_reply(&frame), Ok(Reply::Trouble(_))));
        }
        peers.push(peer);
    }
    drop(peers);
    let mut closed = 0;
    until(&mut [&mut server], |_, _, event| {
        closed += usize::from(matches!(event, Event::Closed { .. }));
        closed == 4
    });
    is_well(&mut server, address);
}

#[test]
fn what_is_outstanding_when_a_link_breaks_is_named_once_and_the_link_comes_back() {
    let (mut server, address) = server(limits());
    let to = address.to_string();
    let mut client = hub(Role::Server, "here", limits());
    for request in [1, 2, 3] {
        ask(&mut client, &to, request, Payload::None);
    }
    client.forget(&to, Role::Server, 2);
    until(&mut [&mut server, &mut client], |n, hub, event| {
        if n == 0 && matches!(&event, Event::Question { message, .. } if nonce_of(message) == 1) {
            answer(hub, &event);
        }
        n == 1 && matches!(event, Event::Answer { request: 1, .. })
    });
    drop(server);
    until(&mut [&mut client], |_, _, event| match event {
        Event::Unanswered {
            requests, address, ..
        } => {
            assert_eq!((requests, address), (vec![3], to.clone()));
            true
        }
        other => panic!("{other:?}"),
    });
    // No peer is there: that is reported soon, and not too often.
    let began = Instant::now();
    for request in 10..16 {
        ask(&mut client, &to, request, Payload::None);
        until(&mut [&mut client], |_, _, event| {
            assert!(matches!(&event, Event::Unanswered { requests, .. } if *requests == [request]));
            true
        });
    }
    assert!(began.elapsed() > Duration::from_millis(100), "it backs off");
    let mut server = hub(Role::Server, "here", limits());
    server.listen(address).expect("the same port");
    ask(&mut client, &to, 20, Payload::None);
    until(&mut [&mut server, &mut client], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { request: 20, .. })
    });
    client.close_links(&to);
    ask(&mut client, &to, 21, Payload::None);
    until(&mut [&mut server, &mut client], |n, hub, event| {
        answer(hub, &event);
        n == 1 && matches!(event, Event::Answer { request: 21, .. })
    });
}

#[test]
fn a_peer_that_accepts_and_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let mut client = hub(Role::Server, "here", impatient());
    ask(&mut client, &to, 1, Payload::None);
    until(&mut [&mut client], |_, _, event| match event {
        Event::Unanswered { requests, .. } => {
            assert_eq!(requests, [1]);
            true
        }
        other => panic!("{other:?}"),
    });
    // Also a name that cannot be resolved.
    ask(&mut client, "no host at all:1", 2, Payload::None);
    until(
        &mut [&mut client],
        |_, _, event| matches!(event, Event::Unanswered { requests, .. } if requests == [2]),
    );
    // And a peer that answers with garbage; its thread ends with the process.
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer = peer.expect("the link");
            let handshake = Handshake::accept(Role::Server, [7; 32]);
            let _ = handshake.run(here(b""), Vec::new(), &mut peer);
            let _ = peer.write_all(&[0xff; 64]);
            let mut rest = Vec::new();
            let _ = peer.read_to_end(&mut rest);
        }
    });
    let mut request = 3;
    ask(&mut client, &to, request, Payload::None);
    until(&mut [&mut client], |_, client, event| match event {
        Event::Unanswered {
            reason: Reason::Frame(_),
            ..
        } => true,
        // The machine stood still, and the hello came too late.
        Event::Unanswered { .. } => {
            request += 1;
            ask(client, &to, request, Payload::None);
            false
        }
        other => panic!("{other:?}"),
    });
}

/// A server that listens at the second address of its name was once never reached, and was
/// considered dead: only the first address was tried.
#[test]
fn every_address_of_a_name_is_tried() {
    let (mut server, address) = server(limits());
    let mut options = Options::new(Role::Server, "here");
    options.limits = limits();
    // Nothing listens at this host's other address.
    options.resolve = |name| {
        let port = name.split_once(':').expect("a port").1;
        let at = |host| format!("{host}:{port}").parse().expect("an address");
        Ok(vec![at("127.0.0.2"), at("127.0.0.1")])
    };
    let mut client = Hub::new(options).expect("a hub");
    let to = format!("two-addresses:{}", address.port());
    ask(&mut client, &to, 1, Payload::None);
    until(&mut [&mut server, &mut client], |n, hub, event| {
        answer(hub, &event);
        assert!(!matches!(event, Event::Unanswered { .. }), "{event:?}");
        n == 1 && matches!(event, Event::Answer { request: 1, .. })
    });
    drop(server);
    is_told(&mut client, |reason| *reason == Reason::Ended);
    ask(&mut client, &to, 2, Payload::None);
    is_told(&mut client, |reason| *reason == Reason::NobodyListens);
}

/// The next link that breaks does so for this reason.
fn is_told(client: &mut TestHub, is: impl Fn(&Reason) -> bool) {
    until(&mut [client], |_, _, event| match event {
        Event::Unanswered { reason, .. } => {
            assert!(is(&reason), "{reason:?}");
            true
        }
        other => panic!("{other:?}"),
    });
}

/// A coordinator once took each of these for the end of a server's process, and declared the server
/// crashed.
#[test]
fn only_a_refused_connection_or_an_end_behind_the_hello_is_a_sign_of_death() {
    let mut client = hub(Role::Server, "here", limits());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    // Accepted, and closed at once: by a proxy, or by a server without descriptors.
    ask(&mut client, &to, 1, Payload::None);
    let closes = std::thread::spawn(move || drop(listener.accept().unwrap()));
    is_told(&mut client, |r| {
        *r == Reason::NoHello && !r.is_sign_of_death()
    });
    closes.join().unwrap();
    ask(&mut client, &to, 3, Payload::None);
    is_told(&mut client, |r| {
        *r == Reason::NobodyListens && r.is_sign_of_death()
    });
    ask(&mut client, "no host at all:1", 4, Payload::None);
    is_told(&mut client, |r| !r.is_sign_of_death());
    // Another token or cluster: the server runs, and this process is wrong.
    let (mut server, address) = server(limits());
    let mut stranger = hub(Role::Server, "there", limits());
    ask(&mut stranger, &address.to_string(), 6, Payload::None);
    until(
        &mut [&mut server, &mut stranger],
        |_, _, event| match event {
            Event::Unanswered { reason, .. } => {
                assert!(
                    reason.is_denial() && !reason.is_sign_of_death(),
                    "{reason:?}"
                );
                true
            }
            other => panic!("{other:?}"),
        },
    );
}

#[test]
fn a_connection_moves_to_another_hub_with_what_came_already() {
    let options = Options {
        hands_over: |role| role == Role::Replica,
        ..Options::new(Role::Server, "here")
    };
    let mut listener: TestHub = Hub::new(options).unwrap();
    let address = listener.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut keeper = hub(Role::Server, "here", limits());
    let made = shake(&mut listener, address, Role::Replica, here(b""));
    let (mut peer, mut bytes) = made.expect("it is of this cluster");
    let (one, two) = (ping(1, b"first"), ping(2, b"second"));
    bytes.extend(&one);
    bytes.extend(&two[..20]);
    peer.write_all(&bytes).unwrap();
    until(&mut [&mut listener], |_, _, event| match event {
        Event::Handed(incoming) => {
            assert_eq!(incoming.role, Role::Replica);
            keeper.adopt(incoming);
            true
        }
        other => panic!("{other:?}"),
    });
    peer.write_all(&two[20..]).unwrap();
    let mut nonces = Vec::new();
    until(&mut [&mut keeper, &mut listener], |n, hub, event| {
        assert_eq!(n, 0, "{event:?}");
        answer(hub, &event);
        if let Event::Question { message, role, .. } = event {
            assert_eq!(role, Role::Replica);
            nonces.push(nonce_of(&message));
        }
        nonces == [1, 2]
    });
}

#[test]
fn other_threads_wake_it_in_time_and_nothing_they_say_is_lost() {
    let mut hub = hub(Role::Server, "here", limits());
    let handle = hub.handle();
    let teller = std::thread::spawn(move || {
        for n in 0..10_000 {
            handle.tell(n);
        }
    });
    let mut next = 0;
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while next < 10_000 && Instant::now() < deadline {
        hub.poll(Some(PATIENCE), &mut events);
        for event in events.drain(..) {
            match event {
                Event::Mail(n) => {
                    assert_eq!(n, next);
                    next += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    teller.join().unwrap();
    assert_eq!(next, 10_000);
}
