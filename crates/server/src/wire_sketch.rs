//! TEMPORARY stand-in for `duramen_wire::resp` until that crate has it; same shapes.

#[derive(Default)]
pub struct Requests {
    spans: Vec<(u32, u32)>,
    starts: Vec<u32>,
}

impl Requests {
    pub fn len(&self) -> usize {
        self.starts.len()
    }
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }
    pub fn args<'a>(&'a self, n: usize, input: &'a [u8]) -> Args<'a> {
        let start = self.starts[n] as usize;
        let end = self
            .starts
            .get(n + 1)
            .map_or(self.spans.len(), |s| *s as usize);
        Args {
            spans: &self.spans[start..end],
            input,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Args<'a> {
    spans: &'a [(u32, u32)],
    input: &'a [u8],
}

impl<'a> Args<'a> {
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.spans.get(i)?;
        self.input.get(from as usize..to as usize)
    }
    pub fn len(&self) -> usize {
        self.spans.len()
    }
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}
