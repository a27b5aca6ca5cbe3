//! Cleaning passes that gain nothing.

/// A round of passes, which is fruitless if it makes neither fewer nor shorter segments. With large
/// objects the unused ends of survivors can make the survivors as many as the victims. Such passes
/// could follow each other for ever, each choosing the survivors of the others. A single pass that
/// gains does not count: another one may lose as much.
#[derive(Debug, Default)]
pub struct Fruitless {
    /// Victims and survivors of the round so far, each as segments and bytes.
    victims: (u64, u64),
    survivors: (u64, u64),
    /// Dead bytes, counted since the start, when the last pass was chosen.
    died: u64,
}

/// After a fruitless round the next one waits until this part of the candidates' bytes has died.
pub const DIED_PART: u64 = 64;

impl Fruitless {
    /// False if a round was fruitless, and too few bytes have died since. A round ends with as many
    /// victims as there are candidates, or with `most`. So each round but the last one frees
    /// memory, and their number is bounded while nothing dies.
    pub fn may_gain(&mut self, candidates: u64, most: u64, died: u64, segment_bytes: u64) -> bool {
        // An earlier estimate of expired bytes may have been too high.
        self.died = self.died.min(died);
        if died.saturating_sub(self.died) >= candidates * segment_bytes / DIED_PART {
            self.begin_round();
        }
        if self.victims.0 >= candidates.min(most) {
            let is_shorter = self.survivors.1 + segment_bytes / DIED_PART <= self.victims.1;
            if candidates == 0 || self.survivors.0 >= self.victims.0 && !is_shorter {
                return false;
            }
            self.begin_round();
        }
        self.died = died;
        true
    }

    fn begin_round(&mut self) {
        (self.victims, self.survivors) = ((0, 0), (0, 0));
    }

    /// Notes that a pass replaced victims by survivors, each as `(segments, bytes)`.
    pub fn pass_ended(&mut self, victims: (u64, u64), survivors: (u64, u64)) {
        self.victims = (self.victims.0 + victims.0, self.victims.1 + victims.1);
        self.survivors = (
            self.survivors.0 + survivors.0,
            self.survivors.1 + survivors.1,
        );
    }
}

/// The rounds of combined passes. With zones, each pass of a round takes its victims from one zone.
/// A zone has few segments, so with large objects such a round may be fruitless although passes
/// over all segments gain: then passes over all segments follow.
#[derive(Debug, Default)]
pub struct Rounds {
    in_zones: Fruitless,
    over_all: Fruitless,
    /// The last pass was chosen within a zone.
    is_in_zone: bool,
    /// Mean bytes that a full survivor left unused, because the next entry was too long.
    unused_bytes: u64,
}

impl Rounds {
    /// Whether the next pass takes its victims from one zone. `None`: no pass gains until more
    /// entries have died.
    pub fn next(
        &mut self,
        has_zones: bool,
        candidates: u64,
        died: u64,
        segment_bytes: u64,
    ) -> Option<bool> {
        let may_gain =
            |rounds: &mut Fruitless| rounds.may_gain(candidates, u64::MAX, died, segment_bytes);
        self.is_in_zone = has_zones && may_gain(&mut self.in_zones);
        (self.is_in_zone || may_gain(&mut self.over_all)).then_some(self.is_in_zone)
    }

    /// As [`Fruitless::pass_ended`], for the pass that was chosen last.
    pub fn pass_ended(&mut self, victims: (u64, u64), survivors: (u64, u64)) {
        match self.is_in_zone {
            true => self.in_zones.pass_ended(victims, survivors),
            false => self.over_all.pass_ended(victims, survivors),
        }
    }

    /// Notes that a full survivor left this many bytes unused.
    pub fn note_unused(&mut self, bytes: u64) {
        self.unused_bytes = (self.unused_bytes * 7 + bytes).div_ceil(8);
    }

    pub fn unused_bytes(&self) -> u64 {
        self.unused_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{Fruitless, Rounds};

    const MB: u64 = 1 << 20;
    const ALL: u64 = u64::MAX;

    #[test]
    fn a_round_of_fruitless_passes_ends_until_something_dies() {
        for (candidates, most) in [(12, ALL), (1000, 12)] {
            let mut fruitless = Fruitless::default();
            for _ in 0..4 {
                assert!(fruitless.may_gain(candidates, most, 0, MB));
                fruitless.pass_ended((3, 3 * MB), (3, 3 * MB));
            }
            let died = candidates * MB / 64;
            assert!(!fruitless.may_gain(candidates, most, 0, MB));
            assert!(!fruitless.may_gain(candidates, most, died - 1, MB));
            assert!(fruitless.may_gain(candidates, most, died, MB));
        }
    }

    #[test]
    fn passes_that_gain_and_lose_in_turn_are_fruitless() {
        let mut fruitless = Fruitless::default();
        for survivors in [2, 4, 2, 4] {
            assert!(fruitless.may_gain(12, ALL, 0, MB));
            fruitless.pass_ended((3, 3 * MB), (survivors, 3 * MB));
        }
        assert!(!fruitless.may_gain(12, ALL, 0, MB));
    }

    #[test]
    fn after_a_round_that_gains_there_is_another() {
        for survivors in [(2, 3 * MB), (3, 2 * MB)] {
            let mut fruitless = Fruitless::default();
            for _ in 0..3 {
                fruitless.pass_ended((3, 3 * MB), (3, 3 * MB));
            }
            fruitless.pass_ended((3, 3 * MB), survivors);
            assert!(fruitless.may_gain(12, ALL, 0, MB));
        }
    }

    /// Passes within zones that gain nothing are followed by passes over all segments, and these,
    /// if they gain nothing either, by none.
    #[test]
    fn a_fruitless_round_in_zones_is_followed_by_one_over_all() {
        let mut rounds = Rounds::default();
        let mut reaches = Vec::new();
        while let Some(in_zone) = rounds.next(true, 12, 0, MB) {
            rounds.pass_ended((4, 4 * MB), (4, 4 * MB));
            reaches.push(in_zone);
            assert!(reaches.len() < 100, "they never end");
        }
        assert_eq!(reaches, [true, true, true, false, false, false]);
        assert_eq!(rounds.next(true, 12, 12 * MB / 64, MB), Some(true));
        let mut scattered = Rounds::default();
        assert_eq!(scattered.next(false, 12, 0, MB), Some(false));
    }
}
