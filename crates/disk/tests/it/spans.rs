//! Reads of spans: all bytes, for any begin and end, by both ways; errors of the device; a reader
//! that is dropped with reads in flight.

use duramen_base::random::Random;
use duramen_disk::{Device, FileDevice, SpanReader};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: usize = 8 << 20;

fn pattern(at: usize) -> u8 {
    (at as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()[0]
}

fn device(dir: &tempfile::TempDir) -> Arc<dyn Device> {
    let device = FileDevice::open(&dir.path().join("flash"), BYTES as u64).expect("a file");
    let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
    // Aligned, as direct writes must be.
    let mut storage = vec![0; BYTES + 4096];
    let start = storage.as_ptr().align_offset(4096);
    storage[start..start + BYTES].copy_from_slice(&bytes);
    device
        .write_at(0, &storage[start..start + BYTES])
        .expect("written");
    Arc::new(device)
}

/// Some spans, short and long, within a sector and over several.
fn spans() -> Vec<(u64, usize)> {
    let mut random = Random::new(1);
    let mut next = move || random.next_u64();
    (0..400)
        .map(|n| {
            let bytes = match n % 4 {
                0 => 1 + next() as usize % 64,
                1 => 512,
                2 => 1 + next() as usize % 5000,
                _ => 1 + next() as usize % 200_000,
            };
            (next() % (BYTES - bytes) as u64, bytes)
        })
        .collect()
}

fn read_all(reader: &mut SpanReader, spans: &[(u64, usize)]) {
    let mut begun = 0;
    let mut told = vec![0; spans.len()];
    while told.contains(&0) {
        while let Some((at, bytes)) = spans.get(begun) {
            if !reader.submit(*at, *bytes, begun as u64) {
                assert!(!reader.has_room());
                break;
            }
            begun += 1;
        }
        reader.start().expect("started");
        reader.wait().expect("waited");
        reader.poll(|span| {
            let (at, bytes) = spans[span.tag as usize];
            let got = span.result.expect("read");
            assert_eq!(got.len(), bytes);
            let right = got
                .iter()
                .enumerate()
                .all(|(n, byte)| *byte == pattern(at as usize + n));
            assert!(right, "the bytes of span {}", span.tag);
            told[span.tag as usize] += 1;
        });
    }
    assert!(told.iter().all(|times| *times == 1), "each once");
    assert_eq!(reader.under_way(), 0);
}

/// By the best io_uring of the kernel, by a plain io_uring, and by threads.
fn readers(device: &Arc<dyn Device>, depth: u32) -> [SpanReader; 3] {
    let made = [
        SpanReader::new(Arc::clone(device), depth, true),
        SpanReader::by_plain_ring(Arc::clone(device), depth),
        SpanReader::new(Arc::clone(device), depth, false),
    ];
    made.map(|reader| reader.expect("a reader"))
}

#[test]
fn every_span_is_told_of_once_with_its_bytes_by_each_way() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = device(&dir);
    // Two reads at once are submitted together with a no-op.
    for (depth, some) in [(2, 40), (3, 40), (32, 400)] {
        let readers = readers(&device, depth);
        assert!(!readers[2].is_ring());
        for mut reader in readers {
            read_all(&mut reader, &spans()[..some]);
            read_all(&mut reader, &spans()[..10]);
        }
    }
}

#[test]
fn its_descriptor_says_when_something_is_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = device(&dir);
    for mut reader in readers(&device, 4) {
        assert!(!reader.has_done());
        assert!(reader.submit(1000, 100, 7));
        reader.start().expect("started");
        let mut polled = [rustix::event::PollFd::from_borrowed_fd(
            reader.descriptor(),
            rustix::event::PollFlags::IN,
        )];
        let patience = rustix::event::Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let ready = rustix::event::poll(&mut polled, Some(&patience)).expect("polled");
        assert_eq!(ready, 1, "within a minute");
        assert!(reader.has_done());
        assert_eq!(reader.poll(|span| assert_eq!(span.tag, 7)), 1);
        assert!(!reader.has_done());
    }
}

/// Fails every other read, and interrupts the first one.
struct Failing {
    reads: AtomicU64,
}

impl Device for Failing {
    fn read_at(&self, _at: u64, into: &mut [u8]) -> io::Result<()> {
        match self.reads.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::ErrorKind::Interrupted.into()),
            n if n % 2 == 0 => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => {
                into.fill(9);
                Ok(())
            }
        }
    }
    fn write_at(&self, _at: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> u64 {
        BYTES as u64
    }
}

#[test]
fn errors_are_told_and_interruptions_are_not() {
    let failing = Failing {
        reads: AtomicU64::new(0),
    };
    let mut reader = SpanReader::new(Arc::new(failing), 1, true).expect("a reader");
    let mut told = Vec::new();
    for tag in 0..8 {
        assert!(reader.submit(tag * 512, 100, tag));
        while reader.under_way() > 0 {
            reader.start().expect("started");
            reader.wait().expect("waited");
            reader.poll(|span| told.push((span.tag, span.result.map(<[u8]>::len))));
        }
    }
    assert_eq!(told.len(), 8);
    let errors = told.iter().filter(|(_, result)| result.is_err()).count();
    // One of nine reads was interrupted and repeated; of the others each second one failed.
    assert_eq!(errors, 4);
    for (_, result) in told {
        match result {
            Ok(bytes) => assert_eq!(bytes, 100),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
        }
    }
}

#[test]
fn a_reader_that_is_dropped_waits_for_what_is_under_way() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = device(&dir);
    for reads in [1, 2, 8] {
        for _ in 0..20 {
            for mut reader in readers(&device, 8) {
                for (tag, (at, bytes)) in spans().into_iter().take(reads).enumerate() {
                    assert!(reader.submit(at, bytes, tag as u64));
                }
                reader.start().expect("started");
            }
        }
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("none/flash");
    let error = FileDevice::open(&path, BYTES as u64)
        .err()
        .expect("refused");
    let said = error.to_string();
    assert!(said.contains(&path.display().to_string()), "{said}");
}
