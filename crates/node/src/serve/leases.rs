//! Requests to the coordinator about client leases: requests of clients are executed only while
//! their leases last, and records of clients without a lease are dropped (rifl::L5, rifl::L8).

use super::Clients;
use crate::requests::Token;
use duramen_base::ids::ClientId;
use duramen_wire::native::message::{CoordinatorAnswer, ToCoordinator};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request that did not reach the coordinator is repeated after this time: clients wait for it.
const AGAIN_US: u64 = 50_000;
/// While a request has no answer for so long, no other is sent.
const SILENT_US: u64 = 500_000;
/// Requests whose answers still count; older ones are forgotten.
const FLIGHTS_MAX: usize = 16;

/// The requests of one life: one after the other, each about some clients, since the answer is
/// handled in one step (server's node_thread::X1).
pub(crate) struct Leases {
    clients: Arc<Clients>,
    /// The send time of each, and its clients.
    asked: BTreeMap<Token, (u64, Vec<ClientId>)>,
    /// The newest request.
    next: u64,
    /// No request before this time: one has no answer yet, or the coordinator was not reached.
    pause_us: u64,
    /// When a known client must be asked about.
    due_us: u64,
}

impl Leases {
    pub fn new(clients: Arc<Clients>) -> Leases {
        Leases {
            clients,
            asked: BTreeMap::new(),
            next: 0,
            pause_us: 0,
            due_us: u64::MAX,
        }
    }

    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// When it must be polled; also when an unknown client has come.
    pub fn due_us(&self) -> u64 {
        match self.clients.has_unknown() {
            true => self.pause_us,
            false => self.due_us.max(self.pause_us),
        }
    }

    /// Charges the clients' memory to the budget, in the store's steps.
    pub fn charge(&self, store: &duramen_engine::Store) {
        let charged = store.charge_completions(self.clients.wanted_bytes());
        self.clients.charged(charged);
    }

    /// The next request, if one is due.
    pub fn poll(&mut self, now_us: u64) -> Option<(Token, ToCoordinator)> {
        if now_us < self.due_us() {
            return None;
        }
        let clients = self.clients.ask(now_us);
        self.due_us = self.clients.next_ask_us().unwrap_or(u64::MAX);
        if clients.is_empty() {
            return None;
        }
        self.pause_us = now_us + SILENT_US;
        self.next += 1;
        let token = Token::ClientLeases(self.next);
        self.asked.insert(token, (now_us, clients.clone()));
        if self.asked.len() > FLIGHTS_MAX {
            self.asked.pop_first();
        }
        Some((token, ToCoordinator::AreAlive { clients }))
    }

    /// Handles an answer; `None`: the coordinator was not reached, and the request is repeated.
    pub fn answered(&mut self, token: Token, answer: Option<&CoordinatorAnswer>) {
        let Some((sent_us, asked)) = self.asked.remove(&token) else {
            return;
        };
        let mut pause_us = 0;
        match answer {
            Some(CoordinatorAnswer::ClientsAlive { clients }) => {
                self.clients.answered(sent_us, &asked, clients);
            }
            _ => {
                pause_us = sent_us + AGAIN_US;
                self.clients.unanswered(&asked, pause_us);
            }
        }
        if token == Token::ClientLeases(self.next) {
            self.pause_us = pause_us;
        }
        self.due_us = self.clients.next_ask_us().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::once::ASK_CLIENTS_MAX;
    use duramen_base::ids::{RouteHash, RpcId, TableId};
    use duramen_cluster::rifl::Begin;
    use duramen_engine::{Completions, Options, Store};
    use duramen_format::entry::Completion;
    use duramen_wire::native::message::Rpc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn begin(clients: &Clients, now_us: u64, client: u64) -> Begin {
        let rpc = Rpc {
            client: ClientId(client),
            id: RpcId(1),
            acknowledged: RpcId(0),
        };
        clients.begin(now_us, TableId(1), RouteHash(0), rpc)
    }

    #[test]
    fn a_new_client_is_asked_about_at_once_and_soon_again_if_nobody_answers() {
        let clients = Clients::new(Arc::new(|| {}));
        let mut leases = Leases::new(clients.clone());
        assert_eq!((leases.poll(5), leases.due_us()), (None, u64::MAX));
        assert_eq!(begin(&clients, 5, 1), Begin::AskLease);
        let about = vec![ClientId(1)];
        let question = ToCoordinator::AreAlive {
            clients: about.clone(),
        };
        let (first, asked) = leases.poll(6).expect("a question");
        assert_eq!(asked, question);
        assert_eq!(leases.poll(7), None, "it is under way");
        leases.answered(first, None);
        assert_eq!(leases.poll(AGAIN_US), None);
        assert!(leases.due_us() <= 6 + AGAIN_US);
        let (second, asked) = leases.poll(6 + AGAIN_US).expect("the same again");
        assert_eq!(asked, question);
        let alive = CoordinatorAnswer::ClientsAlive {
            clients: vec![(ClientId(1), 10_000)],
        };
        leases.answered(second, Some(&alive));
        assert_eq!(begin(&clients, 100_000, 1), Begin::Execute);
        let half_us = leases.due_us();
        assert!(
            (4_000_000..6_000_000).contains(&half_us),
            "{half_us}: in advance"
        );
        assert_eq!(leases.poll(half_us - 1), None);
        let (third, _) = leases.poll(half_us).expect("renewed in advance");
        leases.answered(
            third,
            Some(&CoordinatorAnswer::ClientsAlive { clients: vec![] }),
        );
        assert_eq!(begin(&clients, half_us, 2), Begin::AskLease, "another one");
        leases.answered(first, Some(&alive));
        assert_eq!(clients.size().0, 2, "the first has something under way");
    }

    /// After a recovery the node asked about all its clients at once, and each answer about one of
    /// them visited all: members took each other for crashed, one after the other.
    #[test]
    fn two_hundred_thousand_clients_are_asked_about_in_short_steps() {
        const COUNT: u64 = 200_000;
        let waked = Arc::new(AtomicU64::new(0));
        let wakes = waked.clone();
        let clients = Clients::new(Arc::new(move || {
            wakes.fetch_add(1, Ordering::Relaxed);
        }));
        let mut leases = Leases::new(clients.clone());
        for client in 0..COUNT {
            clients.met(&Completion {
                table: 1,
                route: RouteHash(client),
                client: ClientId(client),
                rpc: RpcId(1),
                ack: RpcId(0),
                result: b"done",
            });
        }
        assert_eq!(waked.load(Ordering::Relaxed), 1, "the recovery wakes it");
        clients.charged(1 << 30);
        assert_eq!(leases.due_us(), 0);
        let mut visited = clients.visited();
        let mut step = |most: usize, what: &str| {
            let before = std::mem::replace(&mut visited, clients.visited());
            assert!(
                visited - before <= most as u64,
                "{what}: {}",
                visited - before
            );
        };
        let (mut now_us, mut asked_about, mut questions) = (1_000, 0, 0);
        // Every second client has no lease any more.
        while let Some((token, question)) = leases.poll(now_us) {
            step(ASK_CLIENTS_MAX, "a question");
            let ToCoordinator::AreAlive { clients: asked } = question else {
                panic!("{question:?}");
            };
            assert!(asked.len() <= ASK_CLIENTS_MAX, "{}", asked.len());
            asked_about += asked.len() as u64;
            assert_eq!(leases.poll(now_us + 1), None, "one after the other");
            if asked_about < COUNT {
                assert_eq!(begin(&clients, now_us, COUNT + now_us), Begin::AskLease);
                assert!(leases.due_us() > now_us + 1);
                step(1, "a new client");
            }
            questions += 1;
            if questions % 16 == 3 {
                leases.answered(token, None);
                step(ASK_CLIENTS_MAX, "no answer");
                asked_about -= asked.len() as u64;
                now_us = leases.due_us();
                continue;
            }
            let alive = asked.iter().filter(|client| client.0 % 2 == 0);
            let alive = CoordinatorAnswer::ClientsAlive {
                clients: alive.map(|client| (*client, 200_000)).collect(),
            };
            leases.answered(token, Some(&alive));
            step(2 * ASK_CLIENTS_MAX, "an answer");
            now_us += 1_000;
        }
        assert!(asked_about >= COUNT, "{asked_about}");
        // Clients that have ended, and of which a request waited, stay for some seconds.
        all_end(&mut leases, now_us + 6_000_000);
        assert!((COUNT / 2..COUNT * 51 / 100).contains(&(clients.size().0 as u64)));
        assert!((80_000_000..100_000_000).contains(&leases.due_us()));
    }

    /// The coordinator answers about all clients that are asked about now: none has a lease.
    fn all_end(leases: &mut Leases, now_us: u64) {
        while let Some((token, _)) = leases.poll(now_us) {
            let nobody = CoordinatorAnswer::ClientsAlive { clients: vec![] };
            leases.answered(token, Some(&nobody));
        }
    }

    fn charged_bytes(store: &Store) -> u64 {
        store.memory_report().overhead_bytes
    }

    /// Nothing counted the memory of clients.
    #[test]
    fn clients_are_charged_to_memory_and_bounded() {
        const MEMORY: u64 = 16 << 20;
        let store = Store::new(Options {
            tiny: true,
            ..Options::new(MEMORY)
        });
        let store = store.unwrap();
        let clients = Clients::new(Arc::new(|| {}));
        let mut leases = Leases::new(clients.clone());
        let before = charged_bytes(&store);
        let rpc = |client, id, acknowledged| Rpc {
            client: ClientId(client),
            id: RpcId(id),
            acknowledged: RpcId(acknowledged),
        };
        let execute = |client, id, acknowledged| {
            let rpc = rpc(client, id, acknowledged);
            let begun = clients.begin(1, TableId(1), RouteHash(0), rpc);
            if begun == Begin::Execute {
                clients.finish(rpc, b"result");
            }
            begun
        };
        let mut count = 0;
        loop {
            match execute(count, 1, 0) {
                Begin::Execute => count += 1,
                Begin::AskLease => {
                    let (token, _) = leases.poll(1).expect("a question");
                    let clients = vec![(ClientId(count), 10_000)];
                    let alive = CoordinatorAnswer::ClientsAlive { clients };
                    leases.answered(token, Some(&alive));
                }
                Begin::Full => {
                    leases.charge(&store);
                    if execute(count, 1, 0) == Begin::Full {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let charged = charged_bytes(&store) - before;
        assert!(
            (MEMORY / 8..MEMORY / 4 + (1 << 20)).contains(&charged),
            "{charged}"
        );
        assert!(count > charged / 400, "{count} clients in {charged}");
        // Known clients go on, with one record each.
        assert_eq!(execute(7, 1, 0), Begin::Done(b"result".to_vec()));
        assert_eq!(execute(7, 2, 0), Begin::Full);
        assert_eq!(execute(7, 2, 1), Begin::Execute);
        assert_eq!(execute(7, 2, 1), Begin::Done(b"result".to_vec()));
        // All leases end.
        all_end(&mut leases, 20_000_000);
        assert_eq!(clients.size(), (0, 0));
        (0..100).for_each(|_| leases.charge(&store));
        assert!(charged_bytes(&store) - before <= 1 << 20);
        assert_eq!(execute(count, 1, 0), Begin::AskLease);
    }
}
