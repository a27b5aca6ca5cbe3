//! The native protocol's bytes: they equal the golden file, they decode to the original messages,
//! and all other bytes are refused.

mod balance_samples;
mod client_samples;
mod handshake;
mod properties;
mod recovery_samples;
mod samples;
mod user_samples;

use duramen_wire::native::codec::{
    Frame, FrameError, HEADER_BYTES, PEER_FRAME_BYTES_MAX, Parsed, Question, Reply,
    decode_question, decode_reply, parse_frame,
};
use duramen_wire::native::message::{Answer, Peer, Request};
use samples::ENVELOPE;

const GOLDEN: &str = include_str!("golden.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The single frame in `bytes`.
fn whole(bytes: &[u8]) -> Frame<'_> {
    match parse_frame(bytes, PEER_FRAME_BYTES_MAX) {
        Ok(Parsed::Frame { frame, bytes: all }) if all == bytes.len() => frame,
        other => panic!("{other:?}"),
    }
}

/// Bytes must not change within a protocol version: other programs use it. After adding a message,
/// run this with `DURAMEN_GOLDEN=write` and look at the difference: lines may be added, but no line
/// may change.
#[test]
fn bytes_are_the_golden_ones() {
    let text: String = samples::frames()
        .iter()
        .map(|(name, frame)| format!("{name} {}\n", hex(frame)))
        .collect();
    if std::env::var("DURAMEN_GOLDEN").as_deref() == Ok("write") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/native/golden.txt");
        std::fs::write(path, &text).expect("the golden file is writable");
        return;
    }
    for (ours, golden) in text.lines().zip(GOLDEN.lines()) {
        assert_eq!(ours, golden);
    }
    assert_eq!(text.lines().count(), GOLDEN.lines().count());
}

fn questions_come_back<M: PartialEq + std::fmt::Debug>(
    name: &str,
    samples: Vec<M>,
    question: impl Fn(Question<'_>) -> Option<M>,
) {
    let frames = samples::frames();
    let frames = frames.iter().filter(|(found, _)| belongs(found, name));
    let back: Vec<M> = frames
        .filter_map(|(_, frame)| question(decode_question(&whole(frame)).expect(name)))
        .collect();
    assert_eq!(back, samples);
}

fn replies_come_back<M: PartialEq + std::fmt::Debug>(
    name: &str,
    samples: Vec<M>,
    reply: impl Fn(Reply<'_>) -> Option<M>,
) {
    let frames = samples::frames();
    let frames = frames.iter().filter(|(found, _)| belongs(found, name));
    let back: Vec<M> = frames
        .filter_map(|(_, frame)| reply(decode_reply(&whole(frame)).expect(name)))
        .collect();
    assert_eq!(back, samples);
}

fn belongs(found: &str, name: &str) -> bool {
    found
        .strip_prefix(name)
        .is_some_and(|rest| rest.len() == 3 && rest.starts_with('-'))
}

#[test]
fn control_messages_come_back() {
    questions_come_back("to-coordinator", samples::to_coordinator(), |q| match q {
        Question::ToCoordinator(message) => Some(message),
        _ => None,
    });
    questions_come_back(
        "from-coordinator",
        samples::from_coordinator(),
        |q| match q {
            Question::FromCoordinator(message) => Some(message),
            _ => None,
        },
    );
    let peer: Vec<Peer> = samples::peer().into_iter().map(|(peer, _)| peer).collect();
    questions_come_back("peer", peer, |q| match q {
        Question::Peer(message) => Some(message),
        _ => None,
    });
    replies_come_back(
        "coordinator-answer",
        samples::coordinator_answers(),
        |r| match r {
            Reply::Coordinator(message) => Some(message),
            _ => None,
        },
    );
    let answers = recovery_samples::server_answers()
        .into_iter()
        .map(|(answer, _)| answer);
    replies_come_back("server-answer", answers.collect(), |r| match r {
        Reply::Server(message) => Some(message),
        _ => None,
    });
    let answers = samples::peer_answers()
        .into_iter()
        .map(|(answer, _)| answer);
    replies_come_back("peer-answer", answers.collect(), |r| match r {
        Reply::Peer(message) => Some(message),
        _ => None,
    });
}

#[test]
fn client_messages_come_back() {
    let frames = samples::frames();
    let frame = |name: &str| {
        let (_, bytes) = frames.iter().find(|(found, _)| found == name).expect(name);
        whole(bytes)
    };
    for (n, single) in samples::singles().iter().enumerate() {
        let back = decode_question(&frame(&format!("single-{n:02}")));
        assert_eq!(back, Ok(Question::Client(Request::Single(*single))));
    }
    for (n, outcome) in samples::outcomes().iter().enumerate() {
        let back = decode_reply(&frame(&format!("outcome-{n:02}")));
        assert_eq!(back, Ok(Reply::Client(Answer::Single(*outcome))));
    }
    for (n, problem) in samples::problems().iter().enumerate() {
        let back = decode_reply(&frame(&format!("enumerate-problem-{n:02}")));
        assert_eq!(back, Ok(Reply::Client(Answer::Problem(*problem))));
    }
    for (n, trouble) in samples::troubles().iter().enumerate() {
        let back = decode_reply(&frame(&format!("trouble-{n:02}")));
        assert_eq!(back, Ok(Reply::Trouble(*trouble)));
    }
    assert_eq!(
        decode_question(&frame("ping-00")),
        Ok(Question::Client(Request::Ping))
    );
    assert_eq!(
        decode_reply(&frame("pong-00")),
        Ok(Reply::Client(Answer::Pong))
    );
    let login = decode_question(&frame("login-00"));
    assert_eq!(login, Ok(Question::Login(samples::LOGIN)));
    assert!(!format!("{login:?}").contains("sesame"));
    assert_eq!(decode_reply(&frame("logged-in-00")), Ok(Reply::LoggedIn));
    let Ok(Question::Client(Request::Multi(parts))) = decode_question(&frame("multi-00")) else {
        panic!("no multi request");
    };
    assert!(parts.iter().eq(samples::singles()));
    let Ok(Reply::Client(Answer::Multi(outcomes))) = decode_reply(&frame("multi-answer-00")) else {
        panic!("no multi answer");
    };
    assert!(outcomes.iter().eq(samples::outcomes()));
    for n in 0..2 {
        let Ok(Reply::Client(Answer::Objects {
            last,
            cursor,
            objects,
        })) = decode_reply(&frame(&format!("objects-{n:02}")))
        else {
            panic!("no objects");
        };
        assert_eq!((last.0, cursor), (99, [None, Some(77)][n]));
        assert!(objects.iter().eq(samples::objects()));
    }
}

#[test]
fn envelopes_and_payloads_come_back() {
    for (name, bytes) in samples::frames() {
        let frame = whole(&bytes);
        assert_eq!(frame.header.envelope, ENVELOPE, "{name}");
    }
    for (n, (_, payload)) in samples::peer().iter().enumerate() {
        let frames = samples::frames();
        let (_, bytes) = frames
            .iter()
            .find(|(name, _)| *name == format!("peer-{n:02}"))
            .expect("there is one");
        assert_eq!(whole(bytes).payload, *payload);
    }
}

/// Every cut frame is incomplete, reports the length it needs, and needs no more than the whole
/// frame.
#[test]
fn cut_frames_are_incomplete() {
    for (name, bytes) in samples::frames() {
        for cut in 0..bytes.len() {
            let needed = match parse_frame(&bytes[..cut], PEER_FRAME_BYTES_MAX) {
                Ok(Parsed::Incomplete { needed }) => needed,
                other => panic!("{name} cut at {cut}: {other:?}"),
            };
            let expected = if cut < HEADER_BYTES {
                HEADER_BYTES
            } else {
                bytes.len()
            };
            assert_eq!(needed, expected, "{name} cut at {cut}");
        }
    }
}

/// No flipped bit of header or body is accepted. Payloads have their own checksums (codec::N3).
#[test]
fn flipped_bits_do_not_pass() {
    for (name, mut bytes) in samples::frames() {
        let protected = HEADER_BYTES + whole(&bytes).body.len();
        for at in 0..protected {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let parsed = parse_frame(&bytes, PEER_FRAME_BYTES_MAX);
                assert!(
                    !matches!(parsed, Ok(Parsed::Frame { .. })),
                    "{name}: bit {bit} of byte {at}"
                );
                bytes[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn long_frames_are_refused_before_they_are_waited_for() {
    let mut bytes = samples::frames().swap_remove(0).1;
    bytes[..4].copy_from_slice(&1001u32.to_le_bytes());
    let refused = Err(FrameError::TooLong {
        bytes: 1001,
        limit: 1000,
    });
    assert_eq!(parse_frame(&bytes[..4], 1000), refused);
    assert_eq!(parse_frame(&bytes, 1000), refused);
}
