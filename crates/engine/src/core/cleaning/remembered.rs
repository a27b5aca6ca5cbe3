//! A cache of answers to the question whether a tombstone is still needed: most entries that a
//! cleaner meets are dead, and must not cost a lock and a lookup each.
//!
//! **Invariant**: an answer is used only while the list of segments is unchanged. The answers
//! themselves can only turn from "needed" to "not needed", as segment ids are never given again.

use duramen_base::ids::SegmentId;

/// Number of answers kept: a segment's entries usually have fewer different victims.
const PLACES: usize = 256;

pub struct Remembered {
    /// State of the list that the answers are for.
    serial: u64,
    /// Victim and answer; victim 0 = none.
    answers: Box<[(u64, bool)]>,
}

impl Default for Remembered {
    fn default() -> Remembered {
        Remembered {
            serial: 0,
            answers: vec![(0, false); PLACES].into(),
        }
    }
}

impl Remembered {
    /// Forgets all answers: a pass begins or ends, which changes the set of segments that leave
    /// together.
    pub fn forget(&mut self) {
        self.answers.fill((0, false));
    }

    /// The answer for this victim. `serial` was read before; `ask` looks the answer up.
    #[inline]
    pub fn get(&mut self, serial: u64, victim: SegmentId, ask: impl FnOnce() -> bool) -> bool {
        if self.serial != serial {
            self.forget();
            self.serial = serial;
        }
        let place = &mut self.answers[victim.0 as usize % PLACES];
        if place.0 != victim.0 {
            *place = (victim.0, ask());
        }
        place.1
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn answers_last_as_long_as_the_list() {
        let mut remembered = Remembered::default();
        let victim = SegmentId(7);
        assert!(remembered.get(1, victim, || true));
        assert!(remembered.get(1, victim, || unreachable!("it is remembered")));
        // Another victim in the same place.
        assert!(!remembered.get(1, SegmentId(7 + PLACES as u64), || false));
        assert!(remembered.get(1, victim, || true));
        assert!(!remembered.get(2, victim, || false), "a new list");
        remembered.forget();
        assert!(remembered.get(2, victim, || true), "a new pass");
    }
}
