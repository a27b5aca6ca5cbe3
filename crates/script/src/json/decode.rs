//! JSON as Lua values.

use super::Settings;
use crate::host::Host;
use mlua::Value;

/// The text of an error of the reader, or an error of the host.
type Read<T> = mlua::Result<Result<T, String>>;

/// Continues with a value, or returns the text of an error.
macro_rules! take {
    ($read:expr) => {
        match $read {
            Ok(value) => value,
            Err(text) => return Ok(Err(text)),
        }
    };
}

#[derive(Debug, PartialEq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Wrong(&'static str),
}

impl Token {
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Text(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Wrong(why) => why,
        }
    }
}

pub(super) fn decode(host: Host<'_>, text: &[u8], settings: &Settings) -> Read<Value> {
    if let [first, second, ..] = text
        && (*first == 0 || *second == 0)
    {
        let text = "JSON parser does not support UTF-16 or UTF-32";
        return Ok(Err(text.to_owned()));
    }
    let mut reader = Reader {
        host,
        text,
        at: 0,
        depth: 0,
        settings,
    };
    let (token, at) = reader.token();
    let value = take!(reader.value(token, at)?);
    let (token, at) = reader.token();
    match token {
        Token::End => Ok(Ok(value)),
        other => Ok(Err(expected("the end", &other, at))),
    }
}

fn expected(what: &str, found: &Token, at: usize) -> String {
    format!(
        "Expected {what} but found {} at character {}",
        found.name(),
        at + 1
    )
}

struct Reader<'t> {
    host: Host<'t>,
    text: &'t [u8],
    at: usize,
    depth: i64,
    settings: &'t Settings,
}

impl Reader<'_> {
    /// The byte at a place; 0 at the end.
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    /// The next token and its place.
    fn token(&mut self) -> (Token, usize) {
        while matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let rest = self.text.get(at..).unwrap_or_default();
        let one = |token| (token, 1);
        let (token, bytes) = match self.byte(at) {
            b'{' => one(Token::ObjectBegin),
            b'}' => one(Token::ObjectEnd),
            b'[' => one(Token::ArrayBegin),
            b']' => one(Token::ArrayEnd),
            b',' => one(Token::Comma),
            b':' => one(Token::Colon),
            0 if rest.is_empty() => (Token::End, 0),
            b'"' => {
                let token = self.string();
                return match token {
                    Token::Wrong(_) => (token, self.at),
                    token => (token, at),
                };
            }
            b'-' | b'0'..=b'9' => self.number(rest),
            b't' if rest.starts_with(b"true") => (Token::Boolean(true), 4),
            b'f' if rest.starts_with(b"false") => (Token::Boolean(false), 5),
            b'n' if rest.starts_with(b"null") => (Token::Null, 4),
            b'+' | b'i' | b'I' | b'n' | b'N' if self.settings.decode_invalid => {
                match invalid_number(rest) {
                    Some((number, bytes)) => (Token::Number(number), bytes),
                    None => (Token::Wrong("invalid token"), 0),
                }
            }
            _ => (Token::Wrong("invalid token"), 0),
        };
        self.at += bytes;
        (token, at)
    }

    fn number(&self, rest: &[u8]) -> (Token, usize) {
        let found = match invalid_number(rest) {
            Some(_) if !self.settings.decode_invalid => None,
            None => decimal(rest),
            found => found,
        };
        match found {
            Some((number, bytes)) => (Token::Number(number), bytes),
            None => (Token::Wrong("invalid number"), 0),
        }
    }

    fn string(&mut self) -> Token {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.byte(self.at) {
                b'"' => break,
                0 => return Token::Wrong("unexpected end of string"),
                b'\\' => {
                    let escape = match self.byte(self.at + 1) {
                        byte @ (b'"' | b'\\' | b'/') => byte,
                        b'b' => 8,
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'f' => 12,
                        b'r' => b'\r',
                        b'u' => {
                            let Some(bytes) = self.unicode(&mut text) else {
                                return Token::Wrong("invalid unicode escape code");
                            };
                            self.at += bytes;
                            continue;
                        }
                        _ => return Token::Wrong("invalid escape code"),
                    };
                    text.push(escape);
                    self.at += 2;
                }
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Token::Text(text)
    }

    /// The four hex digits of an escape at a place.
    fn hex(&self, at: usize) -> Option<u32> {
        if self.byte(at) != b'\\' || self.byte(at + 1) != b'u' {
            return None;
        }
        let digits = self.text.get(at + 2..at + 6)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    /// Adds the character of an escape; returns the bytes of the escape.
    fn unicode(&self, text: &mut Vec<u8>) -> Option<usize> {
        let first = self.hex(self.at)?;
        let (code, bytes) = match first {
            0xD800..0xDC00 => {
                let second = self.hex(self.at + 6)?;
                if !(0xDC00..0xE000).contains(&second) {
                    return None;
                }
                (0x10000 + ((first & 0x3FF) << 10 | second & 0x3FF), 12)
            }
            code => (code, 6),
        };
        let character = char::from_u32(code)?;
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(bytes)
    }

    fn descend(&mut self) -> Result<(), String> {
        self.host.descend()?;
        self.depth += 1;
        if self.depth <= self.settings.decode_depth {
            return Ok(());
        }
        Err(format!(
            "Found too many nested data structures ({}) at character {}",
            self.depth, self.at
        ))
    }

    fn value(&mut self, token: Token, at: usize) -> Read<Value> {
        let read = self.at.saturating_sub(at);
        take!(self.host.charge(64 + read));
        Ok(Ok(match token {
            Token::Text(text) => Value::String(self.host.lua.create_string(text)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(yes) => Value::Boolean(yes),
            Token::Null => Value::NULL,
            Token::ObjectBegin => return self.object(),
            Token::ArrayBegin => return self.array(),
            other => return Ok(Err(expected("value", &other, at))),
        }))
    }

    fn object(&mut self) -> Read<Value> {
        take!(self.descend());
        let table = self.host.lua.create_table()?;
        let (mut token, mut at) = self.token();
        if token == Token::ObjectEnd {
            self.depth -= 1;
            return Ok(Ok(Value::Table(table)));
        }
        loop {
            let Token::Text(key) = token else {
                return Ok(Err(expected("object key string", &token, at)));
            };
            (token, at) = self.token();
            if token != Token::Colon {
                return Ok(Err(expected("colon", &token, at)));
            }
            (token, at) = self.token();
            let value = take!(self.value(token, at)?);
            table.raw_set(self.host.lua.create_string(key)?, value)?;
            (token, at) = self.token();
            match token {
                Token::ObjectEnd => break,
                Token::Comma => (token, at) = self.token(),
                other => return Ok(Err(expected("comma or object end", &other, at))),
            }
        }
        self.depth -= 1;
        Ok(Ok(Value::Table(table)))
    }

    fn array(&mut self) -> Read<Value> {
        take!(self.descend());
        let table = self.host.lua.create_table()?;
        let (mut token, mut at) = self.token();
        if token == Token::ArrayEnd {
            self.depth -= 1;
            return Ok(Ok(Value::Table(table)));
        }
        for index in 1.. {
            let value = take!(self.value(token, at)?);
            table.raw_set(index, value)?;
            (token, at) = self.token();
            match token {
                Token::ArrayEnd => break,
                Token::Comma => (token, at) = self.token(),
                other => return Ok(Err(expected("comma or array end", &other, at))),
            }
        }
        self.depth -= 1;
        Ok(Ok(Value::Table(table)))
    }
}

/// A number that JSON does not have, and its length: hexadecimal, infinite, or NaN.
fn invalid_number(text: &[u8]) -> Option<(f64, usize)> {
    let signed = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let sign = if text.first() == Some(&b'-') {
        -1.0
    } else {
        1.0
    };
    let rest = text.get(signed..)?;
    let lower: Vec<u8> = rest.iter().take(8).map(u8::to_ascii_lowercase).collect();
    if lower.starts_with(b"infinity") {
        return Some((sign * f64::INFINITY, signed + 8));
    }
    if lower.starts_with(b"inf") {
        return Some((sign * f64::INFINITY, signed + 3));
    }
    if lower.starts_with(b"nan") {
        return Some((f64::NAN, signed + 3));
    }
    if lower.starts_with(b"0x") {
        let digits = rest
            .iter()
            .skip(2)
            .take_while(|byte| byte.is_ascii_hexdigit());
        let digits: Vec<u8> = digits.copied().collect();
        let add = |sum: f64, digit: &u8| {
            sum * 16.0 + f64::from(char::from(*digit).to_digit(16).unwrap_or_default())
        };
        if !digits.is_empty() {
            return Some((
                sign * digits.iter().fold(0.0, add),
                signed + 2 + digits.len(),
            ));
        }
    }
    None
}

/// A decimal number as C reads it, and its length.
fn decimal(text: &[u8]) -> Option<(f64, usize)> {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let mut at = usize::from(text.first() == Some(&b'-'));
    let whole = digits(at);
    at += whole;
    let mut decimals = 0;
    if text.get(at) == Some(&b'.') {
        decimals = digits(at + 1);
        at += 1 + decimals;
    }
    if whole + decimals == 0 {
        return None;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits(at + 1 + signed);
        if exponent > 0 {
            at += 1 + signed + exponent;
        }
    }
    let text = std::str::from_utf8(text.get(..at)?).ok()?;
    Some((text.parse().ok()?, at))
}
