//! The login of an HTTP request: the scheme Basic of RFC 7617, with texts in UTF-8.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The header by which a server asks for a login: `WWW-Authenticate`.
pub const CHALLENGE: &str = "Basic realm=\"duramen\", charset=\"UTF-8\"";

/// Maximum bytes of the header's value: far more than names and passwords of people and tools need.
const VALUE_BYTES_MAX: usize = 8 << 10;

/// A user's name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: Vec<u8>,
    pub password: Vec<u8>,
}

/// Shows the name without the password.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = String::from_utf8_lossy(&self.user);
        f.debug_struct("Login").field("user", &user).finish()
    }
}

/// Reads the value of the header `Authorization`. Returns `None` if its scheme is another one, or
/// if it is malformed. An empty name stands for the default user: a scraper that has only a
/// password sends one.
pub fn parse(value: &[u8]) -> Option<Login> {
    let value = value.get(..VALUE_BYTES_MAX.min(value.len()))?;
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let text = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (user, password) = (text.get(..colon)?, text.get(colon + 1..)?);
    let user = match user {
        b"" => crate::DEFAULT_USER.as_bytes(),
        user => user,
    };
    Some(Login {
        user: user.to_vec(),
        password: password.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_and_anything_else_is_none() {
        let login = |value: &str| {
            let login = parse(value.as_bytes())?;
            let text = |bytes| String::from_utf8(bytes).expect("text");
            Some((text(login.user), text(login.password)))
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        // From RFC 7617.
        let rfc = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
        assert_eq!(login(rfc), pair("Aladdin", "open sesame"));
        assert_eq!(login(&rfc.replace("Basic", "bAsIc ")), login(rfc));
        assert_eq!(login("Basic dGVzdDoxMjPCow=="), pair("test", "123\u{a3}"));
        assert_eq!(login("Basic YTpiOmM="), pair("a", "b:c"));
        assert_eq!(login("Basic OnNlY3JldA=="), pair("default", "secret"));
        assert_eq!(login("Basic YTo="), pair("a", ""));
        for wrong in [
            "",
            "Basic",
            "Basic ",
            "Bearer QTpi",
            "Basic !!",
            "Basic QQ==",
        ] {
            assert_eq!(login(wrong), None, "{wrong}");
        }
        assert_eq!(login(&format!("Basic {}", "QTpi".repeat(4096))), None);
    }

    #[test]
    fn a_login_that_is_printed_for_people_has_no_password() {
        let login = parse(b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").expect("a login");
        assert!(!format!("{login:?}").contains("sesame"));
    }
}
