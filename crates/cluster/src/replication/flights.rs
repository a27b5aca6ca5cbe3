//! The calls with data that are under way.

use super::segment::Progress;
use super::{BackupId, Config, SegmentId, Ticket};
use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeMap;

/// One call.
pub(super) struct InFlight {
    pub segment: SegmentId,
    pub backup: BackupId,
    pub progress: Progress,
    /// Whether its segment's close was recorded before: then no write waits for the call
    /// (replication::O11).
    pub is_copy: bool,
}

/// All calls.
pub(super) struct Flights {
    in_flight: BTreeMap<Ticket, InFlight>,
    next_ticket: u64,
    writes_max: usize,
    copies_max: usize,
    /// A segment that could not send because too many calls are in flight; and one whose copies
    /// could not, or were not looked at. Each is the first of its kind next time.
    kept_waiting: [Option<SegmentId>; 2],
}

impl Flights {
    pub fn new(config: &Config) -> Flights {
        Flights {
            in_flight: BTreeMap::new(),
            next_ticket: 1,
            writes_max: config.writes_max,
            copies_max: config.copies_max,
            kept_waiting: [None; 2],
        }
    }

    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Gives a ticket to a write that is sent now.
    pub fn note(&mut self, flight: InFlight) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.in_flight.insert(ticket, flight);
        ticket
    }

    /// The call has ended. A ticket of a lost backup may come late.
    pub fn take(&mut self, ticket: Ticket) -> Option<InFlight> {
        self.in_flight.remove(&ticket)
    }

    /// All calls to this backup have ended.
    pub fn take_all(&mut self, backup: BackupId) -> Vec<InFlight> {
        let ended = self
            .in_flight
            .extract_if(.., |_, sent| sent.backup == backup);
        ended.map(|(_, sent)| sent).collect()
    }

    pub fn segment_of(&self, ticket: Ticket) -> Option<SegmentId> {
        self.in_flight.get(&ticket).map(|sent| sent.segment)
    }

    /// Whether a call to this replica is under way.
    pub fn has(&self, backup: BackupId, segment: SegmentId) -> bool {
        let mut sent = self.in_flight.values();
        sent.any(|sent| (sent.backup, sent.segment) == (backup, segment))
    }

    /// Whether as many calls with data are in flight as may be. Copies are counted apart: each is
    /// long, and a backup that is lost may have had replicas of all segments.
    pub fn is_crowded(&self, copies: bool) -> bool {
        if has_bug(Bug::CopiesCrowdWrites) {
            return self.in_flight.len() >= self.writes_max;
        }
        let most = match copies {
            true => self.copies_max,
            false => self.writes_max,
        };
        let calls = self.in_flight.values();
        self.in_flight.len() >= most && calls.filter(|sent| sent.is_copy == copies).count() >= most
    }

    /// The segment waits for a call, or a copy was not looked at: the first such one has the first
    /// turn next time.
    pub fn keep_waiting(&mut self, copies: bool, segment: SegmentId) {
        self.kept_waiting[usize::from(copies)].get_or_insert(segment);
    }

    /// The segments that have the first turn now: one that is written, and one that is copied.
    pub fn take_waiting(&mut self) -> [SegmentId; 2] {
        let waiting = std::mem::take(&mut self.kept_waiting);
        waiting.map(Option::unwrap_or_default)
    }
}
