//! All decoders of disk data: no bytes make one panic, whether their CRC is right or wrong, and
//! decoded data decodes again from its own encoding.
#![no_main]

use duramen_format::wal::{self, Commit, Record};
use duramen_format::{entry, frame, heat, segment, superblock};
use libfuzzer_sys::fuzz_target;

/// Writes the CRC that makes a header of this size pass.
fn seal(block: &mut [u8]) {
    let at = block.len() - 4;
    let crc = crc32c::crc32c(&block[..at]);
    block[at..].copy_from_slice(&crc.to_le_bytes());
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
