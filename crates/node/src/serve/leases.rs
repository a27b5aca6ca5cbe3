//! Requests to the coordinator about client leases: requests of clients are executed only while
//! their leases last, and records of clients without a lease are dropped (rifl::L5, rifl::L8).

use super::Clients;
use crate::requests::Token;
use duramen_base::ids::ClientId;
use duramen_wire::native::message::{CoordinatorAnswer, ToCoordinator};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request without an answer is repeated after this time: clients wait for it.
const AGAIN_US: u64 = 50_000;

/// The requests of one life.
pub(crate) struct Leases {
    clients: Arc<Clients>,
    /// The send time of each, and its clients.
    asked: BTreeMap<Token, (u64, Vec<ClientId>)>,
    /// To be asked about again, at `again_us`.
    failed: Vec<ClientId>,
    again_us: u64,
    next: u64,
    due_us: u64,
}

impl Leases {
    pub fn new(clients: Arc<Clients>) -> Leases {
        Leases {
            clients,
            asked: BTreeMap::new(),
            failed: Vec::new(),
            again_us: 0,
            next: 0,
            due_us: u64::MAX,
        }
    }

    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// When it must be polled; also when an unknown client has come.
    pub fn due_us(&self) -> u64 {
        match self.failed.is_empty() {
            true => self.due_us,
            false => self.due_us.min(self.again_us),
        }
    }

    /// The next request, if one is due.
    pub fn poll(&mut self, now_us: u64) -> Option<(Token, ToCoordinator)> {
        let mut clients = Vec::new();
        if now_us >= self.due_us || self.clients.has_unknown() {
            clients = self.clients.ask(now_us);
            self.due_us = self.clients.next_ask_us().unwrap_or(u64::MAX);
        }
        if now_us >= self.again_us {
            clients.append(&mut self.failed);
            clients.sort_unstable();
            clients.dedup();
        }
        if clients.is_empty() {
            return None;
        }
        self.again_us = now_us + AGAIN_US;
        self.next += 1;
        let token = Token::ClientLeases(self.next);
        self.asked.insert(token, (now_us, clients.clone()));
        Some((token, ToCoordinator::AreAlive { clients }))
    }

    /// `None`: the coordinator was not reached. The request is repeated.
    pub fn answered(&mut self, token: Token, answer: Option<&CoordinatorAnswer>) {
        let Some((sent_us, asked)) = self.asked.remove(&token) else {
            return;
        };
        match answer {
            Some(CoordinatorAnswer::ClientsAlive { clients }) => {
                self.clients.answered(sent_us, &asked, clients);
            }
            _ => self.failed.extend(asked),
        }
        self.due_us = self.clients.next_ask_us().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{RouteHash, RpcId, TableId};
    use duramen_cluster::rifl::Begin;
    use duramen_wire::native::message::Rpc;

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
}
