//! Every flipped bit of every kind of entry and block, pairs of bits, and noise.

use super::*;
use crate::certificate::Certificate;
use crate::entry::{Completion, NewObject, NewTombstone};
use crate::segment::{Header, Kind};
use duramen_base::ids::{ClientId, Home, RouteHash, RpcId, SegmentId};

fn object<'a>(table: u32, key: &'a [u8], value: &'a [u8]) -> NewObject<'a> {
    NewObject {
        table,
        version: 7,
        expires_at_ms: None,
        key,
        value,
        victim: SegmentId::NONE,
        is_typed: false,
    }
}

fn written(object: &NewObject<'_>) -> Vec<u8> {
    let mut bytes = vec![0; object.padded_bytes()];
    object.write_to(&mut bytes);
    bytes
}

fn removed(tombstone: &NewTombstone<'_>) -> Vec<u8> {
    let mut bytes = vec![0; tombstone.padded_bytes()];
    tombstone.write_to(&mut bytes);
    bytes
}

/// Parts and a removed one, in both forms.
fn parts() -> Vec<Vec<u8>> {
    let key = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).key(12);
    let of_table = |table| {
        let table = TableId(table).parts().0;
        let tombstone = NewTombstone {
            table,
            version: 9,
            key: key.as_bytes(),
            victim: SegmentId(77),
        };
        let part = NewObject {
            victim: SegmentId(514),
            ..object(table, key.as_bytes(), b"\0body of a leaf")
        };
        [
            written(&part),
            written(&object(table, key.as_bytes(), b"")),
            removed(&tombstone),
        ]
    };
    [3, 300, TableId::PARTS - 1]
        .into_iter()
        .flat_map(of_table)
        .collect()
}

/// Entries of all kinds and forms, and of sizes around the borders of their fields.
fn entries() -> Vec<Vec<u8>> {
    let long = vec![b'v'; 3000];
    let key = vec![b'k'; 300];
    let mut all: Vec<Vec<u8>> = [0, 1, 7, 8, 60, 255, 256, 1000]
        .map(|length| written(&object(0, b"user:17", &long[..length])))
        .into();
    all.push(written(&object(300, b"k", b"wide by its table")));
    all.push(written(&object(3, &key, b"wide by its key")));
    all.push(written(&object(3, b"", b"")));
    all.push(written(&NewObject {
        expires_at_ms: Some(1_700_000_000_000),
        victim: SegmentId(514),
        is_typed: true,
        ..object(1, b"typed", b"\x01abc")
    }));
    let tombstone = NewTombstone {
        table: 2,
        version: 9,
        key: b"gone",
        victim: SegmentId(77),
    };
    all.push(removed(&tombstone));
    all.extend(parts());
    let completion = Completion {
        table: 0,
        route: RouteHash(0x0102_0304_0506_0708),
        client: ClientId(5),
        rpc: RpcId(9),
        ack: RpcId(8),
        result: b"an answer",
    };
    let mut bytes = vec![0; completion.padded_bytes()];
    completion.write_to(&mut bytes);
    all.push(bytes);
    all
}

/// mend::M1, mend::M4: with other entries behind it, as in a segment, and at the segment's end.
#[test]
fn every_flipped_bit_of_every_kind_of_entry_is_found() {
    for whole in entries() {
        for behind in [Vec::new(), entries().concat()] {
            let mut bytes = [&whole[..], &behind].concat();
            let good = bytes.clone();
            for index in 0..8 * whole.len() {
                let flip = Flip {
                    byte: index / 8,
                    bit: (index % 8) as u8,
                };
                flip.apply(&mut bytes);
                assert_eq!(entry(&mut bytes), Some(flip), "of {} bytes", whole.len());
                assert!(bytes == good);
            }
            assert_eq!(entry(&mut bytes), None, "a sound entry stays");
        }
    }
}

/// mend::M1 in long entries: a sample of the bits.
#[test]
fn flipped_bits_of_long_entries_are_found() {
    for length in [0xffff, 0x1_0000, 1 << 20] {
        let value: Vec<u8> = (0..length as u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let mut bytes = written(&object(0, b"long", &value));
        let good = bytes.clone();
        let last = 8 * bytes.len() - 1;
        let first = (0..8 * 24).step_by(5);
        for index in first.chain((200..last).step_by(last / 20)).chain([last]) {
            let flip = Flip {
                byte: index / 8,
                bit: (index % 8) as u8,
            };
            flip.apply(&mut bytes);
            assert_eq!(entry(&mut bytes), Some(flip));
            assert!(bytes == good);
        }
    }
}

/// mend::M2, mend::M5: each pair of bits, the header's included, with other entries behind.
#[test]
fn no_pair_of_flipped_bits_is_mended() {
    let whole = written(&object(0, b"key", &[0xa5; 40]));
    assert_eq!(whole.len(), 64);
    let mut bytes = [&whole[..], &entries().concat()].concat();
    for first in 0..8 * whole.len() {
        bytes[first / 8] ^= 1 << (first % 8);
        for second in 0..first {
            bytes[second / 8] ^= 1 << (second % 8);
            let before = bytes[..64].to_vec();
            assert_eq!(entry(&mut bytes), None, "bits {first} and {second}");
            assert!(before == bytes[..64]);
            bytes[second / 8] ^= 1 << (second % 8);
        }
        bytes[first / 8] ^= 1 << (first % 8);
    }
}

/// mend::M3: bytes that are no entry stay what they are.
#[test]
fn noise_is_not_mended() {
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u32
    };
    let whole = written(&object(0, b"key", &[0x5a; 200]));
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        let at = random() as usize % (bytes.len() - 16);
        bytes[at..at + 16].fill_with(|| random() as u8);
        let before = bytes.clone();
        assert_eq!(entry(&mut bytes), None);
        assert!(bytes == before);
    }
    for length in [0, 1, 15, 16, 23, 24, 100] {
        assert_eq!(entry(&mut vec![0; length]), None, "{length} zeros");
    }
}

#[test]
fn every_flipped_bit_of_a_block_and_of_a_body_is_found() {
    let header = Header {
        kind: Kind::Head,
        segment: SegmentId(5),
        log: 6,
        head: 1,
        capacity: 1 << 20,
    };
    let good = header.encode();
    let crc = crc32c(&good);
    for index in 0..8 * good.len() {
        let flip = Flip {
            byte: index / 8,
            bit: (index % 8) as u8,
        };
        let mut bytes = good;
        flip.apply(&mut bytes);
        assert_eq!(body(&mut bytes.clone(), crc), Some(flip));
        assert_eq!(block(&mut bytes), Some(flip));
        assert_eq!(bytes, good);
        assert_eq!(block(&mut bytes), None, "a sound block stays");
        let second = (index + 77) % (8 * good.len());
        bytes[index / 8] ^= 1 << (index % 8);
        bytes[second / 8] ^= 1 << (second % 8);
        assert_eq!(block(&mut bytes.clone()), None);
        assert_eq!(body(&mut bytes, crc), None);
    }
    assert_eq!(block(&mut [1, 2, 3]), None);
    assert_eq!(body(&mut good.clone(), crc), None);
}

/// One flip for each entry and the header: all are put back, and the certificate matches again.
#[test]
fn a_segment_is_mended_entry_by_entry() {
    let header = Header {
        kind: Kind::Head,
        segment: SegmentId(5),
        log: 6,
        head: 1,
        capacity: 1 << 20,
    };
    let mut bytes = header.encode().to_vec();
    let mut places = vec![9];
    for entry in entries() {
        places.push(bytes.len() + entry.len() / 2);
        bytes.extend(entry);
    }
    let good = bytes.clone();
    let certificate = Certificate::of(&good);
    for place in &places {
        bytes[*place] ^= 0x10;
    }
    let mended = segment(&mut bytes, Kind::Head, SURE_BYTES_MAX).expect("one bit each");
    let found: Vec<usize> = mended.iter().map(|mended| mended.byte).collect();
    assert_eq!(found, places);
    assert!(mended.iter().all(|mended| mended.bit == 4));
    assert!(certificate.matches(&bytes));
    let text = mended[1].to_string();
    assert_eq!(
        text,
        format!(
            "byte {}: bit 4 had flipped and was put back (key `user:17` of table 0)",
            places[1]
        )
    );
    // Longer entries than the caller is sure of, and two flips in one entry.
    bytes[places[8]] ^= 1;
    assert_eq!(segment(&mut bytes, Kind::Head, 500), Err(places[8] - 512));
    bytes[places[8] + 1] ^= 1;
    assert_eq!(
        segment(&mut bytes, Kind::Head, SURE_BYTES_MAX),
        Err(places[8] - 512),
        "two flips"
    );
}

#[test]
fn a_mended_part_is_named_by_home_and_number() {
    let mut bytes = parts().swap_remove(0);
    bytes[40] ^= 8;
    let mended = entry_at(&mut bytes, 0, SURE_BYTES_MAX).expect("one bit");
    assert_eq!(
        mended.to_string(),
        "byte 40: bit 3 had flipped and was put back \
         (part 8d02030405060708090a0b/12 of table 3)"
    );
}

#[test]
fn keys_in_messages_are_short_and_clean() {
    assert_eq!(key_in(3, b"sixteen bytes ab"), "sixteen bytes ab");
    assert_eq!(key_in(TableId(3).parts().0, b"short"), "short");
    assert_eq!(key_text(b"user:17"), "user:17");
    assert_eq!(key_text(b"a\x00\n\xff"), "a\u{fffd}\u{fffd}\u{fffd}");
    let long = key_text(&[b'k'; 1000]);
    assert_eq!(long.chars().count(), KEY_CHARS_MAX + 1);
    assert!(long.ends_with('…'));
}

/// mend::M1, mend::M2, mend::M4 in records of the control log, and in the segment of them.
#[test]
fn flipped_bits_of_the_control_log_are_found() {
    let header = Header {
        kind: Kind::Control,
        segment: SegmentId(5),
        log: 6,
        head: 0,
        capacity: 1 << 20,
    };
    let mut good = header.encode().to_vec();
    let records = [
        Record::Snapshot {
            next_segment: SegmentId(9),
            safe_version: 7,
            records: 0,
        },
        Record::AddOpen {
            segment: SegmentId(9),
            epoch: 1,
            head: 2,
            kind: Kind::Head,
        },
        Record::TableCreate {
            table: 3,
            level: None,
            floor: 4,
            name: "name".to_owned(),
        },
    ];
    records.iter().for_each(|record| record.encode(&mut good));
    for index in 0..8 * good.len() {
        let mut bytes = good.clone();
        bytes[index / 8] ^= 1 << (index % 8);
        let mended = segment(&mut bytes, Kind::Control, SURE_BYTES_MAX).expect("one bit");
        assert_eq!(
            (mended[0].byte, mended[0].bit),
            (index / 8, (index % 8) as u8)
        );
        assert!(mended.len() == 1 && bytes == good, "bit {index}");
    }
    let (start, end) = (HEADER_BYTES, HEADER_BYTES + 32);
    for first in 8 * start..8 * end {
        for second in 8 * start..first {
            let mut bytes = good.clone();
            bytes[first / 8] ^= 1 << (first % 8);
            bytes[second / 8] ^= 1 << (second % 8);
            let mended = segment(&mut bytes, Kind::Control, SURE_BYTES_MAX);
            assert_eq!(mended, Err(start), "bits {first} and {second}");
        }
    }
}
