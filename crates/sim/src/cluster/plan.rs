//! The plan of a run: all its faults and settings, which a profile and a seed determine.

use duramen_base::planted::Bug;
use duramen_base::random::Random;
use duramen_wire::native::message::ReplicaLayout;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// A fault, or an operator's action. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process dies; the machine and its page cache stay.
    Crash {
        server: usize,
        down_us: u64,
    },
    /// A process dies while it carries out its machine's outputs, after so many of them.
    CrashAtOutput {
        server: usize,
        outputs: u32,
        down_us: u64,
    },
    /// A machine loses power, at once, or at one of its next operations on the disk, perhaps in the
    /// middle of it.
    PowerCut {
        server: usize,
        operations: Option<u64>,
        within: bool,
        down_us: u64,
    },
    /// A machine is lost with its disk; another one with an empty disk takes its place.
    LoseDisk {
        server: usize,
        down_us: u64,
    },
    /// All servers and coordinators lose power at once.
    ColdStart {
        down_us: u64,
    },
    /// All processes of servers die at once, and those of coordinators too, if `coordinators`. Each
    /// server starts again after its own time.
    FullStop {
        starts_us: Vec<u64>,
        coordinators: bool,
    },
    /// A server is told to stop, and closes its log. Its process dies by another fault.
    Close {
        server: usize,
    },
    /// A process dies, however many others are off.
    Stop {
        server: usize,
        down_us: u64,
    },
    Pause {
        server: usize,
        for_us: u64,
    },
    /// No message passes between these servers (and the coordinators, if `coordinator`) and the
    /// others.
    Partition {
        servers: Vec<usize>,
        coordinator: bool,
        clients: bool,
        for_us: u64,
    },
    /// No message leaves these servers, or none reaches them.
    OneWay {
        servers: Vec<usize>,
        outward: bool,
        for_us: u64,
    },
    /// No message passes from one server to another; `None`: to or from the coordinators.
    CutLink {
        from: Option<usize>,
        to: Option<usize>,
        for_us: u64,
    },
    /// A link is cut and restored by turns.
    Flapping {
        a: usize,
        b: Option<usize>,
        period_us: u64,
        for_us: u64,
    },
    SlowDisk {
        server: usize,
        extra_us: u64,
        for_us: u64,
    },
    /// One of the next operations on a disk ends with EIO.
    DiskError {
        server: usize,
        operations: u64,
    },
    DiskFull {
        server: usize,
        for_us: u64,
    },
    /// A disk has only this much free room.
    DiskFills {
        server: usize,
        bytes: u64,
        for_us: u64,
    },
    BitRot {
        server: usize,
        flips: u32,
    },
    Unreadable {
        server: usize,
    },
    /// One of the next writes goes to another place, or to none.
    Misdirected {
        server: usize,
        operations: u64,
        lost: bool,
    },
    CoordinatorCrash {
        down_us: u64,
    },
    CoordinatorPause {
        for_us: u64,
    },
    /// The leader cannot reach any server because of a fault of its own: names are not resolved,
    /// descriptors are used up; or, if `denied`, its token is wrong.
    CoordinatorBlind {
        denied: bool,
        for_us: u64,
    },
    /// The coordinators' store fails; a commit in flight may be stored or not.
    StoreFailure {
        for_us: u64,
    },
    ClientCrash {
        client: usize,
    },
    /// A client pauses for longer than its lease.
    ClientPause {
        client: usize,
        for_us: u64,
    },
    /// Splits a tablet at a random place.
    Split,
    /// Moves a random tablet to a random server.
    Migrate,
    Drain {
        server: usize,
        for_us: u64,
    },
    /// One in so many reads and writes of a flash device ends with EIO; 0: none does.
    FlashFails {
        server: usize,
        reads: u64,
        writes: u64,
        for_us: u64,
    },
    SlowFlash {
        server: usize,
        most_us: u64,
        for_us: u64,
    },
    /// A server's wall clock is set this far ahead of the true time.
    ClockStep {
        server: usize,
        offset_ms: i64,
    },
    /// The table that comes and goes is dropped, and created again after this time.
    DropTable {
        for_us: u64,
    },
    /// Each server deletes its part of that table.
    EmptyTable,
    /// A bit of an entry in a server's memory flips. It has no other flipped bit.
    MemoryFlip {
        server: usize,
        random: u64,
    },
}

/// Zones of 16 segments.
pub const ZONES: ReplicaLayout = ReplicaLayout::Zones { mib: 1 };

/// Bulk data, and what has to be true when all servers have stopped and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Live bytes of each server, in percent of its limit.
    pub percent: u64,
    /// Bytes of a value on average.
    pub value_bytes: u64,
    /// All objects are overwritten until logs are as long as they get.
    pub overwrites: bool,
    /// This server stays off until all faults are over.
    pub missing: Option<usize>,
    /// Each tablet is at its machine again.
    pub comes_home: bool,
}

/// All settings of a run: its faults, its network, its sizes.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub servers: usize,
    pub coordinators: usize,
    pub replicas: u32,
    /// Number of racks over which the servers are spread; 0: none.
    pub racks: usize,
    /// Places of replicas.
    pub layout: ReplicaLayout,
    pub clients: usize,
    /// Number of clients that follow redirections, as RESP clients do; the others are native.
    pub plain_clients: usize,
    /// The number of keys, and of counters among them.
    pub keys: u64,
    pub counters: u64,
    /// Beside the keys, so many pairs of keys that change together.
    pub twins: u64,
    /// Most bytes of a value.
    pub value_bytes: u64,
    /// Longest time between two operations of a client.
    pub think_us: u64,
    /// The time during which clients work.
    pub load_us: u64,
    pub segment_bytes: u32,
    pub memory_bytes: u64,
    /// Each life of a server has other settings: memory, heads, a second tier or none.
    pub resettled: bool,
    /// While a coordinator is down, another one runs in its place with an empty store.
    pub empty_store: bool,
    /// Members have a second tier, and keep as much as possible there.
    pub flash: bool,
    /// Wall clocks are wrong, and written values may expire by them.
    pub clocks: bool,
    /// Disks differ in speed: longest time of an operation.
    pub disk_us: u64,
    /// Every other key is in a table that comes and goes.
    pub churns: bool,
    pub partition_bytes: u64,
    pub read_lease_ms: u32,
    pub client_lease_ms: u32,
    /// Tablets of the table at its creation.
    pub tablets: u32,
    /// Longest time of a commit of the coordinators' store.
    pub commit_us: u64,
    /// Late copies arrive up to this time later.
    pub late_us: u64,
    /// No server may be declared dead: the plan has no fault that would justify it.
    pub nobody_dies: bool,
    /// Share of payloads between servers in which a bit flips.
    pub flip_ppm: u64,
    pub loss_ppm: u64,
    pub duplicate_ppm: u64,
    /// Share of messages that take ten times as long.
    pub delay_ppm: u64,
    /// Messages in one direction of a link arrive in the order in which they were sent.
    pub ordered: bool,
    /// Each direction of a link has a loss and a latency of its own.
    pub uneven: bool,
    /// Longest time of a message.
    pub latency_us: u64,
    /// Servers handle each message up to this time later, as on a machine without free processors:
    /// one of them at once, or all of them by and by.
    pub lag_us: u64,
    /// Clock rates differ from the true one by up to so many parts in a million.
    pub drift_ppm: u64,
    /// Most bytes that a log may take on disks; 0: twice its memory.
    pub log_bytes: u64,
    /// One in so many writes is large.
    pub large_one_in: u64,
    pub frames: u32,
    /// Interval of the reports of room; 0: none.
    pub room_us: u64,
    /// The coordinators balance in so quiet a cluster; none: only when asked.
    pub balance_after_us: Option<u64>,
    /// No operator adds servers when the others have no room.
    pub is_alone: bool,
    pub fill: Option<Fill>,
    pub wal_bytes: u64,
    pub faults: Vec<(u64, Fault)>,
    /// A planted bug to be found.
    pub bug: Option<Bug>,
    /// Time after the last fault within which the cluster must be well.
    pub patience_us: u64,
}

/// The faults that a plan draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// All kinds, a few of them in each plan.
    Mixed,
    /// No faults.
    Calm,
}

impl Plan {
    /// A cluster of this size without faults.
    pub fn calm(seed: u64, servers: usize, replicas: u32) -> Plan {
        Plan {
            seed,
            servers,
            coordinators: 2,
            replicas,
            racks: 0,
            layout: ReplicaLayout::Scatter,
            clients: 4,
            plain_clients: 2,
            keys: 12,
            counters: 3,
            twins: 0,
            value_bytes: 2_000,
            think_us: 40 * MS,
            load_us: 6 * SECOND,
            segment_bytes: 64 << 10,
            memory_bytes: 4 << 20,
            resettled: false,
            empty_store: false,
            flash: false,
            disk_us: 0,
            clocks: false,
            churns: false,
            partition_bytes: 1 << 30,
            read_lease_ms: 400,
            client_lease_ms: 4_000,
            tablets: 2,
            commit_us: 4 * MS,
            late_us: 3 * SECOND,
            nobody_dies: false,
            flip_ppm: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            delay_ppm: 0,
            ordered: true,
            uneven: false,
            latency_us: 2 * MS,
            lag_us: 0,
            drift_ppm: 0,
            log_bytes: 0,
            large_one_in: 4,
            frames: 128,
            room_us: 0,
            balance_after_us: None,
            is_alone: false,
            fill: None,
            wal_bytes: 1 << 20,
            faults: Vec::new(),
            bug: None,
            patience_us: 40 * SECOND,
        }
    }

    /// The plan of a seed.
    pub fn of(profile: Profile, seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let servers = 3 + random.below(5) as usize;
        let replicas = if servers >= 4 { 2 + random.below(2) } else { 2 } as u32;
        let mut plan = Plan::calm(seed, servers, replicas);
        plan.coordinators = 1 + random.below(3) as usize;
        plan.racks = [0, 0, servers][random.below(3) as usize];
        plan.clients = 2 + random.below(4) as usize;
        plan.plain_clients = random.below(plan.clients as u64 + 1) as usize;
        plan.keys = 4 + random.below(20);
        plan.counters = plan.keys / 4;
        plan.value_bytes = [200, 2_000, 12_000][random.below(3) as usize];
        plan.partition_bytes = [20_000, 1 << 30][random.below(2) as usize];
        plan.tablets = 1 + random.below(servers as u64) as u32;
        plan.frames = [128, 128, 48, 20][random.below(4) as usize];
        plan.flash = seed % 3 == 2;
        plan.draw_layout(seed);
        if profile == Profile::Mixed {
            plan.network(&mut random);
            plan.draw_faults(&mut random);
            // Later additions use random numbers of their own: the plans of other seeds stay the
            // same.
            let mut later = Random::new(seed ^ 0x006c_6174_6572);
            plan.churns = later.one_in(4);
            if plan.churns {
                plan.draw_churn(&mut later);
            }
            if plan.flash && later.one_in(2) {
                plan.draw_flash(&mut later);
            }
            if later.one_in(4) {
                plan.draw_disks(&mut later);
            }
            // A silent loss on a disk is noticed only by a comparison with another holder, and a
            // recovery waits only 150 ms for those that do not answer.
            let is_lost = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Misdirected { .. });
            if later.one_in(4) && !plan.faults.iter().any(is_lost) {
                plan.draw_links(&mut later);
            }
            if later.one_in(4) {
                plan.draw_clocks(&mut later);
            }
            plan.twins = [0, 1, 3][later.below(3) as usize];
        }
        plan
    }

    /// Half of the seeds have zones.
    fn draw_layout(&mut self, seed: u64) {
        let has_zones = Random::new(seed ^ 0x7a6f_6e65).one_in(2);
        if has_zones {
            self.layout = ZONES;
        }
    }

    fn network(&mut self, random: &mut Random) {
        self.loss_ppm = [0, 1_000, 20_000][random.below(3) as usize];
        self.duplicate_ppm = [0, 5_000, 50_000][random.below(3) as usize];
        self.delay_ppm = [0, 10_000, 50_000][random.below(3) as usize];
        self.ordered = random.one_in(2);
        self.latency_us = [500, 2_000, 10_000][random.below(3) as usize];
        self.drift_ppm = [0, 1_000, 50_000][random.below(3) as usize];
    }

    /// A few kinds of faults, several of each.
    fn draw_faults(&mut self, random: &mut Random) {
        let kinds: Vec<u64> = (0..1 + random.below(4))
            .map(|_| random.below(KINDS))
            .collect();
        let count = 2 + random.below(6);
        for _ in 0..count {
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            let at_us = SECOND / 2 + random.below(self.load_us);
            let fault = self.draw(kind, random);
            self.faults.push((at_us, fault));
            // Another one close by: faults that overlap find more bugs.
            if random.one_in(3) {
                let kind = kinds[random.below(kinds.len() as u64) as usize];
                let fault = self.draw(kind, random);
                self.faults.push((at_us + random.below(600 * MS), fault));
            }
        }
    }

    fn draw(&self, kind: u64, random: &mut Random) -> Fault {
        let server = random.below(self.servers as u64) as usize;
        let mut time = |short_us: u64| {
            let most_us = [short_us, 3 * SECOND][random.below(2) as usize];
            50 * MS + random.below(most_us)
        };
        let (down_us, for_us) = (time(200 * MS), time(400 * MS));
        let operations = random.below(30);
        match kind {
            0 => Fault::Crash { server, down_us },
            1 => Fault::CrashAtOutput {
                server,
                outputs: random.below(60) as u32,
                down_us,
            },
            2 => Fault::PowerCut {
                server,
                operations: (!random.one_in(3)).then_some(operations),
                within: random.one_in(2),
                down_us,
            },
            3 => Fault::LoseDisk { server, down_us },
            4 => Fault::ColdStart { down_us },
            5 => Fault::Pause { server, for_us },
            6 => Fault::Partition {
                servers: self.some_servers(random),
                coordinator: random.one_in(2),
                clients: random.one_in(2),
                for_us,
            },
            7 => Fault::OneWay {
                servers: self.some_servers(random),
                outward: random.one_in(2),
                for_us,
            },
            8 => Fault::Flapping {
                a: server,
                b: random.one_in(2).then(|| {
                    (server + 1 + random.below(self.servers as u64 - 1) as usize) % self.servers
                }),
                period_us: 20 * MS + random.below(300 * MS),
                for_us,
            },
            9 => Fault::SlowDisk {
                server,
                extra_us: 20 * MS + random.below(400 * MS),
                for_us,
            },
            10 => Fault::DiskError { server, operations },
            11 => Fault::DiskFull { server, for_us },
            12 => Fault::BitRot {
                server,
                flips: 1 + random.below(4) as u32,
            },
            13 => Fault::Unreadable { server },
            14 => Fault::Misdirected {
                server,
                operations,
                lost: random.one_in(2),
            },
            15 => Fault::CoordinatorCrash { down_us },
            16 => Fault::CoordinatorPause { for_us },
            17 => Fault::StoreFailure { for_us },
            18 => Fault::ClientCrash {
                client: random.below(self.clients as u64) as usize,
            },
            19 => Fault::ClientPause {
                client: random.below(self.clients as u64) as usize,
                for_us: u64::from(self.client_lease_ms) * MS + random.below(2 * SECOND),
            },
            20 => Fault::Split,
            21 => Fault::Migrate,
            22 => Fault::Drain { server, for_us },
            _ => Fault::CoordinatorBlind {
                denied: random.one_in(3),
                for_us,
            },
        }
    }

    /// A table is dropped or emptied, in half of the cases close to another fault.
    pub(super) fn draw_churn(&mut self, random: &mut Random) {
        let times_us: Vec<u64> = self.faults.iter().map(|(at_us, _)| *at_us).collect();
        for _ in 0..2 + random.below(6) {
            let at_us = self.some_time(&times_us, random);
            let fault = match random.below(3) {
                0 => Fault::EmptyTable,
                _ => Fault::DropTable {
                    for_us: [0, random.below(400 * MS)][random.below(2) as usize],
                },
            };
            self.faults.push((at_us, fault));
        }
    }

    /// Flash fails or is slow, in half of the cases close to another fault; much data is on flash,
    /// and tablets move meanwhile.
    pub(super) fn draw_flash(&mut self, random: &mut Random) {
        let times_us: Vec<u64> = self.faults.iter().map(|(at_us, _)| *at_us).collect();
        self.value_bytes = 12_000;
        self.large_one_in = 1;
        for _ in 0..2 + random.below(4) {
            let at_us = self.some_time(&times_us, random);
            let server = random.below(self.servers as u64) as usize;
            let for_us = 100 * MS + random.below(2 * SECOND);
            let fault = match random.below(3) {
                0 => Fault::SlowFlash {
                    server,
                    most_us: [2 * MS, 30 * MS][random.below(2) as usize],
                    for_us,
                },
                _ => {
                    for _ in 0..2 {
                        let move_us = at_us + random.below(for_us);
                        self.faults.push((move_us, Fault::Migrate));
                    }
                    Fault::FlashFails {
                        server,
                        reads: [1, 4, 20][random.below(3) as usize],
                        writes: [0, 0, 3][random.below(3) as usize],
                        for_us,
                    }
                }
            };
            self.faults.push((at_us, fault));
        }
    }

    /// Disks of different speed that are nearly full at times.
    pub(super) fn draw_disks(&mut self, random: &mut Random) {
        self.disk_us = [0, MS, 10 * MS][random.below(3) as usize];
        let times_us: Vec<u64> = self.faults.iter().map(|(at_us, _)| *at_us).collect();
        for _ in 0..1 + random.below(4) {
            let fault = Fault::DiskFills {
                server: random.below(self.servers as u64) as usize,
                bytes: random.below(4 * u64::from(self.segment_bytes)),
                for_us: 200 * MS + random.below(2 * SECOND),
            };
            let at_us = self.some_time(&times_us, random);
            self.faults.push((at_us, fault));
        }
    }

    /// Links that differ, and single ones that are cut in one direction.
    pub(super) fn draw_links(&mut self, random: &mut Random) {
        self.uneven = true;
        let times_us: Vec<u64> = self.faults.iter().map(|(at_us, _)| *at_us).collect();
        for _ in 0..1 + random.below(5) {
            let servers = self.servers as u64;
            let one = random.below(servers);
            let other = (one + 1 + random.below(servers - 1)) % servers;
            let ends = [
                (Some(one as usize), Some(other as usize)),
                (Some(one as usize), Some(other as usize)),
                (Some(one as usize), None),
                (None, Some(one as usize)),
            ];
            let (from, to) = ends[random.below(4) as usize];
            let most_us = [300 * MS, 3 * SECOND][random.below(2) as usize];
            let for_us = 50 * MS + random.below(most_us);
            let at_us = self.some_time(&times_us, random);
            self.faults
                .push((at_us, Fault::CutLink { from, to, for_us }));
        }
    }

    /// Wall clocks that are wrong, and are set forward and back.
    pub(super) fn draw_clocks(&mut self, random: &mut Random) {
        self.clocks = true;
        let times_us: Vec<u64> = self.faults.iter().map(|(at_us, _)| *at_us).collect();
        for _ in 0..random.below(6) {
            let fault = Fault::ClockStep {
                server: random.below(self.servers as u64) as usize,
                offset_ms: some_offset_ms(random),
            };
            let at_us = self.some_time(&times_us, random);
            self.faults.push((at_us, fault));
        }
    }

    /// The initial offset of a server's wall clock.
    pub(super) fn wall_offset_ms(&self, n: usize) -> i64 {
        let mut random = Random::new(self.seed ^ 0x0063_6c6f_636b ^ (n as u64) << 56);
        if self.clocks {
            some_offset_ms(&mut random)
        } else {
            0
        }
    }

    /// In half of the cases, a time shortly after one of these.
    fn some_time(&self, times_us: &[u64], random: &mut Random) -> u64 {
        match times_us.get(random.below(2 * times_us.len() as u64) as usize) {
            Some(at_us) => *at_us + random.below(200 * MS),
            None => SECOND / 4 + random.below(self.load_us),
        }
    }

    /// At least one server, not all.
    fn some_servers(&self, random: &mut Random) -> Vec<usize> {
        let first = random.below(self.servers as u64) as usize;
        let count = 1 + random.below(self.servers as u64 / 2) as usize;
        (first..first + count).map(|n| n % self.servers).collect()
    }
}

/// At most the offset that the model allows.
fn some_offset_ms(random: &mut Random) -> i64 {
    random.below(601) as i64 - 300
}

const KINDS: u64 = 24;
