//! A simulated log writer and its disk: exactly the data that this module was given are durable,
//! and a restart uses the real loader. Steps are separate, so a test can lose power between any two
//! of them.

use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::carry;
use duramen_engine::{
    Clock, Collected, FlashOptions, LoadError, Log, LogOptions, Mode, Options, Pass, Piece, Store,
    SurvivorReady, Swap, TableChange, TableId,
};
use duramen_format::certificate::Certificate;
use duramen_format::recipe::{self, Build};
use duramen_format::segment::Header;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The content of the device and of the control log.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// Bytes of segments. Those of freed frames stay until they are used again (docs/traps.md,
    /// trap 1).
    pub frames: BTreeMap<u64, Vec<u8>>,
    pub listed: BTreeSet<u64>,
    pub passes: Vec<Pass>,
    pub version_floor: u64,
    pub table_floor: u64,
    pub swaps: u64,
    /// Survivors that backups could build, and those that they had to be sent.
    pub built: u64,
    pub sent: u64,
    /// The highest id that left the log.
    highest: u64,
}

/// Mistakes of a log writer, for tests that must find them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    #[default]
    None,
    /// Replays every frame, listed or not (trap 1).
    ReplaysAll,
    /// Frees victims' frames when the Swap is proposed, not when it is durable (trap 2).
    FreesEarly,
    /// Does not keep the announcements of passes (swap::D4).
    ForgetsPasses,
}

pub struct Writer {
    pub device: Device,
    pub mistake: Mistake,
    /// Collected, not durable.
    staged: Collected,
    proposed: Option<Swap>,
    /// Written to a frame, not yet reported.
    framed: Option<SegmentId>,
    demands: u32,
}

impl Writer {
    pub fn new(device: Device, mistake: Mistake) -> Writer {
        Writer {
            device,
            mistake,
            staged: Collected::default(),
            proposed: None,
            framed: None,
            demands: 0,
        }
    }

    pub fn stage(&mut self, log: &Log) {
        log.collect(&mut self.staged);
    }

    /// Makes the staged data durable, in one atomic commit.
    pub fn commit(&mut self, log: &Log) {
        for change in self.staged.changes() {
            if let TableChange::Clear { floor, .. } = change {
                self.device.table_floor = *floor;
            }
        }
        if self.mistake != Mistake::ForgetsPasses {
            self.device.passes.extend_from_slice(self.staged.passes());
        }
        for piece in log.pieces(&self.staged) {
            match piece {
                Piece::Open { segment, .. } => {
                    self.device.listed.insert(segment.0);
                    self.device.frames.insert(segment.0, Vec::new());
                }
                Piece::Data {
                    segment,
                    offset,
                    bytes,
                } => {
                    let frame = self.device.frames.get_mut(&segment.0).expect("opened");
                    assert_eq!(frame.len(), offset as usize, "pieces come in order");
                    frame.extend_from_slice(bytes);
                }
                Piece::Close { segment, length } => {
                    assert_eq!(self.device.frames[&segment.0].len(), length as usize);
                }
            }
        }
        log.complete(&mut self.staged, Level::Synced);
    }

    /// Writes the next survivor's frame, or reports the one that was written. False: there is none.
    pub fn frame(&mut self, log: &Log) -> bool {
        if let Some(segment) = self.framed.take() {
            log.swaps().survivor_durable(segment);
            return true;
        }
        let Some(ready) = log.next_survivor() else {
            return false;
        };
        self.device.check_parts(&ready);
        let bytes = ready.bytes.to_vec();
        self.device.frames.insert(ready.segment.0, bytes);
        self.framed = Some(ready.segment);
        true
    }

    /// Takes the next Swap, makes its record durable, or reports it to the engine, one at a time.
    /// False: there is none.
    pub fn swap(&mut self, log: &Log) -> bool {
        if let Some(swap) = self.proposed.take() {
            if swap
                .remove
                .iter()
                .all(|id| !self.device.listed.contains(&id.0))
            {
                log.swaps().swapped(&swap);
                return true;
            }
            self.device.apply(&swap);
            self.proposed = Some(swap);
            return true;
        }
        self.proposed = log.next_swap();
        if let (Some(swap), Mistake::FreesEarly) = (&self.proposed, self.mistake) {
            for segment in &swap.remove {
                self.device.frames.remove(&segment.0);
            }
        }
        self.proposed.is_some()
    }

    /// Executes every step that is possible.
    pub fn settle(&mut self, log: &Log) {
        self.commit(log);
        loop {
            self.stage(log);
            self.commit(log);
            if !(self.frame(log) || self.swap(log)) {
                return;
            }
        }
    }
}

impl Device {
    /// A backup builds the survivor from the victims' frames (engine::log::origin::OR1).
    fn check_parts(&mut self, ready: &SurvivorReady<'_>) {
        let Some(parts) = &ready.parts else {
            self.sent += 1;
            return;
        };
        self.built += 1;
        let certificate =
            |id: SegmentId| self.frames.get(&id.0).map(|bytes| Certificate::of(bytes));
        let recipe = parts.encode(certificate).expect("victims are on the disk");
        let header = Header::decode(ready.bytes).expect("a valid header");
        let mut build = Build::begin(&header);
        for (part, _) in recipe::decode(&recipe).expect("a recipe") {
            build
                .take(&part, &self.frames[&part.victim.0])
                .expect("its victim");
        }
        assert!(
            build.end() == ready.bytes,
            "{} is built differently",
            ready.segment
        );
    }

    fn apply(&mut self, swap: &Swap) {
        self.swaps += 1;
        self.listed.extend(swap.add.iter().map(|id| id.0));
        for segment in &swap.remove {
            assert!(self.listed.remove(&segment.0), "{segment} is not listed");
            self.highest = self.highest.max(segment.0);
            // A freed frame is used again at some time; until then its bytes stay.
            if segment.0 % 2 == 0 {
                self.frames.remove(&segment.0);
            }
        }
        for pass in &mut self.passes {
            pass.victims.retain(|victim| !swap.remove.contains(victim));
        }
        self.passes.retain(|pass| !pass.victims.is_empty());
        self.version_floor = self.version_floor.max(swap.version_floor);
    }

    fn next_segment(&self) -> u64 {
        let passes = self.passes.iter();
        let reserved = passes.map(|pass| pass.first.0 + u64::from(pass.count));
        let used = self.frames.keys().map(|id| id + 1);
        // A control log would remember the highest id given; frames that were lost in the crash had
        // higher ones.
        reserved
            .chain(used)
            .max()
            .unwrap_or(1)
            .max(self.highest + 1)
            + 1000
    }
}

/// The options of a store in these tests.
#[derive(Clone)]
pub struct Setup {
    pub memory_bytes: u64,
    pub heads: usize,
    pub cleaners: usize,
    pub disk_segments_max: u64,
    pub zones: u64,
    pub pending_passes_max: usize,
    pub two_levels: bool,
    pub mode: Mode,
    pub now_ms: Arc<AtomicU64>,
    /// A steady clock beside it, so that steps of it are noticed.
    pub steady_ms: Option<Arc<AtomicU64>>,
    /// The clock at the last write of the store; a restart gets it.
    pub expired_until_ms: u64,
    /// True: loads newest segments first, as a restart does, so that dead entries are found dead at
    /// once. False: in an arbitrary order.
    pub newest_first: bool,
    pub flash: Option<FlashOptions>,
    /// The part of its limit that a cache keeps at a start, if it is not the engine's own.
    pub kept_part: Option<f64>,
}

impl Setup {
    pub fn small() -> Setup {
        Setup {
            memory_bytes: 64 << 20,
            heads: 2,
            cleaners: 0,
            disk_segments_max: 24,
            zones: 0,
            pending_passes_max: 1,
            two_levels: true,
            mode: Mode::Store,
            now_ms: Arc::new(AtomicU64::new(1000)),
            steady_ms: None,
            expired_until_ms: 0,
            newest_first: false,
            flash: None,
            kept_part: None,
        }
    }

    pub fn open(&self, device: &Device) -> Arc<Store> {
        Store::new(Options {
            heads: self.heads,
            cleaners: self.cleaners,
            mode: self.mode,
            flash: self.flash.clone(),
            hash_seed: Some(7),
            huge_pages: false,
            clock: match self.steady_ms.clone() {
                None => Clock::Manual(self.now_ms.clone()),
                Some(steady_ms) => Clock::Stepped {
                    wall_ms: self.now_ms.clone(),
                    steady_ms,
                },
            },
            log: Some(LogOptions {
                first_segment: device.next_segment(),
                version_floor: device.version_floor + 1,
                disk_segments_max: self.disk_segments_max,
                zones: self.zones,
                pending_passes_max: self.pending_passes_max,
                two_levels: self.two_levels,
                expired_until_ms: self.expired_until_ms,
                doubts_clock: self.steady_ms.is_some(),
                segments_found: device.listed.len() as u64,
                ..LogOptions::new(77)
            }),
            ..Options::new(self.memory_bytes)
        })
        .unwrap()
    }

    /// Starts a store from the device's content, through the real loader, with a writer that
    /// continues from there.
    pub fn start(&self, mut device: Device, mistake: Mistake, threads: usize) -> Running {
        let store = self.open(&device);
        store
            .tables()
            .restore(TableId::DEFAULT, "default", device.table_floor, None)
            .unwrap();
        if mistake == Mistake::ReplaysAll {
            device.listed = device.frames.keys().copied().collect();
        }
        for segment in &device.listed {
            let is_there = device.frames.contains_key(segment);
            assert!(is_there, "the frame of segment {segment} is gone");
        }
        self.load(&store, &device, threads).unwrap();
        Running::new(store, device, mistake)
    }

    /// Loads all segments of the device with `threads` threads; the first error ends it.
    pub fn load(
        &self,
        store: &Arc<Store>,
        device: &Device,
        threads: usize,
    ) -> Result<(), LoadError<()>> {
        let mut listed: Vec<SegmentId> = device.listed.iter().map(|id| SegmentId(*id)).collect();
        if self.newest_first {
            listed.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        }
        // Not in order: the result must be the same in any order (scenario 19).
        let in_order = self.newest_first || listed.len().is_multiple_of(7);
        let stride = if in_order { 1 } else { 7 };
        let mut loader = store.loader(&listed, &device.passes);
        if let Some(part) = self.kept_part {
            loader.keep_part(part);
        }
        let next = AtomicU64::new(0);
        let work = || -> Result<(), LoadError<()>> {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed) as usize;
                if n >= listed.len() {
                    return Ok(());
                }
                let segment = listed[n * stride % listed.len()];
                let bytes = &device.frames[&segment.0];
                let mut fill = |out: &mut [u8]| {
                    out.copy_from_slice(bytes);
                    Ok::<(), ()>(())
                };
                loader.adopt(segment, bytes.len() as u32, &mut fill)?;
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(carry(work))).collect();
            let ends = workers.into_iter().map(|worker| worker.join().unwrap());
            ends.fold(Ok(()), Result::and)
        })?;
        loader.finish().unwrap();
        Ok(())
    }
}

/// A store and its log's writer.
pub struct Running {
    pub store: Arc<Store>,
    pub writer: Arc<Mutex<Writer>>,
}

impl Running {
    fn new(store: Arc<Store>, device: Device, mistake: Mistake) -> Running {
        let writer = Arc::new(Mutex::new(Writer::new(device, mistake)));
        let (weak, hook): (Weak<Store>, _) = (Arc::downgrade(&store), writer.clone());
        store.log().unwrap().on_demand(move || {
            let (Some(store), Ok(mut writer)) = (weak.upgrade(), hook.try_lock()) else {
                return;
            };
            writer.demands += 1;
            // Not at once: the requester must be able to wait, and these tests are about data that
            // are not durable yet.
            if writer.demands.is_multiple_of(3) {
                let log = store.log().unwrap();
                writer.commit(log);
                writer.stage(log);
                writer.commit(log);
            }
            if writer.demands.is_multiple_of(32) {
                writer.settle(store.log().unwrap());
            }
        });
        Running { store, writer }
    }

    pub fn writer<T>(&self, act: impl FnOnce(&mut Writer, &Log) -> T) -> T {
        act(&mut self.writer.lock().unwrap(), self.store.log().unwrap())
    }

    /// Power is lost: the durable data remain.
    pub fn crash(self) -> Device {
        self.writer.lock().unwrap().device.clone()
    }
}
