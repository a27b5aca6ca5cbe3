//! One key is overwritten or removed while it is copied elsewhere by its marks: in the end the copy
//! equals the source (range::watch::W1).

use super::{Arc, buckets, check, locked, thread};
use duramen_engine::parts::Marks;
use duramen_engine::parts::bucket::{self, Bucket, Locking, Slot, View};

const TAG: u64 = 5;
const KEY: &[u8] = b"key";
const WRITER: u16 = 1;
const MIGRATION: u16 = 2;

/// The value of the key is the location in its slot.
struct Source {
    memory: Vec<Bucket>,
    marks: Marks,
}

impl Source {
    fn new() -> Source {
        let source = Source {
            memory: buckets(2),
            marks: Marks::new(1 << 10),
        };
        let view = source.view();
        locked(view, view.home(TAG), WRITER, || {
            assert!(view.insert(TAG, Slot::new(TAG, 1)));
        });
        source
    }

    fn view(&self) -> View<'_> {
        View::new(&self.memory)
    }

    fn look(&self) -> Option<u64> {
        let found = self.view().find(TAG, MIGRATION, |_| true);
        found.map(|(_, slot)| slot.location())
    }

    fn set(&self, value: u64) {
        let view = self.view();
        match view.find(TAG, WRITER, |_| true) {
            Some((place, slot)) => bucket::publish(place, slot.moved_to(value)),
            None => assert!(view.insert(TAG, Slot::new(TAG, value))),
        }
    }

    fn remove(&self) {
        let view = self.view();
        let (place, _) = view.find(TAG, WRITER, |_| true).expect("the key is there");
        view.remove(TAG, place);
    }

    fn mark(&self, version: u64) {
        self.marks.mark(TAG, (false, KEY), 1, version);
    }

    fn locked(&self, work: impl FnOnce()) {
        let view = self.view();
        locked(view, view.home(TAG), WRITER, work);
    }

    /// Looks the marked keys up, and sends the result.
    fn send_to(&self, copy: &mut Option<u64>) {
        for dirty in self.marks.take().keys {
            assert_eq!(&*dirty.key, KEY);
            *copy = self.look();
        }
    }
}

/// One thread writes, one sends the marked keys: once beside the writer, and once more after it.
fn copied_while(write: impl Fn(&Source) + Copy + Send + Sync + 'static) {
    check(move || {
        let source = Arc::new(Source::new());
        let writer = {
            let source = source.clone();
            thread::spawn(move || write(&source))
        };
        let mut copy = Some(1); // sent by the first walk
        source.send_to(&mut copy);
        writer.join().expect("writer");
        source.send_to(&mut copy);
        assert_eq!(copy, source.look(), "the copy differs");
    });
}

#[test]
fn a_removal_reaches_the_copy() {
    copied_while(|source| {
        source.locked(|| {
            source.remove();
            source.mark(1);
        });
    });
}

#[test]
#[should_panic(expected = "the copy differs")]
fn broken_a_removal_marked_before_it_can_be_seen() {
    copied_while(|source| {
        source.locked(|| {
            source.mark(1);
            source.remove();
        });
    });
}

#[test]
fn an_overwrite_reaches_the_copy() {
    copied_while(|source| {
        source.locked(|| source.set(2));
        source.mark(2); // the bucket is unlocked already
    });
}

#[test]
#[should_panic(expected = "the copy differs")]
fn broken_an_overwrite_marked_before_it_can_be_seen() {
    copied_while(|source| {
        source.locked(|| {
            source.mark(2);
            source.set(2);
        });
    });
}

/// A transaction marks its keys before they can be seen: a reader of the key waits for its end.
fn transact(source: &Source, begin: impl FnOnce(View<'_>, usize)) {
    let view = source.view();
    let home = view.home(TAG);
    assert_eq!(view.lock(home, WRITER), Locking::Taken);
    begin(view, home);
    source.set(2);
    source.mark(2);
    source.remove();
    source.mark(2);
    source.set(3);
    source.mark(3);
    view.unlock(home);
}

#[test]
fn a_transaction_reaches_the_copy() {
    copied_while(|source| transact(source, |view, home| view.begin_transaction(home)));
}

/// A copy that is sent beside a transaction never shows the middle of it.
#[test]
fn the_middle_of_a_transaction_is_not_sent() {
    sent_is_never_the_middle(|view, home| view.begin_transaction(home));
}

#[test]
#[should_panic(expected = "was sent")]
fn broken_a_transaction_that_is_not_waited_for() {
    sent_is_never_the_middle(|_, _| {});
}

fn sent_is_never_the_middle(begin: impl Fn(View<'_>, usize) + Copy + Send + Sync + 'static) {
    check(move || {
        let source = Arc::new(Source::new());
        let writer = {
            let source = source.clone();
            thread::spawn(move || transact(&source, begin))
        };
        let mut copy = Some(1);
        source.send_to(&mut copy);
        assert!(copy == Some(1) || copy == Some(3), "{copy:?} was sent");
        writer.join().expect("writer");
    });
}
