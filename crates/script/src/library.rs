//! Libraries of functions: their text and their first line, `#!lua name=…`.

use crate::source::{Flags, check_length, sha1_hex};

const NAME_RULE: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// The text of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryText {
    pub name: String,
    /// The SHA-1 of its text, in lower-case hex digits.
    pub sha1: String,
    /// The whole text.
    pub text: Box<[u8]>,
    /// Length of the first line without its line end.
    line_bytes: usize,
}

/// A function of a library, as the library has registered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    pub name: String,
    pub description: Option<Vec<u8>>,
    pub flags: Flags,
}

impl LibraryText {
    /// # Errors
    /// The text of the error reply, if the first line is wrong, or the text too long.
    pub fn new(text: &[u8]) -> Result<LibraryText, String> {
        check_length(text)?;
        if !text.starts_with(b"#!") {
            return Err("ERR Missing library metadata".to_owned());
        }
        let invalid = || "ERR Invalid library metadata".to_owned();
        let line_bytes = text.iter().position(|byte| *byte == b'\n');
        let line_bytes = line_bytes.ok_or_else(invalid)?;
        let words = split(text.get(2..line_bytes).unwrap_or_default()).ok_or_else(invalid)?;
        // The text `#! name=x` names an empty engine.
        let has_engine = text.get(2).is_some_and(|byte| !byte.is_ascii_whitespace());
        let (engine, words) = match words.split_first() {
            Some((engine, rest)) if has_engine => (engine.as_str(), rest),
            _ => ("", &words[..]),
        };
        let mut name = None;
        for word in words {
            let (key, value) = word.split_at_checked(5).unwrap_or((word, ""));
            if !key.eq_ignore_ascii_case("name=") {
                return Err(format!("ERR Invalid metadata value given: {word}"));
            }
            if name.replace(value).is_some() {
                let text = "ERR Invalid metadata value, name argument was given multiple times";
                return Err(text.to_owned());
            }
        }
        let name = name.ok_or("ERR Library name was not given")?;
        let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_in_name) {
            return Err(format!("ERR {NAME_RULE}"));
        }
        if !engine.eq_ignore_ascii_case("lua") {
            return Err(format!("ERR Engine '{engine}' not found"));
        }
        Ok(LibraryText {
            name: name.to_owned(),
            sha1: sha1_hex(text),
            text: text.into(),
            line_bytes,
        })
    }

    /// The part that Lua reads, from the end of the first line on.
    pub(crate) fn code(&self) -> &[u8] {
        self.text.get(self.line_bytes..).unwrap_or_default()
    }
}

/// Splits a line into words, with quotes as on the command line of Redis. Returns `None` if a quote
/// has no end.
fn split(line: &[u8]) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut bytes = line.iter().copied().peekable();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        if bytes.peek().is_none() {
            return Some(words);
        }
        let (mut word, mut quote) = (Vec::new(), None);
        while let Some(byte) = bytes.next_if(|byte| quote.is_some() || !byte.is_ascii_whitespace())
        {
            match (byte, quote) {
                (b'"' | b'\'', None) => quote = Some(byte),
                (_, Some(open)) if byte == open => quote = None,
                (b'\\', Some(b'"')) => word.push(bytes.next()?),
                _ => word.push(byte),
            }
        }
        if quote.is_some() {
            return None;
        }
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_engine_and_name() {
        let library = LibraryText::new(b"#!LUA name=\"my_lib\"\nreturn 1").unwrap();
        assert_eq!(library.name, "my_lib");
        assert_eq!(library.code(), b"\nreturn 1");
        for (text, why) in [
            ("return 1", "ERR Missing library metadata"),
            ("#!lua name=x", "ERR Invalid library metadata"),
            ("#!lua name=\"x\n", "ERR Invalid library metadata"),
            ("#!lua\n", "ERR Library name was not given"),
            ("#! name=x\n", "ERR Engine '' not found"),
            ("#!js name=x\n", "ERR Engine 'js' not found"),
            (
                "#!lua name=x y=1\n",
                "ERR Invalid metadata value given: y=1",
            ),
            (
                "#!lua name=x NAME=y\n",
                "ERR Invalid metadata value, name argument was given multiple times",
            ),
        ] {
            assert_eq!(LibraryText::new(text.as_bytes()).unwrap_err(), why);
        }
        for name in ["", "a b", "a-b", "\u{e4}"] {
            let text = format!("#!lua 'name={name}'\n");
            let why = LibraryText::new(text.as_bytes()).unwrap_err();
            assert_eq!(why, format!("ERR {NAME_RULE}"), "{name}");
        }
    }
}
