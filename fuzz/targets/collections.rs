//! Collections in one value: no bytes make their decoders, their operations or Redis's
//! serialization panic, or take more memory than a constant times their length. Stored values are
//! read again as they were. A right value keeps all elements that an operation does not name.
#![no_main]

#[path = "footer.rs"]
mod footer;
#[path = "peak.rs"]
mod peak;

use duramen_types::dump::{dump, restore, restore_libraries};
use duramen_types::hll::Log;
use duramen_types::list::{self, End, List};
use duramen_types::{Error, Part, Parts, Sorted, Table, Text, Type, count, find_at_most_once};
use libfuzzer_sys::fuzz_target;

/// Memory of an operation: for each byte of the value, and beside that.
const BYTES_PER_BYTE: usize = 400;
const BYTES_BESIDE: usize = 64 << 10;
/// Memory of a payload's restoration: dump::D1 bounds the decoded strings, and their number.
const RESTORE_BYTES_MAX: usize = 64 << 20;

/// The parts of one collection during an operation.
#[derive(Default)]
struct Root<'p> {
    old: Option<&'p [u8]>,
    new: Option<Vec<u8>>,
}

impl<'p> Parts<'p> for Root<'p> {
    fn get(&self, _: Part) -> Option<&'p [u8]> {
        self.old
    }

    fn put(&mut self, _: Part) -> &mut Vec<u8> {
        self.new.insert(Vec::new())
    }

    fn remove(&mut self, _: Part) {
        self.new = None;
    }
}

/// One operation on a value; returns the new one, `None`: it was removed, or nothing was stored.
fn run<'p>(
    value: &'p [u8],
    work: impl FnOnce(&mut Root<'p>) -> Result<(), Error>,
) -> Result<Option<Vec<u8>>, Error> {
    let mut root = Root {
        old: Some(value),
        new: None,
    };
    work(&mut root)?;
    Ok(root.new)
}

/// Each string that has an integer form is an integer (types::text::T1), and no name is there twice
/// (packed::P1).
fn is_right<'a, I: 'a>(elements: &[(Text<'a>, I)]) -> bool {
    let mut names: Vec<Vec<u8>> = elements
        .iter()
        .map(|(name, _)| name.bytes().to_vec())
        .collect();
    let spelled = elements.iter().zip(&names);
    if !spelled
        .clone()
        .all(|((name, _), bytes)| Text::of(bytes) == *name)
    {
        return false;
    }
    names.sort();
    names.windows(2).all(|pair| pair[0] != pair[1])
}

/// Decodes a value, stores it, and adds and removes the element `name`.
macro_rules! named {
    ($value:expr, $name:expr, $kind:expr, $item:ty, $new:expr) => {{
        let (value, name) = ($value, Text::of($name));
        let _ = find_at_most_once::<$item>(value, $name);
        let Ok(decoded) = Table::<'_, $item>::of(Some(value)) else {
            return;
        };
        assert!(count(value, $kind) == Ok(decoded.len()));
        let stored = run(value, |parts| Table::<'_, $item>::load(parts)?.store(parts));
        let Ok(Some(stored)) = stored else {
            assert!(decoded.is_empty() || stored == Err(Error::Full));
            return;
        };
        let again = Table::<'_, $item>::of(Some(&stored)).expect("a stored value");
        assert!(again.elements() == decoded.elements());
        if !is_right(decoded.elements()) {
            return;
        }
        for (name, item) in decoded.elements() {
            let found = find_at_most_once::<$item>(&stored, &name.bytes());
            assert!(found == Ok(Some(*item)));
        }
        let changed = run(&stored, |parts| {
            let mut all = Table::<'_, $item>::load(parts)?;
            all.insert(name, $new);
            all.store(parts)
        });
        let Ok(Some(changed)) = changed else { return };
        assert!(find_at_most_once::<$item>(&changed, $name) == Ok(Some($new)));
        let removed = run(&changed, |parts| {
            let mut all = Table::<'_, $item>::load(parts)?;
            assert!(all.remove([name].into_iter()) == 1);
            all.store(parts)
        });
        let removed = removed.expect("it becomes shorter");
        let left = Table::<'_, $item>::of(removed.as_deref()).expect("a stored value");
        let mut others = decoded.elements().to_vec();
        others.retain(|(other, _)| *other != name);
        assert!(left.elements() == others);
    }};
}

fn hash(value: &[u8], name: &[u8]) {
    named!(value, name, Type::Hash, Text<'_>, Text::Integer(7));
}

fn set(value: &[u8], name: &[u8]) {
    named!(value, name, Type::Set, (), ());
}

fn scores(value: &[u8], name: &[u8]) {
    named!(value, name, Type::SortedSet, f64, 2.5);
}

/// The order of a sorted set.
fn is_in_order(elements: &[(Text<'_>, f64)]) -> bool {
    elements.is_sorted_by(|(one, score), (other, to)| {
        (score, one.bytes().to_vec()) <= (to, other.bytes().to_vec())
    })
}

/// Changes a sorted set; the order of a right one holds (sorted::S1).
fn sorted(value: &[u8], name: &[u8]) {
    let Ok(mut decoded) = Sorted::of(Some(value)) else {
        return;
    };
    let was_in_order = is_in_order(decoded.elements());
    decoded.set(Text::of(name), f64::from(name.len() as u32));
    decoded.remove_ranks(0..1);
    assert!(!was_in_order || is_in_order(decoded.elements()));
}

fn list(value: &[u8], items: &[u8]) {
    let items: Vec<&[u8]> = items.chunks(3).collect();
    let (end, other) = match items.len() % 2 {
        0 => (End::Head, End::Tail),
        _ => (End::Tail, End::Head),
    };
    let _ = list::range(value, items.len(), 5);
    let _ = run(value, |parts| {
        list::pop(parts, other, items.len()).map(drop)
    });
    let Ok(before) = List::of(Some(value)) else {
        return;
    };
    let pushed = run(value, |parts| {
        list::push(parts, end, items.iter().copied()).map(drop)
    });
    let Ok(Some(pushed)) = pushed else { return };
    let after = List::of(Some(&pushed)).expect("a stored value");
    assert!(after.items.len() == before.items.len() + items.len());
    let mut popped = Vec::new();
    let rest = run(&pushed, |parts| {
        let all = list::pop(parts, end, items.len())?.into_iter();
        popped.extend(all.rev().map(|item| item.bytes().to_vec()));
        Ok(())
    });
    assert!(popped == items);
    let rest = rest.expect("a stored value");
    let rest = List::of(rest.as_deref()).expect("a stored value");
    assert!(rest.items == before.items);
}

fn log(value: &[u8], string: &[u8]) {
    let Ok(mut log) = Log::of(value) else { return };
    let (before, changed) = (log.count(), log.add(string));
    assert!(changed || log.count() == before);
    let mut stored = Vec::new();
    log.encode(&mut stored);
    let again = Log::of(&stored).expect("a stored log");
    assert!(again.count() == log.count());
}

/// A restored value is serialized, and restored as it was; but the form of streams that is written
/// has no times at which consumers were active.
fn payload(content: &[u8]) {
    let payload = footer::sealed(content);
    let _ = restore_libraries(&payload);
    let Ok((value, is_typed)) = restore(&payload) else {
        return;
    };
    let dumped = dump(&value, is_typed).expect("a right value");
    let (again, is_still_typed) = restore(&dumped).expect("a right payload");
    assert!(is_still_typed == is_typed);
    assert!(dump(&again, is_typed).as_ref() == Ok(&dumped));
    let is_stream = is_typed && Type::of(&value) == Some(Type::Stream);
    assert!(is_stream || again == value);
}

fuzz_target!(|data: &[u8]| {
    let [kind, number, rest @ ..] = data else {
        return;
    };
    let (name, bytes) = rest.split_at(usize::from(number % 32).min(rest.len()));
    let typed = |kind: Type| [&[kind as u8][..], bytes].concat();
    let bytes_max = BYTES_BESIDE + BYTES_PER_BYTE * rest.len();
    match kind % 7 {
        0 => peak::bounded(bytes_max, || hash(&typed(Type::Hash), name)),
        1 => peak::bounded(bytes_max, || set(&typed(Type::Set), name)),
        2 => peak::bounded(bytes_max, || scores(&typed(Type::SortedSet), name)),
        3 => peak::bounded(bytes_max, || sorted(&typed(Type::SortedSet), name)),
        4 => peak::bounded(bytes_max, || list(&typed(Type::List), name)),
        5 => peak::bounded(bytes_max, || log(bytes, name)),
        _ => peak::bounded(RESTORE_BYTES_MAX, || payload(bytes)),
    }
});
