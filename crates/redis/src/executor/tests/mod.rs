//! Commands driven by RESP bytes, without sockets.

mod acl;
mod atomicity;
mod blocking;
mod cluster;
mod cluster_member;
mod cluster_scripts;
mod cluster_state;
mod cluster_tls;
mod commands;
mod competing;
mod damage;
mod duramen;
mod events;
mod groups;
mod loading;
mod meanwhile;
mod operations;
mod outcomes;
mod pace;
mod page;
mod parts;
mod pubsub;
mod room;
mod rows;
mod scripts;
mod streams;
mod transactions;
mod types;
mod waiting;
mod walks;

use super::{Executor, Group, Turn};
use crate::command::outcome::Outcome;
use crate::command::turn::Ending;
use crate::flash::tier::Tier;
use crate::pubsub::release::release;
use crate::state::Shared;
use crate::state::client::Client;
use crate::threads::bell::{Bell, Silent};
use crate::threads::clients::ClientRecord;
use crate::threads::start::STARTER;
use duramen_config::{Level, ServerConfig, ServerError};
use duramen_engine::{Clock, Options, Store};
use duramen_wire::resp::{Limits, ParseState, RequestEncoder, Requests, parse_requests};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A store and the shared state of its executors, with a clock that the test controls.
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock_ms: Arc<AtomicU64>,
}

pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// The state of a server whose threads never sleep.
pub(crate) fn shared(config: ServerConfig) -> Result<Arc<Shared>, ServerError> {
    let bells = (0..config.reactor_threads()).map(|_| Arc::new(Silent) as Arc<dyn Bell>);
    let bells = bells.collect();
    Shared::new(config, None, crate::table::catalog(), bells, STARTER)
}

impl Server {
    pub(crate) fn new(threads: usize) -> Server {
        Server::with(ServerConfig {
            level: Some(Level::Memory),
            threads,
            ..ServerConfig::default()
        })
    }

    pub(crate) fn with(config: ServerConfig) -> Server {
        Server::with_cleaners(config, 1)
    }

    /// Without cleaners, what has expired stays in the index.
    pub(crate) fn with_cleaners(config: ServerConfig, cleaners: usize) -> Server {
        let clock_ms = Arc::new(AtomicU64::new(START_MS));
        let store = Store::new(Options {
            huge_pages: false,
            heads: config.threads,
            cleaners,
            clock: Clock::Manual(Arc::clone(&clock_ms)),
            ..Options::new(64 << 20)
        })
        .expect("a store");
        // The store has nothing there.
        let tier = Tier::open(&config).expect("a tier, or none").map(Arc::new);
        let shared = shared(config).expect("shared state");
        shared.serve_with(store, None, tier);
        Server { shared, clock_ms }
    }

    pub(crate) fn executor(&self, thread: usize) -> Executor {
        let executor = Executor::new(Arc::clone(&self.shared), thread).expect("an executor");
        // A turn runs to its end, even on a slow machine.
        Executor {
            group: Group::new(Duration::MAX),
            ..executor
        }
    }

    pub(crate) fn client(&self, thread: usize) -> Client {
        let id = self.shared.threads.next_client_id();
        let address = "127.0.0.1:1".parse().expect("an address");
        let slot = id as u32;
        let record = ClientRecord::new(id, thread, slot, 3, address, address, START_MS);
        let record = Arc::new(record);
        self.shared.threads[thread]
            .clients
            .insert(Arc::clone(&record));
        Client::new(record)
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.clock_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// One connection to its own server.
    pub(crate) fn session(threads: usize) -> Session {
        Server::new(threads).into_session()
    }

    pub(crate) fn into_session(self) -> Session {
        Session {
            executor: self.executor(0),
            client: self.client(0),
            server: self,
        }
    }
}

/// A connection with its executor.
pub(crate) struct Session {
    pub(crate) server: Server,
    pub(crate) executor: Executor,
    pub(crate) client: Client,
}

impl Session {
    /// Sends one inline request; returns the reply as text.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        run(
            &mut self.executor,
            &mut self.client,
            format!("{request}\r\n").as_bytes(),
        )
    }

    /// As [`ask`](Self::ask). Empty: it is to be presented again.
    pub(crate) fn ask_part(&mut self, request: &str) -> String {
        run_part(
            &mut self.executor,
            &mut self.client,
            format!("{request}\r\n").as_bytes(),
        )
    }

    /// Sends one request with arbitrary bytes.
    pub(crate) fn ask_bytes(&mut self, args: &[&[u8]]) -> String {
        let mut input = Vec::new();
        RequestEncoder::new(&mut input).request(args);
        run(&mut self.executor, &mut self.client, &input)
    }

    /// Sends a request and expects exactly this reply.
    #[track_caller]
    pub(crate) fn expect(&mut self, request: &str, reply: &str) {
        assert_eq!(self.ask(request), reply, "{request}");
    }

    /// As [`expect`](Self::expect), for an error that begins with `start`.
    #[track_caller]
    pub(crate) fn expect_error(&mut self, request: &str, start: &str) {
        let reply = self.ask(request);
        assert!(
            reply.starts_with(&format!("-{start}")),
            "{request}: {reply}"
        );
    }

    /// The number in the reply to a request.
    #[track_caller]
    pub(crate) fn number(&mut self, request: &str) -> i64 {
        let reply = self.ask(request);
        reply
            .strip_prefix(':')
            .and_then(|text| text.trim_end().parse().ok())
            .unwrap_or_else(|| panic!("{request}: {reply}"))
    }
}

thread_local! {
    /// How the last turn of each client ended, by the place of its record.
    static ENDINGS: RefCell<HashMap<*const ClientRecord, Ending>> = RefCell::default();
}

/// How the last turn of a client ended that `run` or its like has run in this thread.
pub(crate) fn ending(client: &Client) -> Ending {
    let record = Arc::as_ptr(client.record());
    ENDINGS.with_borrow(|endings| endings.get(&record).copied().unwrap_or_default())
}

fn note_ending(client: &Client, ending: Ending) {
    let record = Arc::as_ptr(client.record());
    ENDINGS.with_borrow_mut(|endings| endings.insert(record, ending));
}

pub(crate) fn parsed(input: &[u8]) -> Requests {
    let mut requests = Requests::new();
    parse_requests(
        input,
        &Limits::default(),
        &mut ParseState::new(),
        &mut requests,
    )
    .expect("well-formed requests");
    requests
}

/// Runs one request with arbitrary bytes; returns the bytes of its reply.
pub(crate) fn run_bytes(executor: &mut Executor, client: &mut Client, args: &[&[u8]]) -> Vec<u8> {
    let mut input = Vec::new();
    RequestEncoder::new(&mut input).request(args);
    run_raw(executor, client, &input)
}

/// Parses all of `input` and runs it to its end, in as many turns as it takes.
pub(crate) fn run(executor: &mut Executor, client: &mut Client, input: &[u8]) -> String {
    String::from_utf8_lossy(&run_raw(executor, client, input)).into_owned()
}

/// As [`run`], until a request has to be presented again (`YIELDS`).
pub(crate) fn run_part(executor: &mut Executor, client: &mut Client, input: &[u8]) -> String {
    let out = run_in_turns(executor, client, input, 1);
    String::from_utf8_lossy(&out).into_owned()
}

fn run_raw(executor: &mut Executor, client: &mut Client, input: &[u8]) -> Vec<u8> {
    run_in_turns(executor, client, input, 10_000)
}

/// At most so many turns in a row end without a reply.
fn run_in_turns(
    executor: &mut Executor,
    client: &mut Client,
    input: &[u8],
    parts_max: usize,
) -> Vec<u8> {
    let requests = parsed(input);
    let mut out = Vec::new();
    let (mut executed, mut parts) = (0, 0);
    while executed < requests.len() {
        let from = out.len();
        let mut turn = [Turn::new(&mut *client, &requests, input, &mut out)];
        turn[0].executed = executed;
        executor.begin_round(1);
        executor.run(&mut turn);
        let progressed = turn[0].executed > executed;
        executed = turn[0].executed;
        let ending = turn[0].ending();
        let yields = turn[0].unfinished == Some(Outcome::Yield);
        let thread = client.record().thread;
        let effects = client.effects.take(from);
        release(effects, &executor.shared, thread, Some((&mut out, from)));
        parts = if progressed { 0 } else { parts + 1 };
        let waits = !progressed && !yields;
        note_ending(client, ending);
        if ending != Ending::Open || waits || parts == parts_max {
            break;
        }
    }
    out
}
