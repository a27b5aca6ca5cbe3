//! All decoders of disk data: no bytes make one panic, whether their CRC is right or wrong, and
//! decoded data decodes again from its own encoding.
#![no_main]

use duramen_format::part::{self, Form, Names};
use duramen_format::wal::{self, Commit, Record};
use duramen_format::{entry, frame, heat, segment, superblock};
use libfuzzer_sys::fuzz_target;

/// Writes the CRC that makes a header of this size pass.
fn seal(block: &mut [u8]) {
    let at = block.len() - 4;
    let crc = crc32c::crc32c(&block[..at]);
    block[at..].copy_from_slice(&crc.to_le_bytes());
}

/// The value with these names and this body.
fn written(names: &Names<'_>, tag: u8) -> Vec<u8> {
    let mut out = Vec::new();
    match names.form() {
        Form::Root => part::begin_root(&mut out, tag & 0x7f, names.homes()),
        Form::Inner => part::begin_inner(&mut out, names.children()),
        Form::Leaf => part::begin_leaf(&mut out, names.homes()),
        Form::Dying => {
            for (home, tops) in names.homes() {
                part::append_dying(&mut out, home, tops);
            }
        }
        Form::Building => {
            let (last, root) = names.building().expect("it is one");
            part::append_building(&mut out, last, root);
            return out;
        }
    }
    out.extend_from_slice(names.body());
    out
}

/// Names have one encoding, and are no more than their bytes.
fn named(value: &[u8]) {
    for is_root in [false, true] {
        let Some(names) = part::names(value, is_root) else {
            continue;
        };
        let numbers = names.homes().map(|(_, tops)| tops.count());
        assert!(numbers.sum::<usize>() + names.children().count() < value.len());
        assert_eq!(written(&names, value[0]), value);
    }
}

/// Bytes with the shape of an entry are one, with its sum.
fn summed_entry(bytes: &[u8]) {
    let Ok(shape) = entry::parse_again(bytes) else {
        return;
    };
    let mut bytes = bytes[..shape.padded_bytes].to_vec();
    bytes[8..12].fill(0);
    let crc = crc32c::crc32c(&bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    let entry = entry::parse(&bytes).expect("its sum is right");
    if let Ok(Some(names)) = entry.names() {
        assert_eq!(written(&names, entry.value[0]), entry.value);
    }
    if let Some(key) = entry.part_key() {
        assert_eq!(key.home().key(key.number()), key);
    }
}

fn all(bytes: &[u8]) {
    if let Ok(header) = segment::Header::decode(bytes) {
        assert_eq!(segment::Header::decode(&header.encode()), Ok(header));
    }
    if let Ok(found) = superblock::Superblock::decode(bytes) {
        assert_eq!(superblock::Superblock::decode(&found.encode()), Ok(found));
    }
    if let Ok(header) = wal::Header::decode(bytes) {
        assert_eq!(wal::Header::decode(&header.encode()), Ok(header));
    }
    if let Ok(slot) = frame::Slot::decode(bytes) {
        assert_eq!(frame::Slot::decode(&slot.encode()), Ok(slot));
        assert!(slot.data_bytes() <= slot.certificate.length);
    }
    if let Ok(block) = heat::Block::decode(bytes) {
        assert_eq!(heat::Block::decode(&block.encode()), Ok(block));
    }
    let _ = entry::parse(bytes);
    summed_entry(bytes);
    named(bytes);
    if let Ok((record, taken)) = Record::decode(bytes) {
        assert!(taken <= bytes.len());
        let mut again = Vec::new();
        record.append_to(&mut again);
        assert_eq!(Record::decode(&again), Ok((record, taken)));
    }
    if let Ok(commit) = Commit::decode(bytes) {
        let body = bytes.get(wal::COMMIT_BYTES..).unwrap_or(&[]);
        let _ = commit.records(body);
        // With the checksum of a sound body.
        let whole = Commit {
            body_crc: crc32c::crc32c(body.get(..commit.body_bytes as usize).unwrap_or(body)),
            ..commit
        };
        if let Ok(records) = whole.records(body) {
            assert_eq!(records.len(), commit.records as usize);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    all(data);
    for size in [segment::HEADER_BYTES, wal::COMMIT_BYTES, wal::BLOCK_BYTES] {
        let mut bytes = data.to_vec();
        bytes.resize(bytes.len().max(size), 0);
        seal(&mut bytes[..size]);
        all(&bytes);
    }
});
