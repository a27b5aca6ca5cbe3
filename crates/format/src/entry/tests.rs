//! Golden bytes of entries, and damaged ones.

use super::*;
use crate::bytes::assert_noticed;
use crate::part::Form;
use duramen_base::ids::Home;

fn written(object: &NewObject<'_>) -> Vec<u8> {
    // Old bytes in the buffer: padding must be written too.
    let mut bytes = vec![0xee; object.padded_bytes()];
    object.write_to(&mut bytes);
    bytes
}

#[test]
fn small_object_has_sixteen_bytes_of_header() {
    let object = NewObject {
        table: 0,
        version: 1,
        expires_at_ms: None,
        key: &[7; 16],
        value: &[9; 96],
        victim: SegmentId::NONE,
        is_typed: false,
    };
    assert_eq!(object.padded_bytes(), 16 + 16 + 96); // entry::F1
}

#[test]
fn golden_bytes_of_both_forms() {
    let small = NewObject {
        table: 3,
        version: 0x0102,
        expires_at_ms: None,
        key: b"key",
        value: b"value",
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let bytes = written(&small);
    assert_eq!(&bytes[..8], &[1, 2, 1, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[12..], b"\x03\x03\x05\x00keyvalue");
    let crc = crc32c::crc32c(b"\x01\x02\x01\0\0\0\0\0\0\0\0\0\x03\x03\x05\0keyvalue");
    assert_eq!(&bytes[8..12], &crc.to_le_bytes());

    let wide = NewObject {
        table: 300,
        version: 1,
        expires_at_ms: Some(0x1122),
        key: b"k",
        value: b"",
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let bytes = written(&wide);
    assert_eq!(bytes[0], 1 | FLAG_WIDE | FLAG_EXPIRY);
    assert_eq!(
        &bytes[12..],
        b"\x2c\x01\0\0\x01\0\0\0\0\0\0\0\x22\x11\0\0\0\0\0\0k\0\0\0\0\0\0\0"
    );
}

#[test]
fn golden_bytes_of_victims_and_tombstones() {
    let object = NewObject {
        table: 3,
        version: 2,
        expires_at_ms: None,
        key: b"key",
        value: b"value",
        victim: SegmentId(0x0a0b),
        is_typed: false,
    };
    let bytes = written(&object);
    assert_eq!(&bytes[..8], &[1 | FLAG_VICTIM, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        &bytes[12..],
        b"\x03\x03\x05\x00keyvalue\x0b\x0a\0\0\0\0\0\0"
    );
    let tombstone = NewTombstone {
        table: 3,
        version: 2,
        key: b"k",
        victim: SegmentId(9),
    };
    let mut bytes = vec![0xee; tombstone.padded_bytes()];
    tombstone.write_to(&mut bytes);
    assert_eq!(&bytes[..8], &[2 | FLAG_VICTIM, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        &bytes[12..],
        b"\x03\x01\x00\x00k\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0"
    );
    let entry = parse(&bytes).unwrap();
    assert_eq!((entry.kind, entry.key), (Kind::Tombstone, &b"k"[..]));
    assert_eq!((entry.version, entry.victim), (2, SegmentId(9)));
    assert_eq!(entry.padded_bytes, 32);
    // A tombstone without victim, or with a value, is refused, even with the right CRC.
    for (flags, value_bytes) in [
        (2, 0),
        (2 | FLAG_VICTIM, 1),
        (2 | FLAG_VICTIM | FLAG_EXPIRY, 0),
    ] {
        let mut wrong = bytes.clone();
        (wrong[0], wrong[14]) = (flags, value_bytes);
        wrong[8..12].fill(0);
        let crc = crc32c::crc32c(&wrong);
        wrong[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(parse(&wrong), Err(Damage::Tombstone { flags }));
    }
}

/// A typed object is known by its flag; tombstones and completions have no type, and an empty
/// value has none.
#[test]
fn golden_bytes_of_typed_objects() {
    let mut object = NewObject {
        table: 3,
        version: 2,
        expires_at_ms: None,
        key: b"key",
        value: b"\x01",
        victim: SegmentId(9),
        is_typed: true,
    };
    let bytes = written(&object);
    assert_eq!(bytes[0], 1 | FLAG_VICTIM | FLAG_TYPED);
    assert_eq!(bytes[0], 0b0110_0001);
    let entry = parse(&bytes).unwrap();
    assert!(entry.is_typed && entry.victim == SegmentId(9));
    let mut wrong = bytes.clone();
    (wrong[0], wrong[14], wrong[19]) = (TOMBSTONE | FLAG_VICTIM | FLAG_TYPED, 0, 0);
    wrong[8..12].fill(0);
    let crc = crc32c::crc32c(&wrong);
    wrong[8..12].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(parse(&wrong), Err(Damage::Tombstone { .. })));
    object.value = b"";
    assert!(matches!(
        parse(&written(&object)),
        Err(Damage::Untyped { .. })
    ));
    object.is_typed = false;
    assert!(!parse(&written(&object)).unwrap().is_typed);
}

const HOME: Home = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);

/// entry::F6: the flag stands for bit 31 of the table, in both forms.
#[test]
fn golden_bytes_of_parts() {
    let key = HOME.key(0x0c_0d0e_0f10);
    let mut part = NewObject {
        table: TableId(3).parts().0,
        version: 0x0102,
        expires_at_ms: None,
        key: key.as_bytes(),
        value: b"\0leaf",
        victim: SegmentId(9),
        is_typed: false,
    };
    let bytes = written(&part);
    assert_eq!(bytes[..8], [0b1010_0001, 2, 1, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[12..16], b"\x03\x10\x05\0");
    assert_eq!(
        &bytes[16..27],
        b"\x8d\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b"
    );
    assert_eq!(
        &bytes[27..],
        b"\x0c\x0d\x0e\x0f\x10\0leaf\0\0\0\x09\0\0\0\0\0\0\0"
    );
    let entry = parse(&bytes).unwrap();
    assert_eq!(TableId(entry.table), TableId(3).parts());
    assert_eq!((entry.part_key(), entry.value), (Some(key), part.value));
    part.table = TableId(300).parts().0;
    let bytes = written(&part);
    assert_eq!(bytes[0], 1 | FLAG_WIDE | FLAG_VICTIM | FLAG_PART);
    assert_eq!(&bytes[12..24], b"\x2c\x01\0\0\x10\0\0\0\x05\0\0\0");
    let entry = parse(&bytes).unwrap();
    assert_eq!(TableId(entry.table), TableId(300).parts());
    assert_eq!((entry.part_key(), entry.value), (Some(key), part.value));
    let tombstone = NewTombstone {
        table: TableId(3).parts().0,
        version: 2,
        key: key.as_bytes(),
        victim: SegmentId(9),
    };
    let mut bytes = vec![0xee; tombstone.padded_bytes()];
    tombstone.write_to(&mut bytes);
    assert_eq!((bytes.len(), bytes[0]), (40, 0b1010_0010));
    let entry = parse(&bytes).unwrap();
    assert_eq!((entry.kind, entry.part_key()), (Kind::Tombstone, Some(key)));
    assert_eq!(NewTombstone::of_dead(&entry).table, tombstone.table);
}

/// entry::F1: a part of a table below 256 has a header of 16 bytes, as its table's objects do.
#[test]
fn a_part_takes_no_more_than_an_object() {
    for (table, value_bytes) in [(255, 65_535), (256, 1), (TableId::PARTS - 1, 1)] {
        let value = vec![0; value_bytes];
        let object = |table: TableId| NewObject {
            table: table.0,
            version: 1,
            expires_at_ms: None,
            key: &[7; 16],
            value: &value,
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let (part, whole) = (object(TableId(table).parts()), object(TableId(table)));
        let bytes = written(&part);
        assert_eq!(part.padded_bytes(), whole.padded_bytes());
        assert_eq!(parse(&bytes).unwrap().table, part.table);
        assert_eq!(parse(&written(&whole)).unwrap().table, table);
    }
}

/// Gives wrong bytes the right CRC.
fn summed(mut wrong: Vec<u8>) -> Vec<u8> {
    wrong[8..12].fill(0);
    let crc = crc32c::crc32c(&wrong);
    wrong[8..12].copy_from_slice(&crc.to_le_bytes());
    wrong
}

/// entry::F6, with the right CRC: no other key, no expiry, no type, no completion, no other table.
#[test]
fn entries_that_cannot_be_parts_are_refused() {
    let key = HOME.key(1);
    for table in [3, 300] {
        let part = NewObject {
            table: TableId(table).parts().0,
            version: 2,
            expires_at_ms: None,
            key: key.as_bytes(),
            value: b"\0long enough for an expiry",
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let bytes = written(&part);
        let flags = bytes[0];
        for with in [FLAG_TYPED, FLAG_EXPIRY, COMPLETION - 1] {
            let mut wrong = bytes.clone();
            wrong[0] |= with;
            let (flags, key_bytes) = (flags | with, PartKey::BYTES);
            let wrong = summed(wrong);
            assert_eq!(parse(&wrong), Err(Damage::Part { flags, key_bytes }));
        }
        for key_bytes in [15, 17] {
            let mut wrong = bytes.clone();
            wrong[if table < 256 { 13 } else { 16 }] = key_bytes;
            let (wrong, key_bytes) = (summed(wrong), usize::from(key_bytes));
            assert_eq!(parse(&wrong), Err(Damage::Part { flags, key_bytes }));
        }
    }
    let wide = NewObject {
        table: 300,
        version: 2,
        expires_at_ms: None,
        key: key.as_bytes(),
        value: b"",
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut bytes = written(&wide);
    bytes[15] = 0x80;
    let table = TableId(300).parts().0;
    assert_eq!(parse(&summed(bytes)), Err(Damage::Table { table }));
}

/// part::K1: a part has the route of its home, everything else that of its key.
#[test]
fn the_route_of_a_part_is_its_home() {
    let (hasher, key) = (KeyHasher::new(1), HOME.key(5));
    let mut object = NewObject {
        table: TableId(3).parts().0,
        version: 2,
        expires_at_ms: None,
        key: key.as_bytes(),
        value: b"\0",
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let route = RouteHash(0x8d02_0304_0506_0708);
    assert_eq!(parse(&written(&object)).unwrap().route(&hasher), route);
    assert_eq!(route.slot(), HOME.slot());
    object.table = 3;
    let bytes = written(&object);
    let entry = parse(&bytes).unwrap();
    assert_eq!(entry.route(&hasher), hasher.route(key.as_bytes()));
    assert_eq!(entry.part_key(), None);
}

/// The names of an entry are those of its kind of value; damaged ones are an error.
#[test]
fn entries_tell_the_names_in_them() {
    let (key, mut root, mut inner) = (HOME.key(5), Vec::new(), Vec::new());
    part::begin_root(&mut root, 1, std::iter::once((HOME, [7u64].into_iter())));
    part::begin_inner(&mut inner, [7u64].into_iter());
    let names_of = |table: TableId, key: &[u8], value: &[u8], is_typed| {
        let object = NewObject {
            table: table.0,
            version: 2,
            expires_at_ms: None,
            key,
            value,
            victim: SegmentId::NONE,
            is_typed,
        };
        let bytes = written(&object);
        let entry = parse(&bytes).unwrap();
        let names = entry.names().map(|names| names.map(|names| names.form()));
        (entry.has_parts(), names)
    };
    let (table, parts, part) = (TableId(3), TableId(3).parts(), key.as_bytes());
    let form = |form| Ok::<_, part::Damage>(Some(form));
    let damage = Err(part::Damage);
    assert_eq!(names_of(table, b"k", &root, true), (true, form(Form::Root)));
    assert_eq!(names_of(table, b"k", &root[..9], true), (true, damage));
    assert_eq!(names_of(table, b"k", &root, false), (false, Ok(None)));
    assert_eq!(
        names_of(table, b"k", b"\x01packed", true),
        (false, Ok(None))
    );
    assert_eq!(names_of(table, b"k", b"", false), (false, Ok(None)));
    assert_eq!(
        names_of(parts, part, &inner, false),
        (false, form(Form::Inner))
    );
    assert_eq!(names_of(parts, part, &inner[..2], false), (false, damage));
    assert_eq!(names_of(parts, part, b"", false), (false, damage));
    let tombstone = NewTombstone {
        table: parts.0,
        version: 2,
        key: part,
        victim: SegmentId(9),
    };
    let mut bytes = vec![0; tombstone.padded_bytes()];
    tombstone.write_to(&mut bytes);
    assert_eq!(
        parse(&bytes).unwrap().names().map(|names| names.is_none()),
        Ok(true)
    );
}

#[test]
fn golden_bytes_of_completions() {
    let completion = Completion {
        table: 3,
        route: RouteHash(0x0102_0304_0506_0708),
        client: ClientId(0x11),
        rpc: RpcId(0x22),
        ack: RpcId(0x21),
        result: b"done",
    };
    let mut bytes = vec![0xee; completion.padded_bytes()];
    completion.write_to(&mut bytes);
    assert_eq!(bytes.len(), 56);
    assert_eq!(&bytes[..8], &[3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[12..16], b"\x03\x20\x04\x00");
    assert_eq!(
        &bytes[16..],
        b"\x08\x07\x06\x05\x04\x03\x02\x01\x11\0\0\0\0\0\0\0\x22\0\0\0\0\0\0\0\x21\0\0\0\0\0\0\0done\0\0\0\0"
    );
    let entry = parse(&bytes).unwrap();
    assert_eq!(Completion::of(&entry), Some(completion));
    let hasher = KeyHasher::new(1);
    assert_eq!(entry.route(&hasher), completion.route);
    // With another key, or an expiry, it is refused, even with the right CRC.
    for (at, value) in [
        (13, 31),
        (0, COMPLETION | FLAG_EXPIRY),
        (0, COMPLETION | FLAG_VICTIM),
    ] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        wrong[8..12].fill(0);
        let crc = crc32c::crc32c(&wrong);
        wrong[8..12].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(parse(&wrong), Err(Damage::Completion { .. })));
    }
    for kind in [0, 4, 7] {
        let mut wrong = bytes.clone();
        wrong[0] = kind;
        assert_eq!(parse(&wrong), Err(Damage::Kind { kind }));
    }
}

#[test]
fn every_size_round_trips() {
    let value: Vec<u8> = (0..70_000u32).map(|n| n as u8).collect();
    for key_bytes in [0, 1, 7, 8, 15, 16, 255, 256, KEY_BYTES_MAX] {
        for value_bytes in (0..40).chain([65_535, 65_536, 70_000]) {
            for (table, expires_at_ms) in [
                (0, None),
                (255, Some(1)),
                (256, None),
                (TableId::PARTS - 1, Some(u64::MAX)),
            ] {
                let object = NewObject {
                    table,
                    version: VERSION_MAX,
                    expires_at_ms,
                    key: &value[..key_bytes],
                    value: &value[..value_bytes],
                    victim: SegmentId(value_bytes as u64 % 3),
                    is_typed: false,
                };
                let bytes = written(&object);
                let entry = parse(&bytes).unwrap();
                assert_eq!((entry.kind, entry.victim), (Kind::Object, object.victim));
                assert_eq!(entry.key, object.key);
                assert_eq!(entry.value, object.value);
                assert_eq!((entry.table, entry.version), (table, VERSION_MAX));
                assert_eq!(entry.expires_at_ms, expires_at_ms.unwrap_or(0));
                assert_eq!(entry.padded_bytes, bytes.len());
            }
        }
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let object = NewObject {
        table: 1,
        version: 5,
        expires_at_ms: Some(77),
        key: b"some key",
        value: b"value!",
        victim: SegmentId(3),
        is_typed: false,
    };
    assert_noticed(&written(&object), |bytes| parse(bytes).is_err());
    assert!(parse(&[0; 64]).is_err()); // entry::F3
}
