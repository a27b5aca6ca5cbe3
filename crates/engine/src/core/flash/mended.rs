//! Flipped bits of segments that go to flash or come from there.
//!
//! **Invariants**
//! - M1: a segment is verified before it is written, because its memory is freed afterwards. One
//!   flipped bit of an entry is put back in what is written. With more damage it stays in memory,
//!   claimed (sound::V2).
//! - M2: a bit that changed on the device, or on the way, is put back only in the image of a whole
//!   segment of which other entries are sound. Under a wrong mask no entry is sound (mask::F7), so
//!   the image is that of this segment.

use super::holding::bytes_of;
use crate::core::Core;
use crate::core::damage::EntryDamage;
use crate::core::sound;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry;
use duramen_format::mend;
use std::borrow::Cow;

/// The bytes of a claimed segment in memory, as they are to be written (M1). `None`: there is
/// more damage.
pub(super) fn sound_segment(core: &Core, window: u32, length: usize) -> Option<Cow<'_, [u8]>> {
    let bytes = core.space.bytes_of(window, length);
    let mut sound = Cow::Borrowed(bytes);
    let start = core.space.offset_of(window);
    let end = start + core.space.segments[window as usize].appended_bytes() as usize;
    let mut at = start + SEGMENT_HEADER_BYTES;
    while at < end && !has_bug(Bug::DamageGoesToFlash) {
        // SAFETY: a closed segment is initialised from its header to its end, and is claimed by
        // the caller, so its bytes do not change.
        let entry = unsafe { sound::verify(core, Space::location(at), end) }.ok()?;
        let padded_bytes = entry.entry.padded_bytes;
        if let Some(copy) = entry.copy {
            let from = at - start;
            let place = sound.to_mut().get_mut(from..from + padded_bytes)?;
            place.copy_from_slice(bytes_of(&copy));
        }
        at += padded_bytes;
    }
    Some(sound)
}

/// Puts back flipped bits in the image of a segment that was read from flash (M2). Returns false,
/// with the image as it was, if the entries do not prove it.
pub(super) fn mend_image(core: &Core, window: u32, image: &mut [u8]) -> bool {
    let (mut at, mut sound, mut mended) = (SEGMENT_HEADER_BYTES, 0, Vec::new());
    while at < image.len() {
        if let Ok(entry) = entry::parse(&image[at..]) {
            (at, sound) = (at + entry.padded_bytes, sound + 1);
            continue;
        }
        match mend::entry_at(image, at, mend::SURE_BYTES_MAX) {
            Some(bit) => mended.push(bit),
            None => break,
        }
    }
    // `sound` counts the mended entries too.
    let is_proved = at >= image.len() && (mended.is_empty() || sound > mended.len());
    if !is_proved {
        let flipped = mended.iter().map(|bit| (bit.byte, bit.bit));
        flipped.for_each(|(byte, bit)| image[byte] ^= 1 << bit);
        return false;
    }
    for bit in mended {
        let log = core.log.as_ref();
        core.listeners.damages.tell(EntryDamage {
            segment: log.map_or(SegmentId::NONE, |log| log.segment_of(window as usize)),
            is_mended: true,
            what: format!("on flash, {bit}"),
        });
    }
    true
}
