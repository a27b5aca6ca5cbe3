//! Bodies of all kinds, and their mapping to messages.
//!
//! **Layout** of `WriteReplica`:
//!
//! ```text
//! 0      8         16      24       28       32    36         40     41      42      43   48
//! +------+---------+-------+--------+--------+-----+----------+------+-------+-------+----+
//! | log  | segment | epoch | offset | length | crc | capacity | kind | flags | level |  0 |
//! | u64  |   u64   |  u64  |  u32   |  u32   | u32 |   u32    |  u8  |  u8   |  u8   |    |
//! +------+---------+-------+--------+--------+-----+----------+------+-------+-------+----+
//! ```
//!
//! Flags: 1 length and crc are a certificate, 2 open, 4 close, 8 primary.
//!
//! A [`Trouble`]: code u16, zero u16, after_ms u32, server id u64, text up to the end.

use super::cursor::Cursor;
use super::frame::Builder;
use super::login::decode_login;
use super::many::{read_multi_outcomes, read_objects, read_parts};
use super::operations::{read_enumerate, read_single, read_whole_outcome};
use super::{BodyError, Envelope, Frame, Kind};
use crate::native::message::{
    Answer, CoordinatorAnswer, FromCoordinator, Login, Peer, PeerAnswer, Recover, Request,
    ServerAnswer, ToCoordinator, WriteReplica,
};
use duramen_base::ids::{Level, SegmentId, ServerId};
use duramen_format::certificate::Certificate;
use duramen_format::segment;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Any question.
#[derive(Clone, Debug, PartialEq)]
pub enum Question<'a> {
    ToCoordinator(ToCoordinator),
    FromCoordinator(FromCoordinator),
    Peer(Peer),
    Client(Request<'a>),
    Login(Login<'a>),
}

/// Any answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<'a> {
    Coordinator(CoordinatorAnswer),
    Server(ServerAnswer),
    Peer(PeerAnswer),
    Client(Answer<'a>),
    LoggedIn,
    Trouble(Trouble<'a>),
}

/// Reason why a question was not examined. May be the answer to any question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble<'a> {
    /// An error in the sender's program.
    #[error("not understood: {reason}")]
    Malformed { reason: &'a str },
    /// The question was for another server, or for another life of this one: get the server list or
    /// the map again.
    #[error("server {here} is here, not the addressee")]
    WrongServer { here: ServerId },
    /// The sides belong to different clusters; see [`HelloError`](super::HelloError). The
    /// connection ends.
    #[error("{reason}")]
    WrongCluster { reason: &'a str },
    #[error("{reason}")]
    WrongProtocol { reason: &'a str },
    /// No coordinator, master or backup is here that serves such a question.
    #[error("not served here: {reason}")]
    NotServing { reason: &'a str },
    /// Ask again after this time.
    #[error("overloaded: ask again in {after_ms} ms")]
    Busy { after_ms: u32 },
    /// The hello's token is wrong, or the client has to log in, or its login is wrong, or its user
    /// may not do this.
    #[error("not permitted: {reason}")]
    NotPermitted { reason: &'a str },
}

const CERTIFICATE: u8 = 1;
const OPEN: u8 = 2;
const CLOSE: u8 = 4;
const PRIMARY: u8 = 8;

/// # Panics
/// Never with the messages of this crate: postcard fails only on types that it does not support.
fn append(out: &mut Vec<u8>, message: &impl Serialize) {
    struct Out<'o>(&'o mut Vec<u8>);
    impl Extend<u8> for Out<'_> {
        fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
            self.0.extend(bytes);
        }
    }
    postcard::to_extend(message, Out(out)).expect("every message has a postcard form");
}

fn postcard<M: DeserializeOwned>(kind: Kind, body: &[u8]) -> Result<M, BodyError> {
    let (message, rest) = postcard::take_from_bytes(body).map_err(|error| BodyError::Postcard {
        kind,
        reason: error.to_string(),
    })?;
    Cursor::new(kind, rest).end()?;
    Ok(message)
}

/// Appends a question to the coordinator.
pub fn encode_to_coordinator(out: &mut Vec<u8>, envelope: &Envelope, message: &ToCoordinator) {
    let builder = Builder::question(out, Kind::ToCoordinator, envelope);
    append(builder.out, message);
    builder.finish(0);
}

/// Appends an answer of the coordinator.
pub fn encode_coordinator_answer(
    out: &mut Vec<u8>,
    envelope: &Envelope,
    message: &CoordinatorAnswer,
) {
    let builder = Builder::reply(out, Kind::ToCoordinator, envelope);
    match message {
        CoordinatorAnswer::MapStep(step) => {
            const MAP_STEP: u32 = 11; // index among the variants
            append(builder.out, &MAP_STEP);
            builder.out.extend_from_slice(step.encoded()); // encoded once for thousands of members
        }
        _ => append(builder.out, message),
    }
    builder.finish(0);
}

/// Appends a question of the coordinator.
pub fn encode_from_coordinator(out: &mut Vec<u8>, envelope: &Envelope, message: &FromCoordinator) {
    let builder = Builder::question(out, Kind::FromCoordinator, envelope);
    match message {
        FromCoordinator::Recover(order) => append_order(builder.out, order),
        _ => append(builder.out, message),
    }
    builder.finish(0);
}

/// Encodes like [`append`]: fields one after another. The segments, which are most of it and equal
/// in all orders of a recovery, are encoded once.
fn append_order(out: &mut Vec<u8>, order: &Recover) {
    const RECOVER: u32 = 5; // index among the variants
    let Recover {
        recovery,
        partition,
        log,
        tablets,
        floors,
        safe_version,
        tables,
        segments,
        passes,
        accepted,
    } = order;
    append(
        out,
        &(
            RECOVER,
            recovery,
            partition,
            log,
            tablets,
            floors,
            safe_version,
            tables,
        ),
    );
    out.extend_from_slice(segments.encoded());
    append(out, passes);
    if !accepted.is_empty() {
        append(out, accepted);
    }
}

/// Appends a server's answer to the coordinator; the caller appends `payload_bytes` of payload
/// after it.
pub fn encode_server_answer(
    out: &mut Vec<u8>,
    envelope: &Envelope,
    message: &ServerAnswer,
    payload_bytes: usize,
) {
    let builder = Builder::reply(out, Kind::FromCoordinator, envelope);
    append(builder.out, message);
    builder.finish(payload_bytes);
}

/// Appends a question between servers; the caller appends `payload_bytes` of payload after it.
pub fn encode_peer(out: &mut Vec<u8>, envelope: &Envelope, message: &Peer, payload_bytes: usize) {
    if let Peer::WriteReplica(write) = message {
        let builder = Builder::question(out, Kind::WriteReplica, envelope);
        append_write_replica(builder.out, write);
        builder.finish(payload_bytes);
        return;
    }
    let builder = Builder::question(out, Kind::Peer, envelope);
    append(builder.out, message);
    builder.finish(payload_bytes);
}

/// Appends an answer between servers; the caller appends `payload_bytes` of payload after it.
pub fn encode_peer_answer(
    out: &mut Vec<u8>,
    envelope: &Envelope,
    message: &PeerAnswer,
    payload_bytes: usize,
) {
    let builder = Builder::reply(out, Kind::Peer, envelope);
    append(builder.out, message);
    builder.finish(payload_bytes);
}

fn append_write_replica(out: &mut Vec<u8>, write: &WriteReplica) {
    let certificate = write.certificate.unwrap_or(Certificate::EMPTY);
    let flags = [
        (write.certificate.is_some(), CERTIFICATE),
        (write.open, OPEN),
        (write.close, CLOSE),
        (write.primary, PRIMARY),
    ];
    let flags = flags
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, flag)| flags | flag);
    for word in [write.log.number(), write.segment.0, write.epoch] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let words = [
        write.offset,
        certificate.length,
        certificate.crc,
        write.capacity,
    ];
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&[write.kind as u8, flags, write.level as u8, 0, 0, 0, 0, 0]);
}

fn read_write_replica(body: &[u8]) -> Result<WriteReplica, BodyError> {
    let mut cursor = Cursor::new(Kind::WriteReplica, body);
    let log = ServerId::from_number(cursor.u64("log")?);
    let segment = SegmentId(cursor.u64("segment")?);
    let epoch = cursor.u64("epoch")?;
    let offset = cursor.u32("offset")?;
    let certificate = Certificate {
        length: cursor.u32("length")?,
        crc: cursor.u32("crc")?,
    };
    let capacity = cursor.u32("capacity")?;
    let kind = cursor.u8("kind")?;
    let flags = cursor.u8("flags")?;
    let level = cursor.u8("level")?;
    let reserved = cursor.bytes(5, "reserved")?;
    cursor.end()?;
    let unused = flags & CERTIFICATE == 0 && certificate != Certificate::EMPTY;
    if flags & !(CERTIFICATE | OPEN | CLOSE | PRIMARY) != 0 || unused {
        return Err(cursor.wrong("flags"));
    }
    if reserved.iter().any(|byte| *byte != 0) {
        return Err(cursor.wrong("reserved"));
    }
    Ok(WriteReplica {
        log,
        segment,
        kind: segment::Kind::from_number(kind).ok_or(cursor.wrong("kind"))?,
        epoch,
        offset,
        certificate: (flags & CERTIFICATE != 0).then_some(certificate),
        open: flags & OPEN != 0,
        close: flags & CLOSE != 0,
        primary: flags & PRIMARY != 0,
        level: Level::from_number(level).ok_or(cursor.wrong("level"))?,
        capacity,
    })
}

/// Appends a [`Trouble`] as the answer to a question of any kind.
pub fn encode_trouble(out: &mut Vec<u8>, envelope: &Envelope, kind: u16, trouble: &Trouble<'_>) {
    let (code, after_ms, here, text) = match *trouble {
        Trouble::Malformed { reason } => (1u16, 0, ServerId::NONE, reason),
        Trouble::WrongServer { here } => (2, 0, here, ""),
        Trouble::WrongCluster { reason } => (3, 0, ServerId::NONE, reason),
        Trouble::WrongProtocol { reason } => (4, 0, ServerId::NONE, reason),
        Trouble::NotServing { reason } => (5, 0, ServerId::NONE, reason),
        Trouble::Busy { after_ms } => (6, after_ms, ServerId::NONE, ""),
        Trouble::NotPermitted { reason } => (7, 0, ServerId::NONE, reason),
    };
    let builder = Builder::error(out, kind, envelope);
    builder.out.extend_from_slice(&code.to_le_bytes());
    builder.out.extend_from_slice(&[0; 2]);
    builder.out.extend_from_slice(&after_ms.to_le_bytes());
    builder.out.extend_from_slice(&here.number().to_le_bytes());
    builder.out.extend_from_slice(text.as_bytes());
    builder.finish(0);
}

fn read_trouble(kind: Kind, body: &[u8]) -> Result<Trouble<'_>, BodyError> {
    let mut cursor = Cursor::new(kind, body);
    let code = cursor.u16("code")?;
    let reserved = cursor.u16("reserved")?;
    let after_ms = cursor.u32("after_ms")?;
    let here = ServerId::from_number(cursor.u64("server")?);
    let reason = cursor.text(cursor.rest().len(), "text")?;
    let trouble = match code {
        1 => Trouble::Malformed { reason },
        2 => Trouble::WrongServer { here },
        3 => Trouble::WrongCluster { reason },
        4 => Trouble::WrongProtocol { reason },
        5 => Trouble::NotServing { reason },
        6 => Trouble::Busy { after_ms },
        7 => Trouble::NotPermitted { reason },
        _ => return Err(cursor.wrong("code")),
    };
    // codec::N4
    let text = !matches!(trouble, Trouble::WrongServer { .. } | Trouble::Busy { .. });
    if reserved != 0
        || (after_ms != 0 && code != 6)
        || (here != ServerId::NONE && code != 2)
        || (!text && !reason.is_empty())
    {
        return Err(cursor.wrong("reserved"));
    }
    Ok(trouble)
}

/// Returns a frame's kind. Refuses a payload for kinds that only have a body.
#[inline]
fn kind_of(frame: &Frame<'_>) -> Result<Kind, BodyError> {
    let found = frame.header.kind;
    let kind = Kind::from_number(found).ok_or(BodyError::Kind { found })?;
    let may_follow = matches!(
        kind,
        Kind::FromCoordinator | Kind::Peer | Kind::WriteReplica
    );
    if may_follow || frame.payload.is_empty() {
        return Ok(kind);
    }
    Err(BodyError::Trailing {
        kind,
        bytes: frame.payload.len(),
    })
}

/// A client's request to a master; `None`: the frame has a question of another kind.
///
/// # Errors
/// The frame has no valid question. Answer with [`Trouble::Malformed`].
#[inline]
pub fn decode_request<'a>(frame: &Frame<'a>) -> Result<Option<Request<'a>>, BodyError> {
    if frame.header.reply || frame.header.error {
        return Err(BodyError::Direction);
    }
    let kind = kind_of(frame)?;
    let body = frame.body;
    Ok(Some(match kind {
        Kind::Single => {
            let mut cursor = Cursor::new(kind, body);
            let single = read_single(&mut cursor)?;
            cursor.end()?;
            Request::Single(single)
        }
        Kind::Ping => {
            Cursor::new(kind, body).end()?;
            Request::Ping
        }
        Kind::Multi => Request::Multi(read_parts(body)?),
        Kind::Enumerate => read_enumerate(body)?,
        Kind::ToCoordinator
        | Kind::FromCoordinator
        | Kind::Peer
        | Kind::WriteReplica
        | Kind::Login => return Ok(None),
    }))
}

/// The question in a frame.
///
/// # Errors
/// The frame has no valid question. Answer with [`Trouble::Malformed`].
pub fn decode_question<'a>(frame: &Frame<'a>) -> Result<Question<'a>, BodyError> {
    if let Some(request) = decode_request(frame)? {
        return Ok(Question::Client(request));
    }
    if let Some(login) = decode_login(frame)? {
        return Ok(Question::Login(login));
    }
    let kind = kind_of(frame)?;
    let body = frame.body;
    Ok(match kind {
        Kind::ToCoordinator => Question::ToCoordinator(postcard(kind, body)?),
        Kind::FromCoordinator => Question::FromCoordinator(postcard(kind, body)?),
        Kind::Peer => match postcard(kind, body)? {
            // codec::N4: this message has a form of its own.
            Peer::WriteReplica(_) => {
                return Err(BodyError::Field {
                    kind,
                    field: "variant",
                });
            }
            message => Question::Peer(message),
        },
        Kind::WriteReplica => Question::Peer(Peer::WriteReplica(read_write_replica(body)?)),
        Kind::Ping | Kind::Single | Kind::Multi | Kind::Enumerate | Kind::Login => {
            unreachable!("a client's request was decoded above")
        }
    })
}

/// The answer in a frame.
///
/// # Errors
/// The frame has no valid answer: the other side's program is faulty, or newer than declared.
pub fn decode_reply<'a>(frame: &Frame<'a>) -> Result<Reply<'a>, BodyError> {
    if !frame.header.reply {
        return Err(BodyError::Direction);
    }
    let kind = kind_of(frame)?;
    let body = frame.body;
    if frame.header.error {
        return Ok(Reply::Trouble(read_trouble(kind, body)?));
    }
    Ok(match kind {
        Kind::ToCoordinator => Reply::Coordinator(postcard(kind, body)?),
        Kind::FromCoordinator => Reply::Server(postcard(kind, body)?),
        Kind::Peer => Reply::Peer(postcard(kind, body)?),
        Kind::WriteReplica => return Err(BodyError::Direction),
        Kind::Ping => {
            Cursor::new(kind, body).end()?;
            Reply::Client(Answer::Pong)
        }
        Kind::Single => Reply::Client(Answer::Single(read_whole_outcome(body)?)),
        Kind::Multi => Reply::Client(Answer::Multi(read_multi_outcomes(body)?)),
        Kind::Enumerate => Reply::Client(read_objects(body)?),
        Kind::Login => {
            Cursor::new(kind, body).end()?;
            Reply::LoggedIn
        }
    })
}
