//! The patterns of `string.find` and its like, as Lua 5.1 matches them. Lua's own matcher is C: it
//! can be neither suspended nor stopped, and a long pattern overflows its stack.
//!
//! - R1: a match is suspended like any code of a script: after each [`STEPS_PER_TICK`] steps it
//!   looks at the clock ([`Channel::tick`]).
//! - R2: the recursion of a match has a limit ([`DEPTH_MAX`]).

use crate::channel::Channel;
use mlua::{Lua, MultiValue, String as LuaString, Table, Value};
use std::rc::Rc;

const CAPTURES_MAX: usize = 32;
/// Depth of nested repetitions and captures, as in later versions of Lua.
const DEPTH_MAX: usize = 200;
/// Steps between two looks at the clock: some ten microseconds.
const STEPS_PER_TICK: u32 = 4_096;
const SPECIALS: &[u8] = b"^$*+?.([%-";
const ESCAPE: u8 = b'%';

/// The reason why a match has no result: the text of an error, or an error of the host.
enum Fault {
    Text(&'static str),
    Host(mlua::Error),
}

type Matched<T> = Result<T, Fault>;

#[derive(Clone, Copy)]
enum Length {
    Unfinished,
    Position,
    Of(usize),
}

struct Matcher<'a> {
    lua: &'a Lua,
    channel: &'a Channel,
    text: &'a [u8],
    /// The pattern up to its first zero byte, where C sees its end.
    pattern: &'a [u8],
    captures: Vec<(usize, Length)>,
    depth: usize,
    steps: u32,
}

impl<'a> Matcher<'a> {
    fn new(lua: &'a Lua, channel: &'a Channel, text: &'a [u8], pattern: &'a [u8]) -> Matcher<'a> {
        let end = pattern.iter().position(|byte| *byte == 0);
        Matcher {
            lua,
            channel,
            text,
            pattern: pattern
                .get(..end.unwrap_or(pattern.len()))
                .unwrap_or_default(),
            captures: Vec::new(),
            depth: 0,
            steps: 0,
        }
    }

    /// A byte of the pattern; 0 at its end.
    fn at(&self, place: usize) -> u8 {
        self.pattern.get(place).copied().unwrap_or(0)
    }

    /// A byte of the text; 0 at its end.
    fn byte(&self, place: usize) -> u8 {
        self.text.get(place).copied().unwrap_or(0)
    }

    /// Counts a step, and looks at the clock if it is time for that (R1).
    fn step(&mut self) -> Matched<()> {
        self.steps += 1;
        if self.steps >= STEPS_PER_TICK {
            self.steps = 0;
            self.channel.tick(self.lua).map_err(Fault::Host)?;
        }
        Ok(())
    }

    /// The end of the class that begins at a place of the pattern.
    fn class_end(&self, place: usize) -> Matched<usize> {
        match self.at(place) {
            ESCAPE if self.at(place + 1) == 0 => {
                Err(Fault::Text("malformed pattern (ends with '%')"))
            }
            ESCAPE => Ok(place + 2),
            b'[' => {
                let mut end = place + 1 + usize::from(self.at(place + 1) == b'^');
                loop {
                    match self.at(end) {
                        0 => return Err(Fault::Text("malformed pattern (missing ']')")),
                        ESCAPE if self.at(end + 1) != 0 => end += 2,
                        _ => end += 1,
                    }
                    if self.at(end) == b']' {
                        return Ok(end + 1);
                    }
                }
            }
            _ => Ok(place + 1),
        }
    }

    fn is_single(&self, byte: u8, place: usize, end: usize) -> bool {
        match self.at(place) {
            b'.' => true,
            ESCAPE => is_in_class(byte, self.at(place + 1)),
            b'[' => self.is_in_set(byte, place, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether a byte is in the set that begins at `start`. `end`: the place of the set's `]`.
    fn is_in_set(&self, byte: u8, start: usize, end: usize) -> bool {
        let negated = self.at(start + 1) == b'^';
        let mut place = start + usize::from(negated) + 1;
        while place < end {
            if self.at(place) == ESCAPE {
                place += 1;
                if is_in_class(byte, self.at(place)) {
                    return !negated;
                }
            } else if self.at(place + 1) == b'-' && place + 2 < end {
                place += 2;
                if (self.at(place - 2)..=self.at(place)).contains(&byte) {
                    return !negated;
                }
            } else if self.at(place) == byte {
                return !negated;
            }
            place += 1;
        }
        negated
    }

    /// Matches the text at `from` with the pattern from `place` on; returns the end of the match.
    fn matches(&mut self, from: usize, place: usize) -> Matched<Option<usize>> {
        if self.depth >= DEPTH_MAX {
            return Err(Fault::Text("pattern too complex")); // R2
        }
        self.depth += 1;
        let done = self.matches_here(from, place);
        self.depth -= 1;
        done
    }

    fn matches_here(&mut self, mut from: usize, mut place: usize) -> Matched<Option<usize>> {
        loop {
            self.step()?;
            match (self.at(place), self.at(place + 1)) {
                (0, _) => return Ok(Some(from)),
                (b'(', b')') => return self.open(from, place + 2, Length::Position),
                (b'(', _) => return self.open(from, place + 1, Length::Unfinished),
                (b')', _) => return self.close(from, place + 1),
                (b'$', 0) => return Ok((from == self.text.len()).then_some(from)),
                (ESCAPE, b'b') => {
                    let Some(end) = self.balanced(from, place + 2)? else {
                        return Ok(None);
                    };
                    (from, place) = (end, place + 4);
                }
                (ESCAPE, b'f') => {
                    place += 2;
                    if self.at(place) != b'[' {
                        return Err(Fault::Text("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(place)?;
                    let before = from.checked_sub(1).map_or(0, |before| self.byte(before));
                    if self.is_in_set(before, place, end - 1)
                        || !self.is_in_set(self.byte(from), place, end - 1)
                    {
                        return Ok(None);
                    }
                    place = end;
                }
                (ESCAPE, digit @ b'0'..=b'9') => {
                    let (start, length) = self.capture(digit)?;
                    let text = |from: usize| self.text.get(from..from.checked_add(length)?);
                    // There is no text if the capture is of a position, or if the text ends before.
                    let Some(rest) = text(from).filter(|rest| text(start) == Some(*rest)) else {
                        return Ok(None);
                    };
                    (from, place) = (from + rest.len(), place + 2);
                }
                _ => {
                    let end = self.class_end(place)?;
                    let fits =
                        from < self.text.len() && self.is_single(self.byte(from), place, end);
                    match self.at(end) {
                        b'?' => {
                            if fits && let Some(end) = self.matches(from + 1, end + 1)? {
                                return Ok(Some(end));
                            }
                            place = end + 1;
                        }
                        b'*' => return self.most(from, place, end),
                        b'+' if fits => return self.most(from + 1, place, end),
                        b'-' => return self.fewest(from, place, end),
                        b'+' => return Ok(None),
                        _ if fits => (from, place) = (from + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn most(&mut self, from: usize, place: usize, end: usize) -> Matched<Option<usize>> {
        let mut last = from;
        while last < self.text.len() && self.is_single(self.byte(last), place, end) {
            self.step()?;
            last += 1;
        }
        for to in (from..=last).rev() {
            if let Some(matched) = self.matches(to, end + 1)? {
                return Ok(Some(matched));
            }
        }
        Ok(None)
    }

    fn fewest(&mut self, mut from: usize, place: usize, end: usize) -> Matched<Option<usize>> {
        loop {
            if let Some(matched) = self.matches(from, end + 1)? {
                return Ok(Some(matched));
            }
            if from >= self.text.len() || !self.is_single(self.byte(from), place, end) {
                return Ok(None);
            }
            from += 1;
        }
    }

    fn balanced(&mut self, from: usize, place: usize) -> Matched<Option<usize>> {
        let (open, close) = (self.at(place), self.at(place + 1));
        if open == 0 || close == 0 {
            return Err(Fault::Text("unbalanced pattern"));
        }
        if self.byte(from) != open {
            return Ok(None);
        }
        let mut level = 1;
        for place in from + 1..self.text.len() {
            self.step()?;
            let byte = self.byte(place);
            if byte == close {
                level -= 1;
                if level == 0 {
                    return Ok(Some(place + 1));
                }
            } else if byte == open {
                level += 1;
            }
        }
        Ok(None)
    }

    fn open(&mut self, from: usize, place: usize, length: Length) -> Matched<Option<usize>> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(Fault::Text("too many captures"));
        }
        self.captures.push((from, length));
        let matched = self.matches(from, place)?;
        if matched.is_none() {
            self.captures.pop();
        }
        Ok(matched)
    }

    fn close(&mut self, from: usize, place: usize) -> Matched<Option<usize>> {
        let mut open = self.captures.iter();
        let open = open.rposition(|(_, length)| matches!(length, Length::Unfinished));
        let open = open.ok_or(Fault::Text("invalid pattern capture"))?;
        let start = self.captures[open].0;
        self.captures[open].1 = Length::Of(from - start);
        let matched = self.matches(from, place)?;
        if matched.is_none() {
            self.captures[open].1 = Length::Unfinished;
        }
        Ok(matched)
    }

    /// The text of a capture that a pattern refers to by its digit.
    fn capture(&self, digit: u8) -> Matched<(usize, usize)> {
        let invalid = Fault::Text("invalid capture index");
        let number = usize::from(digit).checked_sub(usize::from(b'1'));
        match number.and_then(|number| self.captures.get(number)) {
            Some((start, Length::Of(length))) => Ok((*start, *length)),
            // As in C, where the length of such a capture is a large number.
            Some((start, Length::Position)) => Ok((*start, usize::MAX)),
            Some((_, Length::Unfinished)) | None => Err(invalid),
        }
    }

    /// The first match from `from` on: its start and its end.
    fn find(&mut self, from: usize) -> Matched<Option<(usize, usize)>> {
        let is_anchored = self.at(0) == b'^';
        let first = usize::from(is_anchored);
        let last = if is_anchored { from } else { self.text.len() };
        for start in from..=last {
            self.captures.clear();
            if let Some(end) = self.matches(start, first)? {
                return Ok(Some((start, end)));
            }
        }
        Ok(None)
    }

    /// A capture, from 0; without captures the first one is the whole match.
    fn value(&self, number: usize, whole: (usize, usize)) -> Matched<Value> {
        let (start, length) = match self.captures.get(number) {
            Some((start, length)) => (*start, *length),
            None if number == 0 => (whole.0, Length::Of(whole.1 - whole.0)),
            None => return Err(Fault::Text("invalid capture index")),
        };
        match length {
            Length::Unfinished => Err(Fault::Text("unfinished capture")),
            Length::Position => Ok(Value::Number(start as f64 + 1.0)),
            Length::Of(length) => {
                let text = self.text.get(start..start + length).unwrap_or_default();
                let text = self.lua.create_string(text).map_err(Fault::Host)?;
                Ok(Value::String(text))
            }
        }
    }

    /// Appends all captures; `with_whole`: the whole match if there are none.
    fn push(
        &self,
        values: &mut Vec<Value>,
        whole: (usize, usize),
        with_whole: bool,
    ) -> Matched<()> {
        let number = match self.captures.len() {
            0 if with_whole => 1,
            number => number,
        };
        for number in 0..number {
            values.push(self.value(number, whole)?);
        }
        Ok(())
    }

    /// Appends a replacement, with captures in place of `%1` and its like.
    fn replace(&self, out: &mut Vec<u8>, by: &[u8], whole: (usize, usize)) -> Matched<()> {
        let mut bytes = by.iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != ESCAPE {
                out.push(byte);
                continue;
            }
            match bytes.next().unwrap_or(0) {
                b'0' => out.extend_from_slice(self.text.get(whole.0..whole.1).unwrap_or_default()),
                digit @ b'1'..=b'9' => match self.value(usize::from(digit - b'1'), whole)? {
                    Value::String(text) => out.extend_from_slice(&text.as_bytes()),
                    Value::Number(place) => out.extend_from_slice(place.to_string().as_bytes()),
                    _ => {}
                },
                other => out.push(other),
            }
        }
        Ok(())
    }
}

fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 11,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}

/// Finds a plain text, in time that grows with the sum of both lengths: no script is suspended
/// here.
fn plain(text: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, wanted)
}

/// The results for the prelude: `true` and the values, or `false` and the text of an error.
fn results(lua: &Lua, found: Matched<Vec<Value>>) -> mlua::Result<MultiValue> {
    let mut all = vec![Value::Boolean(found.is_ok())];
    match found {
        Ok(values) => all.extend(values),
        Err(Fault::Text(text)) => all.push(Value::String(lua.create_string(text)?)),
        Err(Fault::Host(error)) => return Err(error),
    }
    Ok(MultiValue::from_vec(all))
}

type Search = (LuaString, LuaString, usize);

/// `search(text, pattern, from)`: returns start and end of the first match, then its captures or
/// the match itself; or nil. Places count from 0.
fn search(lua: &Lua, channel: &Channel, (text, pattern, from): Search) -> mlua::Result<MultiValue> {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let mut matcher = Matcher::new(lua, channel, &text, &pattern);
    let found = matcher.find(from).and_then(|found| {
        let Some(whole) = found else {
            return Ok(vec![Value::Nil]);
        };
        let place = |place: usize| Value::Number(place as f64);
        let mut values = vec![place(whole.0), place(whole.1)];
        matcher.push(&mut values, whole, true)?;
        Ok(values)
    });
    results(lua, found)
}

/// `find(text, pattern, from, is_plain)`: the results of `string.find`.
fn find(
    lua: &Lua,
    channel: &Channel,
    (text, pattern, from, is_plain): (LuaString, LuaString, usize, bool),
) -> mlua::Result<MultiValue> {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let mut matcher = Matcher::new(lua, channel, &text, &pattern);
    let is_special = |byte: &u8| SPECIALS.contains(byte);
    let found = if is_plain || !matcher.pattern.iter().any(is_special) {
        let found = plain(text.get(from..).unwrap_or_default(), &pattern);
        Ok(found.map(|at| (from + at, from + at + pattern.len())))
    } else {
        matcher.find(from)
    };
    let found = found.and_then(|found| {
        let Some(whole) = found else {
            return Ok(vec![Value::Nil]);
        };
        let mut values = vec![
            Value::Number(whole.0 as f64 + 1.0),
            Value::Number(whole.1 as f64),
        ];
        matcher.push(&mut values, whole, false)?;
        Ok(values)
    });
    results(lua, found)
}

/// `gsub(text, pattern, replacement, most)`: the results of `string.gsub` with a text.
fn replace_all(
    lua: &Lua,
    channel: &Channel,
    (text, pattern, by, most): (LuaString, LuaString, LuaString, f64),
    bytes_max: usize,
) -> mlua::Result<MultiValue> {
    let (text, pattern, by) = (text.as_bytes(), pattern.as_bytes(), by.as_bytes());
    let mut matcher = Matcher::new(lua, channel, &text, &pattern);
    let is_anchored = matcher.at(0) == b'^';
    let (mut out, mut from, mut count) = (Vec::new(), 0, 0.0);
    let done = loop {
        if count >= most {
            break Ok(());
        }
        let (start, end) = match matcher.find(from) {
            Ok(Some(whole)) => whole,
            Ok(None) => break Ok(()),
            Err(fault) => break Err(fault),
        };
        out.extend_from_slice(text.get(from..start).unwrap_or_default());
        if let Err(fault) = matcher.replace(&mut out, &by, (start, end)) {
            break Err(fault);
        }
        count += 1.0;
        from = end;
        if end == start {
            let Some(byte) = text.get(start) else {
                from = text.len();
                break Ok(());
            };
            out.push(*byte);
            from += 1;
        }
        if out.len() > bytes_max {
            break Err(Fault::Host(mlua::Error::MemoryError(String::new())));
        }
        if is_anchored {
            break Ok(());
        }
    };
    let done = done.and_then(|()| {
        out.extend_from_slice(text.get(from..).unwrap_or_default());
        let out = lua.create_string(&out).map_err(Fault::Host)?;
        Ok(vec![Value::String(out), Value::Number(count)])
    });
    results(lua, done)
}

pub(crate) fn library(lua: &Lua, channel: &Rc<Channel>, bytes_max: usize) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let own = Rc::clone(channel);
    let run = lua.create_function(move |lua, args: Search| search(lua, &own, args))?;
    library.raw_set("search", run)?;
    let own = Rc::clone(channel);
    let run = lua.create_function(move |lua, args| find(lua, &own, args))?;
    library.raw_set("find", run)?;
    let own = Rc::clone(channel);
    let run = lua.create_function(move |lua, args| replace_all(lua, &own, args, bytes_max))?;
    library.raw_set("gsub", run)?;
    Ok(library)
}
