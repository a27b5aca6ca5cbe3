//! Snapshots: a copy of all data at one moment, made while the store goes on.
//!
//! **Invariants** (docs/protocols.md, "Snapshot")
//! - N1: at the moment no thread is inside the engine: all earlier operations are in the copy, no
//!   later ones (durable::cut).
//! - N2: segments that were listed at that moment are not freed before they are copied; they only
//!   grow, so their beginnings up to the lengths of that moment can be copied in the background.
//! - N4: every entry of the copy is sound, or a start makes it so: bits that flipped in memory
//!   before the segment was written are certified with it, and a start would refuse them.
//! - N3: the copy becomes a store by its last step, after all of it is durable (create::K2).
//!   An interrupted copy is refused.

use crate::durable::{Cut, LOCAL, Local};
use crate::restart::{frames_of_copy, replication_config};
use crate::throttle::{Pace, READ_STEP_BYTES, throttled};
use crate::writer::LogWriter;
use crate::{DurabilityStats, Error, Phase, Progress, SnapshotReport};
use duramen_backup::disk::Disk;
use duramen_backup::{Backup, Chunk, Geometry};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::control::State;
use duramen_cluster::replication::{Effect, Found, Master};
use duramen_format::certificate::Certificate;
use duramen_format::control::Record;
use duramen_format::segment::{HEADER_BYTES, Kind};
use duramen_format::{entry, mend};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Interval at which a closing store checks whether the snapshot has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// State of a store's snapshots.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// SeqCst, as is `ended`: a snapshot that begins sees the end of the store, or the end sees it.
    running: AtomicBool,
    /// The store ends: no snapshot continues.
    ended: AtomicBool,
    last: Mutex<Option<Last>>,
}

#[derive(Clone, Copy)]
struct Last {
    at: SystemTime,
    ok: bool,
    took: Duration,
}

/// A snapshot is running until this is dropped, also by a panic of the caller's `progress`.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// replication::O9: segments that are not yet copied are not freed; dropping this allows it.
struct Pinned<'a>(&'a LogWriter);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0
            .durable
            .common
            .lock()
            .master
            .replicas_mut()
            .unpin_all();
    }
}

impl Snapshots {
    pub fn take(
        &self,
        log: &LogWriter,
        local: &Local,
        disk: Arc<dyn Disk>,
        progress: &(dyn Fn(&Progress) + Send + Sync),
    ) -> Result<SnapshotReport, Error> {
        if self.running.swap(true, Ordering::SeqCst) {
            return Err(Error::SnapshotRunning);
        }
        let _running = Running(&self.running);
        let started = Instant::now();
        let result = take(self, log, local, disk, started, progress);
        *self.last.lock().expect("the last snapshot") = Some(Last {
            at: SystemTime::now(),
            ok: result.is_ok(),
            took: started.elapsed(),
        });
        result
    }

    /// Ends the snapshot in progress, which returns [`Error::Closed`], and waits for it; no other
    /// begins.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        while self.running.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Allows snapshots again.
    pub fn go_on(&self) {
        self.ended.store(false, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), Error> {
        if self.ended.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    pub fn fill(&self, stats: &mut DurabilityStats) {
        stats.snapshot_running = self.running.load(Ordering::SeqCst);
        if let Some(last) = *self.last.lock().expect("the last snapshot") {
            stats.last_snapshot = Some(last.at);
            stats.last_snapshot_ok = Some(last.ok);
            stats.last_snapshot_duration = last.took;
        }
    }
}

fn take(
    snapshots: &Snapshots,
    log: &LogWriter,
    local: &Local,
    disk: Arc<dyn Disk>,
    started: Instant,
    progress: &(dyn Fn(&Progress) + Send + Sync),
) -> Result<SnapshotReport, Error> {
    snapshots.check()?;
    let source = &local.backup;
    let geometry = Geometry {
        frames: frames_of_copy(source.geometry(), &log.durable.options),
        ..*source.geometry()
    };
    let options = duramen_backup::Options::default();
    let (disk, pace) = considerate(log, local, disk);
    let target =
        Backup::create_copy(disk, &options, &geometry, source.identity()).map_err(Error::Disk)?;
    let cut = local.cut(&log.durable.common); // N1
    log.waiters.tell();
    let (cut, _pinned) = (cut?, Pinned(log));
    let bytes_total = cut.certificates.values().map(|c| u64::from(c.length)).sum();
    let mut buffer = vec![0; geometry.segment_bytes as usize];
    let mut bytes_done = 0;
    for (segment, certificate) in &cut.certificates {
        snapshots.check()?;
        copy(
            source,
            &target,
            &cut.state,
            *segment,
            *certificate,
            &mut buffer,
            pace.as_deref(),
        )?;
        log.durable
            .common
            .lock()
            .master
            .replicas_mut()
            .unpin(*segment);
        bytes_done += u64::from(certificate.length);
        progress(&Progress {
            bytes_done,
            bytes_total,
            ..Progress::new(Phase::Copying, started)
        });
    }
    let segments = cut.certificates.len() as u64;
    write_control(&target, cut)?;
    target
        .clock()
        .set_ms(source.clock().ms())
        .and_then(|()| target.finish_copy())
        .map_err(Error::Disk)?; // N3
    let report = SnapshotReport {
        segments,
        bytes: bytes_done,
        elapsed: started.elapsed(),
    };
    progress(&Progress {
        bytes_done,
        bytes_total,
        ..Progress::new(Phase::Done, started)
    });
    Ok(report)
}

/// The disk to copy to, throttled in favour of commits. Without threads (the simulator) there is no
/// throttling.
fn considerate(
    log: &LogWriter,
    local: &Local,
    disk: Arc<dyn Disk>,
) -> (Arc<dyn Disk>, Option<Arc<Pace>>) {
    if !log.has_thread() {
        return (disk, None);
    }
    let (disk, pace) = throttled(disk, local.meter.clone());
    (disk, Some(pace))
}

/// N2: copies the beginning of a segment into a frame of its own.
fn copy(
    source: &Backup,
    target: &Backup,
    state: &State,
    segment: SegmentId,
    certificate: Certificate,
    buffer: &mut [u8],
    pace: Option<&Pace>,
) -> Result<(), Error> {
    let wait = |bytes| {
        if let Some(pace) = pace {
            pace.wait(bytes);
        }
    };
    source
        .reader()
        .read_in_steps(segment, buffer, READ_STEP_BYTES, &wait)
        .map_err(Error::Disk)?;
    let bytes = &buffer[..certificate.length as usize];
    if Certificate::of(bytes) != certificate {
        return Err(Error::Damaged {
            place: source.disk().label(),
            reason: format!("segment {segment} does not begin as it did when it was written"),
        });
    }
    let listed = &state.segments[&segment];
    let damage = has_bug(Bug::CopiesDamage).then_some(Ok(()));
    if damage
        .unwrap_or_else(|| check_entries(bytes, listed.kind))
        .is_err()
    {
        return Err(Error::Damaged {
            place: source.disk().label(),
            reason: format!(
                "segment {segment} was written with a damaged entry, so its copy could not be \
                 restored; if memory has the data it is replaced now: try again in a moment"
            ),
        });
    }
    target
        .flusher()
        .write_frame(segment, listed.epoch, bytes, certificate, listed.kind)
        .map_err(Error::Disk)
}

/// N4. A start puts one flipped bit of an entry back; what is copied stays as it is.
fn check_entries(bytes: &[u8], kind: Kind) -> Result<(), usize> {
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        match entry::parse(&bytes[at..]) {
            Ok(entry) => at += entry.padded_bytes,
            Err(_) => return mend::segment(&mut bytes.to_vec(), kind, usize::MAX).map(drop),
        }
    }
    Ok(())
}

/// Writes the copy's control segment.
fn write_control(target: &Backup, cut: Cut) -> Result<(), Error> {
    let Cut {
        mut state,
        certificates,
    } = cut;
    for (id, listed) in &mut state.segments {
        listed.closed = Some(certificates[id]);
    }
    let found: Vec<Found> = certificates
        .iter()
        .map(|(segment, certificate)| Found {
            backup: LOCAL,
            segment: *segment,
            epoch: state.segments[segment].epoch,
            certificate: *certificate,
            closed: true,
        })
        .collect();
    let next_segment = state.next_segment;
    let safe_version = state.safe_version;
    let mut master = Master::new(replication_config(target), state, &[LOCAL], &found);
    let mut effects = Vec::new();
    master.poll(&mut || next_segment, &mut effects);
    master.record(Record::CleanShutdown {
        next_segment: SegmentId(next_segment.0 + 1),
        safe_version,
    });
    master.poll(&mut || next_segment, &mut effects);
    for effect in effects {
        if let Effect::Send(send) = effect {
            let bytes = master.control().bytes(send.segment);
            let chunk = Chunk {
                segment: send.segment,
                epoch: send.epoch,
                kind: send.kind,
                offset: send.from,
                bytes: &bytes[send.from as usize..send.certificate.length as usize],
                certificate: Some(send.certificate),
                open: send.open,
                close: send.close,
            };
            target.stage(chunk).map_err(Error::Disk)?;
        }
    }
    target.commit(Level::Synced).map_err(Error::Disk)?;
    Ok(())
}
