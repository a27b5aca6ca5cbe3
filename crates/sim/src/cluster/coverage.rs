//! Counts of the faults that happened. A fault counts when it had an effect, not when it was
//! planned.

use std::fmt;

macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A class of faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Class {
            $($(#[$doc])* $name,)*
        }

        impl Class {
            /// All classes.
            pub const ALL: &'static [Class] = &[$(Class::$name,)*];

            /// The name for messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Class::$name => $text,)*
                }
            }
        }
    };
}

classes! {
    /// A message took ten times as long as most.
    Delay = "message delayed",
    Loss = "message lost",
    Duplicate = "message duplicated",
    /// A message overtook one that was sent before it on the same way.
    Reorder = "messages reordered",
    Partition = "full partition",
    OneWay = "one-way partition",
    Flapping = "flapping link",
    Link = "one link cut, one way",
    CrashAtOutput = "crash at an output",
    Restart = "crash and restart with the same disk",
    LostDisk = "crash with lost disk",
    PowerCut = "power cut of one server",
    ColdStart = "power cut of all and cold start",
    Pause = "pause and resume",
    Drift = "clock rates differ",
    ClockStep = "wall clock stepped",
    SlowDisk = "slow disk",
    DiskError = "error of a disk (EIO)",
    DiskFull = "disk full (ENOSPC)",
    BitRot = "bit rot",
    Torn = "torn write",
    Unreadable = "unreadable sectors",
    Misdirected = "misdirected or lost write",
    CoordinatorCrash = "coordinator crash and failover",
    CoordinatorPause = "coordinator paused and deposed",
    CoordinatorBlind = "coordinator reaches no server by its own fault",
    StoreFailure = "failure of the coordinator's store",
    CrashesAtOnce = "several servers down at once",
    Busy = "backup full or busy",
    ClientCrash = "client crash",
    LeaseEnd = "client lease ended",
    Split = "tablet split under load",
    Migration = "migration or drain under load",
    TableDropped = "table dropped",
    TableEmptied = "table emptied",
    FlashError = "error of a flash device",
    SlowFlash = "slow flash device",
    /// A master ordered a survivor from a backup that has its victims.
    Recipe = "survivor sent as a recipe",
    RecipeRefused = "recipe refused or lost: bytes sent",
    /// A bit of an entry flipped in memory.
    MemoryFlip = "bit flipped in memory",
    /// A bit of a payload flipped between two servers.
    WireFlip = "bit flipped on the way",
    /// A segment is on flash alone.
    Cold = "segment gone to flash",
}

/// The number of faults of each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    counts: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage {
            counts: vec![0; Class::ALL.len()],
        }
    }
}

impl Coverage {
    /// Counts one fault of this class.
    pub fn fired(&mut self, class: Class) {
        self.counts[class as usize] += 1;
    }

    /// The number of faults of this class.
    pub fn count(&self, class: Class) -> u64 {
        self.counts[class as usize]
    }

    /// Adds the counts of another run.
    pub fn join(&mut self, other: &Coverage) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// The classes that never happened.
    pub fn missing(&self) -> Vec<Class> {
        let all = Class::ALL.iter().copied();
        all.filter(|class| self.count(*class) == 0).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for class in Class::ALL {
            writeln!(f, "{:>10}  {}", self.count(*class), class.name())?;
        }
        Ok(())
    }
}
