//! The clock of a store's owner, as the store keeps it.

use crate::device::Device;
use crate::error::Error;
use crate::flush::Turns;

/// See the module.
#[derive(Clone, Copy)]
pub struct Clock<'b> {
    device: &'b Device,
    turns: &'b Turns,
}

impl<'b> Clock<'b> {
    pub(crate) fn new(device: &'b Device, turns: &'b Turns) -> Clock<'b> {
        Clock { device, turns }
    }

    /// The clock at the store's last write, in milliseconds since the Unix epoch; 0 = not known.
    pub fn ms(&self) -> u64 {
        self.device.state().ring.clock_ms
    }

    /// Sets the clock. The clock is written with the next commit, and with every header of the
    /// write-ahead log. The greater of both counts, so a header is written at once after the clock
    /// was set back.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`].
    pub fn set_ms(&self, now_ms: u64) -> Result<(), Error> {
        let mut state = self.device.state();
        state.ring.clock_ms = now_ms;
        let is_back = now_ms < state.ring.header_clock_ms;
        drop(state);
        if is_back { self.note() } else { Ok(()) }
    }

    /// Makes the last [`set_ms`](Self::set_ms) durable.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Failed`].
    pub fn note(&self) -> Result<(), Error> {
        let _flushing = self.turns.flushing();
        self.device.working(&self.device.state())?;
        let header = self.device.state().header();
        self.device.write_next_header(&header)
    }
}
