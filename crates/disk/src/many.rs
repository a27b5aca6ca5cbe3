//! Several reads of a device at once, for a caller that waits for all of them.

use crate::device::Device;
use crate::spans::SpanReader;
use std::io;
use std::sync::{Arc, Mutex};

/// Reads in flight.
const DEPTH: u32 = 64;

/// A device that reads several spans side by side.
pub struct ManyReads {
    device: Arc<dyn Device>,
    /// The reader, which one call uses at a time, and which is made at its first use.
    reader: Mutex<Option<SpanReader>>,
}

impl ManyReads {
    pub fn new(device: Arc<dyn Device>) -> ManyReads {
        ManyReads {
            device,
            reader: Mutex::default(),
        }
    }

    /// Reads all of several pieces, each from its own byte of the device on: one after the other if
    /// the device has no descriptor, or while another call reads, which keeps the device busy.
    ///
    /// # Errors
    /// The device's: then the content of all pieces is undefined.
    pub fn read(&self, reads: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        let mut kept = self.reader.try_lock().ok();
        let reader = kept.as_deref_mut().and_then(|kept| {
            if kept.is_none() && self.device.descriptor().is_some() {
                *kept = SpanReader::new(Arc::clone(&self.device), DEPTH, true).ok();
            }
            kept.as_mut()
        });
        let Some(reader) = reader else {
            let mut reads = reads.iter_mut();
            return reads.try_for_each(|(at, into)| self.device.read_any(*at, into));
        };
        let result = side_by_side(reader, reads);
        if reader.under_way() > 0
            && let Some(kept) = kept.as_deref_mut()
        {
            *kept = None; // its drop waits for the in-flight reads
        }
        result
    }
}

/// Performs all reads. An error is returned when no read is in flight any more.
fn side_by_side(reader: &mut SpanReader, reads: &mut [(u64, &mut [u8])]) -> io::Result<()> {
    let (mut next, mut result) = (0, Ok(()));
    while next < reads.len() || reader.under_way() > 0 {
        while let Some((at, into)) = reads.get(next)
            && reader.submit(*at, into.len(), next as u64)
        {
            next += 1;
        }
        reader.wait().map_err(io::Error::other)?;
        reader.poll(|span| match span.result {
            Ok(bytes) => reads[span.tag as usize].1.copy_from_slice(bytes),
            Err(error) => result = Err(error),
        });
    }
    result
}
