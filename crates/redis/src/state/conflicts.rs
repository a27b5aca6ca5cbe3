//! The runs of a step that were in vain (`command::drafted`), and how the step runs again.

use std::time::Duration;

/// Runs in vain before a step reserves its keys.
const CONFLICTS_MAX: u32 = 10;
/// A step whose runs in vain have taken longer than this reserves its keys after the second run.
/// Before each of its runs, others run.
const SHORT: Duration = Duration::from_millis(6);

/// The runs of a step that were in vain, because its keys changed.
#[derive(Default)]
pub(crate) struct Conflicts {
    runs: u32,
    /// The time of all runs that were in vain.
    lost: Duration,
}

/// How a step runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    AtOnce,
    /// At once, with its keys reserved.
    Reserve,
    /// Later: the step takes long, so others run first.
    Later,
}

impl Conflicts {
    /// Notes that a run that has taken `time` was in vain; returns how the step runs again.
    pub(crate) fn add(&mut self, time: Duration) -> Next {
        self.runs += 1;
        self.lost += time;
        match self.lost >= SHORT {
            _ if self.runs >= CONFLICTS_MAX => Next::Reserve,
            true if self.runs > 1 => Next::Reserve,
            true => Next::Later,
            false => Next::AtOnce,
        }
    }

    /// Notes that a run that has taken `time` is dropped before its end.
    pub(crate) fn lose(&mut self, time: Duration) {
        self.lost += time;
    }

    /// Whether the runs have taken longer than this together.
    pub(crate) fn exceed(&self, limit: Duration) -> bool {
        self.lost > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_steps_run_again_at_once_and_long_ones_let_others_run() {
        let ms = Duration::from_millis;
        let mut short = Conflicts::default();
        let nexts: Vec<Next> = (1..12).map(|_| short.add(ms(1) / 4)).collect();
        assert_eq!(nexts[..9], [Next::AtOnce; 9]);
        assert_eq!(nexts[9..], [Next::Reserve; 2]);
        let mut long = Conflicts::default();
        assert_eq!(long.add(ms(20)), Next::Later);
        assert!((2..9).all(|_| long.add(ms(20)) == Next::Reserve));
        assert_eq!(long.lost, ms(160));
    }
}
