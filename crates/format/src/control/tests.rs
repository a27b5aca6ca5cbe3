//! Records have these bytes; damage and false counts are refused.

use super::*;

fn certificate() -> Certificate {
    Certificate {
        length: 0x0102_0304,
        crc: 0xA1A2_A3A4,
    }
}

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

/// One of each kind, with the bytes of its body.
fn examples() -> Vec<(Record, Vec<u8>)> {
    let segment = SegmentId(0x0B0A);
    let id = b"\x0A\x0B\0\0\0\0\0\0";
    let cert = b"\x04\x03\x02\x01\xA4\xA3\xA2\xA1";
    let join = |parts: &[&[u8]]| parts.concat();
    vec![
        (
            Record::Snapshot {
                next_segment: segment,
                safe_version: 5,
                records: 7,
            },
            join(&[id, b"\x05\0\0\0\0\0\0\0", b"\x07\0\0\0"]),
        ),
        (
            Record::AddOpen {
                segment,
                epoch: 2,
                head: 3,
                kind: SegmentKind::Head,
            },
            join(&[id, b"\x02\0\0\0\0\0\0\0", b"\x03\0\0\0\x01"]),
        ),
        (
            Record::Closed {
                segment,
                certificate: certificate(),
            },
            join(&[id, cert]),
        ),
        (
            Record::Swap {
                version_floor: 9,
                add: vec![Added {
                    segment,
                    epoch: 1,
                    certificate: certificate(),
                }],
                remove: vec![SegmentId(3), SegmentId(4)],
            },
            join(&[
                b"\x09\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0",
                id,
                b"\x01\0\0\0\0\0\0\0",
                cert,
                b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0",
            ]),
        ),
        (
            Record::Pass(Pass {
                first: segment,
                count: 4,
                victims: vec![SegmentId(1)],
            }),
            join(&[id, b"\x04\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0"]),
        ),
        (
            Record::TableCreate {
                table: 6,
                floor: 8,
                level: Some(Level::Buffered),
                name: "orders".to_owned(),
            },
            b"\x06\0\0\0\x01\x08\0\0\0\0\0\0\0\x06\0orders".to_vec(),
        ),
        (
            Record::TableDrop { table: 6, floor: 8 },
            b"\x06\0\0\0\x08\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            Record::TableClear { table: 6, floor: 8 },
            b"\x06\0\0\0\x08\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            Record::TableLevel {
                table: 6,
                level: None,
            },
            b"\x06\0\0\0\xFF".to_vec(),
        ),
        (
            Record::SafeVersion { version: 11 },
            b"\x0B\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            Record::SegmentEpoch { segment, epoch: 2 },
            join(&[id, b"\x02\0\0\0\0\0\0\0"]),
        ),
        (
            Record::SegmentGeneration {
                segment,
                generation: 2,
                certificate: certificate(),
            },
            join(&[id, b"\x02\0\0\0\0\0\0\0", cert]),
        ),
        (
            Record::CleanShutdown {
                next_segment: segment,
                safe_version: 5,
            },
            join(&[id, b"\x05\0\0\0\0\0\0\0"]),
        ),
        (
            Record::TableStats {
                table: 6,
                parts: vec![PartStats {
                    entries: 1,
                    bytes: 2,
                }],
            },
            b"\x06\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec(),
        ),
        (
            Record::Segments(vec![
                ListedSegment {
                    segment,
                    epoch: 300,
                    generation: 1,
                    head: 2,
                    kind: SegmentKind::Head,
                    closed: None,
                },
                ListedSegment {
                    segment: SegmentId(segment.0 + 1),
                    epoch: 0,
                    generation: 0,
                    head: 0,
                    kind: SegmentKind::Survivor,
                    closed: Some(certificate()),
                },
            ]),
            join(&[
                b"\x02\0\0\0\x8A\x16\xAC\x02\x01\x02\x01",
                &[1, 0, 0, 0, SegmentKind::Survivor as u8 | 128],
                cert,
            ]),
        ),
    ]
}

#[test]
fn golden_bytes() {
    let kinds = (1..=TABLE_STATS).chain([SEGMENTS]);
    for (kind, (record, body)) in kinds.zip(examples()) {
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
    for (record, _) in examples() {
        let mut out = Vec::new();
        record.encode(&mut out);
        for bit in 0..out.len() * 8 {
            let mut damaged = out.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&damaged).is_err(), "{record:?}, bit {bit}");
        }
        for cut in 0..out.len() {
            assert!(Record::decode(&out[..cut]).is_err(), "{record:?}, {cut}");
        }
    }
}

/// A record with a right CRC can still have false counts (a bug, or an attacker with the disk): no
/// panic, no giant vector.
#[test]
fn sealed_lies_are_refused() {
    for (record, _) in examples() {
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
