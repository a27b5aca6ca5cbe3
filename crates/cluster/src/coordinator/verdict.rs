//! The rules by which a server is declared crashed, separate, so that a test can check every case.
//!
//! **Invariants**
//! - V1: evidence against a server is that its process has ended ([`Sign::Dead`]), or that it was
//!   silent, [`CHANCES`] times. A request that failed for an unknown reason counts like silence,
//!   but [`UNKNOWN_CHANCES`] are needed.
//! - V2: a leader gives verdicts as long as at least half of the servers that it asks for a sign of
//!   life answer it. A leader that more than half do not answer is as likely cut off itself, and
//!   cannot judge. A server that was drained, owns nothing, and whose process has ended does not
//!   count as asked: most of a cluster may be drained and stopped at once. If it is silent, it
//!   counts: silence may be the leader's own fault.
//! - V3: a leader that no server answers and some server denies is wrong itself: another token,
//!   another cluster, another version.
//!
//! V2 by numbers: a rack with a third of the servers is judged, and one of two servers. If more
//! than half are gone at once (power), none is judged until some are back: a new life replaces its
//! old one without a verdict, and counts among those that answer. The remaining servers could not
//! take over the others' data anyway: these are more than their own. An operator may declare a
//! server dead (`CrashServer`).

/// Number of silences, or signs of an end, that suffice.
pub(super) const CHANCES: u32 = 2;
/// The same number for requests that failed for an unknown reason. Each takes as long as a silence:
/// 2 s in all by default. An unanswering resolver or a lack of descriptors has usually ended by
/// then.
pub(super) const UNKNOWN_CHANCES: u32 = 16;

/// The reason why a request gets no answer, as seen by its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The server's host refused the connection, or the connection ended or was reset after a right
    /// hello, or another life of the server answered: the process is over.
    Dead,
    /// The reason may be here, there, or in between.
    Unknown,
    /// The server there does not admit this coordinator.
    Denied,
}

/// The evidence against a server since its last answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// Signs of its end, and silences.
    pub missed: u32,
    pub unknown: u32,
}

impl Evidence {
    /// Whether the evidence suffices for a verdict (V1).
    pub fn is_enough(self) -> bool {
        self.missed >= CHANCES || self.missed + self.unknown >= UNKNOWN_CHANCES
    }
}

/// The results of asking servers for a sign of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub asked: usize,
    pub answered: usize,
    pub denied: usize,
}

/// The rights of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The leader gives verdicts (V2).
    Judges,
    /// The leader gives no verdicts: too few servers answer it (V2).
    CutOff,
    /// The leader gives no verdicts: no server answers it, and some server denies it (V3).
    Denied,
}

impl Count {
    /// The rights that follow from these results (V2, V3).
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
            ((1, 0, 0), CutOff), // the only one: no server could take over
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
            ((5, 1, 4), CutOff), // their tokens differ: the token is being changed
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
