//! The plan of one episode: settings, clients and faults, all drawn from one number.

use duramen_base::random::Random;
use std::path::Path;

/// Size of a server's flash file.
pub(crate) const FLASH_MB: u64 = 256;

/// The settings of an episode's server.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) memory_mb: u64,
    pub(crate) level: Level,
    /// Whether it has a data directory.
    pub(crate) on_disk: bool,
    pub(crate) flash: bool,
    pub(crate) cache: bool,
    /// A client sends FLUSHALL, so no client can expect its own keys.
    pub(crate) flushes: bool,
    /// Keys that are loaded before anything else and deleted in large batches.
    pub(crate) old_keys: usize,
    /// Whether some clients fill memory until writes are refused.
    pub(crate) full: bool,
    /// Longest value, in bytes.
    pub(crate) value_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Memory,
    Buffered,
    Synced,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Buffered => "buffered",
            Level::Synced => "synced",
        }
    }
}

impl Plan {
    /// The plan of this number; `threads` fixes the number of reactor threads.
    pub(crate) fn draw(seed: u64, threads: Option<usize>) -> Plan {
        let mut random = Random::new(seed ^ 0x7061_6e00);
        let mut one_of = |count: usize| random.index(count);
        let drawn = [2, 2, 4, 1][one_of(4)];
        let memory_mb = [64, 128, 256, 512][one_of(4)];
        let cache = one_of(6) == 0;
        let level = [Level::Memory, Level::Buffered, Level::Synced, Level::Synced][one_of(4)];
        // A cache that keeps its data in a directory cannot have flash.
        let on_disk = level != Level::Memory || one_of(2) == 0;
        let flash = one_of(3) == 0 && !(cache && on_disk);
        // Less than the data of an episode, even on a busy machine: memory becomes full, and stays
        // so.
        let full = one_of(3) == 0;
        let memory_mb = if full { memory_mb.min(64) } else { memory_mb };
        Plan {
            seed,
            threads: threads.unwrap_or(drawn),
            memory_mb,
            level,
            on_disk,
            flash,
            cache,
            flushes: one_of(5) == 0 && !full,
            old_keys: [2_000, 20_000, 100_000][one_of(3)],
            full,
            value_bytes_max: [1 << 10, 64 << 10, 512 << 10][one_of(3)],
        }
    }

    /// Whether clients may check that their own keys are unchanged.
    pub(crate) fn keeps_keys(&self) -> bool {
        !self.cache && !self.flushes
    }

    /// Whether acknowledged writes survive `kill -9`.
    pub(crate) fn survives_kills(&self) -> bool {
        self.on_disk && self.level != Level::Memory
    }

    /// Arguments of `duramen serve`; files are in `folder`.
    pub(crate) fn arguments(&self, folder: &Path) -> Vec<String> {
        let text = |words: &[&str]| {
            words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>()
        };
        let mut arguments = text(&["--threads", &self.threads.to_string()]);
        arguments.extend(text(&["--memory", &format!("{}mb", self.memory_mb)]));
        arguments.extend(text(&[
            "--mode",
            if self.cache { "cache" } else { "store" },
        ]));
        arguments.extend(text(&["--level", self.level.name()]));
        if self.on_disk {
            arguments.extend(text(&["--dir", &folder.join("data").display().to_string()]));
        }
        if self.flash {
            let file = folder.join("flash").display().to_string();
            let size = format!("{FLASH_MB}mb");
            arguments.extend(text(&["--flash-file", &file, "--flash-size", &size]));
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_gives_one_plan_and_numbers_give_all_kinds() {
        let drawn: Vec<Plan> = (0..200).map(|seed| Plan::draw(seed, None)).collect();
        for (seed, plan) in drawn.iter().enumerate() {
            let again = Plan::draw(seed as u64, None);
            assert_eq!(format!("{plan:?}"), format!("{again:?}"));
            assert!(!(plan.cache && plan.on_disk && plan.flash), "{plan:?}");
        }
        assert!(drawn.iter().any(|plan| plan.flash && plan.keeps_keys()));
        assert!(drawn.iter().any(|plan| plan.flash && plan.cache));
        assert!(
            drawn
                .iter()
                .any(|plan| plan.survives_kills() && plan.threads == 4)
        );
        assert!(drawn.iter().any(|plan| plan.flushes));
        let full = drawn.iter().filter(|plan| plan.full && !plan.cache);
        assert!(full.clone().any(|plan| plan.flash) && full.count() > 30);
    }
}
