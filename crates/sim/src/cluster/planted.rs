//! Bugs that the simulator must find, each with the faults that expose it.

use super::plan::{Fault, Plan, Profile, ZONES};
use duramen_base::planted::Bug;
use duramen_base::random::Random;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;
/// Live bytes in a cluster that stops as a whole, in percent of its memory. Beside open segments
/// and reserves, at most 18 percent of so little memory may be live. In a fuller cluster writers
/// wait for memory in real time.
const FILL_PERCENT: [u64; 4] = [3, 5, 7, 9];

/// The kind of run that exposes a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All kinds of faults.
    Mixed,
    /// As `ChurnAndCrashes`, with zones: backups build survivors.
    Zones,
    /// Servers crash and return, one after the other, and two at once.
    Crashes,
    /// Many writes: segments are closed, cleaned, freed.
    Churn,
    /// As `Churn`, while servers crash and return.
    ChurnAndCrashes,
    /// Owners are cut off, paused, and declared dead.
    Zombies,
    /// Coordinators die while servers do.
    Failovers,
    /// Answers are lost, and requests arrive again, late.
    Repetitions,
    /// As `Repetitions`, with many writes.
    RepetitionsAndChurn,
    /// Clients end, and copies of their requests arrive after their leases.
    Leases,
    /// Disks are full at times.
    Full,
    /// All servers stop and start again, and report room.
    FullRestart,
    /// Tablets move while requests arrive late.
    Moves,
    /// Tablets move and flash fails, with many writes.
    Flash,
    /// A table is created and dropped, while servers and coordinators crash.
    Tables,
    /// Links differ, and single ones are cut in one direction.
    Links,
    /// Values expire by wrong clocks, while servers crash and return.
    Clocks,
    /// Pairs of keys change together, while servers crash and lose power, and tablets move.
    Twins,
    /// Bits flip in memory and on the way, while servers crash and return, and tablets move, with
    /// many writes.
    Flips,
    /// Only coordinators pause or cannot reach the servers, and messages are slow.
    Patience,
    /// Servers are slow, and tablets move: nobody is dead.
    Busy,
}

impl Shape {
    /// All shapes.
    pub const ALL: &'static [Shape] = &[
        Shape::Mixed,
        Shape::Zones,
        Shape::Crashes,
        Shape::Churn,
        Shape::ChurnAndCrashes,
        Shape::Zombies,
        Shape::Failovers,
        Shape::Repetitions,
        Shape::RepetitionsAndChurn,
        Shape::Leases,
        Shape::Full,
        Shape::FullRestart,
        Shape::Moves,
        Shape::Flash,
        Shape::Tables,
        Shape::Links,
        Shape::Clocks,
        Shape::Patience,
        Shape::Busy,
        Shape::Twins,
        Shape::Flips,
    ];
}

/// All bugs that the simulator must find.
pub const ALL: &[(Bug, Shape)] = &[
    (Bug::OldAttemptCounts, Shape::Zombies),
    (Bug::RemovedTooEarly, Shape::Crashes),
    (Bug::RecoversInParts, Shape::Crashes),
    (Bug::OldControlHead, Shape::Crashes),
    (Bug::CompletionForgotten, Shape::Failovers),
    (Bug::VersionReused, Shape::Failovers),
    (Bug::JudgesAlone, Shape::Patience),
    (Bug::PatienceIsFixed, Shape::Busy),
    (Bug::ListedBeforeOpen, Shape::Churn),
    (Bug::DataBeforeListed, Shape::Churn),
    (Bug::ClosedBeforeWhole, Shape::Churn),
    (Bug::FreeBeforeSwap, Shape::Churn),
    (Bug::EpochStays, Shape::Crashes),
    (Bug::ControlGoesOn, Shape::Crashes),
    (Bug::InProgressRunsAgain, Shape::Repetitions),
    (Bug::AcknowledgedRunsAgain, Shape::Repetitions),
    (Bug::LogForgotten, Shape::Repetitions),
    (Bug::ForgetsTheLiving, Shape::Repetitions),
    (Bug::AsksEverSooner, Shape::Repetitions),
    (Bug::SourceServesOn, Shape::Moves),
    (Bug::AnyListUnlocks, Shape::Moves),
    (Bug::LastIsEnough, Shape::Moves),
    (Bug::ReportedBeforeDurable, Shape::Moves),
    (Bug::SafeVersionStays, Shape::Moves),
    (Bug::RoundsAreLost, Shape::Moves),
    (Bug::ViewIsNotLookedAt, Shape::Moves),
    (Bug::AbandonAfterEffect, Shape::Repetitions),
    (Bug::FinishBeforeDurable, Shape::Repetitions),
    (Bug::SuspicionIsVerdict, Shape::Links),
    (Bug::IdsReused, Shape::Tables),
    (Bug::NameAtOnce, Shape::Tables),
    (Bug::ExpiredIsShown, Shape::Clocks),
    (Bug::UnreadIsEmpty, Shape::Flash),
    (Bug::HitsDoNotWait, Shape::Zombies),
    (Bug::MissesDoNotWait, Shape::Zombies),
    (Bug::SwapBeforeReasons, Shape::Churn),
    (Bug::SideForgetsTombstones, Shape::Crashes),
    (Bug::SideLastWins, Shape::Crashes),
    (Bug::SideNamesNoVictim, Shape::ChurnAndCrashes),
    (Bug::BuiltNotStored, Shape::Zones),
    (Bug::GroupsOverSegments, Shape::Twins),
    (Bug::ReadsUnverified, Shape::Flips),
    (Bug::DamageLosesBackups, Shape::Flips),
];

impl Plan {
    /// A plan that exposes bugs of this shape.
    pub fn shaped(shape: Shape, seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x0073_6861_7065);
        match shape {
            Shape::Mixed => return Plan::of(Profile::Mixed, seed),
            Shape::FullRestart => return Plan::full_restart(seed),
            _ => {}
        }
        let servers = 4 + random.below(3) as usize;
        let replicas = 2 + random.below(2) as u32;
        let mut plan = Plan::calm(seed, servers, replicas);
        plan.tablets = 1 + random.below(servers as u64) as u32;
        plan.think_us = 12 * MS;
        plan.load_us = 4 * SECOND;
        plan.keys = 8;
        plan.counters = 3;
        plan.delay_ppm = [0, 20_000, 100_000][random.below(3) as usize];
        plan.latency_us = [500, 2_000, 8_000][random.below(3) as usize];
        plan.ordered = random.one_in(2);
        plan.draw_shape(shape, &mut random);
        plan
    }

    /// All servers stop at once and come back in any order; nobody adds a server.
    fn full_restart(seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x0066_756c_6c73);
        let servers = 3 + random.below(2) as usize;
        let replicas = match servers {
            3 => 2,
            _ => 2 + random.below(2) as u32,
        };
        let mut plan = Plan::calm(seed, servers, replicas);
        plan.memory_bytes = 3 << 20;
        // As a member's directory is made.
        plan.log_bytes = 2 * plan.memory_bytes;
        let segments = plan.log_bytes / u64::from(plan.segment_bytes);
        plan.frames = (segments as u32 * replicas * 9).div_ceil(8) + 16;
        plan.room_us = [200 * MS, 2 * SECOND][random.below(2) as usize];
        plan.is_alone = true;
        plan.partition_bytes = [256 << 10, 1 << 30][random.below(2) as usize];
        plan.tablets = servers as u32;
        plan.clients = 6;
        plan.plain_clients = 3;
        plan.value_bytes = 24_000;
        plan.large_one_in = 1;
        plan.think_us = 3 * MS;
        plan.load_us = 5 * SECOND;
        let live = FILL_PERCENT[random.below(4) as usize] * plan.memory_bytes / 100;
        // Keys with higher numbers are twins.
        plan.keys = (live * servers as u64 / (plan.value_bytes / 2 + 50)).min(499);
        plan.counters = 3;
        let most_us = [100 * MS, 3 * SECOND][random.below(2) as usize];
        let starts_us = (0..servers).map(|_| 200 * MS + random.below(most_us));
        let starts_us: Vec<u64> = starts_us.collect();
        let coordinators = random.one_in(2);
        if random.one_in(3) {
            plan.stop_slowly(&starts_us, &mut random);
            return plan;
        }
        let stop = Fault::FullStop {
            starts_us,
            coordinators,
        };
        plan.faults.push((3 * SECOND, stop));
        plan
    }

    /// All servers stop one after the other, and start again some time after the last one.
    fn stop_slowly(&mut self, starts_us: &[u64], random: &mut Random) {
        let step_us = [300 * MS, SECOND, 2 * SECOND][random.below(3) as usize];
        let after_us = 3 * SECOND;
        let all_us = step_us * starts_us.len() as u64;
        for (n, start_us) in starts_us.iter().enumerate() {
            let stops_us = step_us * n as u64;
            let stop = Fault::Stop {
                server: n,
                down_us: all_us - stops_us + start_us,
            };
            self.faults.push((after_us + stops_us, stop));
        }
        self.load_us += all_us + 3 * SECOND;
    }

    fn draw_shape(&mut self, shape: Shape, random: &mut Random) {
        let mut at_us = 300 * MS;
        let step_us = 350 * MS;
        while at_us < self.load_us {
            at_us += step_us / 2 + random.below(step_us);
            self.draw_moment(shape, at_us, random);
        }
        self.set_shape(shape, random);
    }

    /// Settings of the cluster and its clients.
    fn set_shape(&mut self, shape: Shape, random: &mut Random) {
        match shape {
            Shape::Churn
            | Shape::ChurnAndCrashes
            | Shape::Zones
            | Shape::RepetitionsAndChurn
            | Shape::Full => self.set_churn(shape),
            Shape::Twins => self.set_twins(),
            Shape::Flips => self.set_flips(random),
            Shape::Repetitions => {
                self.loss_ppm = 20_000;
                self.duplicate_ppm = 200_000;
                self.plain_clients = 0;
                self.clients = 5;
                self.keys = 5;
                self.counters = 3;
                self.client_lease_ms = 3_000;
                self.load_us = 5 * SECOND;
            }
            Shape::Flash => {
                self.flash = true;
                self.keys = 20;
                self.draw_flash(random);
            }
            Shape::Clocks => self.draw_clocks(random),
            Shape::Links => {
                self.loss_ppm = 1_000;
                self.draw_links(random);
            }
            Shape::Tables => {
                self.churns = true;
                self.draw_churn(random);
            }
            Shape::Moves => {
                self.duplicate_ppm = 150_000;
                self.late_us = 2 * SECOND;
                self.plain_clients = 2;
                self.clients = 5;
            }
            Shape::Leases => {
                self.duplicate_ppm = 300_000;
                self.late_us = 6 * SECOND;
                self.plain_clients = 0;
                self.clients = 5;
                self.keys = 4;
                self.counters = 4;
                self.client_lease_ms = 1_500;
                self.load_us = 6 * SECOND;
            }
            Shape::Failovers => {
                self.read_lease_ms = 1_500;
                self.commit_us = [4 * MS, 200 * MS][random.below(2) as usize];
            }
            Shape::Patience => {
                self.nobody_dies = true;
                self.coordinators = 1;
                self.delay_ppm = 60_000;
                self.latency_us = 7 * MS;
            }
            Shape::Busy => self.set_busy(),
            Shape::Zombies => {
                self.read_lease_ms = 1_500;
                self.drift_ppm = [0, 50_000][random.below(2) as usize];
            }
            _ => {}
        }
    }

    /// Settings of a machine without free processors.
    fn set_busy(&mut self) {
        self.nobody_dies = true;
        self.coordinators = 1;
        // A sudden delay is not learned before the verdict.
        self.lag_us = match self.seed % 2 {
            0 => 220 * MS,
            _ => 500 * MS,
        };
        self.load_us = 10 * SECOND;
    }

    /// Settings with which large twins are written all the time.
    fn set_twins(&mut self) {
        self.twins = 4;
        self.keys = 4;
        self.counters = 0;
        self.plain_clients = self.clients;
        self.value_bytes = 14_000;
        self.large_one_in = 1;
        self.think_us = 6 * MS;
        self.load_us = 3 * SECOND;
    }

    fn set_flips(&mut self, random: &mut Random) {
        self.set_churn(Shape::Churn);
        self.flash = random.one_in(3);
        self.flip_ppm = [0, 5_000, 50_000][random.below(3) as usize];
        for _ in 0..40 {
            let flip = Fault::MemoryFlip {
                server: random.below(self.servers as u64) as usize,
                random: random.next_u64(),
            };
            self.faults.push((random.below(self.load_us), flip));
        }
    }

    /// Settings with which the log is cleaned all the time.
    fn set_churn(&mut self, shape: Shape) {
        self.value_bytes = 14_000;
        self.think_us = 6 * MS;
        self.memory_bytes = 3 << 20;
        self.log_bytes = 5 << 19;
        self.large_one_in = 1;
        self.keys = 24;
        self.tablets = 2;
        self.load_us = 3 * SECOND;
        if shape == Shape::RepetitionsAndChurn {
            self.duplicate_ppm = 200_000;
            self.plain_clients = 0;
        }
        if shape == Shape::Zones {
            self.layout = ZONES;
        }
        if shape == Shape::Full {
            self.frames = 26;
        }
    }

    fn draw_moment(&mut self, shape: Shape, at_us: u64, random: &mut Random) {
        let moment = Moment {
            server: random.below(self.servers as u64) as usize,
            other: random.below(self.servers as u64) as usize,
            short_us: 20 * MS + random.below(400 * MS),
            long_us: 300 * MS + random.below(1_500 * MS),
            clients: self.clients as u64,
        };
        let faults = match shape {
            Shape::Twins | Shape::Flips if random.one_in(4) => vec![(0, Fault::Migrate)],
            Shape::Twins if random.one_in(2) => vec![(0, moment.crash_at_output(random))],
            Shape::Crashes
            | Shape::ChurnAndCrashes
            | Shape::Zones
            | Shape::Twins
            | Shape::Flips => moment.crashes(random),
            Shape::Failovers => moment.failovers(random),
            _ => Vec::from_iter(moment.fault(shape, random).map(|fault| (0, fault))),
        };
        let faults = faults.into_iter();
        self.faults
            .extend(faults.map(|(after_us, fault)| (at_us + after_us, fault)));
    }
}

/// The victims and times of the faults of one moment.
struct Moment {
    server: usize,
    other: usize,
    short_us: u64,
    long_us: u64,
    clients: u64,
}

impl Moment {
    fn crash(&self) -> Fault {
        Fault::Crash {
            server: self.server,
            down_us: self.short_us,
        }
    }

    /// A crash in the middle of what the server sends at a moment.
    fn crash_at_output(&self, random: &mut Random) -> Fault {
        Fault::CrashAtOutput {
            server: self.server,
            outputs: random.below(40) as u32,
            down_us: self.short_us,
        }
    }

    fn pause(&self) -> Fault {
        Fault::Pause {
            server: self.server,
            for_us: self.long_us,
        }
    }

    fn partition(&self) -> Fault {
        Fault::Partition {
            servers: vec![self.server],
            coordinator: true,
            clients: false,
            for_us: self.long_us,
        }
    }

    /// Faults, each with its time after this moment.
    fn crashes(&self, random: &mut Random) -> Vec<(u64, Fault)> {
        let (server, down_us) = (self.server, self.short_us);
        let fault = match random.below(5) {
            0 => Fault::PowerCut {
                server,
                operations: Some(random.below(12)),
                within: random.one_in(2),
                down_us,
            },
            1 => {
                let crash = |server, down_us| Fault::Crash { server, down_us };
                let second = (random.below(300 * MS), crash(self.other, down_us));
                return vec![(0, crash(server, self.long_us)), second];
            }
            2 => self.crash_at_output(random),
            3 if random.one_in(2) => Fault::ColdStart { down_us },
            _ => self.crash(),
        };
        vec![(0, fault)]
    }

    fn failovers(&self, random: &mut Random) -> Vec<(u64, Fault)> {
        let first = match random.below(3) {
            0 => self.crash(),
            1 => self.pause(),
            _ => self.partition(),
        };
        let (short_us, for_us) = (self.short_us, self.long_us);
        let second = match random.below(3) {
            0 => Fault::CoordinatorCrash { down_us: short_us },
            1 => Fault::CoordinatorPause { for_us },
            _ => Fault::StoreFailure { for_us: short_us },
        };
        vec![(0, first), (random.below(400 * MS), second)]
    }

    /// The fault of a shape that has at most one at a time.
    fn fault(&self, shape: Shape, random: &mut Random) -> Option<Fault> {
        let (server, short_us, long_us) = (self.server, self.short_us, self.long_us);
        Some(match shape {
            Shape::Churn if random.one_in(3) => Fault::SlowDisk {
                server,
                extra_us: 5 * MS + random.below(80 * MS),
                for_us: long_us,
            },
            Shape::Zombies => match random.below(4) {
                0 => self.pause(),
                1 => self.partition(),
                _ => Fault::OneWay {
                    servers: vec![server],
                    outward: random.one_in(2),
                    for_us: long_us,
                },
            },
            Shape::Tables | Shape::Clocks => match random.below(6) {
                0 => Fault::Migrate,
                1 => Fault::CoordinatorCrash { down_us: short_us },
                2 => self.pause(),
                _ => self.crash(),
            },
            Shape::Full => match random.below(4) {
                0 => Fault::DiskFull {
                    server,
                    for_us: short_us,
                },
                1 => Fault::ColdStart { down_us: short_us },
                _ => Fault::DiskFills {
                    server,
                    bytes: random.below(100_000),
                    for_us: long_us,
                },
            },
            Shape::Moves | Shape::Flash => match random.below(5) {
                0 => self.crash(),
                1 => Fault::Split,
                2 => Fault::Drain {
                    server,
                    for_us: long_us,
                },
                _ => Fault::Migrate,
            },
            Shape::Patience => match random.below(2) {
                0 => Fault::CoordinatorPause { for_us: short_us },
                _ => Fault::CoordinatorBlind {
                    denied: random.one_in(2),
                    for_us: 2 * SECOND + long_us,
                },
            },
            Shape::Busy => Fault::Migrate,
            Shape::Leases => match random.below(3) {
                0 => self.crash(),
                _ => Fault::ClientCrash {
                    client: random.below(5) as usize,
                },
            },
            Shape::Repetitions | Shape::RepetitionsAndChurn => match random.below(4) {
                0 => self.crash(),
                1 => self.pause(),
                2 => Fault::ClientPause {
                    client: random.below(self.clients) as usize,
                    for_us: 3 * SECOND,
                },
                _ => return None,
            },
            _ => return None,
        })
    }
}
