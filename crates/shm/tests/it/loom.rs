//! control::M4 and control::M5 in every interleaving of a reader and a writer that sleep whenever
//! they may.
//!
//! The socket of bells is a counter behind a condition variable. Loom reports a deadlock if a side
//! sleeps for ever.

use duramen_shm::control::Control;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

#[derive(Default)]
struct Bell {
    rung: Mutex<u32>,
    news: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.news.notify_one();
    }

    /// Sleeps until it has rung.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == 0 {
            rung = self.news.wait(rung).unwrap();
        }
        *rung = 0;
    }
}

struct Shared<const SIZE: usize> {
    control: Control,
    bytes: [UnsafeCell<u64>; SIZE],
    reader: Bell,
    writer: Bell,
}

/// Forced switches in one execution. Every wrong order of two words needs two at most; all of them
/// would take hours.
const PREEMPTIONS: usize = 3;

/// Sends 1, 2, ... `count` through a ring of `SIZE`, one at a time.
fn run<const SIZE: usize>(count: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let size = SIZE as u64;
        let shared = Arc::new(Shared::<SIZE> {
            control: Control::default(),
            bytes: std::array::from_fn(|_| UnsafeCell::new(0)),
            reader: Bell::default(),
            writer: Bell::default(),
        });
        let theirs = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            for written in 0..count {
                while theirs.control.room(written, size).unwrap() == 0 {
                    if theirs.control.writer_may_sleep(written, size).unwrap() {
                        theirs.writer.wait();
                        theirs.control.writer_is_awake();
                    }
                }
                theirs.bytes[written as usize % SIZE]
                    .with_mut(|cell| unsafe { *cell = written + 1 });
                if theirs.control.wrote(written + 1) {
                    theirs.reader.ring();
                }
            }
        });
        for read in 0..count {
            let unread = loop {
                let unread = shared.control.unread(read, size).unwrap();
                if unread > 0 {
                    break unread;
                }
                if shared.control.reader_may_sleep(read, size).unwrap() {
                    shared.reader.wait();
                    shared.control.reader_is_awake();
                }
            };
            let value = shared.bytes[read as usize % SIZE].with(|cell| unsafe { *cell });
            assert_eq!(value, read + 1);
            if shared.control.took(read + 1, unread - 1, size) {
                shared.writer.ring();
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost_in_a_ring_of_one() {
    run::<1>(2);
}

#[test]
fn no_wake_up_is_lost_in_a_ring_of_two() {
    run::<2>(3);
}
