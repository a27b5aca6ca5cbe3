//! Frames made by the test: cut, wrong, too many, or for another server.

use super::cluster::{Cluster, DEADLINE, ME};
use duramen_base::ids::{MapVersion, ServerId, TableId};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, PEER_FRAME_BYTES_MAX, Parsed, Reply, Trouble, decode_reply,
    encode_ping, encode_single, encode_to_coordinator, parse_frame,
};
use duramen_wire::native::message::{
    Answer, Condition, Expiry, Operation, Outcome, Problem, Single, ToCoordinator,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub(super) fn envelope(request: u64) -> Envelope {
    Envelope::of_client(request, ME, MapVersion(7))
}

pub(super) fn read(table: TableId, key: &[u8]) -> Single<'_> {
    Single {
        table,
        key,
        operation: Operation::Read,
        level: None,
        rpc: None,
    }
}

/// Passes each reply to `show` until `count` arrived or the connection ended; returns the number.
fn replies(stream: &mut TcpStream, count: usize, mut show: impl FnMut(u64, Reply<'_>)) -> usize {
    let (mut input, mut seen) = (Vec::new(), 0);
    while seen < count {
        while let Ok(Parsed::Frame { frame, bytes }) = parse_frame(&input, PEER_FRAME_BYTES_MAX) {
            let request = frame.header.envelope.request;
            show(request, decode_reply(&frame).expect("a reply"));
            seen += 1;
            input.drain(..bytes);
        }
        let mut chunk = [0; 64 << 10];
        if seen < count {
            match stream.read(&mut chunk) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(read) => input.extend_from_slice(&chunk[..read]),
            }
        }
    }
    seen
}

#[test]
fn a_pipeline_is_answered_in_order_however_it_is_cut() {
    let cluster = Cluster::start(None);
    let mut stream = cluster.raw();
    let mut sent = Vec::new();
    for n in 0..3_000u64 {
        let key = format!("key {}", n / 2);
        let value = vec![n as u8; (n % 700) as usize];
        let single = read(cluster.table, key.as_bytes());
        if n % 2 == 0 {
            let operation = Operation::Write {
                value: &value,
                condition: Condition::Always,
                expiry: Expiry::Never,
            };
            encode_single(
                &mut sent,
                &envelope(n),
                &Single {
                    operation,
                    ..single
                },
            );
        } else {
            encode_single(&mut sent, &envelope(n), &single);
        }
    }
    let mut writer = stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        let (mut at, mut piece) = (0, 1);
        while at < sent.len() {
            let end = (at + piece).min(sent.len());
            writer.write_all(&sent[at..end]).expect("sends");
            (at, piece) = (end, piece * 3 % 70_001 + 1);
        }
    });
    let mut next = 0;
    let count = replies(&mut stream, 3_000, |request, reply| {
        assert_eq!(request, next);
        next += 1;
        match reply {
            Reply::Client(Answer::Single(Outcome::Written { .. })) => assert_eq!(request % 2, 0),
            Reply::Client(Answer::Single(Outcome::Value { value, .. })) => {
                assert_eq!(
                    value,
                    vec![(request - 1) as u8; ((request - 1) % 700) as usize]
                );
            }
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(count, 3_000);
    sender.join().expect("all was sent");
}

#[test]
fn bad_bodies_are_refused_and_bad_frames_end_the_connection() {
    let cluster = Cluster::start(None);
    let mut stream = cluster.raw();
    let mut sent = Vec::new();
    // An invalid body: the operation does not exist, but the checksum is right.
    encode_single(&mut sent, &envelope(1), &read(cluster.table, b"k"));
    let bad = duramen_wire::native::codec::Kind::Multi as u16;
    sent[4..6].copy_from_slice(&bad.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&sent[..36]), &sent[40..]);
    sent[36..40].copy_from_slice(&crc.to_le_bytes());
    // A question for a coordinator, one for another life, one with an older map, a table that does
    // not exist, a ping.
    let map = ToCoordinator::Map {
        table: None,
        since: MapVersion(0),
    };
    encode_to_coordinator(&mut sent, &envelope(2), &map);
    let other = Envelope {
        target: ServerId::new(1, 2),
        ..envelope(3)
    };
    encode_single(&mut sent, &other, &read(cluster.table, b"k"));
    let old = Envelope::of_client(4, ME, MapVersion(6));
    encode_single(&mut sent, &old, &read(cluster.table, b"k"));
    encode_single(&mut sent, &envelope(5), &read(TableId(99), b"k"));
    encode_ping(&mut sent, &envelope(6));
    stream.write_all(&sent).expect("sends");
    let mut seen = Vec::new();
    replies(&mut stream, 6, |request, reply| {
        seen.push(request);
        match (request, reply) {
            (1, Reply::Trouble(Trouble::Malformed { .. }))
            | (2, Reply::Trouble(Trouble::NotServing { .. }))
            | (6, Reply::Client(Answer::Pong)) => {}
            (3, Reply::Trouble(Trouble::WrongServer { here })) => assert_eq!(here, ME),
            (4, Reply::Client(Answer::Single(Outcome::Problem(problem)))) => {
                assert_eq!(problem, Problem::UnknownTablet);
            }
            (5, Reply::Client(Answer::Single(Outcome::Problem(problem)))) => {
                assert_eq!(problem, Problem::UnknownTable);
            }
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    for wrong in [
        (CLIENT_FRAME_BYTES_MAX as u32 + 1).to_le_bytes().to_vec(),
        vec![0; 40],
    ] {
        let mut stream = cluster.raw();
        let mut sent = Vec::new();
        encode_ping(&mut sent, &envelope(1));
        sent.extend_from_slice(&wrong);
        stream.write_all(&sent).expect("sends");
        let mut kinds = Vec::new();
        replies(&mut stream, 3, |_, reply| {
            kinds.push(matches!(reply, Reply::Trouble(Trouble::Malformed { .. })));
        });
        assert_eq!(
            kinds,
            [false, true],
            "what came before is answered, then the end"
        );
    }
}

/// Without its lease a member sends no reply that depends on data; when it gets the lease back, the
/// waiting replies are true.
#[test]
fn nothing_is_told_of_data_without_a_lease() {
    let cluster = Cluster::with(None, |config| config.threads = 1);
    let (mut stream, mut other) = (cluster.raw(), cluster.raw());
    let mut ping = Vec::new();
    encode_ping(&mut ping, &envelope(1));
    let mut single = Vec::new();
    encode_single(&mut single, &envelope(2), &read(cluster.table, b"k"));
    cluster.read_until.set(0);
    stream.write_all(&single).expect("sends");
    // The only thread has handled both when it answers the second.
    let threads = &cluster.server.shared().threads;
    super::wait_until("it was executed", || threads[0].counters.commands.get() > 0);
    other.write_all(&ping).expect("sends");
    assert_eq!(replies(&mut other, 1, |_, _| {}), 1);
    stream.set_nonblocking(true).expect("non-blocking");
    let nothing = stream.read(&mut [0; 64]).expect_err("no reply");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).expect("blocking");
    cluster.read_until.set(u64::MAX);
    let count = replies(&mut stream, 1, |request, reply| {
        assert_eq!(request, 2);
        assert_eq!(reply, Reply::Client(Answer::Single(Outcome::Absent)));
    });
    assert_eq!(count, 1);
}

/// Native clients took no notice of CLIENT PAUSE: their writes took effect after it was answered
/// (pause::P2).
#[test]
fn requests_wait_for_the_end_of_client_pause() {
    let cluster = Cluster::start(None);
    let options = duramen_client::Options {
        deadline: Duration::from_secs(3), // also of its connecting, on a slow machine
        ..cluster.options()
    };
    let client = duramen_client::Client::connect(options).expect("the coordinator");
    let (patient, impatient) = (cluster.table(), client.table("t").expect("table t"));
    let mut admin = TcpStream::connect(cluster.server.addresses().resp[0]).expect("connects");
    admin.set_read_timeout(Some(DEADLINE)).expect("timeout");
    let mut ask_admin = |request: &str| {
        let request = format!("{request}\r\n");
        admin.write_all(request.as_bytes()).expect("sends");
        let mut reply = [0; 5];
        admin.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"+OK\r\n", "{request}");
    };
    let mut stream = cluster.raw();
    // The answer to a frame: it is to be sent again, it is absent, or another one.
    let mut ask = |frame: &[u8]| {
        stream.write_all(frame).expect("sends");
        let mut answer = "";
        let count = replies(&mut stream, 1, |_, reply| {
            answer = match reply {
                Reply::Trouble(Trouble::Busy { after_ms: 1.. }) => "again",
                Reply::Client(Answer::Single(Outcome::Absent)) => "absent",
                Reply::Client(Answer::Single(Outcome::Written { .. })) => "written",
                Reply::Client(Answer::Pong) => "pong",
                other => panic!("{other:?}"),
            };
        });
        assert_eq!(count, 1);
        answer
    };
    let of_single = |single: &Single<'_>| {
        let mut frame = Vec::new();
        encode_single(&mut frame, &envelope(1), single);
        frame
    };
    let read = read(cluster.table, b"k");
    let operation = Operation::Write {
        value: b"v",
        condition: Condition::Always,
        expiry: Expiry::Never,
    };
    let (write, mut ping) = (of_single(&Single { operation, ..read }), Vec::new());
    let read = of_single(&read);
    encode_ping(&mut ping, &envelope(1));
    for (mode, answer_to_read) in [("WRITE", "absent"), ("ALL", "again")] {
        ask_admin(&format!("CLIENT PAUSE 100000 {mode}"));
        assert_eq!(ask(&write), "again", "{mode}");
        assert_eq!(ask(&read), answer_to_read, "{mode}");
        assert_eq!(ask(&ping), "pong", "{mode}");
        let objects = [("l", "v"), ("m", "w")];
        let written = impatient.set_many(&objects, duramen_client::Write::default());
        let is_late = |result: &Result<_, _>| {
            use duramen_client::Error::{Deadline, OutcomeUnknown};
            matches!(result, Err(Deadline { .. } | OutcomeUnknown { .. }))
        };
        assert!(written.iter().all(is_late), "{mode}: {written:?}");
        ask_admin("CLIENT UNPAUSE");
        assert_eq!(ask(&read), "absent", "{mode}");
    }
    // The client sends it again until the pause is over.
    ask_admin("CLIENT PAUSE 300 WRITE");
    patient.set(b"n", b"v").expect("written behind the pause");
    assert_eq!(ask(&write), "written");
}
