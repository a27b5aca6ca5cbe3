//! Streams against a map of entries and maps of groups, and any bytes as streams.

use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};
use duramen_types::dump::{dump, restore};
use duramen_types::stream::{
    self, Consumer, Entry, Group, Id, NODE_ENTRIES, Pending, Rough, Trim, groups,
};
use duramen_types::{Error, Part, Parts, Stream, Text, Type};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The part of a stream during an operation.
#[derive(Default)]
struct Root(Vec<u8>);

impl<'p> Parts<'p> for Root {
    fn get(&self, _: Part) -> Option<&'p [u8]> {
        None
    }

    fn put(&mut self, _: Part) -> &mut Vec<u8> {
        self.0.clear();
        &mut self.0
    }

    fn remove(&mut self, _: Part) {
        unreachable!("a stream stays");
    }
}

/// One operation on a value.
fn change<T>(
    value: &mut Option<Vec<u8>>,
    run: impl FnOnce(&mut Stream<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut root = Root::default();
    let mut stream = Stream::of(value.as_deref())?;
    let done = run(&mut stream)?;
    stream.store(&mut root)?;
    *value = Some(root.0);
    Ok(done)
}

fn texts(pairs: &Pairs) -> Vec<(Text<'_>, Text<'_>)> {
    let pairs = pairs.iter();
    pairs
        .map(|(field, value)| (Text::of(field), Text::of(value)))
        .collect()
}

fn owned(stream: &Stream<'_>, entry: &Entry<'_>) -> (Id, Pairs) {
    let pairs = stream.pairs(entry).unwrap();
    let pair =
        |(field, value): &(Text<'_>, Text<'_>)| (field.bytes().to_vec(), value.bytes().to_vec());
    (entry.id, pairs.iter().map(pair).collect())
}

fn all(value: &[u8]) -> Vec<(Id, Pairs)> {
    let stream = Stream::of(Some(value)).unwrap();
    let entries = stream
        .entries()
        .map(|entry| owned(&stream, &entry.unwrap()));
    entries.collect()
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-c]{0,2}".prop_map(String::into_bytes),
        (-40i64..40).prop_map(|n| n.to_string().into_bytes()),
        any::<i64>().prop_map(|n| n.to_string().into_bytes()),
        vec(any::<u8>(), 0..300),
    ]
}

/// Pairs whose fields are often those of other entries.
fn pairs() -> impl Strategy<Value = Pairs> {
    prop_oneof![
        4 => (word(), word()).prop_map(|(a, b)| vec![(b"x".to_vec(), a), (b"y".to_vec(), b)]),
        1 => vec((word(), word()), 1..5),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    /// An id that is later by so much.
    Add(u64, u64, Pairs),
    Remove(Vec<prop::sample::Index>),
    Keep(usize),
    Before(prop::sample::Index),
    /// `~`, with a limit.
    Roughly(usize, usize),
    SetLast(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..3, 0u64..4, pairs()).prop_map(|(ms, seq, pairs)| Step::Add(ms, seq, pairs)),
        1 => (any::<u64>(), any::<u64>(), pairs())
            .prop_map(|(ms, seq, pairs)| Step::Add(ms >> 20, seq, pairs)),
        2 => vec(any::<prop::sample::Index>(), 0..4).prop_map(Step::Remove),
        1 => (0usize..20).prop_map(Step::Keep),
        1 => any::<prop::sample::Index>().prop_map(Step::Before),
        1 => (0usize..300, 0usize..150).prop_map(|(keep, limit)| Step::Roughly(keep, limit)),
        1 => (0u64..5).prop_map(Step::SetLast),
    ]
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<Id, Pairs>,
    last: Id,
    added: u64,
    deleted: Id,
}

impl Model {
    fn id(&self, at: &prop::sample::Index) -> Id {
        let ids: Vec<Id> = self.entries.keys().copied().collect();
        if ids.is_empty() {
            Id { ms: 1, seq: 1 }
        } else {
            ids[at.index(ids.len())]
        }
    }

    fn keep(&mut self, number: usize) -> usize {
        let gone = self.entries.len().saturating_sub(number);
        (0..gone).for_each(|_| drop(self.entries.pop_first()));
        gone
    }

    /// Trims whole nodes; at most `limit` entries, if it is not 0.
    fn trim_roughly(&mut self, value: &mut Option<Vec<u8>>, number: usize, limit: usize) {
        let rough = Rough {
            node_entries: NODE_ENTRIES,
            limit: if limit == 0 { usize::MAX } else { limit },
        };
        let trim = Trim::Length(number);
        let removed = change(value, |stream| stream.trim(trim, Some(rough))).unwrap();
        assert!(limit == 0 || removed <= limit);
        let left = self.entries.len() - removed;
        assert!(left >= number || removed == 0);
        assert!(left == 0 || removed % 100 == 0);
        self.keep(left);
    }

    fn apply(&mut self, value: &mut Option<Vec<u8>>, step: &Step) {
        match step {
            Step::Add(ms, seq, pairs) => {
                let ms = self.last.ms.saturating_add(*ms);
                let from = if ms == self.last.ms {
                    self.last.seq + 1
                } else {
                    0
                };
                let id = Id {
                    ms,
                    seq: from.saturating_add(*seq),
                };
                if id <= self.last {
                    return;
                }
                change(value, |stream| {
                    stream.append(id, &texts(pairs));
                    Ok(())
                })
                .unwrap();
                self.entries.insert(id, pairs.clone());
                (self.last, self.added) = (id, self.added + 1);
            }
            Step::Remove(at) => {
                let ids: BTreeSet<Id> = at.iter().map(|at| self.id(at)).collect();
                let mut given: Vec<Id> = ids.iter().copied().collect();
                given.push(Id::MAX);
                let removed = change(value, |stream| stream.remove(&given)).unwrap();
                let gone: Vec<Id> = ids
                    .into_iter()
                    .filter(|id| self.entries.remove(id).is_some())
                    .collect();
                assert_eq!(removed, gone.len());
                self.deleted = self.deleted.max(gone.last().copied().unwrap_or(Id::MIN));
            }
            Step::Keep(number) => {
                let removed = change(value, |stream| stream.trim(Trim::Length(*number), None));
                assert_eq!(removed, Ok(self.keep(*number)));
            }
            Step::Before(at) => {
                let id = self.id(at);
                let removed = change(value, |stream| stream.trim(Trim::Before(id), None));
                let later = self.entries.range(id..).count();
                assert_eq!(removed, Ok(self.keep(later)));
            }
            Step::Roughly(number, limit) => self.trim_roughly(value, *number, *limit),
            Step::SetLast(more) => {
                self.last.ms = self.last.ms.saturating_add(*more);
                let last = self.last;
                change(value, |stream| {
                    stream.set_last(last, None, None);
                    Ok(())
                })
                .unwrap();
            }
        }
    }
}

/// Pending entries by id: consumer, time of delivery, deliveries.
type Deliveries = BTreeMap<(u8, u8), (usize, u64, u64)>;

fn group() -> impl Strategy<Value = (Vec<u8>, u64, Option<u64>, Deliveries)> {
    let pending = prop::collection::btree_map(
        (any::<u8>(), any::<u8>()),
        (0usize..3, any::<u64>(), any::<u64>()),
        0..20,
    );
    (
        word(),
        any::<u64>(),
        proptest::option::of(0..u64::MAX - 1),
        pending,
    )
}

proptest! {
    #[test]
    fn a_stream_is_a_map(
        steps in vec(step(), 1..60),
        ends: (prop::sample::Index, prop::sample::Index),
        most in 0usize..9,
    ) {
        let (mut value, mut model) = (None, Model::default());
        for step in &steps {
            model.apply(&mut value, step);
            let stream = Stream::of(value.as_deref()).unwrap();
            let first = model.entries.keys().next().copied().unwrap_or(Id::MIN);
            let tip = model.entries.keys().next_back().copied().unwrap_or(Id::MIN);
            prop_assert_eq!((stream.first(), stream.tip()), (first, tip));
            prop_assert_eq!(stream.last(), model.last);
            prop_assert_eq!(
                (stream.len(), stream.added(), stream.deleted()),
                (model.entries.len(), model.added, model.deleted)
            );
        }
        let Some(value) = value else { return Ok(()) };
        let expected: Vec<_> = model.entries.clone().into_iter().collect();
        prop_assert_eq!(all(&value), expected);
        let stream = Stream::of(Some(&value)).unwrap();
        let (mut start, mut end) = (model.id(&ends.0), model.id(&ends.1));
        if start > end {
            (start, end) = (end, start);
        }
        let inside = model.entries.range(start..=end);
        let inside: Vec<_> = inside.map(|(id, pairs)| (*id, pairs.clone())).collect();
        let shown = |entries: Vec<Entry<'_>>| -> Vec<_> {
            entries.iter().map(|entry| owned(&stream, entry)).collect()
        };
        let forwards = shown(stream.range(start, end, most).unwrap());
        prop_assert_eq!(&forwards[..], &inside[..most.min(inside.len())]);
        let place = stream.place_of(start).unwrap();
        let behind = shown(stream.behind(place, most).unwrap());
        prop_assert_eq!(behind, shown(stream.range(start, Id::MAX, most).unwrap()));
        let backwards = shown(stream.range_back(start, end, most).unwrap());
        let reversed: Vec<_> = inside.iter().rev().take(most).cloned().collect();
        prop_assert_eq!(backwards, reversed);
        let ids = [Id::MIN, start, end, end, Id::MAX];
        let found = stream.find(ids).unwrap();
        for (id, entry) in ids.iter().zip(found) {
            let pairs = entry.map(|entry| owned(&stream, &entry).1);
            prop_assert_eq!(pairs.as_ref(), model.entries.get(id));
        }
        // Through Redis's form.
        let restored = restore(&dump(&value, true).unwrap()).unwrap();
        prop_assert!(restored.1);
        prop_assert_eq!(all(&restored.0), all(&value));
        let again = Stream::of(Some(&restored.0)).unwrap();
        prop_assert_eq!(
            (again.last(), again.added(), again.deleted()),
            (model.last, model.added, model.deleted)
        );
    }

    #[test]
    fn groups_come_back(
        all in vec(group(), 0..5),
        times in (any::<u64>(), proptest::option::of(0..u64::MAX - 1)),
    ) {
        let mut made: Vec<Group<'_>> = Vec::new();
        for (name, last, read, pending) in &all {
            let mut group = Group::new(Text::of(name), Id { ms: *last, seq: *last / 3 }, *read);
            for consumer in [&b"c"[..], b"a", b"17"] {
                group.consumers.push(Consumer {
                    name: Text::of(consumer),
                    seen_at_ms: times.0,
                    active_at_ms: times.1,
                });
            }
            group.pending = pending.iter().map(|((ms, seq), (consumer, time, deliveries))| Pending {
                id: Id { ms: u64::from(*ms), seq: u64::from(*seq) },
                consumer: *consumer,
                delivered_at_ms: *time,
                deliveries: *deliveries,
            }).collect();
            let is_new = !made.iter().any(|known| known.name == group.name);
            prop_assert_eq!(groups::insert(&mut made, group), is_new);
        }
        let mut value = None;
        change(&mut value, |stream| {
            stream.append(Id { ms: 5, seq: 0 }, &[(Text::of(b"f"), Text::of(b"v"))]);
            stream.set_groups(&made);
            Ok(())
        }).unwrap();
        let value = value.unwrap();
        let stream = Stream::of(Some(&value)).unwrap();
        prop_assert_eq!(stream.group_count(), made.len());
        prop_assert_eq!(&stream.groups().unwrap(), &made);
        // In Redis's form a consumer was active when it was seen.
        for consumer in made.iter_mut().flat_map(|group| &mut group.consumers) {
            consumer.active_at_ms = Some(consumer.seen_at_ms).filter(|time| *time != u64::MAX);
        }
        let restored = restore(&dump(&value, true).unwrap()).unwrap().0;
        prop_assert_eq!(Stream::of(Some(&restored)).unwrap().groups().unwrap(), made);
    }

    #[test]
    fn pending_entries_have_one_consumer(
        steps in vec((0u8..3, vec(0u64..30, 1..10), 0usize..3), 1..20),
    ) {
        let mut group = Group::new(Text::of(b"g"), Id::MIN, None);
        let mut model: BTreeMap<u64, usize> = BTreeMap::new();
        let id = |seq| Id { ms: 0, seq };
        for consumer in [&b"0"[..], b"1", b"2"] {
            group.seen(Text::of(consumer), 1);
        }
        for (what, ids, consumer) in steps {
            let ids: BTreeSet<u64> = ids.into_iter().collect();
            if what == 0 {
                let gone = group.acknowledge(&ids.iter().copied().map(id).collect::<Vec<_>>());
                prop_assert_eq!(gone, ids.iter().filter(|id| model.remove(id).is_some()).count());
            } else {
                group.give(ids.iter().copied().map(id), consumer, 7);
                model.extend(ids.into_iter().map(|id| (id, consumer)));
            }
            let pending = group.pending.iter();
            let pending = pending.map(|pending| (pending.id.seq, pending.consumer));
            prop_assert_eq!(pending.collect::<BTreeMap<_, _>>(), model.clone());
            prop_assert_eq!(group.pending.len(), model.len());
            prop_assert!(group.pending.is_sorted_by_key(|pending| pending.id));
        }
        let removed = model.values().filter(|consumer| **consumer == 1).count();
        prop_assert_eq!(group.remove_consumer(1), removed);
        prop_assert_eq!(group.consumers.len(), 2);
        for pending in &group.pending {
            let name = group.consumers[pending.consumer].name;
            prop_assert_eq!(name, Text::Integer(model[&pending.id.seq] as i64));
        }
    }

    /// types::Y2.
    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(prop_oneof![0u8..8, any::<u8>()], 0..80)) {
        read(&[&[Type::Stream as u8][..], &bytes].concat());
    }

    /// types::Y2: bytes that are nearly right.
    #[test]
    fn damaged_streams_are_refused_or_read(
        steps in vec(step(), 1..20), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let (mut value, mut model) = (None, Model::default());
        steps.iter().for_each(|step| model.apply(&mut value, step));
        change(&mut value, |stream| {
            let mut group = Group::new(Text::of(b"g"), Id::MIN, Some(3));
            let place = group.seen(Text::of(b"c"), 9);
            group.give(model.entries.keys().copied(), place, 9);
            stream.set_groups(&[group]);
            Ok(())
        }).unwrap();
        let mut bytes = value.unwrap();
        let place = at.index(bytes.len() - 1) + 1;
        bytes[place] = byte;
        read(&bytes);
        bytes.truncate(1 + cut.index(bytes.len()));
        read(&bytes);
    }
}

/// Runs everything that decodes.
fn read(bytes: &[u8]) {
    let _ = stream::len(bytes);
    let _ = dump(bytes, true);
    let Ok(stream) = Stream::of(Some(bytes)) else {
        return;
    };
    for entry in stream.entries() {
        let Ok(entry) = entry else { break };
        let _ = stream.pairs(&entry);
    }
    let _ = (stream.first(), stream.group_count());
    let _ = stream.range_back(Id::MIN, Id::MAX, 2);
    let _ = stream.find([Id { ms: 1, seq: 1 }]);
    for group in stream.groups().unwrap_or_default() {
        let _ = (stream.lag(&group), stream.distance(group.last));
    }
    let mut value = Some(bytes.to_vec());
    let _ = change(&mut value, |stream| stream.trim(Trim::Length(1), None));
    let _ = change(&mut value, |stream| stream.remove(&[stream.first()]));
    let _ = change(&mut value, |stream| {
        if let Some(id) = stream.last().next() {
            stream.append(id, &[(Text::of(b"f"), Text::of(b"v"))]);
        }
        Ok(())
    });
    let _ = change(&mut value, |stream| {
        let mut groups = stream.groups()?;
        for group in &mut groups {
            let place = group.seen(Text::of(b"new"), 1);
            group.give([Id::MIN, Id::MAX].into_iter(), place, 2);
            stream.note_read(group, Id::MAX);
        }
        stream.set_groups(&groups);
        Ok(())
    });
}

#[test]
fn the_bytes_are_few() {
    let mut value = None;
    let add = |value: &mut Option<Vec<u8>>, n: u64| {
        let temperature = format!("{}", 20 + n % 5);
        let pairs = [
            (Text::of(b"sensor"), Text::of(b"1234")),
            (Text::of(b"temperature"), Text::of(temperature.as_bytes())),
        ];
        let id = Id {
            ms: 1_700_000_000_000 + 10 * n,
            seq: 0,
        };
        change(value, |stream| {
            stream.append(id, &pairs);
            Ok(())
        })
        .unwrap();
    };
    (0..100).for_each(|n| add(&mut value, n));
    let before = value.as_ref().unwrap().len();
    add(&mut value, 100);
    // Two bytes of id, a length, a mark, two and one of values.
    assert_eq!(value.as_ref().unwrap().len() - before, 7);
    assert_eq!(
        change(&mut value, |s| s.trim(Trim::Length(50), None)),
        Ok(51)
    );
    let mut empty = value.clone();
    assert_eq!(
        change(&mut empty, |s| s.trim(Trim::Length(0), None)),
        Ok(50)
    );
    assert_eq!(
        Stream::of(empty.as_deref()).unwrap().last(),
        Stream::of(value.as_deref()).unwrap().last()
    );
}

/// types::Y4.
#[test]
fn a_stream_ends_at_its_limits() {
    let long = vec![7; VALUE_BYTES_MAX / 2];
    let pairs = [(Text::of(b"f"), Text::of(&long))];
    let mut value = None;
    let add = |value: &mut Option<Vec<u8>>, ms| {
        change(value, |stream| {
            stream.append(Id { ms, seq: 0 }, &pairs);
            Ok(())
        })
    };
    assert_eq!(add(&mut value, 1), Ok(()));
    let before = value.clone();
    assert_eq!(add(&mut value, 2), Err(Error::Full));
    assert_eq!(value, before);
    // Pending entries count.
    let mut group = Group::new(Text::of(b"g"), Id::MIN, None);
    let place = group.seen(Text::of(b"c"), 1);
    let ids = |number: usize| (0..number as u64).map(|seq| Id { ms: 0, seq });
    group.give(ids(COLLECTION_ELEMENTS_MAX), place, 1);
    let groups = [group];
    let mut value = None;
    let full = change(&mut value, |stream| {
        stream.set_groups(&groups);
        Ok(())
    });
    assert_eq!(full, Err(Error::Full));
}

/// types::Y4. The bound is loose, because tests are not optimised.
#[test]
fn an_operation_on_a_large_stream_is_short() {
    let mut value = None;
    change(&mut value, |stream| {
        for ms in 1..50_000 {
            stream.append(Id { ms, seq: 0 }, &[(Text::of(b"f"), Text::of(b"v"))]);
        }
        let mut group = Group::new(Text::of(b"g"), Id::MIN, None);
        let place = group.seen(Text::of(b"c"), 1);
        group.give((1..50_000).map(|ms| Id { ms, seq: 0 }), place, 1);
        stream.set_groups(&[group]);
        Ok(())
    })
    .unwrap();
    let mut best = [Duration::MAX; 3];
    for n in 0..10u64 {
        let mut timed = |at: usize, run: &mut dyn FnMut(&mut Stream<'_>) -> Result<(), Error>| {
            let began = crate::processor_time();
            change(&mut value, |stream| run(stream)).unwrap();
            best[at] = best[at].min(crate::processor_time() - began);
        };
        timed(0, &mut |stream| {
            let id = stream.last().next().unwrap();
            stream.append(id, &[(Text::of(b"f"), Text::of(b"v"))]);
            stream.trim(Trim::Length(49_000), None).map(drop)
        });
        timed(1, &mut |stream| {
            stream
                .remove(&[Id {
                    ms: 20_000 + n,
                    seq: 0,
                }])
                .map(drop)
        });
        timed(2, &mut |stream| {
            let mut groups = stream.groups()?;
            groups[0].acknowledge(&[Id {
                ms: 30_000 + n,
                seq: 0,
            }]);
            stream.set_groups(&groups);
            Ok(())
        });
    }
    println!(
        "best of 10: append {:?}, delete {:?}, acknowledge {:?}",
        best[0], best[1], best[2]
    );
    assert!(
        best.iter().all(|time| *time < Duration::from_millis(40)),
        "{best:?}"
    );
}

#[test]
fn the_lag_is_known_where_nothing_is_missing() {
    let mut value = None;
    let id = |ms| Id { ms, seq: 0 };
    change(&mut value, |stream| {
        (1..=5).for_each(|ms| stream.append(id(ms), &[(Text::of(b"f"), Text::of(b"v"))]));
        Ok(())
    })
    .unwrap();
    let lag = |value: &Option<Vec<u8>>, last, read| {
        let group = Group::new(Text::of(b"g"), last, read);
        Stream::of(value.as_deref()).unwrap().lag(&group)
    };
    assert_eq!(lag(&None, Id::MIN, None), Some(0));
    assert_eq!(lag(&value, Id::MIN, None), Some(5));
    assert_eq!(lag(&value, id(1), None), Some(4));
    assert_eq!(lag(&value, id(2), None), None);
    assert_eq!(lag(&value, id(2), Some(2)), Some(3));
    assert_eq!(lag(&value, id(5), None), Some(0));
    change(&mut value, |stream| stream.remove(&[id(3)])).unwrap();
    assert_eq!(lag(&value, id(2), Some(2)), None);
    assert_eq!(lag(&value, id(3), Some(3)), None);
    assert_eq!(lag(&value, id(4), Some(4)), Some(1));
    change(&mut value, |stream| stream.trim(Trim::Length(1), None)).unwrap();
    assert_eq!(lag(&value, id(1), None), Some(1));
}
