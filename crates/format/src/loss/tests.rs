//! Damage of every kind in segments of which the content is known.

use super::*;
use crate::entry::NewObject;
use crate::segment::Kind;
use duramen_base::ids::Home;

const HEADER: Header = Header {
    kind: Kind::Head,
    segment: SegmentId(514),
    log: 7,
    head: 1,
    capacity: 1 << 20,
};
const ENTRIES: u64 = 20;

fn key(n: u64) -> Vec<u8> {
    format!("user:{n}").into_bytes()
}

/// A segment, and the place of each entry.
fn segment(value_bytes: usize) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = HEADER.encode().to_vec();
    let mut places = Vec::new();
    for n in 0..ENTRIES {
        let object = NewObject {
            table: 0,
            version: n + 1,
            expires_at_ms: None,
            key: &key(n),
            value: &vec![n as u8; value_bytes],
            victim: SegmentId::NONE,
            is_typed: false,
        };
        places.push(bytes.len());
        let at = bytes.len();
        bytes.resize(at + object.padded_bytes(), 0);
        object.write_to(&mut bytes[at..]);
    }
    (bytes, places)
}

/// The numbers of the objects, and of the tombstones.
fn numbers(bytes: &[u8]) -> (Vec<u64>, Vec<u64>) {
    assert!(Header::decode(bytes).is_ok());
    let (mut at, mut objects, mut tombstones) = (HEADER_BYTES, Vec::new(), Vec::new());
    while at < bytes.len() {
        let entry = entry::parse(&bytes[at..]).expect("only sound entries are left");
        let n = (0..ENTRIES).find(|n| key(*n) == entry.key).expect("a key");
        match entry.kind {
            EntryKind::Object => objects.push(n),
            _ => tombstones.push(n),
        }
        at += entry.padded_bytes;
    }
    (objects, tombstones)
}

fn others(but: &[u64]) -> Vec<u64> {
    (0..ENTRIES).filter(|n| !but.contains(n)).collect()
}

#[test]
fn memory_that_lost_two_bits_of_a_value_loses_this_entry_alone() {
    let (mut bytes, places) = segment(100);
    bytes[places[5] + 50] ^= 3;
    let certificate = Certificate::of(&bytes); // made of the bad bytes
    let examined = examine(&[bytes.clone()], &HEADER, certificate);
    let loss = examined.loss.clone().expect("a loss");
    assert_eq!(loss.ranges.len(), 1);
    assert_eq!(loss.ranges[0], places[5] as u32..places[6] as u32);
    assert_eq!(
        (&*loss.claims[0].key, loss.claims[0].version),
        (&key(5)[..], 6)
    );
    assert!(!loss.claims[0].is_whole && loss.claims.len() == 1);
    assert_eq!(numbers(&examined.sound), (others(&[5]), vec![]));
    assert_eq!(
        numbers(&examined.with_tombstones()),
        (others(&[5]), vec![5])
    );
    // loss::Y5: a name for exactly this.
    let again = examine(&[bytes.clone(), bytes.clone()], &HEADER, certificate);
    assert_eq!(again.loss.expect("the same").token(), loss.token());
    bytes[places[7] + 50] ^= 3;
    let more = examine(&[bytes.clone()], &HEADER, Certificate::of(&bytes));
    assert_ne!(more.loss.expect("more").token(), loss.token());
    assert_eq!(loss.lines(9).len(), 2, "{:?}", loss.lines(9));
}

/// loss::Y4: an older version must not look as if it were newer than the lost one.
#[test]
fn a_flipped_bit_of_a_version_is_put_back() {
    for (bit, other) in [(0, 8 * 50), (1, 8 * 8 + 3), (2, 8 * 3), (40, 8 * 90)] {
        let (mut bytes, places) = segment(100);
        let version = bytes[places[5] + 1];
        for bit in [8 + bit, other] {
            bytes[places[5] + bit / 8] ^= 1 << (bit % 8);
        }
        assert!(version == 6 && (bit > 7 || bytes[places[5] + 1] != 6));
        let examined = examine(&[bytes.clone()], &HEADER, Certificate::of(&bytes));
        let loss = examined.loss.expect("a loss");
        assert_eq!(loss.claims.len(), 1, "{bit} {other}");
        assert!(loss.claims.iter().all(|claim| claim.version == 6));
    }
}

#[test]
fn replicas_with_damage_in_different_entries_make_a_whole_one() {
    let (whole, places) = segment(100);
    let certificate = Certificate::of(&whole);
    let (mut one, mut other) = (whole.clone(), whole.clone());
    one[places[3] + 8..places[5]].fill(0);
    other[places[9]..places[9] + 60].fill(0xff);
    let examined = examine(&[one.clone(), other.clone()], &HEADER, certificate);
    assert_eq!((examined.sound, examined.loss), (whole.clone(), None));
    // A lost header too, and a replica that ends early.
    one[..HEADER_BYTES].fill(0);
    other.truncate(places[15]);
    let examined = examine(&[one, other], &HEADER, certificate);
    assert_eq!((examined.sound, examined.loss), (whole, None));
}

/// The header that is made anew has another version than that of an older program. The certificate
/// matches all the same: a block that ends with its own sum adds to every sum alike.
#[test]
fn a_lost_header_of_an_older_segment_is_made_anew() {
    let (whole, _) = segment(100);
    let mut written = whole.clone();
    written[4] = 2;
    let sum = crc32c::crc32c(&written[..60]);
    written[60..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Header::decode(&written), Ok(HEADER));
    let mut image = written.clone();
    image[..HEADER_BYTES].fill(0);
    let examined = examine(&[image], &HEADER, Certificate::of(&written));
    assert!(examined.sound == whole && examined.loss.is_none());
}

/// A lost part is named as one, and the tombstone that keeps older versions away is one of a part.
#[test]
fn lost_parts_are_named_and_buried_as_parts() {
    let key = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).key(12);
    let table = TableId(3).parts().0;
    let part = NewObject {
        table,
        version: 5,
        expires_at_ms: None,
        key: key.as_bytes(),
        value: &[0; 100],
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut bytes = HEADER.encode().to_vec();
    bytes.resize(HEADER_BYTES + part.padded_bytes(), 0);
    part.write_to(&mut bytes[HEADER_BYTES..]);
    bytes[HEADER_BYTES + 50] ^= 3;
    let examined = examine(&[bytes.clone()], &HEADER, Certificate::of(&bytes));
    let loss = examined.loss.as_ref().expect("a loss");
    let (line, claim) = (&loss.lines(9)[1], &loss.claims[0]);
    assert!(
        line.contains("  part 8d02030405060708090a0b/12 of table 3, version 5"),
        "{line}"
    );
    assert_eq!((claim.table, &*claim.key), (table, &key.as_bytes()[..]));
    let buried = examined.with_tombstones();
    let entry = entry::parse(&buried[HEADER_BYTES..]).expect("a tombstone");
    assert_eq!((entry.kind, entry.version), (EntryKind::Tombstone, 5));
    assert_eq!(entry.part_key(), Some(key));
}

/// loss::Y2: the frame may have had another segment's bytes behind the first damage.
#[test]
fn what_lies_behind_damage_on_a_disk_is_lost_and_named() {
    let (mut bytes, places) = segment(100);
    let certificate = Certificate::of(&bytes);
    bytes[places[5] + 50] ^= 3;
    let examined = examine(&[bytes.clone()], &HEADER, certificate);
    let loss = examined.loss.clone().expect("a loss");
    assert_eq!(loss.ranges.len(), 1);
    assert_eq!(loss.ranges[0], places[5] as u32..bytes.len() as u32);
    assert_eq!(loss.claims.len() as u64, ENTRIES - 5);
    assert!(loss.claims[1..].iter().all(|claim| claim.is_whole));
    let lost: Vec<u64> = (5..ENTRIES).collect();
    assert_eq!(numbers(&examined.with_tombstones()), (others(&lost), lost));
    // Whole entries that do not fit the certificate prove nothing at all.
    let (whole, _) = segment(100);
    let examined = examine(
        std::slice::from_ref(&whole),
        &HEADER,
        Certificate {
            crc: 1,
            ..certificate
        },
    );
    let loss = examined.loss.expect("a loss");
    assert_eq!(
        (examined.sound.len(), loss.claims.len()),
        (HEADER_BYTES, ENTRIES as usize)
    );
}

/// loss::Y2: one replica has older bytes of its frame, the other damage in front of the same place.
#[test]
fn older_entries_of_one_replica_do_not_fill_the_gaps_of_another() {
    let (whole, places) = segment(100);
    let certificate = Certificate::of(&whole);
    let (mut one, mut older) = (whole.clone(), whole.clone());
    one[places[5]..places[6]].fill(0);
    one[places[12] + 50] ^= 3;
    older[places[3]..places[12]].copy_from_slice(&whole[places[0]..places[9]]);
    older[places[12] + 50] ^= 7;
    let examined = examine(&[one.clone(), older.clone()], &HEADER, certificate);
    let both = numbers(&examined.sound).0;
    assert_eq!(both, [0, 1, 2], "all on which both agree");
    let loss = examined.loss.clone().expect("a loss");
    let is_named = |n: u64| loss.claims.iter().any(|claim| *claim.key == key(n)[..]);
    let named: Vec<u64> = (3..ENTRIES).filter(|n| is_named(*n)).collect();
    assert_eq!(named, others(&[0, 1, 2]));
    let again = examine(&[older, one], &HEADER, certificate);
    assert_eq!(again, examined);
}

/// loss::Y3: a client can write the bytes of entries into a value.
#[test]
fn entries_behind_a_bad_header_are_lost_and_named() {
    let (mut bytes, places) = segment(100);
    bytes[places[5]] ^= 0x7f; // no kind of entry
    let certificate = Certificate::of(&bytes);
    let examined = examine(&[bytes], &HEADER, certificate);
    let loss = examined.loss.clone().expect("a loss");
    let lost: Vec<u64> = (6..ENTRIES).collect();
    assert_eq!(loss.claims.len(), lost.len(), "the damaged one has no name");
    assert!(loss.claims.iter().all(|claim| claim.is_whole));
    assert_eq!(
        numbers(&examined.with_tombstones()),
        ((0..5).collect(), lost)
    );
}

#[test]
fn damaged_entries_beside_each_other_have_their_names() {
    let (mut bytes, places) = segment(100);
    for n in [5, 6, 7, ENTRIES as usize - 1] {
        bytes[places[n] + 50] ^= 3;
    }
    let certificate = Certificate::of(&bytes);
    let loss = examine(&[bytes], &HEADER, certificate)
        .loss
        .expect("a loss");
    let keys: Vec<&[u8]> = loss.claims.iter().map(|claim| &*claim.key).collect();
    assert_eq!(keys, [5, 6, 7, ENTRIES - 1].map(key));
    assert_eq!(loss.ranges.len(), 2);
}

#[test]
fn a_bad_header_of_a_segment_is_a_loss_of_no_entry() {
    let (mut bytes, _) = segment(100);
    bytes[10] ^= 0xff;
    let certificate = Certificate::of(&bytes);
    let examined = examine(&[bytes], &HEADER, certificate);
    let loss = examined.loss.clone().expect("it is said");
    assert_eq!((loss.ranges.len(), loss.claims.len()), (1, 0));
    assert_eq!(numbers(&examined.sound).0, others(&[]));
}

#[test]
fn a_damaged_version_does_not_use_up_the_versions() {
    let (mut bytes, places) = segment(100);
    bytes[places[5] + 5..places[5] + 8].fill(0xff);
    let certificate = Certificate::of(&bytes);
    let loss = examine(&[bytes], &HEADER, certificate)
        .loss
        .expect("a loss");
    assert_eq!(loss.claims[0].version, VERSION_BELIEVED_MAX);
}

/// No bytes make it panic, and what is left is always sound.
#[test]
fn any_bytes_are_looked_at() {
    let (whole, _) = segment(40);
    let certificate = Certificate::of(&whole);
    let mut random = duramen_base::random::Random::new(5);
    for round in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..random.below(8) + 1 {
            let at = random.below(bytes.len() as u64) as usize;
            let end = bytes.len().min(at + random.below(200) as usize);
            bytes[at..end]
                .iter_mut()
                .for_each(|byte| *byte = random.next_u64() as u8);
        }
        bytes.truncate(bytes.len() - random.below(100) as usize);
        let certificate = match round % 2 {
            0 => certificate,
            _ => Certificate::of(&bytes),
        };
        let images = match round % 3 {
            0 => vec![bytes, Vec::new()],
            1 => vec![bytes.clone(), bytes],
            _ => vec![bytes],
        };
        let examined = examine(&images, &HEADER, certificate);
        numbers_of_any(&examined.sound);
        numbers_of_any(&examined.with_tombstones());
    }
    assert!(examine(&[], &HEADER, certificate).loss.is_some());
    assert!(
        examine(&[Vec::new()], &HEADER, Certificate::EMPTY)
            .sound
            .len()
            == HEADER_BYTES
    );
}

fn numbers_of_any(bytes: &[u8]) {
    assert!(Header::decode(bytes).is_ok());
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        at += entry::parse(&bytes[at..]).expect("sound").padded_bytes;
    }
}

/// A client filled a value with headers of long entries: each was verified at each search.
#[test]
fn a_search_through_what_a_client_wrote_ends_soon() {
    let long = NewObject {
        table: 0,
        version: 1,
        expires_at_ms: None,
        key: b"k",
        value: &vec![0; 60_000],
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut header = vec![0; long.padded_bytes()];
    long.write_to(&mut header);
    header[9] ^= 1; // no sum is right
    let header = &header[..16];
    let value: Vec<u8> = header.iter().copied().cycle().take(4 << 20).collect();
    let began = std::time::Instant::now();
    let mut bytes = HEADER.encode().to_vec();
    bytes.extend([0; 8]); // no plausible header
    bytes.extend(&value);
    let loss = examine(&[bytes.clone()], &HEADER, Certificate::of(&bytes)).loss;
    assert!(loss.expect("a loss").claims.is_empty());
    // Without the limit: 16 GiB.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

/// loss::Y6.
#[test]
fn an_unknown_end_is_part_of_a_loss() {
    let (bytes, _) = segment(100);
    let certificate = Certificate::of(&bytes);
    let mut examined = examine(std::slice::from_ref(&bytes), &HEADER, certificate);
    assert_eq!(examined.loss, None);
    examined.lose_end(HEADER.segment, certificate);
    let loss = examined.loss.expect("a loss");
    let line = format!(
        "segment 514, from byte {} to an unknown end: any key may have been in it",
        bytes.len()
    );
    assert_eq!((loss.lines(9), loss.bytes()), (vec![line], 0));
    assert_eq!(examined.sound, bytes);
}
