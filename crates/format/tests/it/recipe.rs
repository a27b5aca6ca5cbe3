//! Recipes: a recipe and its victims are the survivor, whatever was compacted in memory before.

use duramen_base::ids::{PartKey, SegmentId, TableId};
use duramen_format::certificate::Certificate;
use duramen_format::entry::{self, NewObject, NewTombstone};
use duramen_format::recipe::{self, Build, Fate, Fates, Parts, RecipeError};
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use proptest::prelude::*;
use std::collections::HashMap;

fn header(segment: u64, kind: Kind) -> Header {
    Header {
        kind,
        segment: SegmentId(segment),
        log: 1,
        head: 0,
        capacity: 1 << 20,
    }
}

/// An entry to write: table, key, value (`None`: a tombstone), and whether it names a victim.
type Drawn = (u32, Vec<u8>, Option<Vec<u8>>, bool);

fn drawn() -> impl Strategy<Value = Drawn> {
    let bytes = |least, most| proptest::collection::vec(any::<u8>(), least..most);
    let tables = || prop_oneof![Just(3u32), Just(700)];
    let part = (
        tables().prop_map(|table| TableId(table).parts().0),
        bytes(PartKey::BYTES, PartKey::BYTES + 1),
    );
    (
        prop_oneof![(tables(), bytes(0, 300)), part],
        proptest::option::weighted(0.8, bytes(0, 90)),
        any::<bool>(),
    )
        .prop_map(|((table, key), value, names)| (table, key, value, names))
}

fn segment(id: u64, entries: &[Drawn]) -> Vec<u8> {
    let mut bytes = header(id, Kind::Head).encode().to_vec();
    for (n, (table, key, value, names)) in entries.iter().enumerate() {
        let start = bytes.len();
        let version = n as u64 + 2;
        let victim = SegmentId(if *names { 77 } else { 0 });
        match value {
            Some(value) => {
                let object = NewObject {
                    table: *table,
                    version,
                    expires_at_ms: (n % 3 == 0 && !TableId(*table).is_parts()).then_some(9),
                    key,
                    value,
                    victim,
                    is_typed: false,
                };
                bytes.resize(start + object.padded_bytes(), 0);
                object.write_to(&mut bytes[start..]);
            }
            None => {
                let tombstone = NewTombstone {
                    table: *table,
                    version,
                    key,
                    victim,
                };
                bytes.resize(start + tombstone.padded_bytes(), 0);
                tombstone.write_to(&mut bytes[start..]);
            }
        }
    }
    bytes
}

/// Copies the entries of a segment as a cleaner does.
fn clean(bytes: &[u8], fates: &[Fate], into: &mut Vec<u8>) {
    let mut at = HEADER_BYTES;
    for fate in fates {
        let entry = entry::parse(&bytes[at..]).expect("a whole entry");
        match fate {
            Fate::Dropped => {}
            Fate::Kept => into.extend_from_slice(&bytes[at..at + entry.padded_bytes]),
            Fate::Buried => {
                let tombstone = NewTombstone::of_dead(&entry);
                let start = into.len();
                into.resize(start + tombstone.padded_bytes(), 0);
                tombstone.write_to(&mut into[start..]);
            }
        }
        at += entry.padded_bytes;
    }
    assert_eq!(at, bytes.len());
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![Just(Fate::Dropped), Just(Fate::Kept), Just(Fate::Buried)]
}

fn build(recipe: &[u8], victims: &HashMap<u64, Vec<u8>>) -> Result<Vec<u8>, RecipeError> {
    let mut build = Build::begin(&header(99, Kind::Survivor));
    for (part, certificate) in recipe::decode(recipe)? {
        let bytes = &victims[&part.victim.0];
        assert_eq!(certificate, Certificate::of(bytes));
        build.take(&part, bytes)?;
    }
    Ok(build.end())
}

proptest! {
    /// Segments are compacted in memory once or not, then a pass cleans them into one survivor.
    #[test]
    fn a_recipe_and_its_victims_are_the_survivor(
        segments in proptest::collection::vec(
            proptest::collection::vec((drawn(), fate(), fate()), 0..40), 1..5),
        compacted: bool,
    ) {
        let mut survivor = header(99, Kind::Survivor).encode().to_vec();
        let (mut parts, mut victims) = (Parts::default(), HashMap::new());
        for (id, entries) in (1..).zip(&segments) {
            let drawn: Vec<Drawn> = entries.iter().map(|(drawn, ..)| drawn.clone()).collect();
            let original = segment(id, &drawn);
            let first = entries.iter().map(|(_, first, _)| if compacted { *first } else { Fate::Kept });
            let first: Vec<Fate> = first.collect();
            let mut memory = original[..HEADER_BYTES].to_vec();
            clean(&original, &first, &mut memory);
            let mut left = Fates::default();
            for (n, fate) in (0..).zip(&first) {
                prop_assert!(*fate == Fate::Dropped || left.add(n, *fate));
            }
            // The pass sees the entries that are left, in their order.
            let (mut second, mut n) = (Vec::new(), 0);
            loop {
                n = left.next_left(n);
                if n == left.len() {
                    break;
                }
                let fate = entries[n as usize].2;
                second.push(fate);
                if fate != Fate::Dropped {
                    parts.add(SegmentId(id), n, left.get(n).then(fate)); // recipe::R2
                }
                n += 1;
            }
            clean(&memory, &second, &mut survivor);
            victims.insert(id, original);
        }
        let certificate = |id: SegmentId| Some(Certificate::of(&victims[&id.0]));
        let recipe = parts.encode(certificate).expect("all victims are known");
        prop_assert_eq!(build(&recipe, &victims), Ok(survivor));
        let whole = recipe::decode(&recipe).expect("just encoded").len();
        for cut in 0..recipe.len() {
            prop_assert!(recipe::decode(&recipe[..cut]).is_ok_and(|parts| parts.len() < whole)
                || recipe::decode(&recipe[..cut]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_a_recipe_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let victim = segment(1, &[(3, vec![1], Some(vec![2]), true)]);
        for (part, _) in recipe::decode(&bytes).unwrap_or_default() {
            let _ = Build::begin(&header(9, Kind::Survivor)).take(&part, &victim);
        }
    }
}

#[test]
fn an_entry_out_of_order_begins_a_part() {
    let mut parts = Parts::default();
    for n in [4, 6, 5, 9] {
        parts.add(SegmentId(1), n, Fate::Kept);
    }
    let recipe = parts.encode(|_| Some(Certificate::EMPTY)).unwrap();
    let decoded = recipe::decode(&recipe).unwrap();
    let parts = decoded.iter();
    let parts: Vec<(u32, u32)> = parts
        .map(|(part, _)| (part.from, part.fates.len()))
        .collect();
    assert_eq!(parts, [(4, 3), (5, 5)]);
}

#[test]
fn a_segment_with_too_few_entries_is_refused() {
    let victim = segment(1, &[(3, vec![1], Some(vec![2]), true)]);
    let mut parts = Parts::default();
    parts.add(SegmentId(1), 1, Fate::Kept);
    let recipe = parts.encode(|_| Some(Certificate::of(&victim))).unwrap();
    let built = build(&recipe, &HashMap::from([(1, victim)]));
    assert_eq!(built, Err(RecipeError::TooFew { has: 1, named: 2 }));
}

#[test]
fn a_recipe_of_too_many_parts_is_neither_made_nor_read() {
    let with = |victims: u64| {
        let mut parts = Parts::default();
        for victim in 1..=victims {
            parts.add(SegmentId(victim), 0, Fate::Kept);
        }
        parts.encode(|_| Some(Certificate::EMPTY))
    };
    assert_eq!(with(recipe::PARTS_MAX as u64 + 1), None);
    let mut most = with(recipe::PARTS_MAX as u64).unwrap();
    assert_eq!(recipe::decode(&most).unwrap().len(), recipe::PARTS_MAX);
    most.extend_from_within(..25);
    assert_eq!(recipe::decode(&most), Err(RecipeError::TooManyParts));
}
