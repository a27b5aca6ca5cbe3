//! Many reads at once give the bytes of single reads.

use duramen_disk::{Device, FileDevice, ManyReads};
use std::sync::Arc;

#[test]
fn many_reads_give_what_each_would() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = FileDevice::open(&dir.path().join("flash"), 64 << 20).expect("opened");
    let device: Arc<dyn Device> = Arc::new(device);
    let many = ManyReads::new(Arc::clone(&device));
    let aligned = |bytes: usize| vec![[0u8; 4096]; bytes / 4096 + 2];
    let mut memory = aligned(1 << 20);
    let at = memory.as_ptr().cast::<u8>().align_offset(4096);
    let bytes = &mut memory.as_flattened_mut()[at..][..1 << 20];
    bytes
        .iter_mut()
        .enumerate()
        .for_each(|(n, byte)| *byte = ((n / 512) ^ (n / 131_072)) as u8);
    device.write_at(0, bytes).expect("written");
    let mut space = aligned(200 * 512);
    let at = space.as_ptr().cast::<u8>().align_offset(512);
    let pieces = space.as_flattened_mut()[at..][..200 * 512].chunks_mut(512);
    let mut reads: Vec<_> = (0..200)
        .map(|n| n * 7919 % 2048 * 512)
        .zip(pieces)
        .collect();
    many.read(&mut reads).expect("read");
    for (offset, read) in &reads {
        assert_eq!(**read, bytes[*offset as usize..][..512]);
    }
    // A read beyond the end fails, and its error does not affect the next reads.
    reads[100].0 = 64 << 20;
    assert!(many.read(&mut reads).is_err());
    reads[100].0 = 512;
    many.read(&mut reads).expect("read");
    assert_eq!(*reads[100].1, bytes[512..1024]);
}
