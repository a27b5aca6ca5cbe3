//! What of a walk lies on flash: read segment by segment, each when its first entry is met (G4).

use crate::Error;
use crate::core::Core;
use crate::flash::Image;
use crate::log::Bug;
use duramen_format::entry::Entry;
use std::collections::HashMap;

/// Where an entry is, for a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// In memory, until the pin ends.
    Here,
    /// In a segment on flash that was passed: there is nothing to be done with it any more.
    Passed,
    /// In a segment that is to be read first.
    Lacking,
}

/// The cold segments of one walk.
#[derive(Default)]
pub(super) struct ColdSegments {
    /// Windows whose entries were all shown, with the incarnation in which they were.
    passed: HashMap<u32, u32>,
    /// A window that was met and must be read, in this incarnation.
    wanted: Option<(u32, u32)>,
    image: Option<Image>,
}

impl ColdSegments {
    /// Looks where the entry at a location is that the index points to under the pin of `stamp`.
    #[inline]
    pub(super) fn look(&mut self, core: &Core, stamp: u64, location: u64) -> Look {
        let Some(tier) = &core.space.tier else {
            return Look::Here;
        };
        let window = core.space.window_of(location);
        if tier.is_in_memory(window, stamp) {
            return Look::Here;
        }
        let careless = core
            .log
            .as_ref()
            .is_some_and(|log| log.has_bug(Bug::WalkLeavesColdOut));
        // The index points into it under our pin, so this is its incarnation until the pin ends.
        let incarnation = core.space.segments[window].incarnation();
        if self.passed.get(&(window as u32)) == Some(&incarnation) || careless {
            return Look::Passed;
        }
        self.wanted = Some((window as u32, incarnation));
        Look::Lacking
    }

    /// Reads what was met last and lacking, if that is not done yet. Waits for the device; the
    /// caller is outside (F9).
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: the next call tries again.
    pub(super) fn read(&mut self, core: &Core) -> Result<(), Error> {
        if self.image.is_none()
            && let Some((window, incarnation)) = self.wanted
        {
            self.image = Image::read(core, window, incarnation)?;
            self.wanted = None; // if it is gone, the walk finds what was in it where it is now
        }
        Ok(())
    }

    /// Shows entries of the segment that was read, `most` at most, dead ones too, until `show`
    /// refuses one. The caller is pinned. True: nothing is left of it, and the walk may go on.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: it is read once more.
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
            self.passed.insert(image.window, image.incarnation); // G4
            return Ok(true);
        }
        self.image = Some(image);
        Ok(false)
    }
}
