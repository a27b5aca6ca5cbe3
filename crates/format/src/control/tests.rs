//! Records have these bytes; damage and false counts are refused.

use super::*;
use crate::bytes::assert_noticed;

const CERTIFICATE: Certificate = Certificate {
    length: 0x0102_0304,
    crc: 0xA1A2_A3A4,
};

#[test]
fn a_number_has_one_form() {
    let varint = |bytes: &[u8]| {
        let mut from = Take {
            kind: SEGMENTS,
            rest: bytes,
        };
        from.varint("segment").ok()
    };
    for value in [0, 127, 128, 1 << 40, u64::MAX] {
        let mut bytes = Vec::new();
        Put(&mut bytes).varint(value);
        assert_eq!(varint(&bytes), Some(value));
    }
    assert_eq!(varint(b"\x80"), None);
    assert_eq!(varint(b"\x81\0"), None);
    assert_eq!(varint(b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02"), None);
}

const SEGMENT: SegmentId = SegmentId(0x0B0A);
const ID: &[u8] = b"\x0A\x0B\0\0\0\0\0\0";
const CERT: &[u8] = b"\x04\x03\x02\x01\xA4\xA3\xA2\xA1";

/// The number of a kind, one of its records, and the bytes of its body.
type Example = (u8, Record, Vec<u8>);

/// One of each kind.
fn examples() -> Vec<Example> {
    [about_segments(), about_many_segments(), about_tables()].concat()
}

fn about_segments() -> Vec<Example> {
    vec![
        (
            1,
            Record::Snapshot {
                next_segment: SEGMENT,
                safe_version: 5,
                records: 7,
            },
            [ID, b"\x05\0\0\0\0\0\0\0", b"\x07\0\0\0"].concat(),
        ),
        (
            2,
            Record::AddOpen {
                segment: SEGMENT,
                epoch: 2,
                head: 3,
                kind: SegmentKind::Head,
            },
            [ID, b"\x02\0\0\0\0\0\0\0", b"\x03\0\0\0\x01"].concat(),
        ),
        (
            3,
            Record::Closed {
                segment: SEGMENT,
                certificate: CERTIFICATE,
            },
            [ID, CERT].concat(),
        ),
        (
            10,
            Record::SafeVersion { version: 11 },
            b"\x0B\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            11,
            Record::SegmentEpoch {
                segment: SEGMENT,
                epoch: 2,
            },
            [ID, b"\x02\0\0\0\0\0\0\0"].concat(),
        ),
        (
            12,
            Record::SegmentGeneration {
                segment: SEGMENT,
                generation: 2,
                certificate: CERTIFICATE,
            },
            [ID, b"\x02\0\0\0\0\0\0\0", CERT].concat(),
        ),
        (
            13,
            Record::CleanShutdown {
                next_segment: SEGMENT,
                safe_version: 5,
            },
            [ID, b"\x05\0\0\0\0\0\0\0"].concat(),
        ),
    ]
}

fn about_many_segments() -> Vec<Example> {
    vec![
        (
            4,
            Record::Swap {
                version_floor: 9,
                add: vec![Added {
                    segment: SEGMENT,
                    epoch: 1,
                    certificate: CERTIFICATE,
                }],
                remove: vec![SegmentId(3), SegmentId(4)],
            },
            [
                b"\x09\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0",
                ID,
                b"\x01\0\0\0\0\0\0\0",
                CERT,
                b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0",
            ]
            .concat(),
        ),
        (
            5,
            Record::Pass(Pass {
                first: SEGMENT,
                count: 4,
                victims: vec![SegmentId(1)],
            }),
            [ID, b"\x04\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0"].concat(),
        ),
        (
            16,
            Record::Segments(vec![
                ListedSegment {
                    segment: SEGMENT,
                    epoch: 300,
                    generation: 1,
                    head: 2,
                    kind: SegmentKind::Head,
                    closed: None,
                },
                ListedSegment {
                    segment: SegmentId(SEGMENT.0 + 1),
                    epoch: 0,
                    generation: 0,
                    head: 0,
                    kind: SegmentKind::Survivor,
                    closed: Some(CERTIFICATE),
                },
            ]),
            [
                &b"\x02\0\0\0\x8A\x16\xAC\x02\x01\x02\x01"[..],
                &[1, 0, 0, 0, SegmentKind::Survivor as u8 | 128],
                CERT,
            ]
            .concat(),
        ),
    ]
}

fn about_tables() -> Vec<Example> {
    vec![
        (
            6,
            Record::TableCreate {
                table: 6,
                floor: 8,
                level: Some(Level::Buffered),
                name: "orders".to_owned(),
            },
            b"\x06\0\0\0\x01\x08\0\0\0\0\0\0\0\x06\0orders".to_vec(),
        ),
        (
            7,
            Record::TableDrop { table: 6, floor: 8 },
            b"\x06\0\0\0\x08\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            8,
            Record::TableClear { table: 6, floor: 8 },
            b"\x06\0\0\0\x08\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            9,
            Record::TableLevel {
                table: 6,
                level: None,
            },
            b"\x06\0\0\0\xFF".to_vec(),
        ),
        (
            14,
            Record::TableStats {
                table: 6,
                parts: vec![PartStats {
                    entries: 1,
                    bytes: 2,
                }],
            },
            b"\x06\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec(),
        ),
    ]
}

#[test]
fn golden_bytes() {
    let mut kinds: Vec<u8> = examples().iter().map(|(kind, ..)| *kind).collect();
    kinds.sort_unstable();
    assert!(kinds.into_iter().eq((1..=TABLE_STATS).chain([SEGMENTS])));
    for (kind, record, body) in examples() {
        let mut out = Vec::new();
        record.encode(&mut out);
        let total = (RECORD_HEADER_BYTES + body.len()).next_multiple_of(ALIGN_BYTES);
        assert_eq!(out.len(), total, "{}", record.name());
        assert_eq!(out[0], kind, "{}", record.name());
        assert_eq!(out[1..4], [0; 3]);
        assert_eq!(out[4..8], (total as u32).to_le_bytes());
        assert_eq!(out[12..16], [0; 4]);
        assert_eq!(out[16..16 + body.len()], body, "{}", record.name());
        assert!(out[16 + body.len()..].iter().all(|byte| *byte == 0));
        let mut blank = out.clone();
        blank[CRC_AT..CRC_AT + 4].fill(0);
        assert_eq!(out[8..12], crc32c::crc32c(&blank).to_le_bytes());
        assert_eq!(Record::decode(&out), Ok((record, total)));
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    for (_, record, _) in examples() {
        let mut out = Vec::new();
        record.encode(&mut out);
        assert_noticed(&out, |bytes| Record::decode(bytes).is_err());
    }
}

/// A record with a right CRC can still have false counts (a bug, or an attacker with the disk): no
/// panic, no giant vector.
#[test]
fn sealed_lies_are_refused() {
    for (_, record, _) in examples() {
        let mut out = Vec::new();
        record.encode(&mut out);
        for at in RECORD_HEADER_BYTES..out.len() {
            let mut lie = out.clone();
            lie[at..].fill(0xFF);
            lie[CRC_AT..CRC_AT + 4].fill(0);
            let crc = crc32c::crc32c(&lie);
            lie[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            let _ = Record::decode(&lie);
        }
        for kind in [0, 15, 99] {
            let mut lie = out.clone();
            lie[0] = kind;
            lie[CRC_AT..CRC_AT + 4].fill(0);
            let crc = crc32c::crc32c(&lie);
            lie[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Record::decode(&lie), Err(Damage::Kind { found: kind }));
        }
    }
}
