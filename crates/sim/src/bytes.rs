//! The bytes of a simulated file, in pages that copies share.

use std::sync::Arc;

/// Bytes of a page of a file.
const PAGE_BYTES: usize = 4096;

/// A file's bytes. Ranges that were never written cost nothing, and copies share pages.
#[derive(Clone, Default)]
pub struct Bytes {
    /// `None`: zeros.
    pages: Vec<Option<Arc<[u8; PAGE_BYTES]>>>,
    length: usize,
}

impl Bytes {
    pub fn len(&self) -> usize {
        self.length
    }

    /// Grows with zeros.
    pub fn resize(&mut self, length: usize) {
        assert!(length >= self.length, "files only grow");
        self.length = length;
        self.pages.resize(length.div_ceil(PAGE_BYTES), None);
    }

    /// The pieces of a range: page, first byte in it, number of bytes, offset in the range.
    fn pieces(at: usize, bytes: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = bytes.checked_sub(done).filter(|left| *left > 0)?;
            let (page, from) = ((at + done) / PAGE_BYTES, (at + done) % PAGE_BYTES);
            let count = left.min(PAGE_BYTES - from);
            let piece = (page, from, count, done);
            done += count;
            Some(piece)
        })
    }

    /// Writes, and grows the file if necessary.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        if self.length < at + bytes.len() {
            self.resize(at + bytes.len());
        }
        for (page, from, count, done) in Self::pieces(at, bytes.len()) {
            let source = &bytes[done..done + count];
            let page = &mut self.pages[page];
            if page.is_none() && source.iter().all(|byte| *byte == 0) {
                continue;
            }
            let page = page.get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[from..from + count].copy_from_slice(source);
        }
    }

    /// Returns false if the file is shorter.
    pub fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let at = at as usize;
        if at + into.len() > self.length {
            return false;
        }
        for (page, from, count, done) in Self::pieces(at, into.len()) {
            match &self.pages[page] {
                Some(page) => into[done..done + count].copy_from_slice(&page[from..from + count]),
                None => into[done..done + count].fill(0),
            }
        }
        true
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; self.length];
        assert!(self.read(0, &mut all));
        all
    }

    /// The offsets of pages that hold anything but zeros.
    pub fn written(&self) -> Vec<u64> {
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter(|(_, page)| page.is_some());
        pages.map(|(n, _)| (n * PAGE_BYTES) as u64).collect()
    }
}
