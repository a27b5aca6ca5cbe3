//! Several commits in flight on a disk whose durable writes wait for the test's permission: their
//! order, crashes between them, a full disk, and the calls that wait for them.

#[path = "../../../duramen/tests/common/gate.rs"]
mod gate;

use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use duramen_backup::disk::{File, Front, Fronted};
use duramen_backup::{Backup, Chunk, Committed, Error, Expected};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_sim::disk::{Fault, SimDisk};

use crate::model::{content, fresh_disk, options};
use gate::{Gate, Outcome, PATIENCE, gated};

/// A backup with one commit, over a gate that is open.
struct Setup {
    disk: SimDisk,
    gate: Arc<Gate>,
    backup: Backup,
}

impl Setup {
    fn new(seed: u64) -> Setup {
        let setup = Setup::of(fresh_disk(seed));
        setup.write(9, 100).unwrap();
        setup
    }

    fn of(disk: SimDisk) -> Setup {
        let (gated, gate) = gated(Arc::new(disk.clone()));
        let opened = Backup::open(gated, &options(), &Expected::default());
        let (backup, _) = opened.expect("the store opens");
        Setup { disk, gate, backup }
    }

    /// Stages the first bytes of a segment, and commits them.
    fn write(&self, segment: u64, bytes: u32) -> Result<Committed, Error> {
        stage(&self.backup, segment, 0, bytes)?;
        self.backup.commit(Level::Synced)
    }

    /// As [`write`](Self::write) by another thread, up to its write.
    fn fly<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        segment: u64,
        bytes: u32,
        number: usize,
    ) -> ScopedJoinHandle<'scope, Result<Committed, Error>> {
        let bug = duramen_base::planted::has_bug(Bug::LandsOutOfOrder);
        let flight = scope.spawn(move || match bug {
            true => with_bug(Bug::LandsOutOfOrder, || self.write(segment, bytes)),
            false => self.write(segment, bytes),
        });
        self.gate.arrived(number + 1);
        flight
    }

    /// The store after a power cut.
    fn cut(self) -> Setup {
        self.disk.cut_power();
        drop(self.backup);
        self.disk.restart();
        Setup::of(self.disk)
    }

    /// The certified length of a segment; it has the right bytes.
    fn length(&self, segment: u64) -> u32 {
        let mut bytes = vec![0; 24 << 10];
        match self.backup.read(SegmentId(segment), &mut bytes) {
            Ok(info) => {
                let length = info.length as usize;
                assert_eq!(bytes[..length], content(segment, 0, info.length));
                info.length
            }
            Err(Error::UnknownSegment { .. }) => 0,
            Err(error) => panic!("segment {segment}: {error}"),
        }
    }
}

fn stage(backup: &Backup, segment: u64, from: u32, to: u32) -> Result<(), Error> {
    backup.stage(Chunk {
        segment: SegmentId(segment),
        epoch: 0,
        kind: Kind::Head,
        offset: from,
        bytes: &content(segment, from, to),
        certificate: Some(Certificate::of(&content(segment, 0, to))),
        open: from == 0,
        close: false,
    })
}

/// The second of two flights is durable when the power fails, and the first is not.
fn cut_between(setup: &Setup) -> [bool; 2] {
    setup.gate.shut();
    std::thread::scope(|scope| {
        let first = setup.fly(scope, 1, 1000, 0);
        let second = setup.fly(scope, 2, 2000, 1);
        setup.gate.end(1, Outcome::Done);
        setup.disk.cut_power();
        setup.gate.end(0, Outcome::Done);
        [first, second].map(|flight| flight.join().unwrap().is_ok())
    })
}

#[test]
fn a_flight_is_acknowledged_after_the_one_before() {
    let setup = Setup::new(1);
    assert_eq!(cut_between(&setup), [false, false]);
    let setup = setup.cut();
    assert_eq!([1, 2, 9].map(|segment| setup.length(segment)), [0, 0, 100]);
}

#[test]
fn planted_landing_out_of_order_is_found() {
    let setup = Setup::new(1);
    let told = with_bug(Bug::LandsOutOfOrder, || cut_between(&setup));
    let setup = setup.cut();
    assert!(
        told[1] && setup.length(2) == 0,
        "an acknowledged commit is lost"
    );
}

/// F1: nothing of a flight shows before it has landed, and two land at once.
#[test]
fn flights_land_in_order() {
    let setup = Setup::new(2);
    setup.gate.shut();
    std::thread::scope(|scope| {
        let first = setup.fly(scope, 1, 1000, 0);
        let second = setup.fly(scope, 2, 2000, 1);
        setup.gate.end(1, Outcome::Done);
        assert_eq!([1, 2].map(|segment| setup.length(segment)), [0, 0]);
        setup.gate.end(0, Outcome::Done);
        let lsns = [first, second].map(|flight| flight.join().unwrap().unwrap().lsn);
        assert_eq!(lsns[0] + 1, lsns[1]);
    });
    assert_eq!([1, 2].map(|segment| setup.length(segment)), [1000, 2000]);
    let setup = setup.cut();
    assert_eq!([1, 2].map(|segment| setup.length(segment)), [1000, 2000]);
}

/// F5: later lives write over the place of the missing flight, less, as much or more, and are cut
/// too. The flight behind it never comes back.
#[test]
fn a_flight_behind_a_missing_one_never_counts() {
    for seed in 0..12 {
        let setup = Setup::new(seed);
        assert_eq!(cut_between(&setup), [false, false]);
        let mut setup = setup.cut();
        if seed % 3 == 0 {
            setup = setup.cut(); // a life without a commit
        }
        for life in 0..4 {
            assert_eq!([1, 2].map(|segment| setup.length(segment)), [0, 0]);
            let bytes = [100, 1000, 5000, 2000][(seed as usize + life) % 4];
            let segment = 20 + life as u64;
            setup.write(segment, bytes).unwrap();
            setup = setup.cut();
            assert_eq!(setup.length(segment), bytes, "seed {seed}, life {life}");
        }
        setup.backup.close().unwrap();
        setup = setup.cut();
        assert_eq!(
            [2, 20, 23].map(|segment| setup.length(segment) > 0),
            [false, true, true]
        );
    }
}

/// F4: both flights stay staged, the next commit writes the first one again, and all three land.
#[test]
fn grounded_flights_are_written_again_in_order() {
    for grounded in 0..2 {
        let setup = Setup::new(3);
        setup.gate.shut();
        std::thread::scope(|scope| {
            let first = setup.fly(scope, 1, 1000, 0);
            let second = setup.fly(scope, 2, 2000, 1);
            let outcome = |n| {
                if n == grounded {
                    Outcome::Full
                } else {
                    Outcome::Done
                }
            };
            setup.gate.end(1, outcome(1));
            setup.gate.end(0, outcome(0));
            let done = [first, second].map(|flight| flight.join().unwrap());
            let is_full = |done: &Result<_, _>| matches!(done, Err(Error::Full { .. }));
            assert_eq!(is_full(&done[0]), grounded == 0, "{done:?}");
            assert!(is_full(&done[1]), "{done:?}");
        });
        setup.gate.shut();
        stage(&setup.backup, 3, 0, 300).unwrap();
        stage(&setup.backup, 2, 2000, 2100).unwrap();
        std::thread::scope(|scope| {
            let again = scope.spawn(|| setup.backup.commit(Level::Synced));
            setup.gate.arrived(1);
            setup.gate.end(0, Outcome::Full);
            assert!(matches!(again.join().unwrap(), Err(Error::Full { .. })));
        });
        setup.gate.open();
        let committed = setup.backup.commit(Level::Synced).unwrap();
        assert_eq!(committed.chunks, 3, "the grounded one's and the new ones");
        setup.write(4, 400).unwrap();
        let setup = setup.cut();
        let lengths = [1, 2, 3, 4].map(|segment| setup.length(segment));
        assert_eq!(lengths, [1000, 2100, 300, 400], "grounded: {grounded}");
    }
}

/// A crash while flights are grounded: the written one does not count without the other.
#[test]
fn grounded_flights_do_not_survive_a_crash_in_parts() {
    let setup = Setup::new(4);
    setup.gate.shut();
    std::thread::scope(|scope| {
        let first = setup.fly(scope, 1, 1000, 0);
        let second = setup.fly(scope, 2, 2000, 1);
        setup.gate.end(1, Outcome::Done);
        setup.gate.end(0, Outcome::Full);
        for flight in [first, second] {
            assert!(matches!(flight.join().unwrap(), Err(Error::Full { .. })));
        }
    });
    setup.backup.close().unwrap(); // a clean end does not change that
    let setup = setup.cut();
    assert_eq!([1, 2, 9].map(|segment| setup.length(segment)), [0, 0, 100]);
    setup.write(1, 1000).unwrap();
    let setup = setup.cut();
    assert_eq!([1, 2].map(|segment| setup.length(segment)), [1000, 0]);
}

/// backup::V2: after an error of one flight none lands, and nothing is accepted.
#[test]
fn a_failed_flight_is_final_for_all() {
    for failed in 0..2 {
        let setup = Setup::new(5);
        setup.gate.shut();
        std::thread::scope(|scope| {
            let first = setup.fly(scope, 1, 1000, 0);
            let second = setup.fly(scope, 2, 2000, 1);
            setup.gate.end(failed, Outcome::Broken);
            while setup.backup.check_names().is_ok() {
                std::thread::yield_now(); // until the failure is known
            }
            setup.gate.end(1 - failed, Outcome::Done);
            for flight in [first, second] {
                let done = flight.join().unwrap();
                assert!(matches!(done, Err(Error::Failed { .. })), "{done:?}");
            }
        });
        setup.gate.open();
        assert!(matches!(setup.write(3, 100), Err(Error::Failed { .. })));
        let setup = setup.cut();
        assert_eq!(setup.length(2), 0);
        assert_eq!(setup.length(9), 100);
    }
}

/// F3, and the calls that relied on the lock of the commit in flight: none returns, or has an
/// effect, before the flight has landed.
#[test]
fn other_calls_wait_for_flights() {
    type Call = fn(&Backup) -> Result<(), Error>;
    let calls: [(&str, Call); 6] = [
        ("a buffered commit", |backup| {
            stage(backup, 3, 0, 300)?;
            backup.commit(Level::Buffered).map(drop)
        }),
        ("an empty commit", |backup| {
            backup.commit(Level::Synced).map(drop)
        }),
        ("a fence", |backup| backup.fence(77)),
        ("the freeing of its segment", |backup| {
            backup.free(SegmentId(1))
        }),
        ("the end", Backup::close),
        ("the release", |backup| {
            backup.leave();
            Ok(())
        }),
    ];
    for (name, call) in calls {
        let setup = Setup::new(6);
        stage(&setup.backup, 1, 0, 100).unwrap();
        setup.backup.commit(Level::Synced).unwrap();
        setup.gate.shut();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let flight = scope.spawn(|| {
                stage(&setup.backup, 1, 100, 1000)?;
                setup.backup.commit(Level::Synced)
            });
            setup.gate.arrived(1);
            scope.spawn(|| tell.send(call(&setup.backup)).unwrap());
            let early = told.recv_timeout(Duration::from_millis(20));
            assert!(early.is_err(), "{name} did not wait");
            setup.gate.open();
            flight.join().unwrap().unwrap();
            told.recv_timeout(PATIENCE)
                .unwrap()
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        });
        let gone = name.contains("freeing");
        let setup = match gone {
            true => setup,
            false => setup.cut(),
        };
        assert_eq!(setup.length(1), if gone { 0 } else { 1000 }, "{name}");
    }
}

/// Trimming, flushing and headers, while flights are in the air: their bytes are not part of it.
#[test]
fn the_log_is_trimmed_up_to_flights() {
    let setup = Setup::new(7);
    for life in 0..12u64 {
        setup.gate.shut();
        let first = 30 + life * 2;
        std::thread::scope(|scope| {
            let flights = [
                setup.fly(scope, first, 8_000, 0),
                setup.fly(scope, first + 1, 8_000, 1),
            ];
            while setup.backup.flush_step().unwrap() {}
            setup.backup.note_clock().unwrap();
            setup.backup.sync().unwrap();
            setup.gate.end(1, Outcome::Done);
            while setup.backup.flush_step().unwrap() {}
            setup.gate.end(0, Outcome::Done);
            for flight in flights {
                flight.join().unwrap().unwrap();
            }
        });
        setup.gate.open();
        if life > 0 {
            setup.backup.free(SegmentId(first - 2)).unwrap();
            setup.backup.free(SegmentId(first - 1)).unwrap();
        }
    }
    let setup = setup.cut();
    assert_eq!(
        [52, 53, 9].map(|segment| setup.length(segment)),
        [8_000, 8_000, 100]
    );
}

/// A file whose durable writes take a moment, so that some overlap.
struct Slow(Arc<dyn File>);

impl Front for Slow {
    fn below(&self) -> &dyn File {
        &*self.0
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        std::thread::sleep(Duration::from_micros(bytes.len() as u64 % 7 * 20));
        let written = self.0.write_durably(at, bytes);
        std::thread::sleep(Duration::from_micros(at / 4096 % 5 * 30));
        written
    }

    fn writes_apart(&self, _bytes: usize) -> bool {
        true
    }
}

/// Appends to segments of its own until the power fails; returns the acknowledged length of each.
/// Whole ones go to `closed`.
fn append_until_cut(backup: &Backup, number: u64, closed: &mpsc::Sender<u64>) -> Vec<(u64, u32)> {
    let mut acked = Vec::new();
    for segment in (0..).map(|n| 100 + n * 2 + number) {
        acked.push((segment, 0));
        let mut at = 0;
        while at < 9_000 {
            let to = at + 100 + (segment * 37 + u64::from(at)) as u32 % 1500;
            let staged = stage(backup, segment, at, to);
            if staged.and_then(|()| backup.commit(Level::Synced)).is_err() {
                return acked;
            }
            acked.last_mut().unwrap().1 = to;
            at = to;
        }
        if closed.send(segment).is_err() {
            return acked;
        }
    }
    unreachable!("the power fails before")
}

/// Two threads commit; a third one flushes, syncs and frees until the power fails at any operation.
#[test]
fn what_two_threads_were_told_survives_a_power_cut() {
    for seed in 0..25 {
        let disk = fresh_disk(seed);
        let slow = Fronted::new(Arc::new(disk.clone()), |below| -> Arc<dyn File> {
            Arc::new(Slow(below))
        });
        let opened = Backup::open(Arc::new(slow), &options(), &Expected::default());
        let backup = opened.expect("the store opens").0;
        disk.inject(disk.operations() + 60 + seed * 9, Fault::PowerCutWithin);
        let (close, closed) = mpsc::channel();
        let (mut acked, freed) = std::thread::scope(|scope| {
            let writers = [0, 1].map(|number| {
                let (backup, close) = (&backup, close.clone());
                scope.spawn(move || append_until_cut(backup, number, &close))
            });
            drop(close);
            let mut freed = Vec::new();
            while backup.check_names().is_ok() {
                let _ = backup.flush_step().and_then(|_| backup.sync());
                if let Ok(segment) = closed.try_recv() {
                    freed.push(segment);
                    let _ = backup.free(SegmentId(segment));
                }
                std::thread::yield_now();
            }
            let acked = writers.map(|writer| writer.join().unwrap());
            (acked.concat(), freed)
        });
        drop(backup);
        disk.restart();
        let setup = Setup::of(disk);
        acked.retain(|(segment, _)| !freed.contains(segment));
        for (segment, length) in acked {
            let found = setup.length(segment);
            assert!(
                found >= length,
                "seed {seed}: {found} of {length} bytes of {segment}"
            );
        }
    }
}
