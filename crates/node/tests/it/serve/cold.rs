//! Requests for data on flash (serve::X8): they do nothing while they wait, and are executed once,
//! by the view at that time.

use crate::serve::enumerate::single;
use crate::serve::world::{Got, SINCE, World, reply, rpc, view};
use duramen_base::ids::{KeyRange, MapVersion, RouteHash};
use duramen_engine::flash::Cold;
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, MultiRequest, Parsed, decode_request, parse_frame,
};
use duramen_wire::native::message::{
    Amount, Answer, Condition, Expiry, Operation, Request, Single,
};
use std::collections::BTreeSet;

const KEYS: u64 = 16_000;
const VALUE_BYTES: usize = 800;
/// More rounds than any request needs.
const ROUNDS_MAX: usize = 10_000;

fn key(n: u64) -> Vec<u8> {
    format!("key:{n:08}").into_bytes()
}

/// A value that begins with a number for increments.
fn value(n: u64) -> Vec<u8> {
    let mut value = format!("{n}").into_bytes();
    if n.is_multiple_of(2) {
        value.push(b' ');
        value.resize(VALUE_BYTES, b'x');
    }
    value
}

/// Numbers and texts in turn, several times the size of memory.
fn filled() -> World {
    let mut world = World::tiered();
    for n in 0..KEYS {
        let got = world.do_now(&put(&key(n), &value(n), Condition::Always));
        assert!(matches!(got, Got::Written(_)), "{got:?}");
        if n.is_multiple_of(200) {
            world.commit();
        }
    }
    world.commit();
    world.lease(&[1]);
    let flash = world.store.stats().flash;
    assert!(flash.segments_demoted > 0, "{flash:?}");
    world
}

fn put<'a>(key: &'a [u8], value: &'a [u8], condition: Condition) -> Single<'a> {
    let operation = Operation::Write {
        value,
        condition,
        expiry: Expiry::Never,
    };
    single(key, operation)
}

fn add(key: &[u8], id: u64) -> Single<'_> {
    let by = Amount::Integer(1);
    Single {
        rpc: rpc(1, id, id.saturating_sub(1)),
        ..single(key, Operation::Increment { by })
    }
}

fn sum(got: &Got) -> Option<i64> {
    match got {
        Got::Number(Amount::Integer(sum), _) => Some(*sum),
        _ => None,
    }
}

/// The first number from `from` on that is on flash, and the data that a request for it waits for.
fn cold_number(world: &mut World, from: u64) -> (u64, Vec<Cold>) {
    let numbers = (from..KEYS).filter(|n| n % 2 == 1);
    let mut found = numbers.map(|n| {
        let key = key(n);
        let read = Request::Single(single(&key, Operation::Read));
        (n, world.show(SINCE, &read, &[]).err())
    });
    let cold = found.find_map(|(n, wanted)| wanted.map(|wanted| (n, wanted)));
    cold.expect("most of it lies on flash")
}

/// Increments, conditions and removals of keys on flash, each repeated while it waits and after it.
/// `Err`: one was not done exactly once.
pub(crate) fn each_operation_once() -> Result<(), String> {
    let mut world = filled();
    let mut at = 1;
    for id in 2..30 {
        let n = cold_number(&mut world, at).0;
        at = n + 1;
        let key = key(n);
        let asked = add(&key, id);
        let request = Request::Single(asked);
        let mut lent = Vec::new();
        let out = loop {
            // One wait; more only for data that a cleaner moves meanwhile.
            match world.show(SINCE, &request, &lent) {
                Ok(out) => break out,
                Err(wanted) => lent.extend(wanted.iter().map(|cold| world.read(*cold))),
            }
            assert!(!world.servant.is_waiting(), "it has left something behind");
            if id.is_multiple_of(2) {
                // A copy on another connection comes first.
                match world.do_now(&asked) {
                    got if sum(&got) == Some(n as i64 + 1) => {}
                    got => return Err(format!("the copy of {n}: {got:?}")),
                }
                world.commit();
            }
        };
        let Answer::Single(outcome) = reply(&out) else {
            return Err("an answer to something else".to_owned());
        };
        let got = Got::of(&outcome);
        if sum(&got) != Some(n as i64 + 1) {
            return Err(format!("{n}: {got:?}"));
        }
        world.commit();
        let again = world.do_now(&asked);
        if sum(&again) != Some(n as i64 + 1) {
            return Err(format!("{n} again: {again:?}"));
        }
    }
    Ok(())
}

#[test]
fn what_waits_for_flash_is_executed_once() {
    each_operation_once().unwrap();
}

#[test]
fn conditions_and_removals_judge_what_lies_on_flash() {
    let mut world = filled();
    let mut versions = Vec::new();
    for n in (0..KEYS).step_by(97) {
        match world.do_now(&single(&key(n), Operation::Read)) {
            Got::Value(found, version, None) if found == value(n) => versions.push((n, version)),
            got => panic!("{n}: {got:?}"),
        }
    }
    assert!(world.parked > 0, "nothing of it lay on flash");
    for (n, version) in versions {
        let (key, wrong) = (key(n), Condition::Version(version + 1));
        let refused = [
            put(&key, b"new", Condition::Absent),
            put(&key, b"new", wrong),
            single(&key, Operation::Remove { condition: wrong }),
        ];
        for refused in refused {
            assert_eq!(world.do_now(&refused), Got::Failed(Some(version)), "{n}");
        }
        let right = Condition::Version(version);
        match n % 3 {
            0 => {
                let got = world.do_now(&single(&key, Operation::Remove { condition: right }));
                assert_eq!(got, Got::Removed(version));
                assert_eq!(world.do_now(&single(&key, Operation::Read)), Got::Absent);
            }
            _ => {
                let got = world.do_now(&put(&key, b"new", right));
                assert!(
                    matches!(got, Got::Written(newer) if newer > version),
                    "{got:?}"
                );
            }
        }
        world.commit();
    }
}

/// serve::X1, serve::X2: while the request waits, the key goes to another server, and comes back.
#[test]
fn who_waits_for_flash_is_served_by_the_view_of_then() {
    let mut world = filled();
    let (n, wanted) = cold_number(&mut world, 1);
    let key = key(n);
    let request = Request::Single(add(&key, 2));
    let lent: Vec<_> = wanted.iter().map(|cold| world.read(*cold)).collect();
    let nobody = KeyRange::new(RouteHash(0), RouteHash(0));
    let shown = |world: &mut World, map| {
        let out = world.show(map, &request, &lent).unwrap();
        match reply(&out) {
            Answer::Single(outcome) => Got::of(&outcome),
            other => panic!("{other:?}"),
        }
    };
    world.view = view(nobody);
    let gone = shown(&mut world, SINCE);
    assert!(!matches!(gone, Got::Number(..)), "{gone:?}");
    world.view = view(KeyRange::ALL);
    assert_eq!(shown(&mut world, SINCE - 1), Got::UnknownTablet, "X2");
    let out = world.frame(SINCE, &request);
    let Answer::Single(outcome) = reply(&out) else {
        panic!("an answer to something else");
    };
    assert_eq!(sum(&Got::of(&outcome)), Some(n as i64 + 1));
}

fn multi(singles: &[Single<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let envelope = Envelope::of_client(77, crate::serve::world::ME, MapVersion(SINCE));
    let mut request = MultiRequest::new(&mut out, &envelope);
    singles.iter().for_each(|single| request.push(single));
    request.finish();
    out
}

/// Increments of many keys in one request, of which some are on flash, more than may be read at
/// once. None has an id. `Err`: one was not done exactly once.
pub(crate) fn parts_once() -> Result<(), String> {
    let mut world = filled();
    world.fetch_bytes = 8 << 10;
    let keys: Vec<Vec<u8>> = (0..KEYS).skip(1).step_by(158).map(key).collect();
    let mut left: Vec<(usize, u64)> = (0..KEYS).skip(1).step_by(158).enumerate().collect();
    let mut rounds = 0;
    while !left.is_empty() {
        rounds += 1;
        let parts: Vec<Single<'_>> = left
            .iter()
            .map(|(at, _)| {
                let by = Amount::Integer(1);
                single(&keys[*at], Operation::Increment { by })
            })
            .collect();
        let bytes = multi(&parts);
        let Ok(Parsed::Frame { frame, .. }) = parse_frame(&bytes, CLIENT_FRAME_BYTES_MAX) else {
            panic!("no frame");
        };
        let request = decode_request(&frame).unwrap().unwrap();
        let out = world.frame(SINCE, &request);
        world.commit();
        let Answer::Multi(outcomes) = reply(&out) else {
            panic!("no outcomes");
        };
        let before = left.len();
        let mut outcomes = outcomes.iter();
        let mut wrong = None;
        left.retain(|(_, n)| {
            let got = Got::of(&outcomes.next().expect("one for each"));
            if sum(&got).is_some_and(|sum| sum != *n as i64 + 1) {
                wrong = Some(format!("{n}: {got:?}"));
            }
            got == Got::Retry
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if left.len() == before {
            return Err("it does not come further".to_owned());
        }
    }
    assert!(world.parked > 0 && rounds > 1, "{rounds} rounds");
    Ok(())
}

#[test]
fn parts_of_a_request_are_done_once_whatever_they_wait_for() {
    parts_once().unwrap();
}

#[test]
fn enumerations_show_what_lies_on_flash() {
    let mut world = filled();
    for fetch_bytes in [1 << 20, 4 << 10] {
        world.fetch_bytes = fetch_bytes;
        let (mut cursor, mut keys) = (Some(0), BTreeSet::new());
        let mut rounds = 0;
        while let Some(at) = cursor {
            let objects = world.enumerate(KeyRange::ALL, at, 64 << 10).unwrap();
            for key in objects.keys {
                assert!(keys.insert(key), "shown twice");
            }
            assert!(objects.cursor.is_none_or(|next| next > at));
            cursor = objects.cursor;
            rounds += 1;
            assert!(rounds < ROUNDS_MAX);
        }
        assert_eq!(keys.len() as u64, KEYS);
    }
    assert!(world.parked > 0);
}
