//! Events that took longer than `latency-monitor-threshold`: the samples of `LATENCY`.
//!
//! As in Redis, each event has at most `SAMPLES_MAX` samples. A second has at most one sample: its
//! longest.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Samples of one event; as in Redis.
pub(crate) const SAMPLES_MAX: usize = 160;

/// A kind of event, under Redis's name if Redis has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Command = 0,
    /// A command that Redis flags as fast.
    FastCommand = 1,
    /// Replies waited until their log was written to files.
    LogWrite = 2,
    /// Replies waited until their log was on stable storage.
    LogSync = 3,
    /// A write waited until the cleaner had freed memory.
    Cleaner = 4,
    /// A round of a thread took this much processor time, while all its clients waited.
    Round = 5,
}

impl Event {
    pub(crate) const ALL: [Event; 6] = [
        Event::Command,
        Event::FastCommand,
        Event::LogWrite,
        Event::LogSync,
        Event::Cleaner,
        Event::Round,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Event::Command => "command",
            Event::FastCommand => "fast-command",
            Event::LogWrite => "aof-write",
            Event::LogSync => "aof-fsync-always",
            Event::Cleaner => "cleaner",
            Event::Round => "round",
        }
    }

    /// The event with this name, which is in lower case, as in Redis.
    pub(crate) fn find(name: &[u8]) -> Option<Event> {
        let is_it = |event: &Event| event.name().as_bytes() == name;
        Event::ALL.into_iter().find(is_it)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Seconds since the Unix epoch.
    pub(crate) unix_s: u64,
    pub(crate) ms: u64,
}

/// The samples of one event, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    samples: VecDeque<Sample>,
    /// The longest time since the last reset, even if its sample is gone.
    longest_ms: u64,
}

impl Series {
    pub(crate) fn add(&mut self, sample: Sample) {
        self.longest_ms = self.longest_ms.max(sample.ms);
        match self.samples.back_mut() {
            Some(last) if last.unix_s == sample.unix_s => last.ms = last.ms.max(sample.ms),
            _ => {
                if self.samples.len() == SAMPLES_MAX {
                    self.samples.pop_front();
                }
                self.samples.push_back(sample);
            }
        }
    }

    pub(crate) fn samples(&self) -> &VecDeque<Sample> {
        &self.samples
    }

    pub(crate) fn longest_ms(&self) -> u64 {
        self.longest_ms
    }
}

/// The events of a server.
#[derive(Debug, Default)]
pub struct LatencyEvents {
    series: Mutex<[Series; Event::ALL.len()]>,
}

impl LatencyEvents {
    /// Records an event that has just ended. The caller has compared its time with the threshold.
    #[cold]
    pub fn add(&self, event: Event, took: Duration) {
        let sample = Sample {
            unix_s: now_s(),
            ms: took.as_millis() as u64,
        };
        self.lock()[event as usize].add(sample);
    }

    /// The samples of one event.
    pub(crate) fn of(&self, event: Event) -> Series {
        self.lock()[event as usize].clone()
    }

    /// Forgets the samples of one event; returns false if there were none.
    pub(crate) fn reset(&self, event: Event) -> bool {
        let series = std::mem::take(&mut self.lock()[event as usize]);
        !series.samples.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, [Series; Event::ALL.len()]> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_keeps_its_longest_sample_and_a_series_its_newest() {
        let mut series = Series::default();
        for (unix_s, ms) in [(7, 30), (7, 90), (7, 20), (8, 10)] {
            series.add(Sample { unix_s, ms });
        }
        let kept: Vec<_> = series.samples.iter().map(|s| (s.unix_s, s.ms)).collect();
        assert_eq!(kept, [(7, 90), (8, 10)]);
        for unix_s in 9..8 + SAMPLES_MAX as u64 {
            series.add(Sample { unix_s, ms: 5 });
        }
        assert_eq!(series.samples.len(), SAMPLES_MAX);
        assert_eq!(series.samples[0].unix_s, 8);
        assert_eq!(series.longest_ms(), 90, "of a sample that is gone");
    }

    #[test]
    fn events_are_found_by_name_and_reset_one_by_one() {
        let events = LatencyEvents::default();
        for event in Event::ALL {
            assert_eq!(Event::find(event.name().as_bytes()), Some(event));
            events.add(event, Duration::from_millis(2));
        }
        assert_eq!(Event::find(b"COMMAND"), None);
        assert!(events.reset(Event::LogSync));
        assert!(!events.reset(Event::LogSync));
        assert_eq!(events.of(Event::LogSync).longest_ms(), 0);
        assert_eq!(events.of(Event::Cleaner).longest_ms(), 2);
    }
}
