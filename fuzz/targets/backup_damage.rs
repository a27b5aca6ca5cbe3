//! A store whose files were changed at random, with CRCs corrected: opening, reading, flushing and
//! writing it give errors, never a panic; and read data matches its certificate.
#![no_main]

use std::sync::{Arc, OnceLock};

use duramen_backup::{Backup, Chunk, Expected, Geometry, Identity, Options};
use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_sim::disk::SimDisk;
use libfuzzer_sys::fuzz_target;

const SMALL: Geometry = Geometry {
    segment_bytes: 8 << 10,
    wal_bytes: 64 << 10,
    frames: 4,
};

fn options() -> Options {
    Options {
        bypass_bytes: 5000,
        ..Options::default()
    }
}

fn append(backup: &Backup, segment: u64, from: u32, to: u32, close: bool) {
    let all = vec![segment as u8; to as usize];
    let chunk = Chunk {
        segment: SegmentId(segment),
        epoch: 1,
        kind: Kind::Head,
        offset: from,
        bytes: &all[from as usize..],
        certificate: Some(Certificate::of(&all)),
        open: from == 0,
        close,
    };
    if backup.stage(chunk).is_ok() {
        let _ = backup.commit(Level::Synced);
    }
}

/// A store with every kind of content.
fn base() -> &'static SimDisk {
    static BASE: OnceLock<SimDisk> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = SimDisk::new(1, 2 << 20);
        let identity = Identity {
            cluster: "fuzz".to_owned(),
            server: 7,
            hash_seed: 1,
        };
        let shared = Arc::new(disk.clone());
        let backup = Backup::create(shared, &options(), &SMALL, &identity).expect("it is created");
        append(&backup, 1, 0, 3000, true);
        append(&backup, 2, 0, 100, false);
        append(&backup, 3, 0, 6000, false);
        while backup.flush_step().expect("it is flushed") {}
        append(&backup, 2, 100, 200, false);
        append(&backup, 4, 0, 50, false);
        drop(backup);
        disk
    })
}

/// Corrects a CRC: of a block, of a commit's head, or of a commit's body and head.
fn seal(disk: &SimDisk, name: &str, at: u64, how: u8) {
    let bytes = disk.bytes_of(name);
    let start = at as usize / 4096 * 4096;
    let put = |at: usize, crc: u32| disk.put(name, at as u64, &crc.to_le_bytes());
    let Some(block) = bytes.get(start..start + 4096) else {
        return;
    };
    match how % 4 {
        0 => put(start + 4092, crc32c::crc32c(&block[..4092])),
        1 => put(start + 60, crc32c::crc32c(&block[..60])),
        2 => {
            let length = u32::from_le_bytes(block[40..44].try_into().unwrap_or_default()) as usize;
            let body = bytes.get(start + 64..start + 64 + length).unwrap_or(&[]);
            let mut head = block[..60].to_vec();
            head[48..52].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
            put(start + 48, crc32c::crc32c(body));
            put(start + 60, crc32c::crc32c(&head));
        }
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let disk = base().copy(1);
    for edit in data.chunks(8) {
        let [which, high, low, how, bytes @ ..] = edit else {
            continue;
        };
        let (name, region) =
            [("superblock", 4096), ("wal", 65_536), ("frames", 65_536)][usize::from(*which) % 3];
        let at = (u64::from(*high) << 8 | u64::from(*low)) % region;
        disk.put(name, at, bytes);
        seal(&disk, name, at, *how);
    }
    let opened = Backup::open(Arc::new(disk.clone()), &options(), &Expected::default());
    let Ok((backup, found)) = opened else {
        return;
    };
    let mut into = vec![0; backup.geometry().segment_bytes.min(1 << 20) as usize];
    for info in &found {
        if let Ok(info) = backup.read(info.segment, &mut into) {
            assert!(info.certificate().matches(&into));
        }
    }
    append(&backup, 100, 0, 4000, true);
    for _ in 0..8 {
        if !backup.flush_step().unwrap_or(false) {
            break;
        }
    }
    for info in &found {
        let _ = backup.scrubber().step();
        let _ = backup.free(info.segment);
    }
});
