//! Golden bytes of values that name parts, and damaged ones.

use super::*;
use proptest::prelude::*;
use std::iter::{empty, once};

const HOME: Home = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
const OTHER: Home = Home::from_bytes([0x8d, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]);

type Lists = Vec<(Home, Vec<u64>)>;

fn homes_of(
    lists: &[(Home, Vec<u64>)],
) -> impl ExactSizeIterator<Item = (Home, std::vec::IntoIter<u64>)> {
    let homes = lists.iter();
    homes.map(|(home, tops)| (*home, tops.clone().into_iter()))
}

/// Form, children, homes and body of sound names.
fn shown<'a>(names: &Names<'a>) -> (Form, Vec<u64>, Lists, &'a [u8]) {
    let homes = names.homes().map(|(home, tops)| (home, tops.collect()));
    let (children, homes) = (names.children().collect(), homes.collect());
    (names.form(), children, homes, names.body())
}

fn root(lists: &[(Home, Vec<u64>)]) -> Vec<u8> {
    let mut value = Vec::new();
    begin_root(&mut value, 3, homes_of(lists));
    value.extend_from_slice(b"body");
    value
}

#[test]
fn golden_bytes_of_roots() {
    let lists = vec![(HOME, vec![5, 4, 300]), (OTHER, vec![])];
    let value = root(&lists);
    let (home, other) = (&HOME.as_bytes()[..], &OTHER.as_bytes()[..]);
    let wanted = [
        &b"\x83\0\x02"[..],
        home,
        b"\x03\x0a\x01\xd0\x04",
        other,
        b"\0body",
    ];
    assert_eq!(value, wanted.concat());
    let names = names(&value, true).expect("sound names");
    assert_eq!(shown(&names), (Form::Root, vec![], lists, &b"body"[..]));
    assert!(has_parts(&value, true) && !has_parts(&value, false));
    assert!(!has_parts(b"\x03body", true) && !has_parts(b"", true));
}

#[test]
fn golden_bytes_of_nodes() {
    let mut inner = Vec::new();
    begin_inner(&mut inner, [7, 1, PartKey::NUMBER_MAX].into_iter());
    assert_eq!(inner, b"\x01\x03\x0e\x0b\xfc\xff\xff\xff\xff\x3f\0");
    inner.extend_from_slice(b"body");
    let names = names_under(HOME.key(9), &inner).expect("sound names");
    let children = vec![7, 1, PartKey::NUMBER_MAX];
    assert_eq!(shown(&names), (Form::Inner, children, vec![], &b"body"[..]));

    let mut leaf = Vec::new();
    begin_leaf(&mut leaf, homes_of(&[]));
    leaf.push(b'e');
    assert_eq!(leaf, b"\0e");
    let names = names_under(HOME.key(9), &leaf).expect("sound names");
    assert_eq!(shown(&names), (Form::Leaf, vec![], vec![], &b"e"[..]));

    let (mut leaf, lists) = (Vec::new(), vec![(OTHER, vec![1])]);
    begin_leaf(&mut leaf, homes_of(&lists));
    leaf.push(b'e');
    let wanted = [&b"\x02\0\x01"[..], &OTHER.as_bytes()[..], b"\x01\x02e"];
    assert_eq!(leaf, wanted.concat());
    let names = names_under(HOME.key(9), &leaf).expect("sound names");
    assert_eq!(shown(&names), (Form::Leaf, vec![], lists, &b"e"[..]));
}

#[test]
fn golden_bytes_of_records() {
    let mut dying = Vec::new();
    append_dying(&mut dying, HOME, [2].into_iter());
    let wanted = [&b"\x10\0\x01"[..], &HOME.as_bytes()[..], b"\x01\x04"];
    assert_eq!(dying, wanted.concat());
    let names = names_under(HOME.key(0), &dying).expect("sound names");
    let lists = vec![(HOME, vec![2])];
    assert_eq!(shown(&names), (Form::Dying, vec![], lists, &b""[..]));
    assert_eq!(names.building(), None);

    let mut building = Vec::new();
    append_building(&mut building, 0x01_0203_0405, b"user:7");
    assert_eq!(building, b"\x11\0\0\x01\x02\x03\x04\x05user:7");
    let names = names_under(HOME.key(0), &building).expect("sound names");
    assert_eq!(names.form(), Form::Building);
    assert_eq!(names.building(), Some((0x01_0203_0405, &b"user:7"[..])));
}

/// part::K4: a form in a wrong place, with names that it does not have, or without those that it
/// has.
#[test]
fn values_of_a_wrong_form_are_damaged() {
    let (mut inner, mut dying, mut building) = (Vec::new(), Vec::new(), Vec::new());
    begin_inner(&mut inner, [7].into_iter());
    append_dying(&mut dying, HOME, [2].into_iter());
    append_building(&mut building, 1, b"");
    let root = root(&[(HOME, vec![1])]);
    assert!(names(&root, true).is_some() && names(&root, false).is_none());
    for value in [&inner, &b"\0".to_vec()] {
        assert!(names_under(HOME.key(1), value).is_some());
        assert!(names_under(HOME.key(0), value).is_none(), "not a record");
        assert!(names(value, true).is_none(), "not a root");
    }
    for value in [&dying, &building] {
        assert!(names_under(HOME.key(0), value).is_some());
        assert!(names_under(HOME.key(1), value).is_none(), "a record");
        assert!(names(value, true).is_none(), "not a root");
    }
    assert!(names_under(OTHER.key(0), &dying).is_none(), "another home");
    let longer = [&dying[..], b"x"].concat();
    let shorter = &building[..building.len() - 1];
    let (mut childless, mut homeless) = (Vec::new(), vec![ROOT | 3]);
    begin_inner(&mut childless, empty());
    append_names(&mut homeless, empty(), no_homes());
    for value in [&longer[..], shorter, &childless, b"", b"\x03", b"\x7f"] {
        assert!(names(value, false).is_none(), "{value:?}");
    }
    assert!(names(&homeless, true).is_none());
    for tag in [INNER, DYING, BUILDING, LEAF_WITH_HOMES] {
        let mut value = vec![tag];
        append_names(&mut value, once(1), once((HOME, empty())));
        value.extend_from_slice(b"long enough");
        assert!(names(&value, false).is_none(), "{tag:#x} with both");
    }
}

#[test]
fn wrong_numbers_are_damaged() {
    // 0; one above the largest; below 0; a longer form than needed; more than 64 bits; cut.
    let above = b"\x01\x01\x80\x80\x80\x80\x80\x40\0";
    let long = b"\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x03\0";
    let wrong: [&[u8]; 8] = [
        b"\x01\x01\0\0",
        above,
        b"\x01\x01\x01\0",
        b"\x01\x01\x8e\0\0",
        long,
        b"\x01\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\0\0",
        b"\x01\x01\x8e",
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02",
    ];
    for value in wrong {
        assert!(names(value, false).is_none(), "{value:x?}");
    }
    let largest = b"\x01\x01\xfe\xff\xff\xff\xff\x3f\0";
    let names = names(largest, false).expect("sound names");
    assert_eq!(names.children().last(), Some(PartKey::NUMBER_MAX));
}

#[test]
fn no_cut_of_names_passes() {
    let whole = root(&[(HOME, vec![5, 70_000]), (OTHER, vec![1])]);
    let end = whole.len() - b"body".len();
    for cut in 0..end {
        assert!(names(&whole[..cut], true).is_none(), "cut at {cut}");
    }
    assert!(names(&whole[..end], true).is_some());
}

fn numbers(most: usize) -> impl Strategy<Value = Vec<u64>> {
    let number = prop_oneof![1..200u64, 1..=PartKey::NUMBER_MAX];
    proptest::collection::vec(number, 0..most)
}

/// Writes these names anew.
fn again(names: &Names<'_>, tag: u8) -> Vec<u8> {
    let mut value = Vec::new();
    match names.form() {
        Form::Root => begin_root(&mut value, tag & !ROOT, names.homes()),
        Form::Inner => begin_inner(&mut value, names.children()),
        Form::Leaf => begin_leaf(&mut value, names.homes()),
        Form::Dying => {
            for (home, tops) in names.homes() {
                append_dying(&mut value, home, tops);
            }
        }
        Form::Building => {
            value.push(BUILDING);
            append_names(&mut value, empty(), no_homes());
        }
    }
    value.extend_from_slice(names.body());
    value
}

proptest! {
    #[test]
    fn written_names_are_read(
        children in numbers(300),
        lists in proptest::collection::vec(
            (any::<[u8; Home::BYTES]>().prop_map(Home::from_bytes), numbers(40)), 1..5),
        body in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut value = Vec::new();
        begin_root(&mut value, 9, homes_of(&lists));
        value.extend_from_slice(&body);
        let found = names(&value, true).expect("sound names");
        prop_assert_eq!(shown(&found), (Form::Root, vec![], lists, &body[..]));
        if !children.is_empty() {
            let mut value = Vec::new();
            begin_inner(&mut value, children.iter().copied());
            value.extend_from_slice(&body);
            let found = names(&value, false).expect("sound names");
            prop_assert_eq!(found.children().len(), children.len());
            prop_assert_eq!(shown(&found), (Form::Inner, children, vec![], &body[..]));
        }
    }

    /// Any bytes are refused, or are the only bytes with these names.
    #[test]
    fn what_is_read_is_written_as_it_was(
        tag in prop_oneof![Just(LEAF), Just(INNER), Just(LEAF_WITH_HOMES), Just(DYING),
            Just(BUILDING), Just(ROOT | 1)],
        rest in proptest::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..60),
    ) {
        let value = [&[tag][..], &rest].concat();
        if let Some(found) = names(&value, tag & ROOT != 0) {
            prop_assert_eq!(again(&found, tag), value);
        }
    }
}
