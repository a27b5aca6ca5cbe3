//! Properties of the native protocol's bytes, for arbitrary operations and damage.

use duramen_base::ids::{ClientId, Level, RpcId, SegmentId, ServerId, TableId};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind as SegmentKind;
use duramen_wire::native::codec::{
    Envelope, Frame, Kind, MultiRequest, PEER_FRAME_BYTES_MAX, Parsed, Question, decode_question,
    decode_reply, encode_peer, encode_single, parse_frame, single_bytes,
};
use duramen_wire::native::message::{
    Amount, Condition, Expiry, Operation, Peer, ReplicaLayout, Request, Rpc, Single, WriteReplica,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Owned {
    table: u32,
    key: Vec<u8>,
    value: Vec<u8>,
    op: u8,
    condition: Condition,
    expiry: Expiry,
    amount: Amount,
    level: Option<Level>,
    rpc: Option<Rpc>,
}

impl Owned {
    fn single(&self) -> Single<'_> {
        let operation = match self.op {
            0 => Operation::Read,
            1 => Operation::Write {
                value: &self.value,
                condition: self.condition,
                expiry: self.expiry,
            },
            2 => Operation::Remove {
                condition: self.condition,
            },
            _ => Operation::Increment { by: self.amount },
        };
        Single {
            table: TableId(self.table),
            key: &self.key,
            operation,
            level: self.level,
            rpc: self.rpc.filter(|_| operation.mutates()),
        }
    }
}

fn rpc() -> impl Strategy<Value = Rpc> {
    (1..u64::MAX, 1..u64::MAX, any::<u64>()).prop_map(|(client, id, acknowledged)| Rpc {
        client: ClientId(client),
        id: RpcId(id),
        acknowledged: RpcId(acknowledged % id),
    })
}

fn owned() -> impl Strategy<Value = Owned> {
    let condition = prop_oneof![
        Just(Condition::Always),
        Just(Condition::Absent),
        Just(Condition::Present),
        any::<u64>().prop_map(Condition::Version),
        any::<u64>().prop_map(Condition::NewerThan),
    ];
    let expiry = prop_oneof![
        Just(Expiry::Never),
        Just(Expiry::Keep),
        any::<u64>().prop_map(Expiry::At),
    ];
    let amount = prop_oneof![
        any::<i64>().prop_map(Amount::Integer),
        (-1e300..1e300).prop_map(Amount::Float),
    ];
    let level = proptest::option::of(proptest::sample::select(&Level::ALL[..]));
    let bytes = || proptest::collection::vec(any::<u8>(), 0..100);
    (
        any::<u32>(),
        bytes(),
        bytes(),
        0..4u8,
        condition,
        expiry,
        amount,
        level,
        proptest::option::of(rpc()),
    )
        .prop_map(
            |(table, key, value, op, condition, expiry, amount, level, rpc)| Owned {
                table,
                key,
                value,
                op,
                condition,
                expiry,
                amount,
                level,
                rpc,
            },
        )
}

fn frame(bytes: &[u8]) -> Frame<'_> {
    match parse_frame(bytes, PEER_FRAME_BYTES_MAX) {
        Ok(Parsed::Frame { frame, .. }) => frame,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn operations_come_back(operation in owned()) {
        let single = operation.single();
        let mut bytes = Vec::new();
        encode_single(&mut bytes, &Envelope::default(), &single);
        let frame = frame(&bytes);
        prop_assert_eq!(frame.body.len(), single_bytes(&single));
        prop_assert_eq!(decode_question(&frame), Ok(Question::Client(Request::Single(single))));
    }

    #[test]
    fn several_operations_come_back(operations in proptest::collection::vec(owned(), 0..20)) {
        let mut bytes = Vec::new();
        let mut multi = MultiRequest::new(&mut bytes, &Envelope::default());
        operations.iter().for_each(|operation| multi.push(&operation.single()));
        multi.finish();
        let Ok(Question::Client(Request::Multi(parts))) = decode_question(&frame(&bytes)) else {
            panic!("no multi request");
        };
        prop_assert_eq!(parts.len(), operations.len());
        prop_assert!(parts.iter().eq(operations.iter().map(Owned::single)));
    }

    /// A body that was changed, with a correct checksum, is an error or is the one encoding of its
    /// message (codec::N4).
    #[test]
    fn bodies_have_one_encoding(
        operation in owned(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        encode_single(&mut bytes, &Envelope::default(), &operation.single());
        let mut body = frame(&bytes).body.to_vec();
        let at = at.index(body.len());
        body[at] = byte;
        body.truncate(body.len() - cut.index(3));
        let tampered = Frame { body: &body, ..frame(&bytes) };
        if let Ok(Question::Client(Request::Single(single))) = decode_question(&tampered) {
            let mut again = Vec::new();
            encode_single(&mut again, &Envelope::default(), &single);
            prop_assert_eq!(frame(&again).body, &body[..]);
        }
    }

    #[test]
    fn replica_writes_come_back(
        (log, segment, epoch, words, flags, certified) in
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<[u32; 4]>(), 0..8u8, any::<bool>()),
        kind in proptest::sample::select(&[SegmentKind::Head, SegmentKind::Survivor, SegmentKind::Control][..]),
        level in proptest::sample::select(&Level::ALL[..]),
    ) {
        let [offset, length, crc, capacity] = words;
        let write = Peer::WriteReplica(WriteReplica {
            log: ServerId::from_number(log),
            segment: SegmentId(segment),
            kind,
            epoch,
            offset,
            certificate: certified.then_some(Certificate { length, crc }),
            open: flags & 1 != 0,
            close: flags & 2 != 0,
            primary: flags & 4 != 0,
            level,
            capacity,
        });
        let mut bytes = Vec::new();
        encode_peer(&mut bytes, &Envelope::default(), &write, 5);
        bytes.extend_from_slice(b"bytes");
        let frame = frame(&bytes);
        prop_assert_eq!(frame.payload, b"bytes");
        prop_assert_eq!(decode_question(&frame), Ok(Question::Peer(write)));
    }

    /// Any bytes under any kind: a message or an error, and no panic.
    #[test]
    fn any_body_is_a_message_or_an_error(
        kind in 0..25u16,
        reply in any::<bool>(),
        error in any::<bool>(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = Vec::new();
        encode_single(&mut bytes, &Envelope::default(), &Single {
            table: TableId(0), key: b"", operation: Operation::Read, level: None, rpc: None,
        });
        let mut frame = Frame { body: &body, ..frame(&bytes) };
        frame.header.kind = kind;
        frame.header.reply = reply;
        frame.header.error = error;
        let (question, answer) = (decode_question(&frame), decode_reply(&frame));
        prop_assert!(question.is_err() || answer.is_err());
        if Kind::from_number(kind).is_none() {
            prop_assert!(question.is_err() && answer.is_err());
        }
    }
}

/// Stored settings of builds without zones are read, and such builds take zones for copysets of a
/// great width.
#[test]
fn a_layout_is_the_copysets_width_of_builds_without_zones() {
    let layouts = [
        (ReplicaLayout::Scatter, None),
        (ReplicaLayout::Copysets { scatter: 4 }, Some(4)),
        (ReplicaLayout::Zones { mib: 1024 }, Some((1 << 31) + 1024)),
    ];
    for (layout, width) in layouts {
        let bytes = postcard::to_allocvec(&layout).unwrap();
        assert_eq!(bytes, postcard::to_allocvec::<Option<u32>>(&width).unwrap());
        assert_eq!(postcard::from_bytes::<ReplicaLayout>(&bytes), Ok(layout));
    }
    assert_eq!(
        ReplicaLayout::Zones { mib: 1024 }.zone_bytes(),
        Some(1 << 30)
    );
}
