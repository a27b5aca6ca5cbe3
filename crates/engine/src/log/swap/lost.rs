//! Segments of which a part is lost (docs/protocols.md, "Accepting a loss").

use super::{Pass, Swaps};
use duramen_base::ids::SegmentId;

impl Swaps {
    /// Announces that parts of the segments `lost` are lost: entries that name one of these stay
    /// needed as long as one of `others` is listed, even after the segment has left. The reason is
    /// that lost entries may have named others in their turn, and nothing else keeps away their
    /// victims. The announcements are those of passes without survivors (swap::D4). Called at the
    /// end of a load, before anything is cleaned.
    pub fn announce_lost(&self, lost: &[SegmentId], others: &[SegmentId]) {
        let (Some(first), Some(last)) = (lost.iter().min(), lost.iter().max()) else {
            return;
        };
        let each = lost.iter().map(|segment| (*segment, 1));
        let mut ranges: Vec<(SegmentId, u32)> = each.collect();
        // Many copies of the list would outgrow the control segment.
        if lost.len() * others.len() > self.victims_max
            && let Ok(count) = u32::try_from(last.0 - first.0 + 1)
        {
            ranges = vec![(*first, count)];
        }
        let mut queues = self.queues();
        for (first, count) in ranges {
            let mut victims = others.to_vec();
            victims.retain(|segment| *segment != first);
            // Each start announces this again while the segment is there; an announcement that is
            // known is left out.
            let is_known = |pass: &Pass| (pass.first, pass.count) == (first, count);
            if !victims.is_empty() && !self.list.needs().passes().iter().any(is_known) {
                let pass = Pass {
                    first,
                    count,
                    victims,
                };
                queues.passes.announce(&self.list, pass);
            }
        }
    }
}
