//! The cost of a recovery's work on a core of this machine, measured with the shipped code. It is
//! processor time of the working thread, so a busy machine does not raise it.

use super::machine::Costs;
use crate::figures::replay;
use crate::harness::{Doing, Options, Result, median};
use crate::servers::Scratch;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Geometry, Identity, Mode, ReplicaId};
use duramen_base::ids::SegmentId;
use duramen_base::units::MIB;
use duramen_format::certificate::Certificate;
use duramen_format::hash::KeyHasher;
use duramen_format::segment::{Header, Kind};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

pub(super) const SEGMENT_BYTES: u64 = 8 * MIB;
const VALUE_BYTES: usize = 1000;
const LOG: u64 = 9;

/// Processor time of this thread, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measures all of them.
pub(super) fn measure(options: &Options, dir: &Path) -> Result<Costs> {
    let replay = replay::bytes_per_second(options, VALUE_BYTES)?;
    let (mut keep, mut divide) = (Vec::new(), Vec::new());
    let (mut send, mut receive) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds() {
        let (kept, divided) = backup(dir, options.size(32, 8))?;
        keep.push(kept);
        divide.push(divided);
        let (sent, received) = sockets(options.size(1024, 128) * MIB)?;
        send.push(sent);
        receive.push(received);
    }
    Ok(Costs {
        replay,
        divide: median(&divide),
        keep: median(&keep),
        send: median(&send),
        receive: median(&receive),
    })
}

/// A segment full of objects.
fn segment(id: u64) -> Vec<u8> {
    let header = Header {
        kind: Kind::Head,
        segment: SegmentId(id),
        log: LOG,
        head: 0,
        capacity: SEGMENT_BYTES as u32,
    };
    let mut bytes = header.encode().to_vec();
    for chunk in replay::chunks(SEGMENT_BYTES - 2 * MIB, VALUE_BYTES) {
        bytes.extend(chunk);
    }
    bytes
}

/// Bytes per second and core of storing whole segments, and of reading and dividing them.
fn backup(dir: &Path, segments: u64) -> Result<(f64, f64)> {
    let what = "keeping and reading segments";
    let scratch = Scratch::new(dir).doing(what)?;
    let disk = Arc::new(OsDisk::new(scratch.path(), Mode::Buffered));
    let geometry = Geometry {
        segment_bytes: SEGMENT_BYTES as u32,
        wal_bytes: 64 * MIB,
        frames: segments as u32 + 8,
    };
    let identity = Identity {
        cluster: "bench".to_owned(),
        server: 1,
        hash_seed: 1,
    };
    let on_disk = duramen_backup::Options::default();
    let backup = Backup::create(disk, &on_disk, &geometry, &identity).doing(what)?;
    let bytes = segment(1);
    let (mut kept_s, mut divided_s) = (0.0, 0.0);
    for id in 1..=segments {
        // Its own id is in the header.
        let mut one = bytes.clone();
        let header = segment_header(id);
        one[..header.len()].copy_from_slice(&header);
        let certificate = Certificate::of(&one);
        let replica = ReplicaId {
            log: LOG,
            segment: SegmentId(id),
        };
        let begun = cpu_s();
        backup
            .flusher()
            .write_frame_of(replica, 0, &one, certificate, Kind::Head)
            .doing(what)?;
        kept_s += cpu_s() - begun;
    }
    let hasher = KeyHasher::new(1);
    let (mut scratch_bytes, spare) = (Vec::new(), Arc::default());
    for id in 1..=segments {
        let replica = ReplicaId {
            log: LOG,
            segment: SegmentId(id),
        };
        let begun = cpu_s();
        let sorted = backup
            .reader()
            .read_sorted(replica, &hasher, &mut scratch_bytes, &spare)
            .doing(what)?;
        divided_s += cpu_s() - begun;
        assert!(sorted.memory_bytes() > 0, "a segment full of objects");
    }
    let total = (bytes.len() as u64 * segments) as f64;
    Ok((total / kept_s, total / divided_s))
}

fn segment_header(id: u64) -> Vec<u8> {
    let header = Header {
        kind: Kind::Head,
        segment: SegmentId(id),
        log: LOG,
        head: 0,
        capacity: SEGMENT_BYTES as u32,
    };
    header.encode().to_vec()
}

/// Bytes per second and core of sending through a socket, and of receiving, a mebibyte at a time.
fn sockets(bytes: u64) -> Result<(f64, f64)> {
    let what = "sending through a socket";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(what)?;
    let address = listener.local_addr().doing(what)?;
    let receiver = std::thread::spawn(move || -> std::io::Result<(u64, f64)> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; MIB as usize];
        let mut total = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok((total, cpu_s())),
                count => total += count as u64,
            }
        }
    });
    let mut stream = TcpStream::connect(address).doing(what)?;
    let buffer = vec![7; MIB as usize];
    let begun = cpu_s();
    for _ in 0..bytes / MIB {
        stream.write_all(&buffer).doing(what)?;
    }
    let sent_s = cpu_s() - begun;
    drop(stream);
    let (received, received_s) = receiver.join().expect("the receiving thread").doing(what)?;
    Ok((bytes as f64 / sent_s, received as f64 / received_s))
}
