//! Streams: no bytes make their decoders or Redis's serialization panic, damaged values included;
//! what is changed and stored is read again.
#![no_main]

#[path = "footer.rs"]
mod footer;

use duramen_types::dump::{dump, restore};
use duramen_types::stream::{Id, Rough, Trim};
use duramen_types::{Error, Part, Parts, Stream, Text, Type};
use libfuzzer_sys::fuzz_target;

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

    fn remove(&mut self, _: Part) {}
}

/// Changes a value as `byte` says; returns the new one.
fn change(value: &[u8], byte: u8) -> Result<Vec<u8>, Error> {
    let mut stream = Stream::of(Some(value))?;
    let number = usize::from(byte >> 3);
    match byte & 7 {
        0 => drop(stream.trim(Trim::Length(number), None)?),
        1 => {
            let rough = Rough {
                node_entries: 1 + number % 4,
                limit: number,
            };
            stream.trim(Trim::Before(stream.tip()), Some(rough))?;
        }
        2 => drop(stream.remove(&[stream.first(), stream.tip()])?),
        3 => {
            let mut groups = stream.groups()?;
            for group in &mut groups {
                let place = group.seen(Text::Integer(number as i64), 1);
                let id = group.last.next().unwrap_or(Id::MAX);
                stream.note_read(group, id);
                group.give([id].into_iter(), place, 2);
                let _ = stream.lag(group);
            }
            stream.set_groups(&groups);
        }
        _ => {
            if let Some(id) = stream.last().next() {
                stream.append(id, &[(Text::Integer(byte.into()), Text::Bytes(b"value"))]);
            }
        }
    }
    let mut root = Root::default();
    stream.store(&mut root)?;
    Ok(root.0)
}

/// Reads everything in a value; false if it is damaged.
fn read(value: &[u8]) -> bool {
    let Ok(stream) = Stream::of(Some(value)) else {
        return false;
    };
    let mut tip = Id::MIN;
    let entries = stream.entries().map(|entry| {
        let entry = entry?;
        tip = entry.id;
        stream.pairs(&entry).map(drop)
    });
    let is_read = entries.collect::<Result<Vec<()>, Error>>().is_ok();
    let is_right = is_read && tip == stream.tip() && stream.groups().is_ok();
    let _ = stream.range_back(Id::MIN, Id::MAX, 3);
    let _ = stream.find([stream.first(), stream.tip()]);
    is_right
}

fuzz_target!(|data: &[u8]| {
    let Some((number, data)) = data.split_first() else {
        return;
    };
    let (changes, bytes) = data.split_at(usize::from(number % 16).min(data.len()));
    let _ = restore(&footer::sealed(bytes));
    let mut value = [&[Type::Stream as u8][..], bytes].concat();
    for byte in changes {
        let was_right = read(&value);
        match change(&value, *byte) {
            Ok(changed) => {
                assert!(!was_right || read(&changed));
                value = changed;
            }
            Err(error) => assert!(!was_right || error == Error::Full),
        }
    }
    if let Ok(dumped) = dump(&value, true) {
        let _ = restore(&dumped);
    }
});
