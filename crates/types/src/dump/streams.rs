//! Streams in Redis's own serialization, that of `DUMP` and `RESTORE`.
//!
//! **Layout**: nodes of up to 100 entries, each under the id of its first: a listpack with the
//! number of entries, of deleted entries, the common fields and their number, a 0, and for each
//! entry its flags, the differences of its id to the node's, fields and values, and the number of
//! these elements. Behind the nodes come the ids and counters of the stream, and the groups.
//!
//! Streams are written in the form of Redis 7.0. In this form, a consumer that was never given an
//! entry looks as if it was given one when it was seen last.

use super::{Built, Error, Input, listpack, write_length, write_string};
use crate::stream::{Consumer, Group, Id, NODE_ENTRIES, Pending, Stream, groups};
use crate::text::Text;
use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};
use std::collections::HashMap;

/// Redis's types of streams: since version 5, 7.0 and 7.2.
pub(crate) const STREAM: u8 = 15;
pub(crate) const STREAM_OF_7_0: u8 = 19;
pub(crate) const STREAM_OF_7_2: u8 = 21;

/// Bytes of a node from which on Redis begins a new one.
const NODE_BYTES: usize = 4096;
const IS_DELETED: i64 = 1;
const HAS_COMMON_FIELDS: i64 = 2;

/// Appends the type and the content of a value.
///
/// # Errors
/// [`crate::Error::Damaged`].
pub(crate) fn write(out: &mut Vec<u8>, value: &[u8]) -> Result<(), crate::Error> {
    let stream = Stream::of(Some(value))?;
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for entry in stream.entries() {
        let entry = entry?;
        let pairs = stream.pairs(&entry)?;
        let node = match nodes.pop() {
            Some(node) if node.has_room() => node,
            full => {
                nodes.extend(full);
                Node::of(entry.id, &pairs)
            }
        };
        nodes.push(node.with(entry.id, &pairs));
    }
    out.push(STREAM_OF_7_0);
    write_length(out, nodes.len() as u64);
    for node in nodes {
        node.write(out);
    }
    write_length(out, stream.len() as u64);
    for id in [stream.last(), stream.first(), stream.deleted()] {
        write_length(out, id.ms);
        write_length(out, id.seq);
    }
    write_length(out, stream.added());
    let groups = stream.groups()?;
    write_length(out, groups.len() as u64);
    groups.iter().for_each(|group| write_group(out, group));
    Ok(())
}

fn write_id(out: &mut Vec<u8>, id: Id) {
    out.extend_from_slice(&id.ms.to_be_bytes());
    out.extend_from_slice(&id.seq.to_be_bytes());
}

fn write_group(out: &mut Vec<u8>, group: &Group<'_>) {
    write_string(out, &group.name.bytes());
    write_length(out, group.last.ms);
    write_length(out, group.last.seq);
    write_length(out, group.read.unwrap_or(u64::MAX));
    write_length(out, group.pending.len() as u64);
    for pending in &group.pending {
        write_id(out, pending.id);
        out.extend_from_slice(&pending.delivered_at_ms.to_le_bytes());
        write_length(out, pending.deliveries);
    }
    let mut own = vec![Vec::new(); group.consumers.len()];
    for pending in &group.pending {
        if let Some(own) = own.get_mut(pending.consumer) {
            own.push(pending.id);
        }
    }
    write_length(out, group.consumers.len() as u64);
    for (consumer, own) in group.consumers.iter().zip(own) {
        write_string(out, &consumer.name.bytes());
        out.extend_from_slice(&consumer.seen_at_ms.to_le_bytes());
        write_length(out, own.len() as u64);
        own.iter().for_each(|id| write_id(out, *id));
    }
}

/// A node that is being written.
struct Node<'a> {
    id: Id,
    fields: Vec<Text<'a>>,
    count: usize,
    /// Elements of the listpack after the number of entries.
    bytes: Vec<u8>,
    /// The part of `bytes` with the fields that its entries share.
    fields_bytes: usize,
    elements: usize,
}

impl<'a> Node<'a> {
    fn of(id: Id, pairs: &[(Text<'a>, Text<'a>)]) -> Node<'a> {
        let mut node = Node {
            id,
            fields: pairs.iter().map(|(field, _)| *field).collect(),
            count: 0,
            bytes: Vec::new(),
            fields_bytes: 0,
            elements: 1,
        };
        node.number(0);
        node.number(pairs.len() as i64);
        pairs.iter().for_each(|(field, _)| node.text(field));
        node.number(0);
        node.fields_bytes = node.bytes.len();
        node
    }

    /// Whether the node takes another entry. Each node repeats the fields. So long fields are
    /// shared by at least as many bytes of entries, and all nodes together are at most twice as
    /// long as the stream.
    fn has_room(&self) -> bool {
        let entries_bytes = self.bytes.len() - self.fields_bytes;
        let is_wide = self.fields_bytes >= NODE_BYTES;
        entries_bytes < NODE_BYTES.max(self.fields_bytes) && (is_wide || self.count < NODE_ENTRIES)
    }

    fn with(mut self, id: Id, pairs: &[(Text<'a>, Text<'a>)]) -> Node<'a> {
        let fields = pairs.iter().map(|(field, _)| field);
        let is_common = fields.eq(&self.fields);
        self.number(if is_common { HAS_COMMON_FIELDS } else { 0 });
        self.number(id.ms.wrapping_sub(self.id.ms) as i64);
        self.number(id.seq.wrapping_sub(self.id.seq) as i64);
        if !is_common {
            self.number(pairs.len() as i64);
        }
        for (field, value) in pairs {
            if !is_common {
                self.text(field);
            }
            self.text(value);
        }
        let elements = if is_common {
            pairs.len() + 3
        } else {
            2 * pairs.len() + 4
        };
        self.number(elements as i64);
        self.count += 1;
        self
    }

    fn text(&mut self, text: &Text<'_>) {
        match text {
            Text::Integer(integer) => self.number(*integer),
            Text::Bytes(bytes) => {
                write_bytes(&mut self.bytes, bytes);
                self.elements += 1;
            }
        }
    }

    fn number(&mut self, number: i64) {
        write_number(&mut self.bytes, number);
        self.elements += 1;
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut count = Vec::new();
        write_number(&mut count, self.count as i64);
        let bytes = 6 + count.len() + self.bytes.len() + 1;
        write_length(out, 16);
        write_id(out, self.id);
        write_length(out, bytes as u64);
        out.extend_from_slice(&(bytes as u32).to_le_bytes());
        let elements = u16::try_from(self.elements).unwrap_or(u16::MAX);
        out.extend_from_slice(&elements.to_le_bytes());
        out.extend_from_slice(&count);
        out.extend_from_slice(&self.bytes);
        out.push(0xff);
    }
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    match bytes.len() {
        length @ 0..64 => out.push(0x80 | length as u8),
        length @ 64..4096 => out.extend_from_slice(&(0xe000 | length as u16).to_be_bytes()),
        length => {
            out.push(0xf0);
            out.extend_from_slice(&(length as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
    write_back_length(out, start);
}

fn write_number(out: &mut Vec<u8>, number: i64) {
    let start = out.len();
    let bytes = number.to_le_bytes();
    let (form, width) = match number {
        0..128 => (None, 1),
        -0x8000..0x8000 => (Some(0xf1), 2),
        -0x80_0000..0x80_0000 => (Some(0xf2), 3),
        -0x8000_0000..0x8000_0000 => (Some(0xf3), 4),
        _ => (Some(0xf4), 8),
    };
    out.extend(form);
    out.extend(bytes.iter().take(width));
    write_back_length(out, start);
}

/// Ends an element with its length, seven bits a byte, to be read backwards.
fn write_back_length(out: &mut Vec<u8>, start: usize) {
    let length = out.len() - start;
    let bytes = match length {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        _ => 4,
    };
    for at in (0..bytes).rev() {
        let low = (length >> (7 * at)) as u8 & 0x7f;
        out.push(if at + 1 < bytes { low | 0x80 } else { low });
    }
}

/// A group that was read; it owns its names.
struct Read {
    name: Vec<u8>,
    last: Id,
    read: Option<u64>,
    consumers: Vec<(Vec<u8>, u64, Option<u64>)>,
    pending: Vec<Pending>,
}

/// The value behind the type `kind`.
///
/// # Errors
/// [`Error`].
pub(crate) fn restore(input: &mut Input<'_>, kind: u8) -> Result<Vec<u8>, Error> {
    input.allow(4 * VALUE_BYTES_MAX);
    let mut stream = Stream::default();
    for _ in 0..input.number()? {
        let key = input.string()?;
        let (ms, seq) = key.split_at_checked(8).ok_or(Error::Format)?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
        let (ms, seq) = (number(ms), number(seq));
        let (Ok(ms), Ok(seq)) = (ms, seq) else {
            return Err(Error::Format);
        };
        let mut items = Vec::new();
        listpack(&input.string()?, &mut items)?;
        let read = read_node(&mut stream, Id { ms, seq }, &items);
        if is_full(&stream) {
            return Err(Error::Collection(crate::Error::Full));
        }
        read.ok_or(Error::Format)?;
    }
    let length = input.number()?;
    let last = input.id_of_numbers()?;
    let mut added = length;
    let mut deleted = Id::MIN;
    if kind != STREAM {
        input.id_of_numbers()?; // the first
        deleted = input.id_of_numbers()?;
        added = input.number()?;
    }
    if length != stream.len() as u64 || last < stream.tip() {
        return Err(Error::Format);
    }
    stream.set_last(last, Some(added), Some(deleted));
    let (mut read, mut elements) = (Vec::new(), stream.len());
    for _ in 0..input.number()? {
        let group = read_group(input, kind)?;
        elements += 1 + group.consumers.len() + group.pending.len();
        if elements > COLLECTION_ELEMENTS_MAX {
            return Err(Error::Collection(crate::Error::Full));
        }
        read.push(group);
    }
    finish(stream, &mut read, kind)
}

fn is_full(stream: &Stream<'_>) -> bool {
    stream.len() > COLLECTION_ELEMENTS_MAX || stream.new.len() > VALUE_BYTES_MAX
}

fn finish(mut stream: Stream<'_>, read: &mut [Read], kind: u8) -> Result<Vec<u8>, Error> {
    let mut groups = Vec::new();
    // The consumers are sorted, so that each one is inserted at the end.
    read.sort_by(|a, b| Text::of(&a.name).compare(&Text::of(&b.name)));
    for group in read {
        let mut made = Group::new(Text::of(&group.name), group.last, group.read);
        if kind == STREAM {
            made.read = stream.distance(group.last);
        }
        let consumers = group.consumers.iter();
        made.consumers = consumers
            .map(|(name, seen_at_ms, active_at_ms)| Consumer {
                name: Text::of(name),
                seen_at_ms: *seen_at_ms,
                active_at_ms: *active_at_ms,
            })
            .collect();
        made.pending = std::mem::take(&mut group.pending);
        if !groups::insert(&mut groups, made) {
            return Err(Error::Format);
        }
    }
    if !groups.is_empty() {
        stream.set_groups(&groups);
    }
    let mut built = Built::default();
    stream.store(&mut built)?;
    Ok(built.0)
}

/// Appends the entries of a node, until the stream is full: an entry may repeat all fields.
fn read_node(stream: &mut Stream<'_>, node: Id, items: &[Vec<u8>]) -> Option<()> {
    let mut rest = items.iter();
    let mut number = || integer(rest.next()?);
    let (count, deleted, fields) = (number()?, number()?, number()?);
    let fields = usize::try_from(fields).ok()?;
    let common: Vec<Text<'_>> = rest
        .by_ref()
        .take(fields)
        .map(|item| Text::of(item))
        .collect();
    if common.len() != fields || integer(rest.next()?)? != 0 {
        return None;
    }
    let mut counts = (0, 0);
    while let Some(flags) = rest.next() {
        let flags = integer(flags)?;
        let id = Id {
            ms: node.ms.wrapping_add_signed(integer(rest.next()?)?),
            seq: node.seq.wrapping_add_signed(integer(rest.next()?)?),
        };
        let mut pairs = Vec::new();
        if flags & HAS_COMMON_FIELDS != 0 {
            for field in &common {
                pairs.push((*field, Text::of(rest.next()?)));
            }
        } else {
            for _ in 0..integer(rest.next()?)? {
                pairs.push((Text::of(rest.next()?), Text::of(rest.next()?)));
            }
        }
        rest.next()?; // the number of elements
        if flags & IS_DELETED != 0 {
            counts.1 += 1;
            continue;
        }
        if id <= stream.last() || pairs.is_empty() {
            return None;
        }
        stream.append(id, &pairs);
        counts.0 += 1;
        if is_full(stream) {
            return None;
        }
    }
    (counts == (count, deleted)).then_some(())
}

fn integer(item: &[u8]) -> Option<i64> {
    std::str::from_utf8(item).ok()?.parse().ok()
}

fn read_group(input: &mut Input<'_>, kind: u8) -> Result<Read, Error> {
    let name = input.string()?;
    let last = input.id_of_numbers()?;
    let read = match kind {
        STREAM => None,
        _ => Some(input.number()?).filter(|read| *read != u64::MAX),
    };
    let mut pending: Vec<Pending> = Vec::new();
    let mut places = HashMap::new();
    for _ in 0..input.number()? {
        let id = input.id()?;
        if pending.last().is_some_and(|last| last.id >= id) {
            return Err(Error::Format);
        }
        places.insert(id, pending.len());
        pending.push(Pending {
            id,
            consumer: usize::MAX,
            delivered_at_ms: u64::from_le_bytes(input.array()?),
            deliveries: input.number()?,
        });
    }
    let mut consumers: Vec<(Vec<u8>, u64, Option<u64>)> = Vec::new();
    for _ in 0..input.number()? {
        let name = input.string()?;
        let seen = u64::from_le_bytes(input.array()?);
        let active = match kind {
            STREAM_OF_7_2 => u64::from_le_bytes(input.array()?),
            _ => seen,
        };
        for _ in 0..input.number()? {
            let place = places.remove(&input.id()?).ok_or(Error::Format)?;
            let pending = pending.get_mut(place).ok_or(Error::Format)?;
            pending.consumer = consumers.len();
        }
        consumers.push((name, seen, Some(active).filter(|time| *time != u64::MAX)));
    }
    let mut names: Vec<&Vec<u8>> = consumers.iter().map(|(name, ..)| name).collect();
    names.sort_unstable();
    names.dedup();
    if !places.is_empty() || names.len() != consumers.len() {
        return Err(Error::Format);
    }
    Ok(Read {
        name,
        last,
        read,
        consumers,
        pending,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> Id {
        Id { ms, seq: 0 }
    }

    fn restored(content: &[u8]) -> Result<Vec<u8>, Error> {
        restore(&mut Input::of(content), STREAM_OF_7_0)
    }

    /// Each of a node's entries may repeat its fields, if the stream's first entry has others:
    /// 26 GB from a payload of 1 MB, before the length of the stream was looked at.
    #[test]
    fn repeated_fields_end_at_the_limit_of_a_collection() {
        let wide = "f".repeat(500_000);
        let pairs = [(Text::of(wide.as_bytes()), Text::of(b""))];
        let mut node = Node::of(id(1), &pairs).with(id(1), &[(Text::of(b"a"), Text::of(b"v"))]);
        for ms in 2..52_000 {
            node = node.with(id(ms), &pairs);
        }
        let mut content = Vec::new();
        write_length(&mut content, 1);
        node.write(&mut content);
        let full = Error::Collection(crate::Error::Full);
        assert_eq!(restored(&content), Err(full));
    }

    /// Each node of a dump repeats its fields: one node per entry took tens of gigabytes.
    #[test]
    fn a_dump_is_not_much_longer_than_its_stream() {
        let wide = "f".repeat(100_000);
        let mut stream = Stream::default();
        for ms in 1..20_000 {
            stream.append(id(ms), &[(Text::of(wide.as_bytes()), Text::of(b"v"))]);
        }
        let mut built = Built::default();
        stream.store(&mut built).expect("it fits");
        let mut out = Vec::new();
        write(&mut out, &built.0).expect("a dump");
        assert!(
            out.len() < 4 * built.0.len(),
            "{} of {}",
            out.len(),
            built.0.len()
        );
        let (kind, content) = out.split_first().expect("a type");
        assert_eq!(restore(&mut Input::of(content), *kind), Ok(built.0));
    }

    /// Groups were inserted in the order of the payload, each before all others.
    #[test]
    fn too_many_groups_are_refused_before_they_are_sorted() {
        let mut content = vec![0, 0, 0, 0, 0, 0, 0, 0, 0];
        let groups = COLLECTION_ELEMENTS_MAX + 1;
        write_length(&mut content, groups as u64);
        for n in (0..groups).rev() {
            write_string(&mut content, n.to_string().as_bytes());
            content.extend_from_slice(&[0; 5]);
        }
        let full = Error::Collection(crate::Error::Full);
        assert_eq!(restored(&content), Err(full));
    }
}
