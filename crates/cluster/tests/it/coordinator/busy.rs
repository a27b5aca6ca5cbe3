//! Machines without free processors: members, and the coordinator, are slow and alive.

use crate::coordinator::membership::status_of;
use crate::coordinator::rig::{PendingCall, Rig};
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, with_bug};
use duramen_base::random::Random;
use duramen_cluster::coordinator::Input;
use duramen_harness::config;
use duramen_wire::native::message::{FromCoordinator, ServerStatus};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
/// As configured in these tests.
const VERDICT_US: u64 = 250 * MS;

/// A cluster whose servers answer pings after random times.
struct Busy {
    rig: Rig,
    servers: Vec<ServerId>,
    random: Random,
    /// Answers on their way, with the times of their arrival.
    pongs: Vec<(u64, PendingCall)>,
    /// The longest time for which the coordinator stands still.
    stall_us: u64,
    /// The coordinator's network stands still until then.
    stands_until_us: u64,
}

impl Busy {
    fn new(servers: u64, seed: u64) -> Busy {
        Busy::of(Rig::new(), servers, seed)
    }

    fn of(mut rig: Rig, servers: u64, seed: u64) -> Busy {
        let servers = rig.enlist_some(servers);
        rig.be_good();
        rig.live(SECOND);
        Busy {
            rig,
            servers,
            random: Random::new(seed),
            pongs: Vec::new(),
            stall_us: 0,
            stands_until_us: 0,
        }
    }

    /// Lets time pass. `slowest_us`: of the answers of server `n` at this time since the begin;
    /// none: it does not answer.
    fn pass(&mut self, more_us: u64, slowest_us: impl Fn(usize, u64) -> Option<u64>) {
        let began_us = self.rig.now_us;
        while self.rig.now_us < began_us + more_us {
            let now_us = self.rig.now_us;
            let pings = self
                .rig
                .asked_where(|call| matches!(call.question, FromCoordinator::Ping { .. }));
            for ping in pings {
                let n = self.servers.iter().position(|id| *id == ping.to);
                let slowest_us = n.and_then(|n| slowest_us(n, now_us - began_us));
                if let Some(slowest_us) = slowest_us {
                    let at_us = now_us.max(self.stands_until_us);
                    let at_us = at_us + self.random.below(slowest_us + 1);
                    self.pongs.push((at_us, ping));
                }
            }
            self.rig.be_good();
            self.rig.now_us += MS + self.random.below(self.stall_us + 1);
            let now_us = self.rig.now_us;
            let (here, rest) = std::mem::take(&mut self.pongs)
                .into_iter()
                .partition(|(at_us, _)| *at_us <= now_us);
            self.pongs = rest;
            let mut here: Vec<(u64, PendingCall)> = here;
            here.sort_by_key(|(at_us, _)| *at_us);
            here.iter().for_each(|(_, ping)| self.rig.pong(ping));
            if self.rig.leader.wakes_at_us <= now_us {
                self.rig.handle(Input::Tick);
            }
        }
    }

    /// The number of servers that are UP.
    fn up(&self) -> usize {
        let is_up = |id: &&ServerId| status_of(&self.rig, **id) == Some(ServerStatus::Up);
        self.servers.iter().filter(is_up).count()
    }
}

/// Five servers on one machine whose load grows: the slowest answers take this long after 4 s.
fn of_a_loaded_machine(seed: u64, slowest_us: u64) -> usize {
    let mut busy = Busy::new(5, seed);
    busy.pass(20 * SECOND, |_, since_us| {
        Some((since_us * slowest_us / (4 * SECOND)).min(slowest_us))
    });
    busy.up()
}

/// Four survivors of one killed member were called crashed: the machine was busy with their
/// recovery of it, and each answered after 250 ms and more.
#[test]
fn servers_that_are_slow_together_are_alive() {
    for seed in 0..20 {
        assert_eq!(of_a_loaded_machine(seed, 800 * MS), 5, "seed {seed}");
    }
    let found = |seed| of_a_loaded_machine(seed, 800 * MS) < 5;
    let found = with_bug(Bug::PatienceIsFixed, || {
        (0..20).filter(|s| found(*s)).count()
    });
    assert!(found > 10, "found by {found} seeds");
}

/// A server whose answers were always a little late, and never as late as the configured timeout,
/// was called crashed: no answer came in the time of its own ping.
#[test]
fn a_server_that_answers_each_ping_a_little_late_is_alive() {
    let up = |seed| {
        let mut busy = Busy::new(5, seed);
        busy.pass(20 * SECOND, |n, _| {
            Some(if n == 1 { VERDICT_US - 10 * MS } else { MS })
        });
        busy.up()
    };
    for seed in 0..20 {
        assert_eq!(up(seed), 5, "seed {seed}");
    }
    let found = with_bug(Bug::PatienceIsFixed, || {
        (0..20).filter(|s| up(*s) < 5).count()
    });
    assert!(found > 10, "found by {found} seeds");
}

/// The coordinator itself gets a processor late, and so do its servers.
#[test]
fn a_coordinator_that_is_slow_itself_blames_nobody() {
    for seed in 0..20 {
        let mut busy = Busy::new(3, seed);
        busy.stall_us = 90 * MS;
        busy.pass(20 * SECOND, |_, _| Some(200 * MS));
        assert_eq!(busy.up(), 3, "seed {seed}");
    }
}

/// The coordinator's network stood still for a moment, so nobody answered a roll call. Then
/// answers came late, and made the leader patient: it did not call again, ever. The status named
/// healthy servers, and the next short stall made the leader resign at once.
#[test]
fn a_leader_that_was_cut_off_for_a_moment_finds_that_it_is_not() {
    for verdict_timeout_ms in [250, 2000] {
        let mut unfit = 0;
        for seed in 0..20 {
            let mut of = config();
            of.settings.verdict_timeout_ms = verdict_timeout_ms;
            let mut busy = Busy::of(Rig::of(of), 5, seed);
            let scale = u64::from(verdict_timeout_ms) / 250;
            busy.stands_until_us = busy.rig.now_us + 700 * MS * scale;
            busy.pass(700 * MS * scale, |_, _| Some(MS));
            unfit += usize::from(busy.rig.leader.coordinator.unanswered() > 0);
            busy.pass(30 * SECOND, |_, _| Some(MS));
            let unanswered = busy.rig.leader.coordinator.unanswered();
            assert_eq!((unanswered, busy.up()), (0, 5), "seed {seed}");
        }
        assert!(unfit > 10, "{unfit} leaders noticed it");
    }
}

/// The patience has a limit, and ends with the load.
#[test]
fn a_server_that_has_stopped_is_noticed_on_a_busy_machine_too() {
    for seed in 0..20 {
        let mut busy = Busy::new(5, seed);
        busy.pass(5 * SECOND, |_, _| Some(100 * MS));
        // More than ten timeouts, and a ping.
        let stopped = |n: usize, slowest_us| (n != 1).then_some(slowest_us);
        busy.pass(3 * SECOND, |n, _| stopped(n, 100 * MS));
        assert_eq!(busy.up(), 4, "seed {seed}");
        busy.pass(6 * SECOND, |n, _| stopped(n, MS));
        busy.pass(VERDICT_US + 700 * MS, |n, _| (n > 2).then_some(MS));
        assert_eq!(busy.up(), 2, "seed {seed}");
    }
}
