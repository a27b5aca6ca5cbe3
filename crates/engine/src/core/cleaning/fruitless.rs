//! Cleaning passes that gain nothing.

/// Consecutive passes that made neither fewer nor shorter segments. With large objects the unused
/// ends of survivors can make the survivors as many as the victims. Such passes could follow each
/// other for ever, each choosing the survivors of the others.
#[derive(Debug, Default)]
pub struct Fruitless {
    victims: u64,
    /// Dead bytes, counted since the start, when the last pass was chosen.
    died: u64,
}

/// After a whole round of fruitless passes the next one waits until this part of the candidates'
/// bytes has died.
pub const DIED_PART: u64 = 64;

impl Fruitless {
    /// False if passes without gain have moved as many victims as there are candidates, and too few
    /// bytes have died since.
    pub fn may_gain(&mut self, candidates: u64, died: u64, segment_bytes: u64) -> bool {
        // An estimate of expired bytes was too high.
        self.died = self.died.min(died);
        if died.saturating_sub(self.died) >= candidates * segment_bytes / DIED_PART {
            self.victims = 0;
        }
        if self.victims >= candidates {
            return false;
        }
        self.died = died;
        true
    }

    /// Notes that a pass replaced victims by survivors, each as `(segments, bytes)`.
    pub fn pass_ended(&mut self, victims: (u64, u64), survivors: (u64, u64), segment_bytes: u64) {
        let is_shorter = survivors.1 + segment_bytes / DIED_PART <= victims.1;
        if survivors.0 < victims.0 || is_shorter {
            self.victims = 0;
        } else {
            self.victims += victims.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fruitless;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_round_of_fruitless_passes_ends_until_something_dies() {
        let mut fruitless = Fruitless::default();
        for _ in 0..4 {
            assert!(fruitless.may_gain(12, 0, MB));
            fruitless.pass_ended((3, 3 * MB), (3, 3 * MB), MB);
        }
        assert!(!fruitless.may_gain(12, 0, MB));
        assert!(!fruitless.may_gain(12, 12 * MB / 64 - 1, MB));
        assert!(fruitless.may_gain(12, 12 * MB / 64, MB));
    }

    #[test]
    fn a_pass_that_gains_begins_a_new_round() {
        for survivors in [(2, 3 * MB), (3, 2 * MB)] {
            let mut fruitless = Fruitless::default();
            for _ in 0..3 {
                fruitless.pass_ended((3, 3 * MB), (3, 3 * MB), MB);
            }
            fruitless.pass_ended((3, 3 * MB), survivors, MB);
            fruitless.pass_ended((3, 3 * MB), (3, 3 * MB), MB);
            assert!(fruitless.may_gain(12, 0, MB));
        }
    }
}
