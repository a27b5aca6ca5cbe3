//! Figures about a store: [`Stats`] and "explain my memory".

use crate::core::cleaning::cleaners::Cleaners;
use crate::counters::Counters;
use crate::space::segment::State;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use crate::stats::{CleanerStats, MemoryReport, SegmentReport, SegmentState, Stats};
use crate::{FlashStats, Store, TableId};
use std::sync::atomic::Ordering;

impl Store {
    /// Counters since the start and present gauges.
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let sum = |figure: fn(&Counters) -> u64| core.actors.sum(figure);
        let segment_budget_bytes = core.segment_budget();
        let live_bytes = core.actors.live_bytes();
        let (segments_open, segments_closed, retired) = census(&core.space);
        let mut objects = 0;
        let tables = &core.tables;
        tables.each(|table, _, _| objects += core.actors.objects(table));
        let backed: usize = (0..core.space.nodes())
            .map(|node| core.space.waiting(node).1)
            .sum();
        Stats {
            objects,
            live_bytes,
            appended_bytes: sum(Counters::payload),
            segment_budget_bytes,
            segment_bytes: core.space.segment_bytes() as u64,
            live_limit_bytes: core.live_limit(),
            expired_bytes: core.expired_bytes(),
            utilization: core.live_in_memory() as f64 / segment_budget_bytes.max(1) as f64,
            committed_bytes: core.space.budget.used(),
            excess_bytes: core.space.budget.excess_bytes(),
            index_bytes: core.resources().arena.committed_bytes(),
            segments_open,
            segments_closed,
            segments_free: backed as u64 + retired,
            entries_expired: sum(|counters| counters.expired.load(Ordering::Relaxed)),
            tombstone_bytes: core.actors.tombstone_bytes(),
            entries_evicted: sum(|counters| counters.evicted.load(Ordering::Relaxed)),
            cleaner: cleaner_stats(&core.cleaners),
            writer_stalls: sum(|counters| counters.stalls.load(Ordering::Relaxed)),
            writer_stall_ns: sum(|counters| counters.stall_ns.load(Ordering::Relaxed)),
            flash: core
                .tier()
                .map_or_else(FlashStats::default, |tier| tier.statistics()),
            page_bytes: core.space.memory.page_bytes(),
            flipped_bits: core.listeners.damages.flipped_bits(),
            damaged_entries: core.listeners.damages.damaged_entries(),
            passes_given_up: core.listeners.damages.given_up(),
        }
    }

    /// Every byte of the budget, by segment and by purpose.
    pub fn memory_report(&self) -> MemoryReport {
        let core = self.core();
        let now_ms = core.clock().now_ms();
        let mut report = MemoryReport {
            index_bytes: core.resources().arena.committed_bytes(),
            index_used_bytes: core.resources().arena.allocated_bytes(),
            overhead_bytes: core.overhead_bytes(),
            budget_bytes: core.space.budget.limit(),
            ..MemoryReport::default()
        };
        for (window, segment) in core.space.segments.iter().enumerate() {
            let Some(state) = shown_state(segment.state()) else {
                continue;
            };
            if segment.committed_bytes() == 0 && core.is_cold(window as u32) {
                continue; // its bytes are on flash
            }
            let committed_bytes = u64::from(segment.committed_bytes());
            let in_log = segment.is_in_log();
            let appended_bytes = if in_log {
                u64::from(segment.appended_bytes()).min(committed_bytes)
            } else {
                0
            };
            let entries = appended_bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64);
            let live_bytes = if in_log {
                core.live_in(window as u32).min(entries)
            } else {
                0
            };
            report.live_bytes += live_bytes;
            report.dead_bytes += entries - live_bytes;
            report.unused_bytes += committed_bytes - entries;
            report.segments.push(SegmentReport {
                window: window as u32,
                state,
                committed_bytes,
                appended_bytes,
                live_bytes,
                age_ms: now_ms.saturating_sub(segment.opened_ms()),
            });
        }
        core.tables.each_index(|id, index| {
            let (slots, _) = index.slots();
            report.index_slots += slots;
            report.objects += core.actors.objects(id);
            if id != TableId::DEFAULT {
                report.overhead_bytes += index.overhead_bytes();
            }
        });
        report.total_bytes = report.live_bytes
            + report.dead_bytes
            + report.unused_bytes
            + report.index_bytes
            + report.overhead_bytes;
        report
    }
}

fn shown_state(state: State) -> Option<SegmentState> {
    match state {
        State::Unbacked => None,
        State::Backed => Some(SegmentState::Free),
        State::Head => Some(SegmentState::Head),
        State::Survivor => Some(SegmentState::Survivor),
        State::Closed | State::Victim => Some(SegmentState::Closed),
        State::Retired => Some(SegmentState::Retired),
        State::Promoted => Some(SegmentState::Promoted),
    }
}

/// Number of windows in each state: open, closed (victims included), retired.
fn census(space: &Space) -> (u64, u64, u64) {
    let segments = space.segments.iter();
    segments.fold(
        (0, 0, 0),
        |(open, closed, retired), segment| match segment.state() {
            State::Head | State::Survivor => (open + 1, closed, retired),
            State::Closed | State::Victim => (open, closed + 1, retired),
            State::Retired => (open, closed, retired + 1),
            State::Unbacked | State::Backed | State::Promoted => (open, closed, retired),
        },
    )
}

fn cleaner_stats(cleaners: &Cleaners) -> CleanerStats {
    CleanerStats {
        passes: cleaners.sum(|tally| &tally.passes),
        compactions: cleaners.sum(|tally| &tally.compactions),
        segments_cleaned: cleaners.sum(|tally| &tally.segments_cleaned),
        bytes_scanned: cleaners.sum(|tally| &tally.bytes_scanned),
        bytes_relocated: cleaners.sum(|tally| &tally.bytes_relocated),
        bytes_freed: cleaners.sum(|tally| &tally.bytes_freed),
        busy_ns: cleaners.sum(|tally| &tally.busy_ns),
    }
}
