//! Requests on the client's side.

use super::encode::write_length;

/// Appends requests, as arrays of bulk strings, to an output buffer.
#[derive(Debug)]
pub struct RequestEncoder<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> RequestEncoder<'a> {
    /// Appends to `out`.
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>) -> RequestEncoder<'a> {
        RequestEncoder { out }
    }

    /// A whole request: its name and arguments.
    pub fn request<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.begin(args.len());
        for arg in args {
            self.arg(arg.as_ref());
        }
    }

    /// Begins a request of `args` arguments, the name included; as many calls of [`arg`](Self::arg)
    /// must follow.
    pub fn begin(&mut self, args: usize) {
        write_length(self.out, b'*', args);
    }

    /// One argument of the request that [`begin`](Self::begin) opened.
    pub fn arg(&mut self, bytes: &[u8]) {
        write_length(self.out, b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }
}
