//! The same load in the native protocol: frames to one server that owns every key.

use crate::{Doing, Failure, Result};
use duramen_base::ids::{ClusterId, MapVersion, ServerId, TableId};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Credentials, Envelope, Handshake, PEER_FRAME_BYTES_MAX, Parsed, Reply,
    Role, decode_reply, encode_single, encode_to_coordinator, fresh_nonce, parse_frame,
};
use duramen_wire::native::message::{
    Answer, Condition, CoordinatorAnswer, Expiry, Operation, Outcome, Single, TabletMap,
    ToCoordinator,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer waits are failures.
const PATIENCE: Duration = Duration::from_secs(30);

/// The target of requests, beside the server's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native {
    pub table: TableId,
    /// The version of the map with the server.
    pub map: MapVersion,
}

impl Native {
    /// The table behind RESP's database 0.
    ///
    /// # Errors
    /// The coordinator does not answer, or has no such table.
    pub fn of_database(coordinator: &str) -> Result<Native> {
        let doing = || format!("asking {coordinator} for the tablet map");
        let map = map_of(coordinator).doing(doing())?;
        let table = map.tables.iter().find(|table| table.name == "db0");
        let table = table.ok_or("there is no table db0").doing(doing())?;
        Ok(Native {
            table: table.table,
            map: map.version,
        })
    }

    /// Appends a read, or a write of `value`.
    pub(super) fn encode(&self, key: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
        let operation = match value {
            None => Operation::Read,
            Some(value) => Operation::Write {
                value,
                condition: Condition::Always,
                expiry: Expiry::Never,
            },
        };
        let single = Single {
            table: self.table,
            key,
            operation,
            level: None,
            rpc: None,
        };
        let envelope = Envelope::of_client(1, ServerId::NONE, self.map);
        encode_single(out, &envelope, &single);
    }
}

/// The replies in a piece of the stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// Bytes of whole frames.
    pub bytes: usize,
    pub replies: usize,
    pub errors: usize,
    pub nulls: usize,
}

/// Counts the whole replies in `input`.
///
/// # Errors
/// It is no stream of replies.
pub(super) fn advance(input: &[u8]) -> Result<Passed> {
    let doing = || "reading replies".to_owned();
    let mut passed = Passed::default();
    while let Parsed::Frame { frame, bytes } =
        parse_frame(&input[passed.bytes..], CLIENT_FRAME_BYTES_MAX).doing(doing())?
    {
        passed.bytes += bytes;
        passed.replies += 1;
        match decode_reply(&frame).doing(doing())? {
            Reply::Client(Answer::Single(Outcome::Value { .. } | Outcome::Written { .. })) => {}
            Reply::Client(Answer::Single(Outcome::Absent)) => passed.nulls += 1,
            _ => passed.errors += 1,
        }
    }
    Ok(passed)
}

/// The handshake, with a cluster without a token.
pub(super) fn greet(stream: &mut TcpStream) -> Result<()> {
    let doing = || "greeting a server of the native protocol".to_owned();
    stream.set_read_timeout(Some(PATIENCE)).doing(doing())?;
    let (cluster, token) = ("", &b""[..]);
    let mut opening = Vec::new();
    let nonce = fresh_nonce().doing(doing())?;
    Handshake::dial(Role::Client, nonce, &mut opening)
        .run(
            Credentials {
                cluster,
                token,
                id: ClusterId::NONE,
            },
            opening,
            stream,
        )
        .doing(doing())?;
    Ok(())
}

fn map_of(coordinator: &str) -> Result<TabletMap> {
    let doing = || "asking for the tablet map".to_owned();
    let mut stream = TcpStream::connect(coordinator).doing(doing())?;
    greet(&mut stream)?;
    let question = ToCoordinator::Map {
        table: None,
        since: MapVersion(0),
    };
    let mut bytes = Vec::new();
    encode_to_coordinator(&mut bytes, &Envelope::default(), &question);
    stream.write_all(&bytes).doing(doing())?;
    let mut input = Vec::new();
    loop {
        let needed = match parse_frame(&input, PEER_FRAME_BYTES_MAX).doing(doing())? {
            Parsed::Incomplete { needed } => needed,
            Parsed::Frame { frame, .. } => match decode_reply(&frame).doing(doing())? {
                Reply::Coordinator(CoordinatorAnswer::Map(map)) => return Ok(map),
                other => return Err(Failure::new(doing(), format!("{other:?}"))),
            },
        };
        let from = input.len();
        input.resize(needed, 0);
        stream.read_exact(&mut input[from..]).doing(doing())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_wire::native::codec::{Kind, Trouble, encode_outcome, encode_trouble};

    #[test]
    fn replies_are_counted_by_what_they_say() {
        let (mut input, envelope) = (Vec::new(), Envelope::default());
        let value = Outcome::Value {
            version: 1,
            expires_at_ms: None,
            value: b"v",
        };
        for outcome in [value, Outcome::Absent, Outcome::Written { version: 2 }] {
            encode_outcome(&mut input, &envelope, &outcome);
        }
        let busy = Trouble::Busy { after_ms: 1 };
        encode_trouble(&mut input, &envelope, Kind::Single as u16, &busy);
        let whole = input.len();
        encode_outcome(&mut input, &envelope, &value);
        input.pop();
        let passed = advance(&input).unwrap();
        assert_eq!((passed.bytes, passed.replies), (whole, 4));
        assert_eq!((passed.errors, passed.nulls), (1, 1));
        assert!(advance(&[255; 40]).is_err());
    }
}
