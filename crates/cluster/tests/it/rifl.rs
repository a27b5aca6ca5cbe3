//! Exactly once under repetition, loss, cleaning, recovery and migration: trackers against a model
//! of a small cluster.

use duramen_base::ids::{ClientId, KeyRange, RouteHash, RpcId, TableId};
use duramen_cluster::rifl::{Begin, Completion, Tracker};
use duramen_wire::native::message::Rpc;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::BTreeMap;

const TABLE: TableId = TableId(1);
const WINDOW: u32 = 8;
const SECOND_US: u64 = 1_000_000;
/// Lease of a client at the coordinator; the client itself stops a tenth earlier.
const LEASE_US: u64 = 100 * SECOND_US;
const MASTERS: usize = 3;
const TABLETS: usize = 3;

fn rpc(client: u64, id: u64, acknowledged: u64) -> Rpc {
    Rpc {
        client: ClientId(client),
        id: RpcId(id),
        acknowledged: RpcId(acknowledged),
    }
}

fn tablet_range(tablet: usize) -> KeyRange {
    let first = (tablet as u64) << 32;
    KeyRange::new(RouteHash(first), RouteHash(first | 0xffff_ffff))
}

/// A tracker with a lease of 100 seconds for client 1.
fn tracker() -> Tracker {
    let mut tracker = Tracker::new(WINDOW);
    let first = rpc(1, 1, 0);
    assert_eq!(
        tracker.begin(0, TABLE, RouteHash(0), first),
        Begin::AskLease
    );
    assert_eq!(tracker.to_ask(0, usize::MAX), [ClientId(1)]);
    tracker.answered(0, ClientId(1), Some(100_000));
    tracker
}

#[test]
fn a_repetition_waits_and_gets_the_same_answer() {
    let mut tracker = tracker();
    let first = rpc(1, 1, 0);
    assert_eq!(tracker.begin(1, TABLE, RouteHash(7), first), Begin::Execute);
    assert_eq!(
        tracker.begin(2, TABLE, RouteHash(7), first),
        Begin::InProgress
    );
    tracker.finish(first, b"one");
    let done = Begin::Done(b"one".to_vec());
    assert_eq!(tracker.begin(3, TABLE, RouteHash(7), first), done);
    assert!(tracker.keeps(ClientId(1), RpcId(1)));
}

#[test]
fn what_is_acknowledged_is_stale_and_not_needed_once_that_is_durable() {
    let mut tracker = tracker();
    let (first, second) = (rpc(1, 1, 0), rpc(1, 2, 1));
    assert_eq!(tracker.begin(1, TABLE, RouteHash(7), first), Begin::Execute);
    tracker.finish(first, b"one");
    assert_eq!(
        tracker.begin(1, TABLE, RouteHash(8), second),
        Begin::Execute
    );
    assert_eq!(tracker.begin(1, TABLE, RouteHash(7), first), Begin::Stale);
    assert!(
        tracker.keeps(ClientId(1), RpcId(1)),
        "the acknowledgement is not durable"
    );
    tracker.finish(second, b"two");
    assert!(!tracker.keeps(ClientId(1), RpcId(1)));
    assert!(tracker.keeps(ClientId(1), RpcId(2)));
}

#[test]
fn what_had_no_effect_may_come_again() {
    let mut tracker = tracker();
    let first = rpc(1, 1, 0);
    assert_eq!(tracker.begin(1, TABLE, RouteHash(7), first), Begin::Execute);
    tracker.abandon(first);
    assert!(!tracker.keeps(ClientId(1), RpcId(1)));
    assert_eq!(tracker.begin(1, TABLE, RouteHash(7), first), Begin::Execute);
}

#[test]
fn the_window_bounds_what_is_remembered() {
    let mut tracker = tracker();
    let ids = 1..=u64::from(WINDOW);
    for id in ids.clone().rev() {
        assert_eq!(
            tracker.begin(1, TABLE, RouteHash(id), rpc(1, id, 0)),
            Begin::Execute
        );
        tracker.finish(rpc(1, id, 0), b"");
    }
    let beyond = rpc(1, ids.end() + 1, 0);
    assert_eq!(
        tracker.begin(1, TABLE, RouteHash(0), beyond),
        Begin::BeyondWindow
    );
    let later = rpc(1, ids.end() + 1, 1);
    assert_eq!(tracker.begin(1, TABLE, RouteHash(0), later), Begin::Execute);
    assert_eq!(tracker.size(), (1, WINDOW as usize + 1));
}

#[test]
fn a_lease_is_asked_for_in_advance_and_its_end_is_noticed() {
    let mut tracker = tracker();
    let half_us = 100 * SECOND_US * 9 / 10 / 2;
    assert_eq!(tracker.to_ask(half_us - 1, usize::MAX), []);
    assert_eq!(tracker.next_ask_us(), Some(half_us));
    assert_eq!(tracker.to_ask(half_us, usize::MAX), [ClientId(1)]);
    assert_eq!(
        tracker.to_ask(half_us + 1, usize::MAX),
        [],
        "one question at a time"
    );
    assert_eq!(
        tracker.to_ask(half_us + SECOND_US, usize::MAX),
        [ClientId(1)],
        "unless its answer is lost"
    );
    let (first, second) = (rpc(1, 1, 0), rpc(1, 2, 0));
    let end_us = 2 * half_us;
    assert_eq!(
        tracker.begin(end_us - 1, TABLE, RouteHash(7), first),
        Begin::Execute
    );
    assert_eq!(
        tracker.begin(end_us, TABLE, RouteHash(7), second),
        Begin::AskLease
    );
    tracker.answered(end_us, ClientId(1), None);
    assert_eq!(
        tracker.begin(end_us, TABLE, RouteHash(7), second),
        Begin::LeaseExpired
    );
    tracker.finish(first, b"one");
    let done = Begin::Done(b"one".to_vec());
    assert_eq!(
        tracker.begin(end_us, TABLE, RouteHash(7), first),
        done,
        "L8: it was under way"
    );
    let asked = tracker.to_ask(end_us + half_us, usize::MAX);
    assert_eq!(asked, [ClientId(1)]);
    tracker.answered(end_us, ClientId(1), None);
    assert_eq!(tracker.size(), (0, 0));
}

#[test]
fn records_move_with_their_range() {
    let (mut from, mut to) = (tracker(), tracker());
    for (id, route) in [(1, 10), (2, 20), (3, 30)] {
        assert_eq!(
            from.begin(1, TABLE, RouteHash(route), rpc(1, id, 0)),
            Begin::Execute
        );
        from.finish(rpc(1, id, 0), &[id as u8]);
    }
    let range = KeyRange::new(RouteHash(15), RouteHash(25));
    let begun = from.begin(1, TABLE, RouteHash(20), rpc(1, 4, 0));
    assert_eq!(begun, Begin::Execute);
    assert_eq!(from.export(TABLE, &range), None, "one is under way");
    from.abandon(rpc(1, 4, 0));
    let moved = from.export(TABLE, &range).unwrap();
    assert_eq!(
        moved.iter().map(|moved| moved.rpc.id.0).collect::<Vec<_>>(),
        [2]
    );
    for completion in moved {
        to.met(completion.clone());
        to.met(completion); // rifl::L7
    }
    from.purge(TABLE, &range);
    assert!(!from.keeps(ClientId(1), RpcId(2)) && from.keeps(ClientId(1), RpcId(3)));
    let done = Begin::Done(vec![2]);
    assert_eq!(to.begin(1, TABLE, RouteHash(20), rpc(1, 2, 0)), done);
}

/// One master of the model: its tracker, its log, and requests that are not durable yet.
struct Master {
    /// Number of its life: messages to an earlier life are dropped.
    life: u32,
    tracker: Tracker,
    log: Vec<Completion>,
    executing: Vec<Completion>,
}

/// A request or its repetition, in flight: it stays, for it may be delivered again.
#[derive(Clone, Copy, Debug)]
struct Sent {
    master: usize,
    life: u32,
    tablet: usize,
    /// Version of the map by which the client chose the owner.
    map: u32,
    rpc: Rpc,
}

struct ClientModel {
    /// Its tablet, and whether the client has the answer, by id.
    requests: BTreeMap<u64, (usize, bool)>,
    acknowledged: u64,
    lease_until_us: u64,
    own_lease_until_us: u64,
}

/// Errors that a driver of the tracker can make.
#[derive(Clone, Copy, Default)]
struct Slips {
    /// rifl::L2: a result is sent before it is durable.
    answers_early: bool,
    /// rifl::L10: the version of a request's map is not checked.
    any_map: bool,
}

struct World {
    now_us: u64,
    slips: Slips,
    masters: Vec<Master>,
    owners: [usize; TABLETS],
    /// Version of the map, and the version since which its owner has each tablet.
    map: u32,
    since: [u32; TABLETS],
    clients: Vec<ClientModel>,
    sent: Vec<Sent>,
    /// The number of times that the effect of a request became durable.
    effects: BTreeMap<(u64, u64), u32>,
    /// The answers that the client got.
    told: BTreeMap<(u64, u64), Vec<u8>>,
    executions: u32,
}

impl World {
    fn new(slips: Slips) -> World {
        let master = |_| Master {
            life: 1,
            tracker: Tracker::new(WINDOW),
            log: Vec::new(),
            executing: Vec::new(),
        };
        let client = |_| ClientModel {
            requests: BTreeMap::new(),
            acknowledged: 0,
            lease_until_us: LEASE_US,
            own_lease_until_us: LEASE_US * 9 / 10,
        };
        World {
            now_us: 0,
            slips,
            masters: (0..MASTERS).map(master).collect(),
            owners: [0, 1, 2],
            map: 1,
            since: [1; TABLETS],
            clients: (0..2).map(client).collect(),
            sent: Vec::new(),
            effects: BTreeMap::new(),
            told: BTreeMap::new(),
            executions: 0,
        }
    }

    /// One step: an action and its parameter.
    fn step(&mut self, action: u8, choice: usize) -> Result<(), String> {
        match action {
            0..=4 => self.ask(choice),
            5..=7 => self.ask_again(choice),
            8..=14 => return self.deliver(choice),
            15..=19 => return self.become_durable(choice),
            20 => self.crash(choice)?,
            21 => return self.migrate(choice),
            22..=23 => self.clean(choice),
            24..=27 => self.ask_coordinator(choice),
            _ => self.pass_time(choice),
        }
        Ok(())
    }

    fn ask(&mut self, choice: usize) {
        let index = choice % self.clients.len();
        let client = &mut self.clients[index];
        let id = client.requests.last_key_value().map_or(0, |(id, _)| *id) + 1;
        if id > client.acknowledged + u64::from(WINDOW) {
            return;
        }
        let tablet = choice / 7 % TABLETS;
        client.requests.insert(id, (tablet, false));
        self.send(index, id);
    }

    fn ask_again(&mut self, choice: usize) {
        let index = choice % self.clients.len();
        let open = self.clients[index].requests.iter();
        let open: Vec<u64> = open
            .filter(|(_, (_, done))| !done)
            .map(|(id, _)| *id)
            .collect();
        if let Some(id) = open.get(choice / 3 % open.len().max(1)) {
            self.send(index, *id);
        }
    }

    fn send(&mut self, index: usize, id: u64) {
        let client = &self.clients[index];
        if self.now_us >= client.own_lease_until_us {
            return;
        }
        let tablet = client.requests[&id].0;
        let master = self.owners[tablet];
        self.sent.push(Sent {
            master,
            life: self.masters[master].life,
            tablet,
            map: self.map,
            rpc: rpc(index as u64 + 1, id, client.acknowledged),
        });
    }

    /// Any request that was ever sent arrives, perhaps once more.
    fn deliver(&mut self, choice: usize) -> Result<(), String> {
        if self.sent.is_empty() {
            return Ok(());
        }
        // Newer ones are likelier.
        let back = (choice % 16).min(choice % self.sent.len());
        let sent = self.sent[self.sent.len() - 1 - back];
        // rifl::L10
        let is_old = sent.map < self.since[sent.tablet] && !self.slips.any_map;
        let owns = self.owners[sent.tablet] == sent.master && !is_old;
        let master = &mut self.masters[sent.master];
        if master.life != sent.life || !owns {
            return Ok(());
        }
        let route = tablet_range(sent.tablet).first;
        match master.tracker.begin(self.now_us, TABLE, route, sent.rpc) {
            Begin::Execute => {
                self.executions += 1;
                let completion = Completion {
                    table: TABLE,
                    route,
                    rpc: sent.rpc,
                    result: self.executions.to_le_bytes().to_vec(),
                };
                if self.slips.answers_early {
                    let result = completion.result.clone();
                    self.tell(sent.rpc, result)?;
                }
                self.masters[sent.master].executing.push(completion);
                Ok(())
            }
            Begin::Done(result) => self.tell(sent.rpc, result),
            Begin::BeyondWindow => Err("the model's clients keep the rules".to_owned()),
            _ => Ok(()),
        }
    }

    /// The client gets an answer: always the same.
    fn tell(&mut self, rpc: Rpc, result: Vec<u8>) -> Result<(), String> {
        let key = (rpc.client.0, rpc.id.0);
        let told = self.told.entry(key).or_insert_with(|| result.clone());
        if *told != result {
            return Err(format!("{rpc:?} has two answers"));
        }
        let client = &mut self.clients[rpc.client.0 as usize - 1];
        if let Some((_, done)) = client.requests.get_mut(&rpc.id.0) {
            *done = true;
        }
        while client
            .requests
            .get(&(client.acknowledged + 1))
            .is_some_and(|(_, done)| *done)
        {
            client.acknowledged += 1;
        }
        Ok(())
    }

    fn become_durable(&mut self, choice: usize) -> Result<(), String> {
        let master = &mut self.masters[choice % MASTERS];
        if master.executing.is_empty() {
            return Ok(());
        }
        let completion = master.executing.remove(0);
        let key = (completion.rpc.client.0, completion.rpc.id.0);
        let times = self.effects.entry(key).or_default();
        *times += 1;
        if *times > 1 {
            return Err(format!("{:?} took effect {times} times", completion.rpc));
        }
        master.tracker.finish(completion.rpc, &completion.result);
        master.log.push(completion.clone());
        // The answer may be lost.
        if choice.is_multiple_of(4) {
            return Ok(());
        }
        self.tell(completion.rpc, completion.result)
    }

    /// A master dies: requests that were not durable are lost, and others replay its log.
    fn crash(&mut self, choice: usize) -> Result<(), String> {
        let dead = choice % MASTERS;
        let master = &mut self.masters[dead];
        master.life += 1;
        master.tracker = Tracker::new(WINDOW);
        let lost = std::mem::take(&mut master.executing);
        let log = std::mem::take(&mut master.log);
        for completion in lost {
            let key = (completion.rpc.client.0, completion.rpc.id.0);
            if self.told.contains_key(&key) && !self.effects.contains_key(&key) {
                return Err(format!("{:?} was answered and is lost", completion.rpc));
            }
        }
        for tablet in 0..TABLETS {
            if self.owners[tablet] != dead {
                continue;
            }
            let owner = (dead + 1 + choice / 5 % (MASTERS - 1)) % MASTERS;
            self.give(tablet, owner);
            let of_tablet = log
                .iter()
                .filter(|c| tablet_range(tablet).contains(c.route));
            self.meet(owner, of_tablet.cloned().collect());
        }
        Ok(())
    }

    fn give(&mut self, tablet: usize, owner: usize) {
        self.map += 1;
        self.since[tablet] = self.map;
        self.owners[tablet] = owner;
    }

    fn meet(&mut self, owner: usize, completions: Vec<Completion>) {
        let master = &mut self.masters[owner];
        for completion in completions {
            master.tracker.met(completion.clone());
            master.log.push(completion);
        }
    }

    fn migrate(&mut self, choice: usize) -> Result<(), String> {
        let tablet = choice % TABLETS;
        let (from, to) = (self.owners[tablet], choice / 3 % MASTERS);
        if from == to {
            return Ok(());
        }
        while !self.masters[from].executing.is_empty() {
            self.become_durable(from)?; // It is locked, and its requests in flight end.
        }
        let range = tablet_range(tablet);
        let moved = self.masters[from].tracker.export(TABLE, &range);
        let moved = moved.expect("what was under way is durable");
        self.meet(to, moved);
        self.give(tablet, to);
        self.masters[from].tracker.purge(TABLE, &range);
        Ok(())
    }

    fn clean(&mut self, choice: usize) {
        let Master { tracker, log, .. } = &mut self.masters[choice % MASTERS];
        log.retain(|completion| tracker.keeps(completion.rpc.client, completion.rpc.id));
    }

    fn ask_coordinator(&mut self, choice: usize) {
        let now_us = self.now_us;
        let alive: BTreeMap<ClientId, u32> = (1u64..)
            .zip(&self.clients)
            .filter(|(_, client)| client.lease_until_us > now_us)
            .map(|(id, client)| {
                (
                    ClientId(id),
                    ((client.lease_until_us - now_us) / 1000) as u32,
                )
            })
            .collect();
        let tracker = &mut self.masters[choice % MASTERS].tracker;
        let asked = tracker.to_ask(now_us, usize::MAX);
        for id in asked {
            tracker.answered(now_us, id, alive.get(&id).copied());
        }
    }

    fn pass_time(&mut self, choice: usize) {
        self.now_us += if choice.is_multiple_of(8) {
            LEASE_US / 2
        } else {
            SECOND_US
        };
        if !choice.is_multiple_of(4) {
            let index = choice / 4 % self.clients.len();
            let client = &mut self.clients[index];
            if self.now_us < client.own_lease_until_us {
                client.lease_until_us = self.now_us + LEASE_US;
                client.own_lease_until_us = self.now_us + LEASE_US * 9 / 10;
            }
        }
    }
}

fn run(world: &mut World, steps: &[(u8, u16)]) -> Result<(), String> {
    for (action, choice) in steps {
        world.step(*action, usize::from(*choice))?;
        for master in &world.masters {
            let (clients, records) = master.tracker.size(); // checks the count of bytes
            assert!(master.tracker.bytes() >= clients + records);
        }
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<(u8, u16)>> {
    proptest::collection::vec((0..30u8, any::<u16>()), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn requests_take_effect_once(steps in steps()) {
        let mut world = World::new(Slips::default());
        prop_assert_eq!(run(&mut world, &steps), Ok(()));
    }
}

/// The model does execute, repeat, move and acknowledge: otherwise it could not fail.
#[test]
fn the_model_gets_somewhere() {
    let mut world = World::new(Slips::default());
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..50 {
        let steps = steps().new_tree(&mut runner).expect("a strategy").current();
        assert_eq!(run(&mut world, &steps), Ok(()));
        if world
            .clients
            .iter()
            .all(|client| world.now_us >= client.own_lease_until_us)
        {
            break;
        }
    }
    assert!(
        world.effects.len() > 10 && world.told.len() > 5,
        "{}",
        world.effects.len()
    );
}

mod planted {
    use super::*;
    use duramen_base::planted::{Bug, with_bug};

    fn finds(slips: Slips) -> bool {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        (0..20_000).any(|_| {
            let steps = steps().new_tree(&mut runner).expect("a strategy").current();
            run(&mut World::new(slips), &steps).is_err()
        })
    }

    fn finds_bug(bug: Bug) -> bool {
        with_bug(bug, || finds(Slips::default()))
    }

    #[test]
    fn a_repetition_that_runs_beside_the_first_is_found() {
        assert!(finds_bug(Bug::InProgressRunsAgain));
    }

    #[test]
    fn an_acknowledged_request_that_runs_again_is_found() {
        assert!(finds_bug(Bug::AcknowledgedRunsAgain));
    }

    #[test]
    fn a_cleaner_that_drops_needed_records_is_found() {
        assert!(finds_bug(Bug::CleanerForgets));
    }

    #[test]
    fn a_missing_lease_check_is_found() {
        assert!(finds_bug(Bug::NoLeaseCheck));
    }

    #[test]
    fn records_that_stay_behind_are_found() {
        assert!(finds_bug(Bug::RecordsStayBehind));
    }

    #[test]
    fn a_log_that_is_not_met_is_found() {
        assert!(finds_bug(Bug::LogForgotten));
    }

    #[test]
    fn forgetting_a_living_client_is_found() {
        assert!(finds_bug(Bug::ForgetsTheLiving));
    }

    #[test]
    fn an_early_answer_is_found() {
        let slips = Slips {
            answers_early: true,
            any_map: false,
        };
        assert!(finds(slips));
    }

    #[test]
    fn a_late_copy_by_an_old_map_is_found() {
        let slips = Slips {
            answers_early: false,
            any_map: true,
        };
        assert!(finds(slips));
    }
}
