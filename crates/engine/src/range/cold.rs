//! The part of a walk that is on flash: read segment by segment, each when its first entry is met
//! (range::G4).

use crate::Error;
use crate::core::Core;
use crate::core::flash::Image;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::Entry;
use std::collections::HashMap;

/// Location of an entry, for a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// In memory, until the pin ends.
    Here,
    /// In a segment on flash that the walk has handled as a whole: the entry needs no more work.
    Passed,
    /// In a segment that has to be read first.
    Lacking,
}

/// The cold segments of one walk.
#[derive(Default)]
pub(super) struct ColdSegments {
    /// Windows whose entries were all shown, with their incarnation at that time.
    passed: HashMap<u32, u32>,
    /// A window that was met and must be read, with its incarnation.
    wanted: Option<(u32, u32)>,
    image: Option<Image>,
}

impl ColdSegments {
    /// Finds out where the entry is to which the index points under the pin of `stamp`.
    #[inline]
    pub(super) fn look(&mut self, core: &Core, stamp: u64, location: u64) -> Look {
        let Some(tier) = core.tier() else {
            return Look::Here;
        };
        let window = core.space.window_of(location);
        if tier.is_in_memory(window, stamp) {
            return Look::Here;
        }
        let careless = has_bug(Bug::WalkLeavesColdOut);
        // The index points into the window under our pin, so this is its incarnation until the pin
        // ends.
        let incarnation = core.space.segments[window].incarnation();
        if self.passed.get(&(window as u32)) == Some(&incarnation) || careless {
            return Look::Passed;
        }
        self.wanted = Some((window as u32, incarnation));
        Look::Lacking
    }

    /// Reads the segment that was met last, unless that is done. Waits for the device; the caller
    /// is outside (bulk::F9).
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: the next call tries again.
    pub(super) fn read(&mut self, core: &Core) -> Result<(), Error> {
        if self.image.is_none()
            && let Some((window, incarnation)) = self.wanted
        {
            self.image = Image::read(core, window, incarnation)?;
            self.wanted = None; // if it is gone, the walk finds its entries in their new places
        }
        Ok(())
    }

    /// Shows entries of the segment that was read, at most `most`, dead ones too, until `show`
    /// refuses one. The caller is pinned. Returns true if all entries were shown, so that the walk
    /// may go on.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: the segment is read once more.
    pub(super) fn show(
        &mut self,
        core: &Core,
        most: usize,
        show: impl FnMut(u64, &Entry<'_>) -> bool,
    ) -> Result<bool, Error> {
        let Some(mut image) = self.image.take_if(|image| image.is_current(core)) else {
            self.image = None;
            return Ok(true);
        };
        image.each(core, most, show)?;
        if image.is_over() {
            self.passed.insert(image.window, image.incarnation); // range::G4
            return Ok(true);
        }
        self.image = Some(image);
        Ok(false)
    }
}
