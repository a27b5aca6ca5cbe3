//! Rule: a type of the product has at most 40 methods of its own.
//!
//! Methods are the functions of its `impl` blocks, in all files; those of traits and of tests do
//! not count. A type with more of them does several tasks: give each task a type with private
//! fields.
//!
//! The tree was written before this rule. `crates/xtask/src/tidy/types_known.txt` has the types
//! that are left, each with its number of methods. A new or larger one is a complaint, and so is a
//! row whose type has become smaller.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::imports::tokens;
use super::modules::Place;
use super::product::{Source, sources};
use super::{House, read};

/// Most methods of a type.
const METHODS_MAX: usize = 40;
/// The types that are left: rows of `crate: Type methods`, sorted.
const KNOWN: &str = "crates/xtask/src/tidy/types_known.txt";

/// Crate and name of a type with its number of methods.
type Sizes = BTreeMap<(String, String), usize>;

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let types = types(&sources(house)?).into_iter();
    let large = types
        .filter(|of| of.methods > METHODS_MAX)
        .map(|of| ((of.package, of.name), of.methods));
    let known = parse(&read(&house.root.join(KNOWN))?)?;
    compare(&large.collect(), &known, complaints);
    Ok(())
}

/// A type with methods of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) package: String,
    pub(super) name: String,
    pub(super) methods: usize,
    /// The number of files that have these methods.
    pub(super) files: usize,
}

/// The types of all crates, the largest first. If a crate has several types with one name, a method
/// belongs to the one that is nearest in the tree of modules.
pub(super) fn types(sources: &[Source]) -> Vec<Type> {
    let files: Vec<(&Source, Vec<String>)> = sources
        .iter()
        .map(|source| (source, tokens(&source.code)))
        .collect();
    let mut definitions: BTreeMap<(&str, &str), Vec<&Place>> = BTreeMap::new();
    for (source, tokens) in &files {
        let named = tokens
            .windows(2)
            .filter(|two| ["struct", "enum", "union"].contains(&two[0].as_str()));
        for two in named {
            let key = (source.package.as_str(), two[1].as_str());
            definitions.entry(key).or_default().push(&source.place);
        }
    }
    let mut found: BTreeMap<(&str, &str, &Place), (usize, BTreeSet<&Place>)> = BTreeMap::new();
    for (source, tokens) in &files {
        for (name, methods) in blocks(tokens) {
            let shared = |place: &Place| {
                let pairs = place.iter().zip(&source.place);
                pairs.take_while(|(a, b)| a == b).count()
            };
            let places = definitions.get(&(source.package.as_str(), name));
            let nearest = places.into_iter().flatten().copied();
            let place = nearest
                .max_by_key(|place| (shared(place), Reverse(place.len())))
                .unwrap_or(&source.place);
            let of = found
                .entry((source.package.as_str(), name, place))
                .or_default();
            of.0 += methods;
            of.1.insert(&source.place);
        }
    }
    let found = found.into_iter();
    let mut types: Vec<Type> = found
        .map(|((package, name, _), (methods, files))| Type {
            package: package.to_owned(),
            name: name.to_owned(),
            methods,
            files: files.len(),
        })
        .collect();
    types.sort_by_key(|of| Reverse(of.methods));
    types
}

/// Each `impl` block that is of no trait: the name of its type and its number of functions.
fn blocks(tokens: &[String]) -> impl Iterator<Item = (&str, usize)> {
    (0..tokens.len()).filter_map(move |at| {
        let begins = at == 0 || ["}", "{", ";", "]"].contains(&tokens[at - 1].as_str());
        if tokens[at] != "impl" || !begins {
            return None;
        }
        let open = at + tokens[at..].iter().position(|token| token == "{")?;
        let head = behind_generics(&tokens[at + 1..open]);
        let head = head.split(|token| token == "where").next()?;
        if head.iter().any(|token| token == "for") {
            return None;
        }
        let mut path = head.chunks(2);
        let is_last = |two: &&[String]| two.get(1).is_none_or(|token| token != "::");
        let name = path.find(is_last)?.first()?;
        Some((name.as_str(), functions(&tokens[open..])))
    })
}

/// The tokens behind `<…>` at their start.
fn behind_generics(tokens: &[String]) -> &[String] {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "<" => depth += 1,
            ">" if tokens[at - 1] != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &tokens[at + usize::from(at > 0)..];
        }
    }
    &[]
}

/// The functions directly in the braces that the first token opens.
fn functions(tokens: &[String]) -> usize {
    let inside = Depths::new(tokens).take_while(|(depth, _)| *depth > 0);
    inside
        .filter(|(depth, at)| *depth == 1 && tokens[*at] == "fn")
        .count()
}

/// The fields of a struct: those that its whole crate may use, and all of them. `None`: the
/// tokens have no such struct.
pub(super) fn fields(tokens: &[String], name: &str, place: &[String]) -> Option<(usize, usize)> {
    let at = tokens
        .windows(2)
        .position(|two| two[0] == "struct" && two[1] == name)?;
    let open = at
        + tokens[at..]
            .iter()
            .position(|token| token == "{" || token == ";")?;
    let body = &tokens[open..];
    let inside = Depths::new(body).take_while(|(depth, _)| *depth > 0);
    let colons = inside.filter(|(depth, at)| *depth == 1 && body[*at] == ":");
    let is_wide = |at: usize| match body[..at - 1] {
        [.., ref word] if word == "pub" => true,
        [.., ref seen, ref end] if end == ")" => {
            seen == "crate" || seen == "super" && place.len() <= 1
        }
        _ => false,
    };
    Some(colons.fold((0, 0), |(wide, all), (_, at)| {
        (wide + usize::from(is_wide(at)), all + 1)
    }))
}

/// The number of open brackets at each token, and the token's position. A bracket that closes the
/// last one has the depth 0.
struct Depths<'t> {
    tokens: &'t [String],
    at: usize,
    depth: usize,
}

impl<'t> Depths<'t> {
    fn new(tokens: &'t [String]) -> Depths<'t> {
        Depths {
            tokens,
            at: 0,
            depth: 0,
        }
    }
}

impl Iterator for Depths<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        match self.tokens.get(self.at)?.as_str() {
            "(" | "[" | "{" => self.depth += 1,
            ")" | "]" | "}" => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.at += 1;
        Some((self.depth, self.at - 1))
    }
}

/// The rows `crate: Type methods`; a line that begins with `#` is a remark.
fn parse(text: &str) -> Result<Sizes, String> {
    let rows = text.lines().filter(|row| !row.starts_with('#'));
    let known = rows.map(|row| {
        let (package, rest) = row.split_once(": ")?;
        let (name, methods) = rest.split_once(' ')?;
        Some(((package.to_owned(), name.to_owned()), methods.parse().ok()?))
    });
    known
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{KNOWN}: a row is not `crate: Type methods`"))
}

/// Complaints about types that are new or larger, and about rows that are no longer right.
fn compare(found: &Sizes, known: &Sizes, complaints: &mut Vec<String>) {
    for ((package, name), methods) in found {
        let before = known.get(&(package.clone(), name.clone()));
        let row = format!("{package}: {name} {methods}");
        complaints.extend(match before {
            Some(before) if methods == before => None,
            Some(before) if methods < before => Some(format!(
                "{KNOWN}: `{name}` has become smaller, write: `{row}`"
            )),
            _ => Some(format!(
                "{package}: `{name}` has {methods} methods, more than {}: give one of its tasks a \
                 type with private fields",
                before.unwrap_or(&METHODS_MAX)
            )),
        });
    }
    for (package, name) in known.keys().filter(|row| !found.contains_key(*row)) {
        complaints.push(format!(
            "{KNOWN}: `{name}` of {package} has at most {METHODS_MAX} methods, remove its row"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(place: &str, code: &str) -> Source {
        Source {
            package: "crates/a".to_owned(),
            place: place.split_whitespace().map(str::to_owned).collect(),
            code: code.to_owned(),
        }
    }

    fn sizes(sources: &[Source]) -> Vec<(String, usize, usize)> {
        let types = types(sources).into_iter();
        types.map(|of| (of.name, of.methods, of.files)).collect()
    }

    #[test]
    fn methods_of_a_type_are_counted_in_all_files() {
        let sources = [
            source(
                "",
                "pub struct A;\nimpl A { fn a() { fn inner() {} } }\nimpl A { fn b(&self); }",
            ),
            source(
                "b",
                "impl<'a, F: Fn() -> u8> super::A<F> where F: for<'b> G<'b> { const fn c() {} }",
            ),
            source(
                "c",
                "impl B for A { fn d() {} }\nunsafe impl C for A {}\nfn e() -> impl A { f }",
            ),
        ];
        assert_eq!(sizes(&sources), [("A".to_owned(), 3, 2)]);
    }

    #[test]
    fn a_method_belongs_to_the_nearest_type_of_that_name() {
        let sources = [
            source("", "struct A;"),
            source("b", "struct A;\nimpl A { fn a() {} }"),
            source("b c", "impl A { fn b() {} }"),
            source("d", "impl A { fn c() {} }"),
        ];
        let expected = [("A".to_owned(), 2, 2), ("A".to_owned(), 1, 1)];
        assert_eq!(sizes(&sources), expected);
    }

    #[test]
    fn wide_fields_are_those_that_the_crate_may_use() {
        let text = "struct B { a: u8 } pub struct A<T: C> { pub a: Vec<(u8, T)>, pub(crate) b: u8, \
                    pub(super) c: fn(d: u8), #[x(y: z)] e: u8 }";
        let tokens = tokens(text);
        let wide = |place: &str| fields(&tokens, "A", &source(place, "").place);
        assert_eq!(wide("a"), Some((3, 4)));
        assert_eq!(wide("a b"), Some((2, 4)));
        assert_eq!(fields(&tokens, "C", &Place::new()), None);
    }

    fn complaints(found: &str, known: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let rows = |text| parse(text).expect("rows");
        compare(&rows(found), &rows(known), &mut complaints);
        complaints
    }

    #[test]
    fn a_known_type_may_shrink_and_not_grow() {
        assert_eq!(complaints("a: A 50", "# Why.\na: A 50\n"), [""; 0]);
        for (found, known, complaint) in [
            ("a: A 41", "", "a: `A` has 41 methods, more than 40"),
            ("a: A 51", "a: A 50", "a: `A` has 51 methods, more than 50"),
            ("a: A 41", "b: A 41", "a: `A` has 41 methods, more than 40"),
        ] {
            assert!(
                complaints(found, known)[0].starts_with(complaint),
                "{found}"
            );
        }
        let smaller = format!("{KNOWN}: `A` has become smaller, write: `a: A 41`");
        assert_eq!(complaints("a: A 41", "a: A 50"), [smaller]);
        let gone = format!("{KNOWN}: `A` of a has at most 40 methods, remove its row");
        assert_eq!(complaints("", "a: A 50"), [gone]);
        assert!(parse("a A 50").is_err());
    }
}
