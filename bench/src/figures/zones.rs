//! Cleaning's use of a member's network and of its backups' disks: replicas scattered over all
//! backups, which get survivors as bytes, against zones, whose backups build survivors from
//! recipes. Beineke18 §VIII; Figures 12 to 14 have the same axes for its backups.
//!
//! The member is real: its engine, its cleaner, the rules of replication. Its backups are maps in
//! this process. They build survivors as real ones do, and check each against its certificate.
//!
//! **Invariants**
//! - S1: what is counted is what real messages would carry as payload, and real disks would write
//!   and read; control segments and headers of messages are left out.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Doing, Failure, Options, Random, Report, Result, Row, Series, Zipf, progress,
};
use duramen::internals::{Backups, Bytes, Call, MemberOptions, ToBackups};
use duramen::{Level, Store};
use duramen_base::ids::SegmentId;
use duramen_cluster::placement::{Layout, Member};
use duramen_cluster::replication::BackupId;
use duramen_engine::TableId;
use duramen_format::certificate::Certificate;
use duramen_format::recipe::{self, Build};
use duramen_format::segment::{Header, Kind};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const REPLICAS: usize = 3;
/// Other members, as many as a small cluster has: 5 of them or more must lose nothing by zones when
/// they recover a server.
const BACKUPS: u64 = 5;
/// A log in miniature: as many segments as one of 8 GB with segments of 8 MB has for 64 MB.
const SEGMENT_BYTES: u32 = 64 << 10;
/// 128 segments, as a zone of 1 GB has.
const ZONE_BYTES: u64 = 128 * SEGMENT_BYTES as u64;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 1_000;
/// Writes that are in memory alone at most.
const AHEAD_BYTES: u64 = 2 << 20;
const SEED: u64 = 2018;

/// The pattern of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Uniform,
    Zipf,
    HotAndCold,
}

const PATTERNS: [Pattern; 3] = [Pattern::Uniform, Pattern::Zipf, Pattern::HotAndCold];

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Zipf => "Zipf 1.0",
            Pattern::HotAndCold => "hot-cold 10/90",
        }
    }
}

/// Requests to the backups.
struct Net(Mutex<Sender<ToBackups>>);

impl Backups for Net {
    fn ask(&self, request: ToBackups) {
        let sender = self.0.lock().unwrap_or_else(|error| error.into_inner());
        let _ = sender.send(request); // the cell has ended
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    /// Key and value bytes of the writes.
    user: u64,
    /// Of cleaning: payload of messages, and bytes that disks write and read.
    network: u64,
    written: u64,
    read: u64,
    /// Survivors' replicas that were built, and those that were sent as bytes.
    built: u64,
    sent: u64,
}

impl Traffic {
    fn since(self, before: Traffic) -> Traffic {
        Traffic {
            user: self.user - before.user,
            network: self.network - before.network,
            written: self.written - before.written,
            read: self.read - before.read,
            built: self.built - before.built,
            sent: self.sent - before.sent,
        }
    }
}

/// A replica, and whether a recovery reads it first.
type Replica = (Vec<u8>, bool);

/// The disks of all backups.
#[derive(Default)]
struct Disks {
    replicas: HashMap<(BackupId, SegmentId), Replica>,
    traffic: Traffic,
}

impl Disks {
    fn write(&mut self, call: &Call) -> std::result::Result<(), String> {
        let write = &call.write;
        let at = (call.to, write.segment);
        let is_cleaning = write.kind == Kind::Survivor;
        let bytes: Vec<u8> = match &call.bytes {
            Bytes::Here(bytes) => bytes.to_vec(),
            Bytes::Built { recipe, bytes } => {
                self.traffic.network += recipe.len() as u64;
                self.traffic.built += 1;
                let built = self.build(call.to, bytes, recipe)?;
                if Some(Certificate::of(&built)) != write.certificate {
                    return Err(format!("survivor {} is built wrongly", write.segment));
                }
                built
            }
            Bytes::At(_) => return Err("a backup was lost".to_owned()),
        };
        if is_cleaning {
            self.traffic.written += bytes.len() as u64;
            if matches!(call.bytes, Bytes::Here(_)) {
                self.traffic.network += bytes.len() as u64;
                self.traffic.sent += u64::from(write.open);
            }
        }
        let (replica, is_first) = self.replicas.entry(at).or_default();
        replica.truncate(write.offset as usize);
        replica.extend_from_slice(&bytes);
        *is_first |= write.primary;
        Ok(())
    }

    fn build(
        &mut self,
        backup: BackupId,
        survivor: &[u8],
        recipe: &[u8],
    ) -> std::result::Result<Vec<u8>, String> {
        let header = Header::decode(survivor).map_err(|error| error.to_string())?;
        let mut build = Build::begin(&header);
        let mut last = None;
        for (part, certificate) in recipe::decode(recipe).map_err(|error| error.to_string())? {
            let victim = self.replicas.get(&(backup, part.victim));
            let (victim, _) = victim.ok_or("a victim is not there")?;
            if Certificate::of(victim) != certificate {
                return Err(format!("victim {} is another one", part.victim));
            }
            if last.replace(part.victim) != Some(part.victim) {
                self.traffic.read += victim.len() as u64;
            }
            let taken = build.take(&part, victim);
            taken.map_err(|error| error.to_string())?;
        }
        Ok(build.end())
    }

    /// Bytes that a recovery reads from the disk with the most, over the mean of all disks.
    fn recovery_imbalance(&self) -> f64 {
        let mut by_disk: BTreeMap<BackupId, u64> = BTreeMap::new();
        for ((backup, _), (bytes, is_first)) in &self.replicas {
            *by_disk.entry(*backup).or_default() += u64::from(*is_first) * bytes.len() as u64;
        }
        let most = by_disk.values().max().copied().unwrap_or(0);
        let sum: u64 = by_disk.values().sum();
        most as f64 * BACKUPS as f64 / sum.max(1) as f64
    }
}

/// Carries out the requests until the cell ends.
fn serve(store: &Store, requests: &Receiver<ToBackups>, disks: &Mutex<Disks>) {
    let log = store.log().expect("a member's store has a log");
    let locked = || disks.lock().unwrap_or_else(|error| error.into_inner());
    while let Ok(request) = requests.recv() {
        match request {
            ToBackups::Write(call) => {
                let stored = locked().write(&call);
                stored.expect("a simulated backup takes all that it is sent");
                log.answered(call.ticket, Ok(call.write.level));
            }
            ToBackups::Free(backup, segment) => {
                locked().replicas.remove(&(backup, segment));
                log.master(|master| master.replicas_mut().freed(backup, segment));
            }
            ToBackups::Sync(backup) => log.synced(backup),
            ToBackups::ControlHead(SegmentId::NONE) => return,
            ToBackups::ControlHead(min_open) => {
                log.master(|master| master.control_head_noted(min_open))
            }
        }
    }
}

/// One cell: a layout, a pattern and a utilization.
#[derive(Clone, Copy, Debug)]
struct Setting {
    zones: bool,
    pattern: Pattern,
    percent: u64,
    log_bytes: u64,
    /// Writes per object before the measurement, and in it.
    rounds: (f64, f64),
}

impl Setting {
    fn layout(&self) -> &'static str {
        if self.zones { "zones" } else { "scatter" }
    }
}

struct Cell {
    setting: Setting,
    traffic: Traffic,
    tombstone_bytes: u64,
    recovery_imbalance: f64,
}

impl Cell {
    fn per_user_byte(&self, of: fn(&Traffic) -> u64) -> f64 {
        of(&self.traffic) as f64 / self.traffic.user.max(1) as f64
    }
}

struct Load<'a> {
    store: &'a Store,
    disks: &'a Mutex<Disks>,
    objects: u64,
    random: Random,
    zipf: Zipf,
    pattern: Pattern,
}

impl Load<'_> {
    fn next(&mut self) -> u64 {
        let hot = self.objects / 10;
        match self.pattern {
            Pattern::Uniform => self.random.below(self.objects),
            Pattern::Zipf => self.zipf.rank(&mut self.random),
            Pattern::HotAndCold if self.random.percent(90) => self.random.below(hot),
            Pattern::HotAndCold => hot + self.random.below(self.objects - hot),
        }
    }

    /// Writes these objects; returns the traffic so far.
    fn write(
        &mut self,
        count: u64,
        mut next: impl FnMut(&mut Self, u64) -> u64,
    ) -> Result<Traffic> {
        let engine = self.store.engine();
        let mut session = engine.session().doing("opening a session")?;
        let log = engine.log().expect("a member's store has a log");
        for n in 0..count {
            // Scrambled, so that hot objects are not neighbours in the log.
            let object = duramen_base::random::mix(next(self, n));
            let mut key = [0; KEY_BYTES];
            key[..8].copy_from_slice(&object.to_le_bytes());
            let mut guard = session.pin();
            let hash = guard.hash(&key);
            let written = guard.write(TableId::DEFAULT, hash, &key, &[n as u8; VALUE_BYTES], None);
            written.doing("writing an object")?;
            drop(guard);
            if n % 64 == 0 {
                self.store.log().expect("a log").demand(Level::Synced);
                while log.undurable_bytes() > AHEAD_BYTES {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
        let mut disks = self.disks.lock().unwrap_or_else(|error| error.into_inner());
        disks.traffic.user += count * (KEY_BYTES + VALUE_BYTES) as u64;
        Ok(disks.traffic)
    }
}

fn run(setting: Setting) -> Result<Cell> {
    let (sender, requests) = channel();
    let net = Arc::new(Net(Mutex::new(sender)));
    let mut options = duramen::Options::memory(setting.log_bytes / 4 * 5);
    options.level = Level::Synced;
    options.disk_bytes = setting.log_bytes;
    options.engine.tiny = true;
    options.engine.huge_pages = false;
    options.engine.heads = 1;
    options.engine.cleaners = 1;
    let options = MemberOptions {
        store: options,
        log: 1 << 32 | 9,
        hash_seed: SEED,
        segment_bytes: SEGMENT_BYTES,
        replicas: REPLICAS,
        layout: Layout::Scatter,
        zone_bytes: setting.zones.then_some(ZONE_BYTES),
        backups: net.clone(),
    };
    let store = Store::open_member(options, true).doing("opening a member's store")?;
    let disks = Mutex::new(Disks::default());
    for slot in 0..BACKUPS {
        let backup = Member::from(BackupId(1 << 32 | slot));
        store.log().expect("a log").backups_up([backup], &[]);
    }
    let entry_bytes = (KEY_BYTES + VALUE_BYTES + 16).next_multiple_of(8) + 8;
    let objects = setting.log_bytes * setting.percent / 100 / entry_bytes as u64;
    std::thread::scope(|scope| {
        let (its_store, its_disks) = (&store, &disks);
        scope.spawn(move || serve(its_store, &requests, its_disks));
        let mut load = Load {
            store: &store,
            disks: &disks,
            objects,
            random: Random::new(SEED),
            zipf: Zipf::new(objects, 0.9999),
            pattern: setting.pattern,
        };
        let mut writes = || -> Result<Traffic> {
            load.write(objects, |_, n| n)?;
            let count = |rounds: f64| (objects as f64 * rounds) as u64;
            let before = load.write(count(setting.rounds.0), |load, _| load.next())?;
            let after = load.write(count(setting.rounds.1), |load, _| load.next())?;
            Ok(after.since(before))
        };
        let traffic = writes();
        let tombstone_bytes = store.engine().stats().tombstone_bytes;
        net.ask(ToBackups::ControlHead(SegmentId::NONE)); // ends `serve`
        Ok::<_, Failure>((traffic?, tombstone_bytes))
    })
    .map(|(traffic, tombstone_bytes)| {
        let disks = disks.lock().unwrap_or_else(|error| error.into_inner());
        Cell {
            setting,
            traffic,
            tombstone_bytes,
            recovery_imbalance: disks.recovery_imbalance(),
        }
    })
}

/// Network and disk bytes of cleaning: scattered replicas against zones
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ZonesFigure {
    /// Only these utilizations of the disk, in percent
    #[arg(long, value_delimiter = ',', default_value = "70,80,90")]
    pub percent: Vec<u64>,
    /// Size of the log, in MB; with --quick half of it
    #[arg(long, default_value_t = 96)]
    pub log_mb: u64,
}

impl Figure for ZonesFigure {
    const NAME: &'static str = "zones";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &ZonesFigure, options: &Options) -> Result<Report> {
    let about = "A member with three replicas of its log on five other members overwrites objects of 1 KB. Scattered: a survivor of cleaning is \
        sent to any three backups. Zones: segments of a zone have their replicas on the same three backups, a pass cleans segments of one zone, and \
        the backups build its survivors from their own replicas. The engine, its cleaner and the rules of replication are real; the backups are maps \
        in memory, and the log is a miniature: segments of 64 KB. Bytes are per byte of user data, all replicas together.";
    let mut report = Report::new("zones", "Cleaning by the backups of a zone", about, options);
    report.level = "synced".to_owned();
    let log_bytes = options.size(args.log_mb, args.log_mb / 2).max(16) << 20;
    let rounds = options.size((1.5, 1.5), (1.0, 0.7));
    let mut cells = Vec::new();
    for pattern in PATTERNS {
        for &percent in &args.percent {
            for zones in [false, true] {
                let setting = Setting {
                    zones,
                    pattern,
                    percent,
                    log_bytes,
                    rounds,
                };
                let cell = run(setting)?;
                progress!(
                    "{} at {percent} %, {}: network {:.4}, written {:.2}, {} built, {} sent",
                    pattern.name(),
                    setting.layout(),
                    cell.per_user_byte(|t| t.network),
                    cell.per_user_byte(|t| t.written),
                    cell.traffic.built,
                    cell.traffic.sent
                );
                cells.push(cell);
            }
        }
    }
    let rows = cells.iter().map(|cell| {
        Row::new()
            .with("writes", cell.setting.pattern.name())
            .with("utilization %", cell.setting.percent)
            .with("layout", cell.setting.layout())
            .number("network", cell.per_user_byte(|t| t.network), 3)
            .number("disk, written", cell.per_user_byte(|t| t.written), 3)
            .number("disk, read", cell.per_user_byte(|t| t.read), 3)
            .with("survivors built", cell.traffic.built)
            .with("survivors sent", cell.traffic.sent)
            .with("tombstones, bytes", cell.tombstone_bytes)
            .number("recovery: slowest disk / mean", cell.recovery_imbalance, 3)
    });
    report.table("Bytes of cleaning per byte of user data", rows.collect());
    plot(&mut report, &cells);
    targets(&mut report, &cells);
    report.note(format!(
        "A log of {} MB, {} zones; {} writes per object before {} that are measured. Seed {SEED}.",
        log_bytes >> 20,
        log_bytes / ZONE_BYTES,
        rounds.0,
        rounds.1
    ));
    Ok(report)
}

/// A chart for each pattern of writes.
fn plot(report: &mut Report, cells: &[Cell]) {
    for pattern in PATTERNS {
        let series = [false, true].map(|zones| {
            let own = cells
                .iter()
                .filter(move |cell| (cell.setting.pattern, cell.setting.zones) == (pattern, zones));
            Series {
                name: if zones { "zones" } else { "scatter" }.to_owned(),
                points: own
                    .map(|cell| {
                        (
                            cell.setting.percent as f64,
                            cell.per_user_byte(|t| t.network),
                        )
                    })
                    .collect(),
            }
        });
        let chart = Chart::lines(
            &format!("Network bytes of cleaning, {}", pattern.name()),
            "utilization of the disk, %",
            "bytes per byte of user data",
            series.into(),
        );
        report.plot(&format!("{pattern:?}").to_lowercase(), &chart);
    }
}

fn targets(report: &mut Report, cells: &[Cell]) {
    let of = |zones: bool, of: fn(&Cell) -> f64| {
        let cell = cells.iter().find(|cell| {
            let setting = cell.setting;
            (setting.pattern, setting.percent, setting.zones) == (Pattern::Uniform, 80, zones)
        });
        cell.map_or(f64::NAN, of)
    };
    report.target(
        "uniform at 80 %: network bytes of cleaning per user byte with zones ≤ 0.05",
        of(true, |cell| cell.per_user_byte(|t| t.network)),
        Bound::AtMost(0.05),
    );
    let written = |zones| of(zones, |cell| cell.per_user_byte(|t| t.written));
    report.target(
        "uniform at 80 %: disk bytes written with zones / scattered ≤ 1",
        written(true) / written(false),
        Bound::AtMost(1.0),
    );
    let recovery = |zones| of(zones, |cell| cell.recovery_imbalance);
    report.target(
        "uniform at 80 %: a recovery's reading from the slowest disk with zones / scattered ≤ 1.2",
        recovery(true) / recovery(false),
        Bound::AtMost(1.2),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_take_cleaning_off_the_network() {
        let cell = |zones| {
            let setting = Setting {
                zones,
                pattern: Pattern::Uniform,
                percent: 80,
                log_bytes: 16 << 20,
                rounds: (0.5, 0.5),
            };
            run(setting).unwrap_or_else(|error| panic!("{error}"))
        };
        let (zones, scatter) = (cell(true), cell(false));
        assert!(zones.traffic.built > 100 && scatter.traffic.built == 0);
        let network = |cell: &Cell| cell.per_user_byte(|t| t.network);
        assert!(network(&zones) < network(&scatter) / 10.0);
    }
}
