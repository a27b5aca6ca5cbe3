//! Decides when memory is given back to the system: after deletions, and in quiet times.
//!
//! Memory follows the live data down as soon as a quarter of them has gone. In quiet times it also
//! follows when other causes left it too large, for example dead versions, or small objects that
//! became large ones. While few bytes are written it follows to one and a half times the live
//! data: a program that writes a little all the time would otherwise keep the memory of its
//! busiest hour. While sessions write much it does not, because the memory would have to be
//! touched anew. Memory that cleaning cannot free is left alone: fragments of large objects must
//! not keep a cleaner busy for ever.

/// Number of looks at an unchanged log that make a quiet time: some two seconds.
const QUIET_LOOKS: u32 = 8;
/// A look is calm if less than this part of the memory was written since the last one: at ten
/// looks a second, what cleaning frees is not written again within a minute and a half.
const CALM_PART: u64 = 1024;
/// Number of calm looks in turn that make a calm time: two seconds or more.
const CALM_LOOKS: u32 = 20;
/// After an effort in vain, a calm time begins another one when this part of the memory was
/// written.
const CALM_AGAIN_PART: u64 = 16;
/// Number of looks without a fall in memory after which cleaning is known to free no more.
const STUCK_LOOKS: u32 = 16;

/// Figures of one look, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub live: u64,
    /// Present memory of segments. If it is more than `goal`, it has to fall to `floor`.
    pub committed: u64,
    pub goal: u64,
    pub floor: u64,
    /// Memory that may stay while little is written.
    pub calm: u64,
    /// Log time: bytes ever appended.
    pub log_time: u64,
}

#[derive(Default)]
pub struct Shrinker {
    shrinking: bool,
    /// Largest live size since memory last followed.
    live_peak: u64,
    log_time: u64,
    quiet_looks: u32,
    calm_looks: u32,
    /// Least memory in this effort, and the number of looks since.
    least: u64,
    stuck_looks: u32,
    /// Log time at which the last effort ended without reaching its goal.
    in_vain_at: Option<u64>,
}

impl Shrinker {
    /// True while memory is to be given back. Called a few times a second.
    pub fn look(&mut self, look: Look) -> bool {
        let before = std::mem::replace(&mut self.log_time, look.log_time);
        let written = look.log_time.saturating_sub(before);
        let counted = |looks: u32, holds| if holds { looks + 1 } else { 0 };
        self.quiet_looks = counted(self.quiet_looks, written == 0);
        self.calm_looks = counted(self.calm_looks, written < look.committed / CALM_PART);
        self.live_peak = self.live_peak.max(look.live);
        if self.shrinking {
            self.go_on(look);
        } else if self.in_vain_at != Some(look.log_time) {
            let deleted = look.live < self.live_peak - self.live_peak / 4;
            let again = look.committed / CALM_AGAIN_PART;
            let is_vain = |at| look.log_time.saturating_sub(at) < again;
            let is_calm = self.calm_looks >= CALM_LOOKS && !self.in_vain_at.is_some_and(is_vain);
            let wanted = if deleted {
                look.goal
            } else if self.quiet_looks >= QUIET_LOOKS {
                look.goal + look.goal / 16
            } else if is_calm {
                look.calm
            } else {
                u64::MAX
            };
            self.shrinking = look.committed > wanted;
            (self.least, self.stuck_looks) = (look.committed, 0);
        }
        if !self.shrinking {
            // A peak lasts until memory has followed; then the next fall is measured from here.
            self.live_peak = look.live;
        }
        self.shrinking
    }

    fn go_on(&mut self, look: Look) {
        if look.committed < self.least {
            (self.least, self.stuck_looks) = (look.committed, 0);
        } else {
            self.stuck_looks += 1;
        }
        self.shrinking = look.committed > look.floor;
        if self.shrinking && self.stuck_looks >= STUCK_LOOKS {
            self.shrinking = false;
            self.in_vain_at = Some(look.log_time);
        }
    }
}

/// Whether cleaning frees memory for a budget that was lowered. Cleaning goes on for it even while
/// sessions write; but memory that cleaning cannot free is left alone here too.
#[derive(Default)]
pub struct Lowering {
    /// Least memory in this effort, and the number of looks since; 0: there is no effort.
    least: u64,
    stuck_looks: u32,
    /// Log time at which an effort freed no more.
    in_vain_at: Option<u64>,
}

impl Lowering {
    /// True if cleaning is in vain until more is written or removed. Called a few times a second.
    pub fn look(&mut self, is_above: bool, used: u64, log_time: u64) -> bool {
        if !is_above {
            *self = Lowering::default();
        } else if self.in_vain_at == Some(log_time) {
            return true;
        } else if self.least == 0 || used < self.least {
            *self = Lowering {
                least: used,
                ..Lowering::default()
            };
        } else {
            self.stuck_looks += 1;
            if self.stuck_looks >= STUCK_LOOKS {
                *self = Lowering {
                    in_vain_at: Some(log_time),
                    ..Lowering::default()
                };
            }
        }
        self.in_vain_at.is_some()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn look(live: u64, committed: u64, log_time: u64) -> Look {
        Look {
            live,
            committed,
            goal: live + live / 8,
            floor: live + live / 16,
            calm: live + live / 2,
            log_time,
        }
    }

    /// A program that wrote a key a second kept the memory of its busiest hour.
    #[test]
    fn while_little_is_written_memory_falls_to_one_and_a_half_times_the_live_data() {
        let (live, large) = (1 << 20, 4 << 20);
        let mut shrinker = Shrinker::default();
        let little = (large / CALM_PART) - 1;
        let mut log_time = 0;
        let mut looks = |shrinker: &mut Shrinker, committed, written| {
            let mut shrank = 0;
            for _ in 0..200 {
                log_time += written;
                shrank += u32::from(shrinker.look(look(live, committed, log_time)));
            }
            shrank
        };
        assert_eq!(
            looks(&mut shrinker, large, little + 1),
            0,
            "much is written"
        );
        assert_eq!(
            looks(&mut shrinker, live + live / 2, little / 4),
            0,
            "that may stay"
        );
        // Here nothing can be freed: after a while the effort ends, and is not repeated at once.
        assert_eq!(looks(&mut shrinker, large, little / 8), STUCK_LOOKS);
        assert!(
            looks(&mut shrinker, large, little) > STUCK_LOOKS,
            "later it is"
        );
    }

    #[test]
    fn memory_follows_deletions_at_once() {
        let mut shrinker = Shrinker::default();
        assert!(!shrinker.look(look(1000, 2000, 1)));
        assert!(!shrinker.look(look(800, 2000, 2)), "less than a quarter");
        // The peak is the last one, not the highest ever.
        assert!(!shrinker.look(look(610, 2000, 3)));
        assert!(shrinker.look(look(400, 2000, 4)));
        assert!(shrinker.look(look(400, 600, 5)));
        assert!(shrinker.look(look(400, 449, 6)), "not at the floor yet");
        assert!(!shrinker.look(look(400, 425, 6)), "the floor is reached");
        assert!(!shrinker.look(look(400, 900, 7)), "it may grow again");
    }

    #[test]
    fn quiet_times_give_back_what_writers_would_need() {
        let mut shrinker = Shrinker::default();
        for log_time in 0..100 {
            assert!(!shrinker.look(look(1000, 2000, log_time)));
        }
        let looks = (0..).take_while(|_| !shrinker.look(look(1000, 2000, 99)));
        assert_eq!(looks.count() as u32, QUIET_LOOKS - 1);
        assert!(!shrinker.look(look(1000, 1062, 99)));
    }

    /// Fragments of large objects: every victim is as long as its survivor.
    #[test]
    fn what_cannot_be_freed_does_not_keep_a_cleaner_busy() {
        let mut shrinker = Shrinker::default();
        shrinker.look(look(4000, 4000, 1));
        let looks = (0..1000).filter(|_| shrinker.look(look(1000, 2000, 1)));
        assert_eq!(looks.count() as u32, STUCK_LOOKS);
        // After a write it tries again.
        assert!((0..20).any(|_| shrinker.look(look(1000, 2000, 2))));
    }

    #[test]
    fn a_lowered_budget_keeps_a_cleaner_busy_while_memory_falls() {
        let mut lowering = Lowering::default();
        assert!((0..1000).all(|n| !lowering.look(true, 2000 - n, n)));
        let looks = (0..1000).take_while(|_| !lowering.look(true, 1001, 9));
        assert_eq!(looks.count() as u32, STUCK_LOOKS - 1);
        assert!(lowering.look(true, 1001, 9));
        // After a write it tries again.
        assert!(!lowering.look(true, 1001, 10) && !lowering.look(true, 1000, 10));
        assert!(!lowering.look(false, 900, 10));
    }
}
