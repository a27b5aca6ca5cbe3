//! A transaction over two buckets and a reader: the reader sees no part of it before it ends
//! (bucket::B3).

use super::{Arc, buckets, check, locked, thread};
use duramen_engine::parts::bucket::{self, Bucket, Locking, Slot, View};

const READER: u16 = 1;
const WRITER: u16 = 2;

fn set(view: View<'_>, tag: u64, location: u64) {
    let (place, slot) = view.find(tag, WRITER, |_| true).expect("the key is there");
    bucket::publish(place, slot.moved_to(location));
}

fn get(view: View<'_>, tag: u64) -> u64 {
    let (_, slot) = view.find(tag, READER, |_| true).expect("the key is there");
    slot.location()
}

/// The writer sets the first key twice and the second once; the reader reads the first, then the
/// second.
fn read_during(lock: impl Fn(View<'_>, usize) + Copy + Send + Sync + 'static) {
    check(move || {
        let memory: Arc<Vec<Bucket>> = Arc::new(buckets(2));
        let view = View::new(&memory);
        let tags = [view.first_tag(0), view.first_tag(1)];
        for (bucket, tag) in tags.into_iter().enumerate() {
            locked(view, bucket, WRITER, || {
                assert!(view.insert(tag, Slot::new(tag, 1)));
            });
        }
        let reader = {
            let memory = memory.clone();
            thread::spawn(move || {
                let view = View::new(&memory);
                let first = get(view, tags[0]);
                assert_ne!(first, 2, "the middle of the transaction was seen");
                let second = get(view, tags[1]);
                assert!(
                    first == 1 || second == 3,
                    "half of the transaction was seen"
                );
            })
        };
        lock(view, 0);
        lock(view, 1);
        set(view, tags[0], 2);
        set(view, tags[1], 3);
        set(view, tags[0], 3);
        view.unlock(0);
        view.unlock(1);
        reader.join().expect("reader");
        assert_eq!((get(view, tags[0]), get(view, tags[1])), (3, 3));
    });
}

#[test]
fn a_transaction_is_seen_whole_or_not_at_all() {
    read_during(|view, bucket| {
        assert_eq!(view.lock(bucket, WRITER), Locking::Taken);
        view.begin_transaction(bucket);
    });
}

#[test]
#[should_panic(expected = "the middle of the transaction was seen")]
fn broken_locks_that_readers_do_not_wait_for() {
    read_during(|view, bucket| {
        assert_eq!(view.lock(bucket, WRITER), Locking::Taken);
    });
}
