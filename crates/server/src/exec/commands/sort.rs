//! SORT, SORT_RO and LCS.
//!
//! BY and GET read keys that the request does not name. In EXEC they are a part of the step
//! (`drafted`); else they are read one after the other. In a cluster they may lie on another
//! member, so they are refused.

use super::collection::{WRONG_TYPE, Write, at_once, encoded, plain, several_at_once};
use super::drafted::{self, Conflicts};
use super::set::check_result;
use super::zset::parse_score;
use crate::config::EventClasses;
use crate::exec::request::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::exec::request::events::EventName;
use crate::exec::request::spec::{Spec, flag};
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_engine::{Guard, KeyHash, Object, Room};
use duramen_types::lcs::{self, CELLS_MAX};
use duramen_types::list::List;
use duramen_types::table::Set;
use duramen_types::{Sorted, Text, Type, find_at_most_once};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::cmp::Ordering;
use std::time::Instant;

/// Many elements may be sorted by the same long text.
const TOO_LONG_WEIGHTS: Failure =
    Failure::Text("ERR the texts to sort by are together longer than output-limit");

/// Maximum bytes of the keys of patterns that are noted to be fetched from flash together.
const WARM_BYTES_MAX: usize = 64 << 20;
const TOO_MANY_KEYS: Failure =
    Failure::Text("ERR the keys that SORT reads by its patterns are together longer than 64 MiB");
/// Maximum bytes of all hashes that are searched for a field: about two seconds.
const SEARCHED_BYTES_MAX: u64 = 4 << 30;
const TOO_LONG_HASHES: Failure =
    Failure::Text("ERR the hashes that SORT searches for fields are together longer than 4 GiB");
/// The patterns without an option GET.
const ITSELF: &[&[u8]] = &[b"#"];

const STORED: EventName = (EventClasses::LIST, "sortstore");

/// The options of SORT.
#[derive(Default)]
struct Options<'a> {
    by: Option<&'a [u8]>,
    gets: Vec<&'a [u8]>,
    limit: Option<(i64, i64)>,
    descending: bool,
    alphabetic: bool,
    stores: bool,
}

impl<'a> Options<'a> {
    fn parse(spec: &Spec, args: &Args<'a>) -> Result<Options<'a>, Failure> {
        let mut options = Options::default();
        let mut rest = args.skip(2).into_iter();
        while let Some(option) = rest.next() {
            match option.to_ascii_lowercase().as_slice() {
                b"asc" => options.descending = false,
                b"desc" => options.descending = true,
                b"alpha" => options.alphabetic = true,
                b"limit" => {
                    let (start, count) = (rest.next().ok_or(SYNTAX)?, rest.next().ok_or(SYNTAX)?);
                    let start = parse_integer(start).ok_or(NOT_AN_INTEGER)?;
                    options.limit = Some((start, parse_integer(count).ok_or(NOT_AN_INTEGER)?));
                }
                b"store" if spec.has(flag::WRITE) => {
                    rest.next().ok_or(SYNTAX)?;
                    options.stores = true;
                }
                b"by" => options.by = Some(rest.next().ok_or(SYNTAX)?),
                b"get" => options.gets.push(rest.next().ok_or(SYNTAX)?),
                _ => return Err(SYNTAX),
            }
        }
        Ok(options)
    }

    /// The pattern by which it sorts, unless it leaves the elements in their order.
    fn by_pattern(&self) -> Option<&'a [u8]> {
        self.by.filter(|pattern| pattern.contains(&b'*'))
    }

    /// Whether it reads keys that the arguments do not name.
    fn reads_more_keys(&self) -> bool {
        self.by_pattern().is_some() || self.gets.iter().any(|pattern| pattern.contains(&b'*'))
    }
}

/// The elements of a collection, and whether they have an order: that of a list, or of scores.
fn elements(found: Option<Object<'_>>) -> Result<(Vec<Text<'_>>, bool), Failure> {
    let Some(object) = found else {
        return Ok((Vec::new(), false));
    };
    if !object.is_typed {
        return Err(WRONG_TYPE);
    }
    let value = Some(object.value);
    let names = match Type::of(object.value) {
        Some(Type::List) => return Ok((List::of(value)?.items, true)),
        Some(Type::Set) => {
            let set = Set::of(value)?;
            set.elements().iter().map(|(name, ())| *name).collect()
        }
        Some(Type::SortedSet) => {
            let mut set = Sorted::of(value)?;
            let names = set.elements().iter().map(|(name, _)| *name).collect();
            return Ok((names, true));
        }
        _ => return Err(WRONG_TYPE),
    };
    Ok((names, false))
}

/// The key that a pattern means for an element, and the field in it: `*` stands for the element,
/// and `->` is before a field. `None`: the pattern means no key.
fn key_of<'p>(pattern: &'p [u8], element: &[u8]) -> Option<(Vec<u8>, Option<&'p [u8]>)> {
    let star = pattern.iter().position(|byte| *byte == b'*')?;
    let arrow = pattern
        .windows(2)
        .skip(star + 1)
        .position(|pair| pair == b"->");
    let arrow = arrow
        .map(|at| at + star + 1)
        .filter(|at| at + 2 < pattern.len());
    let (key, field) = match arrow {
        Some(at) => (&pattern[..at], Some(&pattern[at + 2..])),
        None => (pattern, None),
    };
    Some(([&key[..star], element, &key[star + 1..]].concat(), field))
}

/// The value that a pattern means for an element. `searched`: the bytes of all hashes that were
/// searched for a field until now.
fn look_up(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    pattern: &[u8],
    element: &[u8],
    searched: &mut u64,
) -> Result<Option<Vec<u8>>, Failure> {
    if pattern == b"#" {
        return Ok(Some(element.to_vec()));
    }
    let Some((key, field)) = key_of(pattern, element) else {
        return Ok(None);
    };
    let Some(object) = guard.read(ctx.table, guard.hash(&key), &key)? else {
        ctx.notify_miss(&key);
        return Ok(None);
    };
    Ok(match field {
        None if !object.is_typed => Some(object.value.to_vec()),
        Some(field) if object.is_typed && Type::of(object.value) == Some(Type::Hash) => {
            *searched += object.value.len() as u64;
            if *searched > SEARCHED_BYTES_MAX {
                return Err(TOO_LONG_HASHES);
            }
            let found = find_at_most_once::<Text<'_>>(object.value, field)?;
            found.map(|text| text.bytes().to_vec())
        }
        _ => None,
    })
}

/// Has all entries on flash that patterns mean fetched together.
fn warm(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    patterns: &[&[u8]],
    elements: &[Text<'_>],
) -> Done {
    if !ctx.local.has_tier() || patterns.is_empty() {
        return Ok(());
    }
    let table = ctx.table;
    let pairs = elements
        .iter()
        .flat_map(|element| patterns.iter().map(move |pattern| (element, *pattern)));
    let (mut keys, mut bytes) = (Vec::new(), 0);
    for (key, _) in pairs.filter_map(|(element, pattern)| key_of(pattern, &element.bytes())) {
        bytes += size_of::<Vec<u8>>() + key.len();
        if bytes > WARM_BYTES_MAX {
            return Err(TOO_MANY_KEYS);
        }
        keys.push(key);
    }
    let keys = keys.iter().map(|key| (table, guard.hash(key), &key[..]));
    ctx.warm(guard, keys)
}

/// An element with the text or the number by which it is sorted.
struct Weighted<'g> {
    element: Text<'g>,
    text: Option<Vec<u8>>,
    number: f64,
}

fn weigh<'g>(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    element: Text<'g>,
    options: &Options<'_>,
    searched: &mut u64,
) -> Result<Weighted<'g>, Failure> {
    let text = match options.by {
        Some(pattern) => look_up(ctx, guard, pattern, &element.bytes(), searched)?,
        None => Some(element.bytes().to_vec()),
    };
    let wrong = Failure::Text("ERR One or more scores can't be converted into double");
    if options.alphabetic {
        let number = 0.0;
        return Ok(Weighted {
            element,
            text,
            number,
        });
    }
    let number = match text.as_deref() {
        Some(text) if !text.is_empty() => parse_score(text).ok_or(wrong)?,
        _ => 0.0,
    };
    let text = None;
    Ok(Weighted {
        element,
        text,
        number,
    })
}

impl Options<'_> {
    fn order(&self, a: &Weighted<'_>, b: &Weighted<'_>) -> Ordering {
        let order = match self.alphabetic {
            true => a.text.cmp(&b.text),
            // There is no NaN; -0 is 0.
            false => a.number.partial_cmp(&b.number).unwrap_or(Ordering::Equal),
        };
        // Equal ones are in the order of their bytes, so that each request sorts alike.
        let order = order.then_with(|| a.element.compare(&b.element));
        if self.descending {
            order.reverse()
        } else {
            order
        }
    }

    /// The sorted elements within the limit.
    fn sorted<'g>(
        &self,
        ctx: &mut Context<'_>,
        guard: &Guard<'_>,
        found: Option<Object<'g>>,
        searched: &mut u64,
    ) -> Result<Vec<Text<'g>>, Failure> {
        let (mut elements, is_ordered) = elements(found)?;
        let is_unsorted = self.by.is_some_and(|pattern| !pattern.contains(&b'*'));
        if !is_unsorted {
            warm(ctx, guard, self.by.as_slice(), &elements)?;
            let mut weighted = Vec::with_capacity(elements.len());
            let mut bytes = 0;
            for element in elements {
                let next = weigh(ctx, guard, element, self, searched)?;
                bytes += next.text.as_ref().map_or(0, Vec::len);
                if bytes > ctx.local.room.bytes_max {
                    return Err(TOO_LONG_WEIGHTS);
                }
                weighted.push(next);
            }
            weighted.sort_by(|a, b| self.order(a, b));
            elements = weighted.iter().map(|weighted| weighted.element).collect();
        } else {
            if !is_ordered {
                elements.sort_by(Text::compare); // the result is the same each time
            }
            if self.descending {
                elements.reverse();
            }
        }
        if let Some((start, count)) = self.limit {
            let start = usize::try_from(start).unwrap_or(0).min(elements.len());
            elements.drain(..start);
            elements.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        }
        Ok(elements)
    }
}

impl Options<'_> {
    /// Whether a result is within the limit of a collection or of the output: many elements may get
    /// the same large value.
    fn check_size(&self, ctx: &Context<'_>, items: usize, bytes: usize) -> Done {
        let most = match self.stores {
            true => VALUE_BYTES_MAX,
            false => ctx.local.room.bytes_max,
        };
        check_result(ctx, self.stores, items)?;
        match bytes > most {
            true if self.stores => Err(duramen_types::Error::Full.into()),
            true => Err(ctx.too_long()),
            false => Ok(()),
        }
    }

    /// Sorts, and replies or returns the list to store.
    fn run(
        &self,
        ctx: &mut Context<'_>,
        guard: &Guard<'_>,
        found: Option<Object<'_>>,
    ) -> Result<Vec<Write>, Failure> {
        let (mut results, mut bytes) = (Vec::<Option<Vec<u8>>>::new(), 0);
        let mut searched = 0;
        let elements = self.sorted(ctx, guard, found, &mut searched)?;
        warm(ctx, guard, &self.gets, &elements)?;
        for element in elements {
            let element = element.bytes();
            let patterns = if self.gets.is_empty() {
                ITSELF
            } else {
                &self.gets
            };
            for pattern in patterns {
                let item = look_up(ctx, guard, pattern, &element, &mut searched)?;
                bytes += item.as_ref().map_or(0, Vec::len);
                results.push(item);
                self.check_size(ctx, results.len(), bytes)?;
            }
        }
        if self.stores {
            let items = results
                .iter()
                .map(|item| item.as_deref().unwrap_or_default());
            let list = List {
                items: items.map(Text::of).collect(),
            };
            ctx.integer(list.items.len() as i64)?;
            let value = encoded(|parts| list.store(parts))?;
            return Ok(vec![Write::result(1, value, true, STORED)]);
        }
        let mut reply = ctx.reply();
        reply.array(results.len());
        for item in &results {
            match item {
                Some(item) => reply.bulk(item),
                None => reply.null(),
            }
        }
        Ok(Vec::new())
    }
}

/// Whether a request is a SORT that reads keys which its arguments do not name.
pub(crate) fn reads_more_keys(spec: &Spec, args: &Args<'_>) -> bool {
    let is_sort = spec.has(flag::MOVABLE) && matches!(spec.name, "sort" | "sort_ro");
    is_sort && Options::parse(spec, args).is_ok_and(|options| options.reads_more_keys())
}

/// SORT with STORE that reads keys by patterns: it reads them before it locks its own two
/// (transaction::T8), and runs again if the sorted collection has changed meanwhile.
fn store_by_patterns(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
    options: &Options<'_>,
) -> Done {
    let (start, effects) = (ctx.out.len(), ctx.client.effects.len());
    let [source, target] = hashes else {
        return Err(SYNTAX);
    };
    let (table, key) = (ctx.table, ctx.arg(1));
    let places = [(table, *source), (table, *target)];
    let target_key = ctx.spec.key_positions(&ctx.args).nth(1);
    let target_key = ctx.arg(target_key.unwrap_or_default());
    let mut conflicts = Conflicts::default();
    loop {
        let began = Instant::now();
        ctx.warm_own(guard, hashes)?;
        let stamp = guard.stamp(table, *source, key)?;
        let found = guard.read(table, *source, key)?;
        let is_missing = found.is_none();
        let writes = options.run(ctx, guard, found)?;
        if is_missing {
            ctx.notify_miss(key);
        }
        let mut holds = false;
        ctx.locked_for_room(guard, &places, |ctx, guard, room| {
            holds = stamp.still_holds(&guard.stamp(table, *source, key)?);
            if !holds {
                return Ok(());
            }
            *room = Room::default();
            writes
                .iter()
                .for_each(|write| write.reserve(room, target_key));
            ctx.set_aside(guard, *room)?;
            for write in &writes {
                write.apply(ctx, guard, *target, target_key)?;
            }
            Ok(())
        })?;
        if holds {
            return Ok(());
        }
        ctx.out.truncate(start);
        ctx.client.effects.truncate(effects);
        if !drafted::runs_at_once(ctx, &mut conflicts, began, std::iter::once(*source))? {
            return Err(Failure::GoesOn);
        }
    }
}

/// SORT and SORT_RO.
pub(crate) fn sort(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    let options = Options::parse(ctx.spec, &ctx.args)?;
    if options.by_pattern().is_some() {
        ctx.not_in_cluster("BY option of SORT is")?;
    }
    if options.gets.iter().any(|pattern| *pattern != b"#") {
        ctx.not_in_cluster("GET option of SORT is")?;
    }
    if options.stores && options.reads_more_keys() && !ctx.locked {
        return ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
            store_by_patterns(ctx, guard, hashes, &options)
        });
    }
    if options.stores {
        return several_at_once(ctx, guard, hashes, |ctx, guard, found| {
            options.run(ctx, guard, found.first().copied().flatten())
        });
    }
    let key = ctx.arg(1);
    let hash = hashes.first().copied().unwrap_or_else(|| guard.hash(key));
    let found = guard.read(ctx.table, hash, key)?;
    options.run(ctx, guard, found)?;
    if found.is_none() {
        ctx.notify_miss(key);
    }
    Ok(())
}

/// The options of LCS.
#[derive(Default)]
struct CommonOptions {
    length: bool,
    index: bool,
    match_min: usize,
    with_lengths: bool,
}

pub(crate) fn lcs(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    let mut options = CommonOptions::default();
    let mut rest = ctx.args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"idx" => options.index = true,
            b"len" => options.length = true,
            b"withmatchlen" => options.with_lengths = true,
            b"minmatchlen" => {
                let length = parse_integer(rest.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
                options.match_min = usize::try_from(length).unwrap_or(0);
            }
            _ => return Err(SYNTAX),
        }
    }
    if options.index && options.length {
        return Err(Failure::Text(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    at_once(ctx, guard, hashes, |ctx, found| {
        let wrong = Failure::Text("ERR The specified keys must contain string values");
        let [a, b] = found else { return Err(SYNTAX) };
        let (Ok(a), Ok(b)) = (plain(*a), plain(*b)) else {
            return Err(wrong);
        };
        let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
        ctx.local.work += (a.len() as u64 + 1) * b.len() as u64 / 2;
        let common = lcs::common(a, b);
        let common = common.ok_or_else(|| {
            Failure::from(format!(
                "ERR the strings are too long for LCS: the product of their lengths may be {CELLS_MAX}"
            ))
        })?;
        write_common(ctx, &options, &common);
        Ok(Vec::new())
    })
}

fn write_common(ctx: &mut Context<'_>, options: &CommonOptions, common: &lcs::Common) {
    let mut reply = ctx.reply();
    if options.length {
        return reply.integer(common.bytes.len() as i64);
    }
    if !options.index {
        return reply.bulk(&common.bytes);
    }
    let runs = common
        .runs
        .iter()
        .filter(|(a, _)| a.len() >= options.match_min);
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(runs.clone().count());
    for (a, b) in runs {
        reply.array(if options.with_lengths { 3 } else { 2 });
        for range in [a, b] {
            reply.array(2);
            reply.integer(range.start as i64);
            reply.integer(range.end as i64 - 1);
        }
        if options.with_lengths {
            reply.integer(a.len() as i64);
        }
    }
    reply.bulk(b"len");
    reply.integer(common.bytes.len() as i64);
}
