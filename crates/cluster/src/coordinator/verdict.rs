//! When a server is called crashed: the rules alone, so that a test can go through every case.
//!
//! **Invariants**
//! - V1: what speaks against a server is that its process has ended ([`Sign::Dead`]), or that it
//!   was silent, [`CHANCES`] times. A question that failed for a reason of which nobody knows whose
//!   it is counts like silence, but [`UNKNOWN_CHANCES`] are needed.
//! - V2: a leader gives verdicts as long as at least half of the servers that it asks for a sign of
//!   life answer it. One that more than half do not answer is as likely cut off itself, and cannot
//!   tell.
//! - V3: a leader that nobody answers and somebody denies is wrong itself: another token, another
//!   cluster, another version.
//!
//! V2 by numbers: a rack with a third of the servers is judged, and one of two servers. If more
//! than half are gone at once (power), nobody is, until some are back: a new life replaces its old
//! one without a verdict, and counts among those who answer. What is left could not take over what
//! the others had anyway: that is more than its own. People may say who is gone (`CrashServer`).

/// Silences, or signs of an end, that are enough.
pub(super) const CHANCES: u32 = 2;
/// The same, of questions that failed for an unknown reason. Each takes as long as a silence: 2 s
/// by default, in which a resolver that does not answer, or a lack of descriptors, is over mostly.
pub(super) const UNKNOWN_CHANCES: u32 = 16;

/// Why a question gets no answer, as its connection tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The server's host refused the connection, or the connection ended or was reset behind a
    /// right hello, or another life of the server answered: the process that was asked is over.
    Dead,
    /// The reason may lie anywhere: here, there, or between.
    Unknown,
    /// Who listens there does not admit this coordinator.
    Denied,
}

/// What speaks against a server, since it last answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// Signs of its end, and silences.
    pub missed: u32,
    pub unknown: u32,
}

impl Evidence {
    /// V1.
    pub fn is_enough(self) -> bool {
        self.missed >= CHANCES || self.missed + self.unknown >= UNKNOWN_CHANCES
    }
}

/// What came of asking servers for a sign of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub asked: usize,
    pub answered: usize,
    pub denied: usize,
}

/// What a leader may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// V2: it gives verdicts.
    Judges,
    /// It does not.
    CutOff,
    /// V3.
    Denied,
}

impl Count {
    /// V2, V3.
    pub fn standing(self) -> Standing {
        if self.answered * 2 >= self.asked.max(1) {
            Standing::Judges
        } else if self.answered == 0 && self.denied > 0 {
            Standing::Denied
        } else {
            Standing::CutOff
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_enough_against_a_server() {
        let table = [
            ((0, 0), false),
            ((1, 0), false),
            ((2, 0), true),
            ((0, 2), false),
            ((1, 14), false),
            ((1, 15), true),
            ((0, 16), true),
        ];
        for ((missed, unknown), enough) in table {
            let evidence = Evidence { missed, unknown };
            assert_eq!(evidence.is_enough(), enough, "{evidence:?}");
        }
    }

    #[test]
    fn who_may_judge() {
        use Standing::{CutOff, Denied, Judges};
        // Asked, answered, denied.
        let table = [
            ((1, 0, 0), CutOff), // the only one: nobody could take over
            ((1, 1, 0), Judges),
            ((2, 1, 0), Judges),
            ((3, 1, 0), CutOff),
            ((3, 2, 0), Judges), // a third is gone
            ((4, 2, 0), Judges),
            ((5, 2, 0), CutOff),
            ((9, 6, 0), Judges), // a rack of three
            ((256, 127, 0), CutOff),
            ((5, 0, 5), Denied), // a wrong token
            ((5, 0, 1), Denied), // and the others are gone
            ((5, 1, 4), CutOff), // they differ in their tokens: a change of it is under way
            ((5, 3, 2), Judges),
            ((0, 0, 0), CutOff),
        ];
        for ((asked, answered, denied), standing) in table {
            let count = Count {
                asked,
                answered,
                denied,
            };
            assert_eq!(count.standing(), standing, "{count:?}");
        }
    }
}
