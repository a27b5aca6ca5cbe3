//! Asks the coordinator whose leases last: requests of clients are executed only while theirs does, and records of those that have
//! none are forgotten (rifl L5, L8).

use super::Clients;
use crate::member::Token;
use duramen_base::ids::ClientId;
use duramen_wire::native::message::{CoordinatorAnswer, ToCoordinator};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens of these questions. Others have higher bits.
const QUESTIONS: u64 = 1 << 60;

/// Questions of one life.
pub(crate) struct Leases {
    clients: Arc<Clients>,
    /// When each was sent, and about whom.
    asked: BTreeMap<Token, (u64, Vec<ClientId>)>,
    next: u64,
    due_us: u64,
}

impl Leases {
    pub fn new(clients: Arc<Clients>) -> Leases {
        Leases {
            clients,
            asked: BTreeMap::new(),
            next: QUESTIONS,
            due_us: u64::MAX,
        }
    }

    pub fn is_for(token: Token) -> bool {
        token.0 >> 60 == 1
    }

    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// When it wants to be polled; also when a client has come that nobody knows.
    pub fn due_us(&self) -> u64 {
        self.due_us
    }

    /// What to ask now.
    pub fn poll(&mut self, now_us: u64) -> Option<(Token, ToCoordinator)> {
        let somebody_new = self.clients.has_unknown();
        if now_us < self.due_us && !somebody_new {
            return None;
        }
        let clients = self.clients.ask(now_us);
        self.due_us = self.clients.next_ask_us().unwrap_or(u64::MAX);
        if clients.is_empty() {
            return None;
        }
        self.next += 1;
        let token = Token(self.next);
        self.asked.insert(token, (now_us, clients.clone()));
        Some((token, ToCoordinator::AreAlive { clients }))
    }

    /// `None`: nobody was reached. It is asked again by itself.
    pub fn answered(&mut self, token: Token, answer: Option<&CoordinatorAnswer>) {
        let Some((sent_us, asked)) = self.asked.remove(&token) else {
            return;
        };
        if let Some(CoordinatorAnswer::ClientsAlive { clients }) = answer {
            self.clients.answered(sent_us, &asked, clients);
        }
        self.due_us = self.clients.next_ask_us().unwrap_or(u64::MAX);
    }
}
