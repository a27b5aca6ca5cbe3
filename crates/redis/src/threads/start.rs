//! The start of threads: the crate above starts them, by a function that it gives.

use std::io;

/// The work of a thread, which ends with the work.
pub type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread of this name.
#[derive(Clone, Copy)]
pub struct Starter(pub fn(&'static str, Work) -> io::Result<()>);

impl Starter {
    pub(crate) fn start(
        self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        (self.0)(name, Box::new(work))
    }
}

#[cfg(test)]
pub(crate) const STARTER: Starter = Starter(|name, work| {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).map(drop)
});
