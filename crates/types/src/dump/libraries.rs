//! Libraries of functions, as `FUNCTION DUMP` serializes them: each is a mark and the library's
//! text.

use super::{Error, Input, VERSION_OF_STREAMS, content, end, write_string};
use duramen_base::limits::VALUE_BYTES_MAX;

/// The mark of a library in Redis 7.
const LIBRARY: u8 = 245;
/// Maximum bytes of all texts of a payload.
const DECODED_BYTES_MAX: usize = 16 * VALUE_BYTES_MAX;

/// Serializes the texts of libraries.
pub fn dump_libraries<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for text in texts {
        out.push(LIBRARY);
        write_string(&mut out, text);
    }
    end(&mut out, VERSION_OF_STREAMS);
    out
}

/// The texts of the libraries in a payload; `None` if the payload has something else.
///
/// # Errors
/// [`Error`].
pub fn restore_libraries(payload: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let mut input = Input::of(content(payload)?);
    input.allow(DECODED_BYTES_MAX);
    let mut texts = Vec::new();
    while !input.rest.is_empty() {
        if input.byte()? != LIBRARY {
            return Ok(None);
        }
        texts.push(input.string()?);
    }
    Ok(Some(texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_come_back_from_a_payload() {
        let texts: [&[u8]; 3] = [b"#!lua name=a\n", b"", &[b'x'; 20_000]];
        let payload = dump_libraries(texts.into_iter());
        assert_eq!(
            restore_libraries(&payload),
            Ok(Some(texts.map(<[u8]>::to_vec).into()))
        );
        for cut in 0..payload.len().min(40) {
            assert_eq!(restore_libraries(&payload[..cut]), Err(Error::Footer));
        }
        let value = crate::dump::dump(b"text", false).expect("a value");
        assert_eq!(restore_libraries(&value), Ok(None));
        let mut payload = vec![LIBRARY, 9, b'x'];
        end(&mut payload, VERSION_OF_STREAMS);
        assert_eq!(restore_libraries(&payload), Err(Error::Format));
    }
}
