//! A member's store over backups on real disks: a recovery finds all acknowledged writes, whatever
//! backups were lost, and in whatever order answers came; with threads and without.

use duramen::internals::{Backups, Bytes, Call, MemberOptions, Position, ToBackups};
use duramen::{Level, Options, Store};
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Chunk, Error, Geometry, Group, Identity, Mode, ReplicaId};
use duramen_base::ids::SegmentId;
use duramen_base::random::Random;
use duramen_base::test_tier;
use duramen_cluster::control::State;
use duramen_cluster::placement::{Layout, Member};
use duramen_cluster::replication::{BackupId, Rejection, Ticket};
use duramen_engine::{Relocation, SidePlan, TableId};
use duramen_format::certificate::Certificate;
use duramen_format::entry::{self, Kind as EntryKind, NewObject};
use duramen_format::recipe::{self, Build};
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;
const LOG: u64 = 1 << 32 | 9;
const MEMORY: u64 = 64 << 20;

/// Requests in flight to the backups and to the coordinator.
#[derive(Default)]
struct Net {
    requests: Mutex<Vec<ToBackups>>,
}

impl Net {
    /// A random one, or the oldest.
    fn take(&self, random: Option<&mut Random>) -> Option<ToBackups> {
        let mut requests = self.requests.lock().unwrap();
        let count = requests.len();
        match random {
            _ if count == 0 => None,
            Some(random) => Some(requests.swap_remove(random.index(count))),
            None => Some(requests.remove(0)),
        }
    }
}

impl Backups for Net {
    fn ask(&self, request: ToBackups) {
        self.requests.lock().unwrap().push(request);
    }
}

/// Backups on disks, some of them lost; and the state that the coordinator has stored.
struct Cluster {
    net: Arc<Net>,
    store: Arc<Store>,
    backups: BTreeMap<BackupId, Backup>,
    lost: Mutex<BTreeSet<BackupId>>,
    noted: Mutex<SegmentId>,
    fetched: AtomicUsize,
    /// Replicas of survivors that backups have built.
    built: AtomicUsize,
    _dirs: Vec<tempfile::TempDir>,
}

fn cluster(count: u64, level: Level, threads: bool) -> Cluster {
    cluster_with(count, level, threads, None)
}

fn cluster_with(count: u64, level: Level, threads: bool, zone_bytes: Option<u64>) -> Cluster {
    let net = Arc::new(Net::default());
    let mut store = Options::memory(MEMORY);
    store.level = level;
    store.engine.heads = 2;
    store.engine.cleaners = usize::from(zone_bytes.is_none()); // else `clean` is the cleaner
    store.engine.huge_pages = false;
    let segment_bytes = duramen_engine::segment_bytes(MEMORY) as u32;
    let options = MemberOptions {
        store,
        log: LOG,
        hash_seed: 5,
        segment_bytes,
        replicas: 3,
        layout: Layout::Scatter,
        zone_bytes,
        backups: net.clone(),
    };
    let store = Store::open_member(options, threads).unwrap();
    let mut backups = BTreeMap::new();
    let mut dirs = Vec::new();
    for slot in 0..count {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            segment_bytes,
            wal_bytes: 16 << 20,
            frames: 128,
        };
        let identity = Identity {
            cluster: "test".to_owned(),
            server: 100 + slot,
            hash_seed: 5,
        };
        let disk = Arc::new(OsDisk::new(dir.path(), Mode::Buffered));
        let settings = duramen_backup::Options::default();
        let backup = Backup::create(disk, &settings, &geometry, &identity).unwrap();
        let id = BackupId(1 << 32 | slot);
        backups.insert(id, backup);
        dirs.push(dir);
        store.log().unwrap().backups_up([Member::from(id)], &[]);
    }
    Cluster {
        net,
        store,
        backups,
        lost: Mutex::default(),
        noted: Mutex::default(),
        fetched: AtomicUsize::new(0),
        built: AtomicUsize::new(0),
        _dirs: dirs,
    }
}

impl Cluster {
    fn up(&self, id: BackupId) -> Option<&Backup> {
        let is_lost = self.lost.lock().unwrap().contains(&id);
        self.backups.get(&id).filter(|_| !is_lost)
    }

    /// Executes one request, as the servers would.
    fn handle(&self, request: ToBackups) {
        let log = self.store.log().unwrap();
        match request {
            ToBackups::Write(call) => {
                let Some(backup) = self.up(call.to) else {
                    return;
                };
                let (ticket, answer) = (call.ticket, self.execute(backup, &call));
                log.answered(ticket, answer);
            }
            ToBackups::Free(backup, segment) => {
                if let Some(disk) = self.up(backup) {
                    match disk.free_of(ReplicaId { log: LOG, segment }) {
                        Ok(()) | Err(Error::UnknownSegment { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    log.master(|master| master.replicas_mut().freed(backup, segment));
                }
            }
            ToBackups::Sync(backup) => {
                if let Some(disk) = self.up(backup) {
                    disk.sync().unwrap();
                    log.synced(backup);
                }
            }
            ToBackups::ControlHead(min_open) => {
                *self.noted.lock().unwrap() = min_open;
                log.master(|master| master.control_head_noted(min_open));
            }
        }
    }

    fn execute(&self, backup: &Backup, call: &Call) -> Result<Level, Rejection> {
        let write = &call.write;
        let certified = write.certificate.unwrap_or(Certificate::EMPTY);
        let (fetched, built);
        let bytes: &[u8] = match &call.bytes {
            Bytes::Here(bytes) => bytes,
            Bytes::Built { recipe, bytes } => {
                built = self.build(backup, bytes, recipe);
                assert!(built == **bytes, "{} is built differently", write.segment);
                &built
            }
            Bytes::At(holders) => {
                fetched = self.fetch(holders, write.segment);
                &fetched[write.offset as usize..certified.length as usize]
            }
        };
        let chunk = Chunk {
            segment: write.segment,
            epoch: write.epoch,
            kind: write.kind,
            offset: write.offset,
            bytes,
            certificate: write.certificate,
            open: write.open,
            close: write.close,
        };
        let id = ReplicaId {
            log: LOG,
            segment: write.segment,
        };
        if write.open && write.close {
            // A whole segment goes straight to its frame.
            return match backup.flusher().write_frame_of(
                id,
                write.epoch,
                bytes,
                certified,
                write.kind,
            ) {
                Ok(()) => Ok(Level::Synced),
                Err(Error::Full { .. }) => Err(Rejection::Busy),
                Err(Error::Certificate { .. }) => Err(Rejection::Damaged),
                Err(error) => panic!("{error}"),
            };
        }
        let group = Group::<Ticket>::default();
        match group.submit(backup, LOG, chunk, write.level, call.ticket, 0) {
            Ok(()) => {}
            Err(Error::Busy { .. }) => return Err(Rejection::Busy),
            Err(Error::Certificate { .. }) => return Err(Rejection::Damaged),
            Err(error) => panic!("{error}: {write:?}"),
        }
        let answered = group.run(backup, &|| 0).unwrap();
        while backup.flush_step().unwrap() {}
        Ok(answered[0].level)
    }

    /// The survivor that a backup builds from its own replicas.
    fn build(&self, backup: &Backup, bytes: &[u8], recipe: &[u8]) -> Vec<u8> {
        self.built.fetch_add(1, Ordering::Relaxed);
        let mut build = Build::begin(&Header::decode(bytes).unwrap());
        for (part, certificate) in recipe::decode(recipe).unwrap() {
            let mut victim = vec![0; backup.geometry().segment_bytes as usize];
            let segment = part.victim;
            let read = backup.read_of(ReplicaId { log: LOG, segment }, &mut victim);
            let read = read.unwrap();
            assert_eq!(read.certificate(), certificate, "segment {segment}");
            build.take(&part, &victim[..read.length as usize]).unwrap();
        }
        build.end()
    }

    fn fetch(&self, holders: &[BackupId], segment: SegmentId) -> Vec<u8> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        let holder = holders.iter().find_map(|id| self.up(*id));
        let holder = holder.expect("a holder that is up");
        let mut bytes = vec![0; holder.geometry().segment_bytes as usize];
        let read = holder.read_of(ReplicaId { log: LOG, segment }, &mut bytes);
        bytes.truncate(read.unwrap().length as usize);
        bytes
    }

    fn lose(&self, id: BackupId) {
        self.lost.lock().unwrap().insert(id);
        self.store.log().unwrap().backup_lost(id);
    }

    /// Executes requests, in any order, until `done` or nothing is left.
    fn settle(&self, random: &mut Random, mut done: impl FnMut() -> bool) {
        for _ in 0..100_000 {
            if done() {
                return;
            }
            while self.store.background_step().unwrap() {}
            match self.net.take(Some(random)) {
                Some(request) => self.handle(request),
                None => {
                    let log = self.store.log().unwrap();
                    log.master(|master| master.replicas_mut().forgive());
                    if self.net.requests.lock().unwrap().is_empty() && done() {
                        return;
                    }
                    self.store.log().unwrap().try_commit_here(Level::Synced);
                }
            }
        }
        panic!("it does not end: {}", self.store.log().unwrap().describe());
    }

    /// The result of a recovery without `gone`: the newest version of each key, by the rules of
    /// docs/protocols.md.
    fn recover(&self, gone: &[BackupId]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let present: Vec<&Backup> = self
            .backups
            .iter()
            .filter(|(id, _)| !gone.contains(id))
            .map(|(_, backup)| backup)
            .collect();
        let read = |segment: SegmentId, fits: &dyn Fn(&duramen_backup::ReplicaInfo) -> bool| {
            let holder = present.iter().filter_map(|backup| {
                let infos = backup.replicas_of(LOG);
                let info = infos
                    .into_iter()
                    .find(|i| i.segment == segment && fits(i))?;
                Some((info.length, *backup))
            });
            let (length, backup) = holder.max_by_key(|(length, _)| *length)?;
            let mut bytes = vec![0; length as usize];
            backup
                .read_of(ReplicaId { log: LOG, segment }, &mut bytes)
                .unwrap();
            Some(bytes)
        };
        let noted = *self.noted.lock().unwrap();
        let control = present
            .iter()
            .flat_map(|backup| backup.replicas_of(LOG))
            .filter(|i| i.kind == Kind::Control && i.segment >= noted && i.length > 0)
            .max_by_key(|info| (info.segment, info.length))
            .expect("a control segment");
        assert!(!control.closed, "the newest control segment is open");
        let bytes = read(control.segment, &|_| true).unwrap();
        let state = State::replay(control.segment, &bytes).unwrap();
        let mut newest: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)> = BTreeMap::new();
        for (segment, listed) in &state.segments {
            let bytes = read(*segment, &|info| match listed.closed {
                Some(certificate) => info.certificate() == certificate,
                None => info.closed || info.epoch >= listed.epoch,
            });
            let bytes = bytes.unwrap_or_else(|| panic!("segment {segment} is listed and missing"));
            let mut rest = bytes.get(HEADER_BYTES..).unwrap_or_default();
            while !rest.is_empty() {
                let entry = entry::parse(rest).unwrap();
                let known = newest.entry(entry.key.to_vec()).or_default();
                if entry.version >= known.0 {
                    let value = (entry.kind == EntryKind::Object).then(|| entry.value.to_vec());
                    *known = (entry.version, value);
                }
                rest = &rest[entry.padded_bytes..];
            }
        }
        newest
            .into_iter()
            .filter_map(|(key, (_, value))| Some((key, value?)))
            .collect()
    }
}

/// Cleans some segments, and executes all requests, those that follow from them too.
fn clean(cluster: &Cluster, random: &mut Random) {
    cluster.store.engine().clean_step(8 << 20);
    for _ in 0..10_000 {
        while cluster.store.background_step().unwrap() {}
        match cluster.net.take(Some(random)) {
            Some(request) => cluster.handle(request),
            None => {
                let log = cluster.store.log().unwrap();
                log.try_commit_here(Level::Synced);
                if cluster.net.requests.lock().unwrap().is_empty() {
                    return;
                }
            }
        }
    }
    panic!("it does not end");
}

/// Writes one key, and executes requests until it is acknowledged.
fn write(cluster: &Cluster, random: &mut Random, n: u64, value: &[u8]) -> Vec<u8> {
    let key = format!("key {}", n % 97).into_bytes();
    let mut session = cluster.store.engine().session().unwrap();
    let mut attempts = 0;
    let position = loop {
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        match guard.write(T, hash, &key, value, None) {
            Ok(_) => break guard.order().take_position(),
            Err(error) => {
                // Memory is free when the network, which is this thread, has carried survivors.
                drop(guard);
                attempts += 1;
                assert!(attempts < 100, "{error}");
                clean(cluster, random);
            }
        }
    };
    drop(session);
    let log = cluster.store.log().unwrap();
    log.try_commit_here(Level::Synced);
    cluster.settle(random, || log.reached(&position) >= Level::Synced);
    key
}

#[test]
fn acknowledged_writes_are_recovered_whatever_was_lost_without_threads() {
    let mut fetched = 0;
    for seed in 0..test_tier::runs(2, 6) {
        let mut random = Random::new(seed);
        let cluster = cluster(6, Level::Synced, false);
        let mut model = BTreeMap::new();
        let ids: Vec<BackupId> = cluster.backups.keys().copied().collect();
        for n in 0..160 {
            let value = vec![b'a' + (n % 26) as u8; 20_000 + random.index(180_000)];
            let key = write(&cluster, &mut random, n, &value);
            model.insert(key, value);
            if n % 20 == 13 {
                let gone = [ids[random.index(ids.len())]];
                let lost = cluster.lost.lock().unwrap().len();
                let gone = if lost == 0 { &gone[..] } else { &[] };
                assert!(cluster.recover(gone) == model, "seed {seed}, write {n}");
            }
            if n == 50 + seed || n == 110 + seed {
                let up: Vec<BackupId> = ids
                    .iter()
                    .copied()
                    .filter(|id| cluster.up(*id).is_some())
                    .collect();
                cluster.lose(up[random.index(up.len())]);
            }
        }
        // All lost replicas are replaced: any two more may go.
        let log = cluster.store.log().unwrap();
        for _ in 0..50 {
            cluster.settle(&mut random, || {
                cluster.net.requests.lock().unwrap().is_empty()
            });
            log.try_commit_here(Level::Synced);
        }
        let mut gone: Vec<BackupId> = cluster.lost.lock().unwrap().iter().copied().collect();
        gone.extend(ids.iter().filter(|id| cluster.up(**id).is_some()).take(2));
        assert!(
            cluster.recover(&gone) == model,
            "seed {seed}: {}",
            log.describe()
        );
        fetched += cluster.fetched.load(Ordering::Relaxed);
    }
    assert!(
        fetched > 0,
        "closed segments were made good for from others"
    );
}

/// Zones: the backups build most survivors; those that came in place of a lost one are sent the
/// bytes. A recovery finds all acknowledged writes at any time.
#[test]
#[ignore = "full tier"]
fn survivors_are_built_by_the_backups_of_their_zone() {
    for seed in 0..2 {
        let mut random = Random::new(seed);
        let cluster = cluster_with(6, Level::Synced, false, Some(16 << 20));
        let mut model = BTreeMap::new();
        let ids: Vec<BackupId> = cluster.backups.keys().copied().collect();
        for n in 0..400 {
            let value = vec![b'a' + (n % 26) as u8; 50_000 + random.index(250_000)];
            let key = random.below(97);
            let key = write(&cluster, &mut random, key, &value);
            model.insert(key, value);
            if n % 4 == 0 {
                clean(&cluster, &mut random);
            }
            if n % 100 == 67 {
                let gone = [ids[random.index(ids.len())]];
                let is_whole = cluster.lost.lock().unwrap().is_empty();
                let gone = if is_whole { &gone[..] } else { &[] };
                assert!(cluster.recover(gone) == model, "seed {seed}, write {n}");
            }
            if n == 250 + 50 * seed {
                cluster.lose(ids[random.index(ids.len())]);
            }
        }
        let stats = cluster.store.stats().expect("it has a log");
        let built = cluster.built.load(Ordering::Relaxed);
        assert!(built > 50 && stats.recipes_sent >= built as u64);
        assert_eq!(stats.recipes_refused, 0);
    }
}

/// Level buffered: acknowledged when it is on all replicas, synced a little later without another
/// request.
#[test]
fn buffered_writes_are_synced_when_somebody_asks() {
    let mut random = Random::new(3);
    let cluster = cluster(4, Level::Buffered, false);
    let log = cluster.store.log().unwrap();
    let mut session = cluster.store.engine().session().unwrap();
    let mut last = None;
    for n in 0..50u64 {
        let mut guard = session.pin();
        let key = n.to_le_bytes();
        let hash = guard.hash(&key);
        guard.write(T, hash, &key, &[7; 100], None).unwrap();
        let position = guard.order().take_position();
        drop(guard);
        log.try_commit_here(Level::Buffered);
        let mut turns = 0;
        while log.reached(&position) < Level::Buffered {
            let request = cluster
                .net
                .take(Some(&mut random))
                .expect("something is on its way");
            cluster.handle(request);
            turns += 1;
            assert!(turns < 1000, "{}", log.describe());
        }
        last = Some(position);
    }
    let last = last.unwrap();
    cluster.settle(&mut random, || log.reached(&last) >= Level::Synced);
    assert_eq!(cluster.recover(&[]).len(), 50);
}

/// Once a backup answers that the cluster takes this server for crashed, no write is acknowledged
/// any more.
#[test]
fn scenario_26_a_fenced_master_acknowledges_nothing() {
    let mut random = Random::new(4);
    let cluster = cluster(4, Level::Synced, false);
    let value = write(&cluster, &mut random, 1, b"before");
    assert!(!value.is_empty());
    let log = cluster.store.log().unwrap();
    for backup in cluster.backups.values() {
        backup.fence(LOG).unwrap();
    }
    let mut session = cluster.store.engine().session().unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"late");
    guard.write(T, hash, b"late", b"late", None).unwrap();
    let position = guard.order().take_position();
    drop(guard);
    log.try_commit_here(Level::Synced);
    while let Some(request) = cluster.net.take(None) {
        if let ToBackups::Write(call) = request {
            log.answered(call.ticket, Err(Rejection::Fenced));
        }
    }
    assert!(log.reached(&position) < Level::Synced);
    assert!(log.failure().is_some_and(|why| why.contains("crashed")));
}

#[test]
fn writers_on_threads_are_acknowledged_while_a_backup_is_lost() {
    let cluster = Arc::new(cluster(6, Level::Synced, true));
    let stop = AtomicBool::new(false);
    let model = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match cluster.net.take(None) {
                        Some(request) => cluster.handle(request),
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
        let writers: Vec<_> = (0..4u32)
            .map(|writer| {
                let (cluster, model) = (&cluster, &model);
                scope.spawn(move || {
                    let mut session = cluster.store.session().unwrap();
                    for n in 0..150u32 {
                        let key = format!("{writer} {}", n % 40).into_bytes();
                        let value = vec![n as u8; 3000];
                        session.set(T, &key, &value).unwrap();
                        model.lock().unwrap().insert(key, value);
                    }
                })
            })
            .collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        while model.lock().unwrap().len() < 60 {
            assert!(Instant::now() < deadline, "writes come in");
            std::thread::yield_now();
        }
        let first = *cluster.backups.keys().next().unwrap();
        cluster.lose(first);
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let gone: Vec<BackupId> = cluster.lost.lock().unwrap().iter().copied().collect();
    assert!(cluster.recover(&gone) == *model.lock().unwrap());
}

/// A side log's survivor is whole on all its replicas, and then all of them are lost before its
/// swap: its contents in memory are written elsewhere, or the swap would wait for ever.
#[test]
fn a_survivor_that_lost_all_its_replicas_before_its_swap_is_written_again() {
    let mut random = Random::new(1);
    let cluster = cluster(6, Level::Synced, false);
    write(&cluster, &mut random, 0, b"value");
    let side = cluster.store.engine().side_log(SidePlan::default());
    let value = vec![7; 20_000];
    let object = NewObject {
        table: T.0,
        version: 9,
        expires_at_ms: None,
        key: b"key 1",
        value: &value,
        victim: SegmentId::NONE,
        is_typed: false,
    };
    let mut bytes = vec![0; object.padded_bytes()];
    object.write_to(&mut bytes);
    side.replay(&bytes).unwrap();
    let commit = side.commit().unwrap();
    let mut holders = BTreeSet::new();
    while holders.len() < 3 || side.unwritten() > 0 {
        while cluster.store.background_step().unwrap() {}
        let request = cluster.net.take(None).expect("a survivor is on its way");
        if let ToBackups::Write(call) = &request
            && call.write.kind == Kind::Survivor
        {
            holders.insert(call.to);
        }
        cluster.handle(request);
        while cluster.store.background_step().unwrap() {}
    }
    assert!(!commit.is_durable());
    for holder in holders {
        cluster.lose(holder);
    }
    cluster.settle(&mut random, || commit.is_durable());
    let found = cluster.recover(&[]);
    assert!(found.get(&b"key 1"[..]) == Some(&value), "it is recovered");
}

/// As before, with a survivor of a pass. No later pass ended in the rest of such a life.
#[test]
fn a_pass_whose_survivor_lost_all_its_replicas_ends() {
    let mut random = Random::new(10);
    let cluster = cluster(9, Level::Synced, false);
    let (log, engine) = (cluster.store.log().unwrap(), cluster.store.engine());
    let value = vec![3; 100_000];
    let mut n = 0;
    while log.flip_survivors(0) == 0 {
        assert!(n < 5000, "no survivor was met");
        write(&cluster, &mut random, n, &value);
        // The Swap waits until this is synced (swap::D2).
        let mut session = engine.session().unwrap();
        let mut guard = session.pin();
        let hash = guard.hash(b"late");
        let _ = guard.write(T, hash, b"late", &[5; 500], None);
        drop(guard);
        drop(session);
        engine.clean_step(8 << 20);
        while cluster.store.background_step().unwrap() {}
        n += 1;
    }
    let (mut written, mut others) = (BTreeMap::<_, BTreeSet<BackupId>>::new(), Vec::new());
    while let Some(request) = cluster.net.take(None) {
        match request {
            ToBackups::Write(call) if call.write.kind == Kind::Survivor => {
                let holders = written.entry(call.write.segment).or_default();
                holders.insert(call.to);
                cluster.handle(ToBackups::Write(call));
                while cluster.store.background_step().unwrap() {}
            }
            request => others.push(request),
        }
    }
    assert_eq!(log.flip_survivors(0), 0, "all of them are written");
    let (survivor, holders) = written.pop_first().expect("a survivor");
    assert_eq!(holders.len(), 3);
    holders.iter().for_each(|holder| cluster.lose(*holder));
    others
        .into_iter()
        .for_each(|request| cluster.handle(request));
    // A pass may take it only after its own Swap (swap::D3).
    engine.segments().relocate(survivor);
    for _ in 0..200 {
        clean(&cluster, &mut random);
        if engine.segments().relocation(survivor) == Relocation::Done {
            return;
        }
    }
    panic!("its Swap waits for ever: {}", log.describe());
}

/// Appends a key, lets `flips` change memory before and after the bytes get their certificate, and
/// has the first backup find them damaged. Returns the position to be reached.
fn damaged_write(cluster: &Cluster, flips: [&dyn Fn(); 2]) -> Position {
    let mut session = cluster.store.engine().session().unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"late");
    guard.write(T, hash, b"late", &[5; 500], None).unwrap();
    let position = guard.order().take_position();
    drop(guard);
    drop(session);
    flips[0]();
    let log = cluster.store.log().unwrap();
    log.try_commit_here(Level::Synced);
    flips[1]();
    let is_data = |call: &Call| {
        let end = call
            .write
            .certificate
            .map_or(0, |certificate| certificate.length);
        call.write.kind == Kind::Head && call.write.offset < end
    };
    for _ in 0..1000 {
        match cluster.net.take(None).expect("a write is on its way") {
            ToBackups::Write(call) if is_data(&call) => {
                log.answered(call.ticket, Err(Rejection::Damaged));
                return position;
            }
            request => cluster.handle(request),
        }
    }
    panic!("nothing is sent");
}

/// Bits of an entry that are in its value.
const VALUE_BITS: [usize; 2] = [8 * 200, 8 * 210 + 3];

/// One bit of an entry flips before or after its bytes get their certificate, and a backup finds
/// them damaged on the way. In the first case the bytes that were sent again never matched the
/// certificate, because the bit was put back in them.
#[test]
fn a_flipped_bit_is_sent_as_it_was_certified() {
    for before in [true, false] {
        let mut random = Random::new(7);
        let cluster = cluster(4, Level::Synced, false);
        write(&cluster, &mut random, 1, b"before");
        let engine = cluster.store.engine();
        let flip = || assert!(engine.flips().entry(T, b"late", &VALUE_BITS[..1]));
        let nothing = || {};
        let position = if before {
            damaged_write(&cluster, [&flip, &nothing])
        } else {
            damaged_write(&cluster, [&nothing, &flip])
        };
        let log = cluster.store.log().unwrap();
        cluster.settle(&mut random, || log.reached(&position) >= Level::Synced);
        assert_eq!(log.failure(), None);
    }
}

/// Two bits of an acknowledged entry flip in an open segment, and then one write of it is damaged
/// on its way. The segment was given up, and all writes of its head waited for ever. Now this life
/// ends, and all that was acknowledged is recovered.
#[test]
fn memory_that_does_not_match_its_certificate_ends_this_life() {
    let mut random = Random::new(8);
    let cluster = cluster(4, Level::Synced, false);
    let value = vec![6; 500];
    // In the segments of both heads.
    let keys: Vec<Vec<u8>> = (1..5)
        .map(|n| write(&cluster, &mut random, n, &value))
        .collect();
    let engine = cluster.store.engine();
    let flip_one = |key: &Vec<u8>| assert!(engine.flips().entry(T, key, &VALUE_BITS));
    let flip = || keys.iter().for_each(flip_one);
    let position = damaged_write(&cluster, [&flip, &|| {}]);
    let log = cluster.store.log().unwrap();
    assert!(log.failure().is_some_and(|why| why.contains("certificate")));
    assert!(log.reached(&position) < Level::Synced);
    let found = cluster.recover(&[]);
    assert!(keys.iter().all(|key| found.get(key) == Some(&value)));
}

/// A bit flips in the copy of a survivor that is being sent. The same copy was sent for ever, and
/// no later pass cleaned the disk.
#[test]
fn a_flipped_bit_in_the_copy_of_a_survivor_costs_one_more_copy() {
    let mut random = Random::new(9);
    let cluster = cluster(4, Level::Synced, false);
    let log = cluster.store.log().unwrap();
    let value = vec![3; 100_000];
    let mut n = 0;
    while log.flip_survivors(4) == 0 {
        assert!(n < 5000, "no survivor was met");
        write(&cluster, &mut random, n, &value);
        cluster.store.engine().clean_step(8 << 20);
        while cluster.store.background_step().unwrap() {}
        n += 1;
    }
    let calls = std::mem::take(&mut *cluster.net.requests.lock().unwrap());
    for request in calls {
        match request {
            ToBackups::Write(call) if call.write.kind == Kind::Survivor => {
                log.answered(call.ticket, Err(Rejection::Damaged));
            }
            request => cluster.handle(request),
        }
    }
    cluster.settle(&mut random, || log.flip_survivors(0) == 0);
    assert_eq!(log.failure(), None);
}
