//! A head that appends, rolls and groups while its log is collected: the real `Tail`, `Space` and
//! `Log`.

use super::{Arc, Content, check, thread};
use duramen_base::ids::Level;
use duramen_engine::parts::{OneHead, Purpose, SEGMENT_HEADER_BYTES, Space, Tail, Topology};
use duramen_engine::{Collected, LogOptions, Options, Piece};

/// Three entries to a window.
const ENTRIES: usize = 3;
const ENTRY_BYTES: usize = 600_000;

struct World {
    space: Space,
    head: OneHead,
    /// Content of each window's entries.
    log: Vec<[Content; ENTRIES]>,
}

impl World {
    fn new() -> Arc<World> {
        let mut options = Options::new(6 << 20);
        options.huge_pages = false;
        options.log = Some(LogOptions::new(1));
        let space = Space::new(&options, &Topology::single(), 0, 0).expect("address space");
        let entries = || std::array::from_fn(|_| Content::new(0));
        Arc::new(World {
            log: space.segments.iter().map(|_| entries()).collect(),
            head: OneHead::new(&space),
            space,
        })
    }

    fn roll(&self, tail: &mut Tail) {
        let window = self
            .space
            .acquire(0, Purpose::Head, 0, 0)
            .expect("an empty store has room");
        self.head.roll(&self.space, tail, window);
    }

    fn content(&self, location: u64) -> &Content {
        let place = self.space.offset_in_window(location) as usize / ENTRY_BYTES;
        &self.log[self.space.window_of(location)][place]
    }

    fn append(&self, tail: &mut Tail, content: u64) {
        let location = Space::location(tail.take(ENTRY_BYTES));
        self.content(location).write(content);
        self.publish(tail);
    }

    fn publish(&self, tail: &Tail) {
        tail.record(&self.space);
        self.head.publish(tail);
    }

    /// Collects and completes; adds the contents of the collected entries to `read`.
    fn consume(&self, read: &mut Vec<u64>) {
        let log = self.head.log();
        let mut collected = Collected::default();
        log.collect(&mut collected);
        let mut opened = None;
        for piece in log.pieces(&collected) {
            match piece {
                Piece::Open { segment, .. } => opened = Some(segment),
                Piece::Close { segment, .. } => {
                    assert!(opened.is_none_or(|opened| opened >= segment));
                }
                Piece::Data {
                    segment,
                    offset,
                    bytes,
                } => {
                    assert!(opened.is_none_or(|opened| opened == segment), "in order");
                    let at = bytes.as_ptr() as usize - self.space.at(0) as usize;
                    // A first piece begins with the header, which is no entry.
                    let first = at + SEGMENT_HEADER_BYTES.saturating_sub(offset as usize);
                    for entry in (first..at + bytes.len()).step_by(ENTRY_BYTES) {
                        read.push(self.content(Space::location(entry)).read());
                    }
                }
            }
        }
        log.complete(&mut collected, Level::Synced);
    }
}

/// `write` appends 1, 2, 3, 4 while its log is collected; `judge` gets the contents of each
/// collection.
fn while_collecting(
    write: impl Fn(&World) + Copy + Send + Sync + 'static,
    judge: impl Fn(&[u64]) + Copy + Send + Sync + 'static,
) {
    check(move || {
        let world = World::new();
        let consumer = {
            let world = world.clone();
            thread::spawn(move || {
                let mut read = Vec::new();
                for _ in 0..2 {
                    world.consume(&mut read);
                    judge(&read);
                }
                read
            })
        };
        write(&world);
        let mut read = consumer.join().expect("consumer");
        world.consume(&mut read);
        assert_eq!(
            read,
            [1, 2, 3, 4],
            "whatever was appended comes, once and in order"
        );
        let closed = world.head.log().undurable_bytes() == 0 && world.head.is_durably_closed(0);
        assert!(closed, "the first window is durably closed");
    });
}

#[test]
fn what_is_collected_is_written() {
    while_collecting(
        |world| {
            let mut tail = Tail::default();
            world.roll(&mut tail);
            (1..=3).for_each(|content| world.append(&mut tail, content));
            world.roll(&mut tail);
            world.append(&mut tail, 4);
        },
        |_| {},
    );
}

#[test]
#[cfg_attr(loom, should_panic(expected = "Causality violation"))]
#[cfg_attr(
    shuttle,
    should_panic(expected = "whatever was appended comes, once and in order")
)]
fn broken_published_before_it_is_written() {
    while_collecting(
        |world| {
            let mut tail = Tail::default();
            world.roll(&mut tail);
            let location = Space::location(tail.take(ENTRY_BYTES));
            world.publish(&tail);
            world.content(location).write(1);
            (2..=3).for_each(|content| world.append(&mut tail, content));
            world.roll(&mut tail);
            world.append(&mut tail, 4);
        },
        |_| {},
    );
}

/// Entries 2 and 3 are a group: they are collected together.
fn group(world: &World, grouped: bool) {
    let mut tail = Tail::default();
    world.roll(&mut tail);
    world.append(&mut tail, 1);
    if grouped {
        world.head.begin_group(&mut tail);
    }
    world.append(&mut tail, 2);
    world.append(&mut tail, 3);
    if grouped {
        world.head.end_group(&mut tail);
    }
    world.roll(&mut tail);
    world.append(&mut tail, 4);
}

fn is_whole(read: &[u64]) {
    assert_eq!(read.contains(&2), read.contains(&3), "half of a group");
}

#[test]
fn a_group_is_collected_as_a_whole() {
    while_collecting(|world| group(world, true), is_whole);
}

#[test]
#[should_panic(expected = "half of a group")]
fn broken_a_group_that_is_published_one_by_one() {
    while_collecting(|world| group(world, false), is_whole);
}
