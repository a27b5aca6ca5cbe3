//! A cluster in one process: sockets and the native protocol in front of one map in memory. The
//! result of recovery and migration in a real cluster (the next owner has all data of the last one)
//! exists here at once.

use duramen_base::ids::{
    ClientId, ClusterId, KeyRange, MapVersion, RouteHash, RpcId, ServerId, TableId,
};
use duramen_format::hash::KeyHasher;
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Credentials, Envelope, Handshake, MultiAnswer, ObjectsAnswer, Parsed,
    Question, Role, Trouble, decode_question, encode_coordinator_answer, encode_enumerate_problem,
    encode_outcome, encode_trouble, fresh_nonce, parse_frame,
};
use duramen_wire::native::message::{
    Addresses, Admin, AdminAnswer, Amount, Condition, CoordinatorAnswer, Object, Operation,
    Outcome, Problem, Refusal, Request, Single, TableEntry, TabletMap, TabletRoute, ToCoordinator,
};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const SEED: u64 = 42;
/// Objects per answer of an enumeration: few, so that there are many answers.
const PIECE: usize = 3;

/// Faults of a master: each happens at every n-th request, 0 never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Executes the request and closes the connection without an answer.
    pub lose_answer: u64,
    /// Closes the connection without executing the request.
    pub lose_request: u64,
    pub retry: u64,
    pub busy: u64,
}

/// Table, hash and key.
type Place = (TableId, RouteHash, Vec<u8>);

#[derive(Clone, Debug)]
enum Stored {
    Written(u64),
    Removed(u64),
    Absent,
    Number(i64, u64),
    Failed(Option<u64>),
}

#[derive(Debug)]
struct State {
    map: TabletMap,
    /// Values and versions, by table, hash and key.
    data: BTreeMap<Place, (Vec<u8>, u64)>,
    version: u64,
    done: HashMap<(ClientId, RpcId), Stored>,
    acknowledged: HashMap<ClientId, RpcId>,
    leases: HashMap<ClientId, Instant>,
    lease: Duration,
    next_client: u64,
    leader: usize,
    faults: Faults,
    requests: u64,
    executed: u64,
}

/// A server or coordinator.
struct Node {
    address: String,
    stop: Arc<AtomicBool>,
    /// It executes and answers nothing meanwhile.
    is_frozen: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

/// A simulated cluster.
pub struct Cluster {
    state: Arc<Mutex<State>>,
    coordinators: Vec<Node>,
    masters: Vec<(ServerId, Node)>,
}

impl Cluster {
    /// Two coordinators and `masters` masters, with table `t` spread over all of them.
    pub fn start(masters: u32) -> Cluster {
        let state = Arc::new(Mutex::new(State {
            map: TabletMap {
                version: MapVersion(1),
                hash_seed: SEED,
                ..TabletMap::default()
            },
            data: BTreeMap::new(),
            version: 0,
            done: HashMap::new(),
            acknowledged: HashMap::new(),
            leases: HashMap::new(),
            lease: Duration::from_secs(600),
            next_client: 1,
            leader: 0,
            faults: Faults::default(),
            requests: 0,
            executed: 0,
        }));
        let mut cluster = Cluster {
            coordinators: Vec::new(),
            masters: Vec::new(),
            state,
        };
        for index in 0..2 {
            let node = cluster.listen(ServerId::coordinator(index + 1));
            cluster.coordinators.push(node);
        }
        for slot in 0..masters {
            cluster.add_master(ServerId::new(slot, 1));
        }
        cluster.create("t", masters);
        cluster
    }

    pub fn coordinators(&self) -> Vec<String> {
        let all = self.coordinators.iter();
        all.map(|node| node.address.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the mock panicked")
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// From now on leases of new and renewing clients last this long; existing leases end after
    /// this time too.
    pub fn set_lease(&self, lease: Duration) {
        let mut state = self.state();
        state.lease = lease;
        for until in state.leases.values_mut() {
            *until = Instant::now() + lease;
        }
    }

    /// Number of mutations that took effect.
    pub fn executed(&self) -> u64 {
        self.state().executed
    }

    pub fn leases(&self) -> usize {
        self.state().leases.len()
    }

    /// Number of stored results that their clients have not acknowledged.
    pub fn remembered(&self) -> usize {
        self.state().done.len()
    }

    fn listen(&self, id: ServerId) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let node = Node {
            address,
            stop: Arc::default(),
            is_frozen: Arc::default(),
            streams: Arc::default(),
        };
        let (stop, streams, state) = (node.stop.clone(), node.streams.clone(), self.state.clone());
        let is_frozen = node.is_frozen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let ours = stream.try_clone().expect("a descriptor");
                streams.lock().expect("no panic").push(ours);
                let (state, stop, is_frozen) = (state.clone(), stop.clone(), is_frozen.clone());
                std::thread::spawn(move || serve(stream, id, &state, &stop, &is_frozen));
            }
        });
        node
    }

    pub fn add_master(&mut self, id: ServerId) {
        let node = self.listen(id);
        let addresses = Addresses {
            native: node.address.clone(),
            ..Addresses::default()
        };
        self.state().map.servers.push((id, addresses));
        self.masters.push((id, node));
    }

    fn create(&self, name: &str, servers: u32) -> TableEntry {
        self.state().create(name, servers)
    }

    /// Kills a master. Its tablets are not served.
    pub fn kill(&mut self, index: usize) {
        let (id, node) = self.masters.remove(index);
        node.kill();
        let mut state = self.state();
        state.map.servers.retain(|(server, _)| *server != id);
        for tablet in &mut state.map.tablets {
            if tablet.owner == id {
                tablet.served = false;
            }
        }
        state.map.version.0 += 1;
    }

    /// A master executes and answers nothing, until it is thawed.
    pub fn freeze(&self, index: usize, is_frozen: bool) {
        let (_, node) = &self.masters[index];
        node.is_frozen.store(is_frozen, Ordering::SeqCst);
    }

    /// The number of the master that owns this key of table `t`.
    pub fn owner(&self, key: &[u8]) -> usize {
        let hash = KeyHasher::new(SEED).route(key);
        let state = self.state();
        let owns = |id: ServerId| state.owned(id, TableId(0), hash).is_some();
        let found = self.masters.iter().position(|(id, _)| owns(*id));
        found.expect("a served key")
    }

    /// Assigns tablets without a server to the remaining masters in turn.
    pub fn recover(&self) {
        let owners: Vec<ServerId> = self.masters.iter().map(|(id, _)| *id).collect();
        let mut state = self.state();
        for (index, tablet) in state.map.tablets.iter_mut().enumerate() {
            if !tablet.served {
                tablet.owner = owners[index % owners.len()];
                tablet.served = true;
            }
        }
        state.map.version.0 += 1;
    }

    /// Moves every tablet to the next master.
    pub fn rotate(&self) {
        let owners: Vec<ServerId> = self.masters.iter().map(|(id, _)| *id).collect();
        let mut state = self.state();
        for tablet in &mut state.map.tablets {
            let at = owners
                .iter()
                .position(|id| *id == tablet.owner)
                .unwrap_or(0);
            tablet.owner = owners[(at + 1) % owners.len()];
        }
        state.map.version.0 += 1;
    }

    /// Cuts every tablet in two.
    pub fn split(&self) {
        let mut state = self.state();
        let tablets = std::mem::take(&mut state.map.tablets);
        for tablet in tablets {
            let middle = RouteHash(tablet.range.first.0 / 2 + tablet.range.last.0 / 2);
            let (low, high) = tablet.range.split(middle).expect("wide enough");
            for range in [low, high] {
                state.map.tablets.push(TabletRoute { range, ..tablet });
            }
        }
        state.map.version.0 += 1;
    }

    /// The leading coordinator fails; the other one leads.
    pub fn fail_over(&self) {
        let mut state = self.state();
        self.coordinators[state.leader].kill();
        state.leader = 1 - state.leader;
    }

    /// The other coordinator leads, and the former leader reports that.
    pub fn hand_over(&self) {
        let mut state = self.state();
        state.leader = 1 - state.leader;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let masters = self.masters.iter().map(|(_, node)| node);
        self.coordinators.iter().chain(masters).for_each(Node::kill);
    }
}

impl Node {
    fn kill(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address); // wakes the listening thread, which ends
        for stream in self.streams.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn create(&mut self, name: &str, servers: u32) -> TableEntry {
        let entry = TableEntry {
            table: TableId(self.map.tables.len() as u32),
            name: name.to_owned(),
            level: None,
        };
        self.map.tables.push(entry.clone());
        let owners: Vec<ServerId> = self.map.servers.iter().map(|(id, _)| *id).collect();
        let step = u64::MAX / u64::from(servers);
        for index in 0..u64::from(servers) {
            let last = if index + 1 == u64::from(servers) {
                RouteHash::MAX
            } else {
                RouteHash((index + 1) * step - 1)
            };
            self.map.tablets.push(TabletRoute {
                table: entry.table,
                range: KeyRange::new(RouteHash(index * step), last),
                owner: owners[index as usize % owners.len()],
                served: true,
                moving_to: None,
            });
        }
        self.map.version.0 += 1;
        entry
    }

    fn question(&mut self, coordinator: u32, question: &ToCoordinator) -> CoordinatorAnswer {
        if coordinator as usize != self.leader + 1 {
            // Only the other one can be the leader; the test's client knows both addresses.
            return CoordinatorAnswer::Refused(Refusal::NotLeader { leader: None });
        }
        match question {
            ToCoordinator::Map { since, .. } if *since == self.map.version => {
                CoordinatorAnswer::MapIsCurrent
            }
            ToCoordinator::Map { .. } => CoordinatorAnswer::Map(self.map.clone()),
            ToCoordinator::ClientLease { client } => self.client_lease(*client),
            ToCoordinator::Admin(Admin::CreateTable { name, servers, .. }) => {
                if self.map.tables.iter().any(|table| table.name == *name) {
                    return invalid("there is a table of that name");
                }
                CoordinatorAnswer::Admin(AdminAnswer::Table(self.create(name, *servers)))
            }
            _ => invalid("the mock does not know this"),
        }
    }

    fn client_lease(&mut self, client: Option<ClientId>) -> CoordinatorAnswer {
        let now = Instant::now();
        let client = match client {
            None => {
                self.next_client += 1;
                ClientId(self.next_client)
            }
            Some(known) if self.leases.get(&known).is_some_and(|until| *until > now) => known,
            Some(_) => return invalid("the lease has ended"),
        };
        self.leases.insert(client, now + self.lease);
        CoordinatorAnswer::Lease {
            client,
            ttl_ms: self.lease.as_millis() as u32,
        }
    }

    fn owned(&self, server: ServerId, table: TableId, hash: RouteHash) -> Option<KeyRange> {
        let mut tablets = self.map.tablets.iter();
        let tablet = tablets.find(|t| t.table == table && t.range.contains(hash))?;
        (tablet.owner == server && tablet.served).then_some(tablet.range)
    }

    /// `Err`: a problem is the answer.
    fn single(
        &mut self,
        server: ServerId,
        single: &Single<'_>,
    ) -> Result<Stored, Problem<'static>> {
        let hash = KeyHasher::new(SEED).route(single.key);
        if self.owned(server, single.table, hash).is_none() {
            return Err(Problem::UnknownTablet);
        }
        if let Some(rpc) = single.rpc {
            let acknowledged = self.acknowledged.entry(rpc.client).or_default();
            *acknowledged = (*acknowledged).max(rpc.acknowledged);
            let acknowledged = *acknowledged;
            self.done
                .retain(|(client, id), _| *client != rpc.client || *id > acknowledged);
            if rpc.id <= acknowledged {
                return Err(Problem::Stale);
            }
            if let Some(stored) = self.done.get(&(rpc.client, rpc.id)) {
                return Ok(stored.clone());
            }
            let now = Instant::now();
            if self
                .leases
                .get(&rpc.client)
                .is_none_or(|until| *until <= now)
            {
                return Err(Problem::LeaseExpired);
            }
        }
        let stored = self.execute(single, hash)?;
        if let Some(rpc) = single.rpc {
            self.done.insert((rpc.client, rpc.id), stored.clone());
        }
        Ok(stored)
    }

    fn execute(
        &mut self,
        single: &Single<'_>,
        hash: RouteHash,
    ) -> Result<Stored, Problem<'static>> {
        let place = (single.table, hash, single.key.to_vec());
        let current = self.data.get(&place).map(|(_, version)| *version);
        let holds = |condition| match condition {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Version(version) => current == Some(version),
            Condition::NewerThan(version) => current.is_none_or(|current| current < version),
        };
        self.version += 1;
        let version = self.version;
        Ok(match single.operation {
            Operation::Read => unreachable!("reads are answered elsewhere"),
            Operation::Write { condition, .. } | Operation::Remove { condition }
                if !holds(condition) =>
            {
                Stored::Failed(current)
            }
            Operation::Write { value, .. } => {
                self.executed += 1;
                self.data.insert(place, (value.to_vec(), version));
                Stored::Written(version)
            }
            Operation::Remove { .. } => match self.data.remove(&place) {
                Some((_, version)) => {
                    self.executed += 1;
                    Stored::Removed(version)
                }
                None => Stored::Absent,
            },
            Operation::Increment { by } => {
                let Amount::Integer(by) = by else {
                    return Err(Problem::NotANumber);
                };
                let old = self.data.get(&place).map_or("0".into(), |(value, _)| {
                    String::from_utf8_lossy(value).into_owned()
                });
                let old: i64 = old.parse().map_err(|_| Problem::NotANumber)?;
                let sum = old.checked_add(by).ok_or(Problem::Overflow)?;
                self.executed += 1;
                self.data
                    .insert(place, (sum.to_string().into_bytes(), version));
                Stored::Number(sum, version)
            }
        })
    }

    fn outcome(
        &mut self,
        server: ServerId,
        single: &Single<'_>,
        out: &mut dyn FnMut(&Outcome<'_>),
    ) {
        if !single.operation.mutates() {
            let hash = KeyHasher::new(SEED).route(single.key);
            if self.owned(server, single.table, hash).is_none() {
                return out(&Outcome::Problem(Problem::UnknownTablet));
            }
            let place = (single.table, hash, single.key.to_vec());
            return match self.data.get(&place) {
                Some((value, version)) => out(&Outcome::Value {
                    version: *version,
                    expires_at_ms: None,
                    value,
                }),
                None => out(&Outcome::Absent),
            };
        }
        out(&match self.single(server, single) {
            Ok(Stored::Written(version)) => Outcome::Written { version },
            Ok(Stored::Removed(version)) => Outcome::Removed { version },
            Ok(Stored::Absent) => Outcome::Absent,
            Ok(Stored::Failed(current)) => Outcome::ConditionFailed { current },
            Ok(Stored::Number(sum, version)) => Outcome::Number {
                value: Amount::Integer(sum),
                version,
            },
            Err(problem) => Outcome::Problem(problem),
        });
    }

    fn objects(
        &self,
        server: ServerId,
        table: TableId,
        range: KeyRange,
        cursor: u64,
        out: &mut Vec<u8>,
        envelope: &Envelope,
    ) {
        let Some(owned) = self.owned(server, table, range.first) else {
            return encode_enumerate_problem(out, envelope, &Problem::UnknownTablet);
        };
        let last = owned.last.min(range.last);
        let mut answer = ObjectsAnswer::new(out, envelope);
        let from = (table, range.first, Vec::new());
        // In the order of an index: by the hash without the slot.
        let mut objects: Vec<_> = self
            .data
            .range(from..)
            .take_while(|((of, hash, _), _)| *of == table && *hash <= last)
            .map(|((_, hash, key), object)| (hash.0 << 14 >> 14, key, object))
            .filter(|(hash, ..)| *hash >= cursor)
            .collect();
        objects.sort_unstable();
        let mut objects = objects.into_iter();
        for (_, key, (value, version)) in objects.by_ref().take(PIECE) {
            answer.push(&Object {
                version: *version,
                expires_at_ms: None,
                key,
                value,
            });
        }
        answer.finish(last, objects.next().map(|(hash, ..)| hash));
    }
}

fn invalid(why: &str) -> CoordinatorAnswer {
    CoordinatorAnswer::Refused(Refusal::Invalid(why.to_owned()))
}

/// Serves one connection until it ends.
fn serve(
    mut stream: TcpStream,
    id: ServerId,
    state: &Mutex<State>,
    stop: &AtomicBool,
    is_frozen: &AtomicBool,
) {
    let handshake = Handshake::accept(Role::Server, fresh_nonce().expect("random numbers"));
    let (cluster, token) = ("mock", &b""[..]);
    let us = Credentials {
        cluster,
        token,
        id: ClusterId::NONE,
    };
    let Ok((_, mut input)) = handshake.run(us, Vec::new(), &mut stream) else {
        return;
    };
    let mut output = Vec::new();
    loop {
        while let Ok(Parsed::Frame { frame, bytes }) = parse_frame(&input, CLIENT_FRAME_BYTES_MAX) {
            let question = decode_question(&frame).expect("a correct client");
            let envelope = frame.header.envelope;
            while is_frozen.load(Ordering::SeqCst) && !stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if stop.load(Ordering::SeqCst) || !answer(id, state, &question, &envelope, &mut output)
            {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            input.drain(..bytes);
        }
        if stop.load(Ordering::SeqCst) || stream.write_all(&output).is_err() {
            return;
        }
        output.clear();
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(read) => input.extend_from_slice(&chunk[..read]),
        }
    }
}

/// False: close the connection instead.
fn answer(
    id: ServerId,
    state: &Mutex<State>,
    question: &Question<'_>,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> bool {
    let mut state = state.lock().expect("no thread of the mock panicked");
    let request = match question {
        Question::ToCoordinator(question) => {
            let answer = state.question(id.generation, question);
            encode_coordinator_answer(out, envelope, &answer);
            return true;
        }
        Question::Client(request) => request,
        _ => panic!("not from a client"),
    };
    if envelope.target != id {
        encode_trouble(out, envelope, 17, &Trouble::WrongServer { here: id });
        return true;
    }
    let map = envelope.map_version();
    assert!(map.0 > 0 && map <= state.map.version, "by which map?");
    state.requests += 1;
    let (faults, count) = (state.faults, state.requests);
    let is_due = |each: u64| each != 0 && count % each == 0;
    if is_due(faults.lose_request) {
        return false;
    }
    if is_due(faults.busy) {
        encode_trouble(out, envelope, 17, &Trouble::Busy { after_ms: 1 });
        return true;
    }
    match request {
        Request::Ping => panic!("this client does not ping"),
        Request::Single(_) if is_due(faults.retry) => {
            let retry = Outcome::Problem(Problem::Retry { after_ms: 1 });
            encode_outcome(out, envelope, &retry);
        }
        Request::Single(single) => {
            state.outcome(id, single, &mut |outcome| {
                encode_outcome(out, envelope, outcome)
            });
        }
        Request::Multi(parts) => {
            let mut answer = MultiAnswer::new(out, envelope);
            for single in parts.iter() {
                state.outcome(id, &single, &mut |outcome| answer.push(outcome));
            }
            answer.finish();
        }
        Request::Enumerate {
            table,
            range,
            cursor,
            ..
        } => {
            state.objects(id, *table, *range, *cursor, out, envelope);
        }
    }
    !is_due(faults.lose_answer)
}
