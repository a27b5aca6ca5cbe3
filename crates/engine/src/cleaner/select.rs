//! Which segments to clean: cost-benefit, in log time.
//!
//! Paper: [Rumble14 §9] the corrected formula `(1 - u) · segmentAge / u`, where the age is that of the *segment*: survivors
//! start young, so a segment that was just cleaned is left alone for a while. Differs: age counts bytes appended to the
//! store, not seconds, so an idle night does not make everything old.

use crate::core::Core;
use crate::space::segment::State;

/// Victims per selection: enough to sort by age, few enough that the choice is fresh.
const VICTIMS_MAX: usize = 16;
/// A segment with a larger live part frees too little to be worth a survivor [Rumble14 §7].
const LIVE_PART_MAX: f64 = 0.98;

/// Claims the best victims of a node, oldest first. Empty: nothing is worth cleaning.
/// `oldest_first`: eviction looks for cold entries, not for dead ones.
pub fn select(core: &Core, node: usize, oldest_first: bool) -> Vec<u32> {
    let now = core.log_time();
    let now_ms = core.clock.now_ms();
    let mut candidates: Vec<(f64, u32)> = Vec::new();
    for window in core.space.windows_of_node(node) {
        let segment = &core.space.segments[window as usize];
        if segment.state() != State::Closed {
            continue;
        }
        let committed = f64::from(segment.committed_bytes()).max(1.0);
        let live = core
            .live_in(window)
            .saturating_sub(u64::from(segment.expired_estimate(now_ms)));
        let u = live as f64 / committed;
        let age =
            (now.saturating_sub(segment.opened_tick()) + core.space.segment_bytes() as u64) as f64;
        if oldest_first {
            candidates.push((age, window));
        } else if u <= LIVE_PART_MAX {
            candidates.push(((1.0 - u) * age / u.max(1e-6), window));
        }
    }
    let closed_total = candidates.len();
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    // A small store must leave something for the other cleaners.
    let wanted = (closed_total / 16).clamp(1, VICTIMS_MAX);
    let mut victims: Vec<u32> = candidates
        .into_iter()
        .map(|(_, window)| window)
        .filter(|window| core.space.segments[*window as usize].claim())
        .take(wanted)
        .collect();
    victims.sort_unstable_by_key(|window| core.space.segments[*window as usize].opened_tick());
    victims
}
