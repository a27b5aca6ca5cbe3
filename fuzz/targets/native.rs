//! The native protocol: any bytes, cut anywhere, give the same frames and the same error; no body
//! makes its decoder panic, whatever its checksum; a decoded message decodes again from its own
//! encoding.
#![no_main]

use duramen_base::ids::ClusterId;
use duramen_wire::native::codec::{
    Credentials, Envelope, Frame, FrameError, HANDSHAKE_BYTES_MAX, HEADER_BYTES, Handshake,
    MultiAnswer, MultiRequest, ObjectsAnswer, Parsed, Progress, Question, Reply, Role,
    decode_question, decode_reply, encode_coordinator_answer, encode_enumerate,
    encode_enumerate_problem, encode_from_coordinator, encode_logged_in, encode_login,
    encode_outcome, encode_peer, encode_peer_answer, encode_ping, encode_pong,
    encode_server_answer, encode_single, encode_to_coordinator, encode_trouble, parse_frame,
};
use duramen_wire::native::message::{Answer, Request};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 16;

/// Feeds `input` in chunks of `step` bytes, as a connection would; returns the frames' bytes, and
/// the reason for the end.
fn frames(input: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let (mut buffer, mut all) = (Vec::new(), Vec::new());
    for chunk in input.chunks(step) {
        buffer.extend_from_slice(chunk);
        loop {
            match parse_frame(&buffer, LIMIT) {
                Ok(Parsed::Incomplete { needed }) => {
                    assert!(needed > buffer.len() && needed <= HEADER_BYTES + LIMIT);
                    break;
                }
                Ok(Parsed::Frame { bytes, .. }) => {
                    all.push(buffer[..bytes].to_vec());
                    buffer.drain(..bytes);
                }
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

fn one(bytes: &[u8]) -> Frame<'_> {
    match parse_frame(bytes, usize::MAX) {
        Ok(Parsed::Frame { frame, .. }) => frame,
        other => panic!("{other:?}"),
    }
}

/// Encodes a decoded message; a message with only one form (fixed bodies) must give the very same
/// bytes.
fn question(frame: &Frame<'_>) {
    let Ok(message) = decode_question(frame) else {
        return;
    };
    let (mut out, envelope) = (Vec::new(), Envelope::default());
    match &message {
        Question::ToCoordinator(m) => encode_to_coordinator(&mut out, &envelope, m),
        Question::FromCoordinator(m) => encode_from_coordinator(&mut out, &envelope, m),
        Question::Peer(m) => encode_peer(&mut out, &envelope, m, 0),
        Question::Client(Request::Ping) => encode_ping(&mut out, &envelope),
        Question::Client(Request::Single(single)) => encode_single(&mut out, &envelope, single),
        Question::Client(Request::Multi(parts)) => {
            let mut multi = MultiRequest::new(&mut out, &envelope);
            parts.iter().for_each(|single| multi.push(&single));
            multi.finish();
        }
        Question::Client(Request::Enumerate {
            table,
            range,
            cursor,
            bytes_max,
        }) => encode_enumerate(&mut out, &envelope, *table, *range, *cursor, *bytes_max),
        Question::Login(login) => encode_login(&mut out, &envelope, login),
    }
    let again = one(&out);
    if frame.header.kind >= 4 {
        assert_eq!(again.body, frame.body);
    } else {
        assert_eq!(decode_question(&again), Ok(message));
    }
}

fn reply(frame: &Frame<'_>) {
    let Ok(message) = decode_reply(frame) else {
        return;
    };
    let (mut out, envelope) = (Vec::new(), Envelope::default());
    match &message {
        Reply::Coordinator(m) => encode_coordinator_answer(&mut out, &envelope, m),
        Reply::Server(m) => encode_server_answer(&mut out, &envelope, m, 0),
        Reply::Peer(m) => encode_peer_answer(&mut out, &envelope, m, 0),
        Reply::Trouble(trouble) => encode_trouble(&mut out, &envelope, frame.header.kind, trouble),
        Reply::LoggedIn => encode_logged_in(&mut out, &envelope),
        Reply::Client(Answer::Pong) => encode_pong(&mut out, &envelope),
        Reply::Client(Answer::Single(outcome)) => encode_outcome(&mut out, &envelope, outcome),
        Reply::Client(Answer::Multi(outcomes)) => {
            let mut multi = MultiAnswer::new(&mut out, &envelope);
            outcomes.iter().for_each(|outcome| multi.push(&outcome));
            multi.finish();
        }
        Reply::Client(Answer::Objects {
            last,
            cursor,
            objects,
        }) => {
            let mut answer = ObjectsAnswer::new(&mut out, &envelope);
            objects.iter().for_each(|object| answer.push(&object));
            answer.finish(*last, *cursor);
        }
        Reply::Client(Answer::Problem(problem)) => {
            encode_enumerate_problem(&mut out, &envelope, problem);
        }
    }
    let again = one(&out);
    if frame.header.kind >= 4 || frame.header.error {
        assert_eq!(again.body, frame.body);
    } else {
        assert_eq!(decode_reply(&again), Ok(message));
    }
}

/// A peer without the token, on either side of the connection: none of its bytes, cut anywhere,
/// gets it accepted or makes the state grow without bound.
fn strangers(input: &[u8], step: usize) {
    let ours = Credentials {
        cluster: "here",
        token: b"unknown to the fuzzer",
        id: ClusterId(7),
    };
    let mut opening = Vec::new();
    for mut handshake in [
        Handshake::accept(Role::Server, [1; 32]),
        Handshake::dial(Role::Server, [1; 32], &mut opening),
    ] {
        let (mut buffer, mut out) = (Vec::new(), Vec::new());
        for chunk in input.chunks(step) {
            buffer.extend_from_slice(chunk);
            match handshake.advance(ours, &buffer, &mut out) {
                Ok(Progress::Waiting { used }) => drop(buffer.drain(..used)),
                Ok(Progress::Done { .. }) => panic!("it is known"),
                Err(_) => break,
            }
            assert!(buffer.len() < HANDSHAKE_BYTES_MAX && out.len() < HANDSHAKE_BYTES_MAX);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((step, input)) = data.split_first() else {
        return;
    };
    strangers(input, usize::from(*step) + 1);
    let (whole, error) = frames(input, input.len().max(1));
    let (cut, cut_error) = frames(input, usize::from(*step) + 1);
    assert_eq!((&whole, error), (&cut, cut_error));
    // The same bytes as every kind and direction, with valid checksums.
    let body = input.get(HEADER_BYTES..).unwrap_or_default();
    let mut sample = Vec::new();
    encode_ping(&mut sample, &Envelope::default());
    for kind in [1, 2, 3, 4, 16, 17, 18, 19] {
        let mut frame = Frame {
            body,
            ..one(&sample)
        };
        frame.header.kind = kind;
        question(&frame);
        frame.header.reply = true;
        reply(&frame);
        frame.header.error = true;
        reply(&frame);
    }
});
