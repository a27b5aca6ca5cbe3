//! SORT, SORT_RO and LCS.
//!
//! BY and GET read keys that the request does not name. In EXEC they are a part of the step
//! (`drafted`); else they are read one after the other. In a cluster they may lie on another
//! member, so they are refused.

use crate::command::cold;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX, YIELDS};
use crate::command::drafted;
use crate::command::events::EventName;
use crate::command::key::Key;
use crate::command::keys::{Unnamed, each_option};
use crate::command::row::*;
use crate::state::conflicts::Conflicts;
use crate::values::collection::{WRONG_TYPE, Write, encoded, plain, several_at_once};
use crate::values::computed::computed_at_once;
use crate::values::set::check_result;
use crate::values::zset::parse_score;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_config::EventClasses;
use duramen_engine::{Guard, Object, Room};
use duramen_types::lcs::{self, CELLS_MAX};
use duramen_types::list::List;
use duramen_types::{Text, Type, count, each, find_at_most_once};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::cmp::Ordering;
use std::ops::Range;
use std::time::Instant;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("sort", -2, DENYOOM | SET | SORTED_SET | LIST | DANGEROUS, doc(Topic::Generic, "1.0.0", "O(N*log(N))", "Sorts the elements of a collection."),
        Keys::and_store(2, READS, SETS).unnamed(BY_PATTERNS).misses(Misses::First).anywhere(&[(READS, BY_OR_GET), (SETS, STORE)]),
        Effect::Writes(Growth::Stores), Secrets::None, Run::Atomic(sort))
            .differs("Keys of patterns are read one by one, in `EXEC` at one instant; refused in a cluster."),
    row("sort_ro", -2, SET | SORTED_SET | LIST | DANGEROUS, doc(Topic::Generic, "7.0.0", "O(N*log(N))", "Sorts the elements of a collection."),
        Keys::one(READS).unnamed(BY_PATTERNS).anywhere(&[(READS, BY_OR_GET)]), Effect::Reads, Secrets::None, Run::Atomic(sort))
            .differs("Keys of patterns are read one by one, in `EXEC` at one instant; refused in a cluster."),
    row("lcs", -3, NO_FLAGS, doc(Topic::String, "7.0.0", "O(N*M)", "Returns the longest common subsequence of two strings."),
        Keys::two(READS, READS), Effect::Reads, Secrets::None, Run::Atomic(lcs))
            .differs("The product of the lengths is 4,194,304 at most."),
];

const BY_OR_GET: &str = "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the key we sort";
const STORE: &str = "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the argument array";

/// The keys that the patterns of BY and GET name. `GET x` names none, but needs the right to read
/// any key.
const BY_PATTERNS: Unnamed = Unnamed {
    stand_at: pattern_of_keys,
    are_read: reads_more_keys,
};

/// The position of a pattern by which SORT reads keys that the request does not name.
fn pattern_of_keys(args: &Args<'_>) -> Option<usize> {
    let mut found = None;
    each_option(args, 2, |option, at| {
        let pattern = args.get(at).unwrap_or_default();
        let reads = match option {
            b"by" => pattern.contains(&b'*'),
            b"get" => pattern != b"#",
            _ => false,
        };
        found = found.or(reads.then_some(at));
    });
    found
}

/// Whether a SORT reads keys that its arguments do not name. `may_store`: whether it is a command
/// that can store its result.
fn reads_more_keys(args: &Args<'_>, may_store: bool) -> bool {
    Options::parse(may_store, args).is_ok_and(|options| options.reads_more_keys())
}

/// The error of a SORT by texts that are too long: many elements may be sorted by the same long
/// text.
const TOO_LONG_WEIGHTS: Failure =
    Failure::Text("ERR the texts to sort by are together longer than output-limit");

/// Maximum bytes of the keys named by patterns whose entries on flash are noted, to be fetched
/// together.
const WARM_BYTES_MAX: usize = 64 << 20;
const TOO_MANY_KEYS: Failure =
    Failure::Text("ERR the keys that SORT reads by its patterns are together longer than 64 MiB");
/// Maximum bytes of all hashes that are searched for a field: about two seconds.
const SEARCHED_BYTES_MAX: u64 = 4 << 30;
const TOO_LONG_HASHES: Failure =
    Failure::Text("ERR the hashes that SORT searches for fields are together longer than 4 GiB");

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
    fn parse(may_store: bool, args: &Args<'a>) -> Result<Options<'a>, Failure> {
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
                b"store" if may_store => {
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

    /// The pattern by which it sorts; `None` if it leaves the elements in their order.
    fn by_pattern(&self) -> Option<&'a [u8]> {
        self.by.filter(|pattern| pattern.contains(&b'*'))
    }

    /// Whether the request reads keys that its arguments do not name.
    fn reads_more_keys(&self) -> bool {
        self.by_pattern().is_some() || self.gets.iter().any(|pattern| pattern.contains(&b'*'))
    }
}

/// The elements of a collection, and whether they have an order: that of a list, or that of scores.
fn elements(found: Option<Object<'_>>) -> Result<(Vec<Text<'_>>, bool), Failure> {
    let Some(object) = found else {
        return Ok((Vec::new(), false));
    };
    if !object.is_typed {
        return Err(WRONG_TYPE);
    }
    let value = Some(object.value);
    let kind = Type::of(object.value);
    if kind == Some(Type::List) {
        return Ok((List::of(value)?.items, true));
    }
    let mut names = Vec::new();
    match kind {
        Some(kind @ Type::Set) => {
            names.reserve_exact(count(object.value, kind)?);
            each(value, |name, ()| names.push(name))?;
        }
        Some(kind @ Type::SortedSet) => {
            names.reserve_exact(count(object.value, kind)?);
            each(value, |name, _: f64| names.push(name))?; // sorted::S1
        }
        _ => return Err(WRONG_TYPE),
    }
    Ok((names, kind == Some(Type::SortedSet)))
}

/// The key that a pattern names for an element, and the field in that key: `*` stands for the
/// element, and `->` is before a field. `None` if the pattern names no key.
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

/// The value that a pattern names for an element. `searched`: the bytes of all hashes that were
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

/// Lets all entries on flash that the patterns name be fetched together.
fn warm(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    patterns: &[&[u8]],
    elements: &[Text<'_>],
) -> Done {
    if !ctx.thread.has_tier() || patterns.is_empty() {
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
    let keys = keys.iter().map(|key| Key::of(guard, table, key));
    cold::warm(ctx, guard, keys)
}

const NO_NUMBER: Failure = Failure::Text("ERR One or more scores can't be converted into double");

/// The number by which a text is sorted.
fn number_of(text: &[u8]) -> Result<f64, Failure> {
    match text {
        [] => Ok(0.0),
        text => parse_score(text).ok_or(NO_NUMBER),
    }
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
    pattern: &[u8],
    searched: &mut u64,
) -> Result<Weighted<'g>, Failure> {
    let text = look_up(ctx, guard, pattern, &element.bytes(), searched)?;
    let (text, number) = match options.alphabetic {
        true => (text, 0.0),
        false => (None, number_of(text.as_deref().unwrap_or_default())?),
    };
    Ok(Weighted {
        element,
        text,
        number,
    })
}

/// For each element a number with the order of the elements: the eight bytes behind those with
/// which all elements begin.
fn text_keys(elements: &[Text<'_>]) -> Vec<u64> {
    let first = elements.first().map(Text::bytes);
    let first: &[u8] = first.as_deref().unwrap_or_default();
    let common = elements.iter().fold(first.len(), |common, element| {
        let bytes = element.bytes();
        let pairs = first.iter().zip(bytes.iter()).take(common);
        pairs.take_while(|(a, b)| a == b).count()
    });
    let key = |element: &Text<'_>| {
        let mut key = [0; 8];
        let bytes = element.bytes();
        let rest = bytes.get(common..).unwrap_or_default();
        key.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        u64::from_be_bytes(key)
    };
    elements.iter().map(key).collect()
}

/// For each element a number with the order of the numbers that the elements are.
fn number_keys(elements: &[Text<'_>]) -> Result<Vec<u64>, Failure> {
    let key = |element: &Text<'_>| {
        let number = match element {
            Text::Integer(integer) => *integer as f64,
            Text::Bytes(bytes) => number_of(bytes)?,
        };
        let bits = (number + 0.0).to_bits(); // -0 is 0
        Ok(match bits >> 63 {
            0 => bits | 1 << 63,
            _ => !bits,
        })
    };
    elements.iter().map(key).collect()
}

/// The elements of a range, in order. Only these are sorted. The order is total, so the result does
/// not depend on the order of `all`.
fn within<T>(mut all: Vec<T>, range: Range<usize>, order: impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    let end = range.end.min(all.len());
    let start = range.start.min(end);
    if end == start {
        return Vec::new();
    }
    if end < all.len() {
        all.select_nth_unstable_by(end - 1, &order);
        all.truncate(end);
    }
    if start > 0 {
        all.select_nth_unstable_by(start, &order);
        all.drain(..start);
    }
    all.sort_unstable_by(&order);
    all
}

impl Options<'_> {
    fn directed(&self, order: Ordering) -> Ordering {
        match self.descending {
            true => order.reverse(),
            false => order,
        }
    }

    fn order(&self, a: &Weighted<'_>, b: &Weighted<'_>) -> Ordering {
        let order = match self.alphabetic {
            true => a.text.cmp(&b.text),
            // There is no NaN; -0 is 0.
            false => a.number.partial_cmp(&b.number).unwrap_or(Ordering::Equal),
        };
        // Equal elements are in the order of their bytes, so that each request has the same result.
        self.directed(order.then_with(|| a.element.compare(&b.element)))
    }

    /// The first element of the result, and the one behind it.
    fn range(&self, elements: usize) -> Range<usize> {
        let Some((start, count)) = self.limit else {
            return 0..elements;
        };
        let start = usize::try_from(start).unwrap_or(0).min(elements);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        start..start.saturating_add(count).min(elements)
    }

    /// The elements within the limit, sorted by themselves.
    fn sorted_by_self<'g>(&self, elements: Vec<Text<'g>>) -> Result<Vec<Text<'g>>, Failure> {
        let keys = match self.alphabetic {
            true => text_keys(&elements),
            false => number_keys(&elements)?,
        };
        let range = self.range(elements.len());
        let keyed = keys.into_iter().zip(elements).collect();
        let sorted = within(keyed, range, |(a, first), (b, second)| {
            self.directed(a.cmp(b).then_with(|| first.compare(second)))
        });
        Ok(sorted.into_iter().map(|(_, element)| element).collect())
    }

    /// As [`sorted_by_self`](Self::sorted_by_self), by what a pattern means for each element.
    fn sorted_by_pattern<'g>(
        &self,
        ctx: &mut Context<'_>,
        guard: &Guard<'_>,
        pattern: &[u8],
        elements: Vec<Text<'g>>,
        searched: &mut u64,
    ) -> Result<Vec<Text<'g>>, Failure> {
        warm(ctx, guard, &[pattern], &elements)?;
        let range = self.range(elements.len());
        let mut weighted = Vec::with_capacity(elements.len());
        let mut bytes = 0;
        for element in elements {
            let next = weigh(ctx, guard, element, self, pattern, searched)?;
            bytes += next.text.as_ref().map_or(0, Vec::len);
            if bytes > ctx.reply.bytes_max() {
                return Err(TOO_LONG_WEIGHTS);
            }
            weighted.push(next);
        }
        let sorted = within(weighted, range, |a, b| self.order(a, b));
        Ok(sorted.iter().map(|weighted| weighted.element).collect())
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
        match self.by {
            None => return self.sorted_by_self(elements),
            Some(pattern) if pattern.contains(&b'*') => {
                return self.sorted_by_pattern(ctx, guard, pattern, elements, searched);
            }
            Some(_) => {}
        }
        let range = self.range(elements.len());
        if !is_ordered {
            // Without BY the result does not depend on the order in which the elements are stored.
            return Ok(within(elements, range, |a, b| self.directed(a.compare(b))));
        }
        if self.descending {
            elements.reverse();
        }
        elements.truncate(range.end);
        elements.drain(..range.start);
        Ok(elements)
    }
}

impl Options<'_> {
    /// Whether a result is within the limit of a collection or of the output: many elements may get
    /// the same large value.
    fn check_size(&self, ctx: &Context<'_>, items: usize, bytes: usize) -> Done {
        let most = match self.stores {
            true => VALUE_BYTES_MAX,
            false => ctx.reply.bytes_max(),
        };
        check_result(ctx, self.stores, items)?;
        match bytes > most {
            true if self.stores => Err(duramen_types::Error::Full.into()),
            true => Err(ctx.reply.too_long()),
            false => Ok(()),
        }
    }

    /// Replies with the items, or returns the list to store.
    fn finish(&self, ctx: &mut Context<'_>, items: Vec<Text<'_>>) -> Result<Vec<Write>, Failure> {
        if self.stores {
            let list = List { items };
            ctx.reply.integer(list.items.len() as i64)?;
            let value = encoded(|parts| list.store(parts))?;
            return Ok(vec![Write::result(1, value, true, STORED)]);
        }
        let mut reply = ctx.reply.encoder();
        reply.array(items.len());
        items.iter().for_each(|item| reply.bulk(&item.bytes()));
        Ok(Vec::new())
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
        if self.gets.is_empty() {
            let bytes = elements.iter().map(Text::len).sum();
            self.check_size(ctx, elements.len(), bytes)?;
            return self.finish(ctx, elements);
        }
        warm(ctx, guard, &self.gets, &elements)?;
        for element in elements {
            let element = element.bytes();
            for pattern in &self.gets {
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
            return self.finish(ctx, items.map(Text::of).collect());
        }
        let mut reply = ctx.reply.encoder();
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

/// SORT with STORE: it reads and sorts before it locks its two keys (computed::C1,
/// transaction::T8), and runs again if the sorted collection has changed meanwhile.
fn store_unlocked(ctx: &mut Context<'_>, guard: &mut Guard<'_>, options: &Options<'_>) -> Done {
    let mut conflicts = ctx.client.parking.take_conflicts();
    let done = run_unlocked(ctx, guard, options, &mut conflicts);
    if done.is_err() {
        ctx.client.parking.keep_conflicts(conflicts); // it may be presented again
    }
    done
}

fn run_unlocked(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    options: &Options<'_>,
    conflicts: &mut Conflicts,
) -> Done {
    let (start, effects) = (ctx.reply.len(), ctx.client.effects.len());
    let mut keys = ctx.request.keys(ctx.table);
    let (Some(source), Some(target)) = (keys.next(), keys.next()) else {
        return Err(SYNTAX);
    };
    let places = [source.place(), target.place()];
    loop {
        let began = Instant::now();
        cold::warm_own(ctx, guard)?;
        let stamp = guard.stamp(source.table, source.hash, source.bytes)?;
        let found = guard.read(source.table, source.hash, source.bytes)?;
        let is_missing = found.is_none();
        let writes = options.run(ctx, guard, found)?;
        if is_missing {
            ctx.notify_miss(source.bytes);
        }
        let mut holds = false;
        ctx.locked_for_room(guard, &places, |ctx, guard, room| {
            holds = stamp.still_holds(&guard.stamp(source.table, source.hash, source.bytes)?);
            if !holds {
                return Ok(());
            }
            *room = Room::default();
            writes
                .iter()
                .for_each(|write| write.reserve(room, target.bytes));
            ctx.set_aside(guard, *room)?;
            for write in &writes {
                write.apply(ctx, guard, target)?;
            }
            Ok(())
        })?;
        if holds {
            return Ok(());
        }
        ctx.reply.truncate(start);
        ctx.client.effects.truncate(effects);
        if !drafted::runs_at_once(
            ctx,
            conflicts,
            began.elapsed(),
            std::iter::once(source.hash),
        )? {
            return Err(YIELDS);
        }
    }
}

/// SORT and SORT_RO.
pub(crate) fn sort(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = Options::parse(ctx.request.spec.has(WRITE), &ctx.request.args)?;
    if options.by_pattern().is_some() {
        ctx.not_in_cluster("BY option of SORT is")?;
    }
    if options.gets.iter().any(|pattern| *pattern != b"#") {
        ctx.not_in_cluster("GET option of SORT is")?;
    }
    if options.stores && !ctx.locked {
        return store_unlocked(ctx, guard, &options);
    }
    if options.stores {
        return several_at_once(ctx, guard, |ctx, guard, found| {
            options.run(ctx, guard, found.first().copied().flatten())
        });
    }
    let key = ctx.key();
    let found = guard.read(key.table, key.hash, key.bytes)?;
    options.run(ctx, guard, found)?;
    if found.is_none() {
        ctx.notify_miss(key.bytes);
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

pub(crate) fn lcs(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut options = CommonOptions::default();
    let mut rest = ctx.request.args.skip(3).into_iter();
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
    computed_at_once(ctx, guard, |ctx, found| {
        let wrong = Failure::Text("ERR The specified keys must contain string values");
        let [a, b] = found else { return Err(SYNTAX) };
        let (Ok(a), Ok(b)) = (plain(*a), plain(*b)) else {
            return Err(wrong);
        };
        let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
        ctx.thread
            .add_work((a.len() as u64 + 1) * b.len() as u64 / 2);
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
    let mut reply = ctx.reply.encoder();
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

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::random::Random;

    /// The elements within the limit, by the plain definition.
    fn expected(options: &Options<'_>, texts: &[String]) -> Vec<String> {
        let number = |text: &String| text.parse::<f64>().unwrap_or(0.0);
        let mut all = texts.to_vec();
        all.sort_by(|a, b| {
            let order = match options.alphabetic {
                true => Ordering::Equal,
                false => number(a).partial_cmp(&number(b)).expect("numbers"),
            };
            options.directed(order.then_with(|| a.as_bytes().cmp(b.as_bytes())))
        });
        all[options.range(all.len())].to_vec()
    }

    #[test]
    fn a_limit_and_keys_change_nothing_of_the_order() {
        let mut random = Random::new(7);
        for round in 0..3_000 {
            let alphabetic = round % 2 == 0;
            let text = |random: &mut Random| match random.below(4) {
                0 => (random.below(40) as i64 - 20).to_string(),
                1 => format!("-0.{}", random.below(4)),
                2 if alphabetic => format!("prefix:{:03}", random.below(300)),
                3 if alphabetic => "x\0".repeat(random.below(9) as usize),
                _ => format!("1e{}", random.below(5)),
            };
            let texts: Vec<String> = (0..random.below(30)).map(|_| text(&mut random)).collect();
            let limit = (random.below(35) as i64 - 3, random.below(35) as i64 - 3);
            let options = Options {
                alphabetic,
                descending: random.below(2) == 0,
                limit: (round % 3 > 0).then_some(limit),
                ..Options::default()
            };
            let elements = texts.iter().map(|text| Text::of(text.as_bytes())).collect();
            let sorted = options.sorted_by_self(elements).expect("numbers");
            let sorted = sorted.iter().map(|text| text.bytes().to_vec());
            let sorted: Vec<_> = sorted
                .map(|text| String::from_utf8(text).expect("text"))
                .collect();
            assert_eq!(
                sorted,
                expected(&options, &texts),
                "{texts:?}, {limit:?}, round {round}"
            );
        }
    }
}
