//! One master, whose log the test commits: nothing is durable before the test does so.

use duramen_base::ids::{
    ClientId, KeyRange, Level, MapVersion, RouteHash, RpcId, ServerId, TableId, TabletsVersion,
};
use duramen_engine::flash::{Cold, Device, Fetched, FlashOptions, SECTOR_BYTES};
use duramen_engine::{
    Clock, Collected, LogOptions, Mode, Options, Piece, Position, Session, SidePlan, Store,
};
use duramen_format::segment::HEADER_BYTES;
use duramen_node::{ClientRequest, Clients, Map, Ranges, Servant, View, Views, WhenCold};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, Parsed, Reply, decode_reply, parse_frame,
};
use duramen_wire::native::message::{
    Amount, Answer, Operation, Outcome, Problem, Request, Rpc, Single, TabletMap,
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

pub(crate) const ME: ServerId = ServerId::new(1, 1);
pub(crate) const TABLE: TableId = TableId(5);
/// The version of the map since which it serves its ranges.
pub(crate) const SINCE: u64 = 10;
pub(crate) const SEED: u64 = 1;
const MEMORY: u64 = 64 << 20;
const LEASE_MS: u32 = 1 << 30;
/// Of a world with flash: memory has no room for most of the data.
const SMALL_MEMORY: u64 = 4 << 20;
const FLASH: usize = 64 << 20;

/// A device in memory.
pub(crate) struct Flash(RwLock<Vec<u8>>);

impl Device for Flash {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.read().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        FLASH as u64
    }
}

/// An outcome, owned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Got {
    Value(Vec<u8>, u64, Option<u64>),
    Absent,
    Written(u64),
    Removed(u64),
    Number(Amount, u64),
    Failed(Option<u64>),
    UnknownTablet,
    UnknownTable,
    Retry,
    InProgress,
    Stale,
    LeaseExpired,
    NotANumber,
    Overflow,
    Other(String),
}

impl Got {
    pub(crate) fn of(outcome: &Outcome<'_>) -> Got {
        match *outcome {
            Outcome::Value {
                value,
                version,
                expires_at_ms,
            } => Got::Value(value.to_vec(), version, expires_at_ms),
            Outcome::Absent => Got::Absent,
            Outcome::Written { version } => Got::Written(version),
            Outcome::Removed { version } => Got::Removed(version),
            Outcome::Number { value, version } => Got::Number(value, version),
            Outcome::ConditionFailed { current } => Got::Failed(current),
            Outcome::Problem(Problem::UnknownTablet) => Got::UnknownTablet,
            Outcome::Problem(Problem::UnknownTable) => Got::UnknownTable,
            Outcome::Problem(Problem::Retry { .. }) => Got::Retry,
            Outcome::Problem(Problem::InProgress { .. }) => Got::InProgress,
            Outcome::Problem(Problem::Stale) => Got::Stale,
            Outcome::Problem(Problem::LeaseExpired) => Got::LeaseExpired,
            Outcome::Problem(Problem::NotANumber) => Got::NotANumber,
            Outcome::Problem(Problem::Overflow) => Got::Overflow,
            Outcome::Problem(other) => Got::Other(format!("{other:?}")),
        }
    }
}

/// A piece of an enumeration.
pub(crate) struct Objects {
    pub(crate) last: RouteHash,
    pub(crate) cursor: Option<u64>,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) frame_bytes: usize,
}

pub(crate) struct World {
    pub(crate) store: Arc<Store>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) servant: Servant,
    session: Session,
    pub(crate) view: Arc<View>,
    pub(crate) clock_ms: Arc<AtomicU64>,
    pub(crate) now_us: u64,
    /// The durable entries.
    pub(crate) durable: Vec<u8>,
    /// The position that the last request waits for.
    pub(crate) wait: Position,
    /// Its second tier: requests that need data from it report so.
    flash: Option<Arc<Flash>>,
    /// Most bytes that a request may wait for at once.
    pub(crate) fetch_bytes: usize,
    /// Number of times that requests have waited.
    pub(crate) parked: usize,
    /// Writes wait.
    pub(crate) is_paused: bool,
}

/// The view that its servant has.
struct Seen<'a> {
    view: &'a View,
    is_paused: bool,
}

impl Views for Seen<'_> {
    fn view(&mut self) -> &View {
        self.view
    }

    fn writes_wait_ms(&mut self) -> Option<u32> {
        self.is_paused.then_some(7)
    }
}

pub(crate) fn view(range: KeyRange) -> Arc<View> {
    let served = Ranges::new([(TABLE, range)]).unwrap();
    let map = TabletMap {
        version: MapVersion(SINCE),
        ..TabletMap::default()
    };
    let map = Arc::new(Map::new(&map).unwrap());
    Arc::new(View::new(
        ME,
        TabletsVersion(SINCE),
        served.clone(),
        served,
        map,
    ))
}

impl World {
    pub(crate) fn new() -> World {
        World::with(&[])
    }

    /// A master that has replayed `entries` of another.
    pub(crate) fn with(entries: &[u8]) -> World {
        World::of(Options::new(MEMORY), None, entries)
    }

    /// A master with little memory and a second tier.
    pub(crate) fn tiered() -> World {
        let flash = Arc::new(Flash(RwLock::new(vec![0; FLASH])));
        let options = Options {
            tiny: true,
            flash: Some(FlashOptions {
                device: flash.clone(),
            }),
            ..Options::new(SMALL_MEMORY)
        };
        World::of(options, Some(flash), &[])
    }

    fn of(options: Options, flash: Option<Arc<Flash>>, entries: &[u8]) -> World {
        let clock_ms = Arc::new(AtomicU64::new(1_000_000));
        let store = Store::new(Options {
            mode: Mode::Store,
            heads: 1,
            cleaners: usize::from(flash.is_some()),
            huge_pages: false,
            hash_seed: Some(SEED),
            clock: Clock::Manual(clock_ms.clone()),
            log: Some(LogOptions::new(ME.number())),
            ..options
        })
        .unwrap();
        let clients = Clients::new(Arc::new(|| {}));
        store.set_completions(clients.clone());
        store.tables().restore(TABLE, "t", 1, None).unwrap();
        if !entries.is_empty() {
            let side = store.side_log(SidePlan::default());
            side.replay(entries).unwrap();
            side.commit().unwrap();
        }
        let servant = Servant::new(clients.clone());
        let mut session = store.session().unwrap();
        session.set_parks(flash.is_some());
        World {
            session,
            flash,
            fetch_bytes: 1 << 20,
            parked: 0,
            is_paused: false,
            servant,
            clients,
            store,
            view: view(KeyRange::ALL),
            clock_ms,
            now_us: 1,
            durable: Vec::new(),
            wait: Position::default(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock_ms.load(Ordering::Relaxed)
    }

    /// The coordinator reports that these clients have leases.
    pub(crate) fn lease(&mut self, clients: &[u64]) {
        for client in clients {
            if self.clients.size().0 > 0 {
                break; // It was found in a log.
            }
            // The lease check is only sent for known clients.
            let got = self.do_now(&Single {
                table: TABLE,
                key: b"first",
                operation: Operation::Increment {
                    by: Amount::Integer(1),
                },
                level: None,
                rpc: rpc(*client, 1, 0),
            });
            assert_eq!(got, Got::Retry, "its lease is not known");
        }
        let asked: Vec<ClientId> = clients.iter().map(|id| ClientId(*id)).collect();
        let alive: Vec<(ClientId, u32)> = asked.iter().map(|id| (*id, LEASE_MS)).collect();
        self.clients.answered(0, &asked, &alive);
    }

    /// The whole reply to a request that came by a map of this version. Data that it waits for are
    /// read from flash.
    pub(crate) fn frame(&mut self, map: u64, request: &Request<'_>) -> Vec<u8> {
        let mut lent = Vec::new();
        loop {
            match self.show(map, request, &lent) {
                Ok(out) => return out,
                Err(wanted) => {
                    self.parked += 1;
                    let read = wanted.iter().map(|cold| self.read(*cold));
                    lent.extend(read.collect::<Vec<_>>());
                }
            }
        }
    }

    /// Reads data from flash, as a driver does before it lends them to a session.
    pub(crate) fn read(&self, mut cold: Cold) -> (Cold, Vec<u8>) {
        let flash = self.flash.as_ref().expect("it has a second tier");
        loop {
            let (offset, length) = cold.span();
            let mut memory = vec![0; length + SECTOR_BYTES];
            let skip = memory.as_ptr().align_offset(SECTOR_BYTES);
            flash
                .read_at(offset, &mut memory[skip..][..length])
                .unwrap();
            let bytes = memory[skip..][..length].to_vec();
            match self.session.fetched(&cold, &bytes).unwrap() {
                Fetched::Longer(longer) => cold = longer,
                Fetched::Held | Fetched::Gone => return (cold, bytes),
            }
        }
    }

    /// Executes a request once: its reply, or the data that it waits for. `lent`: data that were
    /// read for it before.
    pub(crate) fn show(
        &mut self,
        map: u64,
        request: &Request<'_>,
        lent: &[(Cold, Vec<u8>)],
    ) -> Result<Vec<u8>, Vec<Cold>> {
        self.session.forget_fetched();
        for (cold, bytes) in lent {
            self.session.fetched(cold, bytes).unwrap();
        }
        if self.flash.is_some() {
            let lent: usize = lent.iter().map(|(_, bytes)| bytes.len()).sum();
            let bytes_max = self.fetch_bytes.saturating_sub(lent);
            self.servant.when_cold(match bytes_max {
                0 => WhenCold::Retries,
                bytes_max => WhenCold::Waits { bytes_max },
            });
        }
        let out = self.show_now(map, request);
        let wanted = self.servant.take_wanted();
        assert_eq!(wanted.is_empty(), !out.is_empty(), "answered, or not");
        if wanted.is_empty() {
            Ok(out)
        } else {
            Err(wanted)
        }
    }

    fn show_now(&mut self, map: u64, request: &Request<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        let asked = ClientRequest {
            envelope: Envelope::of_client(77, ME, MapVersion(map)),
            request: *request,
            hint: None,
        };
        let mut guard = self.session.pin();
        let mut views = Seen {
            view: &self.view,
            is_paused: self.is_paused,
        };
        self.servant
            .serve(&mut guard, &mut views, self.now_us, &asked, &mut out);
        self.wait = self.servant.take_wait();
        assert!(
            !guard.order().has_position(),
            "all of it is part of the wait"
        );
        out
    }

    /// One operation.
    pub(crate) fn ask(&mut self, map: u64, single: &Single<'_>) -> Got {
        let out = self.frame(map, &Request::Single(*single));
        match reply(&out) {
            Answer::Single(outcome) => Got::of(&outcome),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn do_now(&mut self, single: &Single<'_>) -> Got {
        self.ask(SINCE, single)
    }

    pub(crate) fn enumerate(
        &mut self,
        range: KeyRange,
        cursor: u64,
        bytes_max: u32,
    ) -> Result<Objects, String> {
        let request = Request::Enumerate {
            table: TABLE,
            range,
            cursor,
            bytes_max,
        };
        let out = self.frame(SINCE, &request);
        match reply(&out) {
            Answer::Objects {
                last,
                cursor,
                objects,
            } => Ok(Objects {
                last,
                cursor,
                keys: objects.iter().map(|object| object.key.to_vec()).collect(),
                frame_bytes: out.len(),
            }),
            other => Err(format!("{other:?}")),
        }
    }

    /// Collects the entries appended so far; they are durable after a second step.
    pub(crate) fn collect(&self) -> (Collected, Vec<u8>) {
        let (log, mut collected) = (self.store.log().unwrap(), Collected::default());
        log.collect(&mut collected);
        let entries = entries_of(log, &collected);
        (collected, entries)
    }

    pub(crate) fn complete(&mut self, (mut collected, entries): (Collected, Vec<u8>)) {
        let log = self.store.log().unwrap();
        log.complete(&mut collected, Level::Synced);
        self.durable.extend(entries);
        self.servant.settle(|position| log.reached(position));
    }

    pub(crate) fn commit(&mut self) {
        let collected = self.collect();
        self.complete(collected);
    }

    pub(crate) fn is_durable(&self, position: &Position) -> bool {
        position.is_none() || self.store.log().unwrap().reached(position) >= position.level()
    }
}

/// The entries in the collected pieces.
pub(crate) fn entries_of(log: &duramen_engine::Log, collected: &Collected) -> Vec<u8> {
    let mut entries = Vec::new();
    for piece in log.pieces(collected) {
        if let Piece::Data { offset, bytes, .. } = piece {
            let skip = HEADER_BYTES
                .saturating_sub(offset as usize)
                .min(bytes.len());
            entries.extend_from_slice(&bytes[skip..]);
        }
    }
    entries
}

pub(crate) fn reply(out: &[u8]) -> Answer<'_> {
    let Ok(Parsed::Frame { frame, bytes }) = parse_frame(out, CLIENT_FRAME_BYTES_MAX) else {
        panic!("no whole frame: {out:?}");
    };
    assert_eq!(bytes, out.len(), "one frame");
    assert_eq!(frame.header.envelope.request, 77);
    assert_eq!(frame.header.envelope.sender, ME);
    match decode_reply(&frame) {
        Ok(Reply::Client(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn rpc(client: u64, id: u64, acknowledged: u64) -> Option<Rpc> {
    Some(Rpc {
        client: ClientId(client),
        id: RpcId(id),
        acknowledged: RpcId(acknowledged),
    })
}
