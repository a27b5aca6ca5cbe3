//! The content of a certificate: subject, names, validity. For errors, `duramen cert show`, metrics
//! and the audit log; trust is decided by rustls alone.

use crate::error::LoadError;
use crate::files;
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::X509Certificate;
use x509_parser::time::ASN1Time;

/// The readable content of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// As in `CN=alice, O=Example`.
    pub subject: String,
    pub issuer: String,
    /// The first common name of the subject; empty: none.
    pub common_name: String,
    /// Host names and addresses that it is for.
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
    /// Whether the certificate may sign others.
    pub is_authority: bool,
    /// The serial number, in hexadecimal digits.
    pub serial: String,
}

impl Description {
    /// The content of these bytes; `None`: they are no certificate.
    pub fn new(certificate: &CertificateDer<'_>) -> Option<Description> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let common_name = parsed
            .subject()
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok());
        Some(Description {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            common_name: common_name.unwrap_or_default().to_owned(),
            names: names(&parsed),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
            is_authority: parsed.is_ca(),
            serial: parsed.raw_serial_as_string().replace(':', ""),
        })
    }

    /// Seconds until it expires; negative: it has expired.
    pub fn seconds_left(&self) -> i64 {
        seconds_until(self.not_after)
    }

    /// Whole days until it expires; negative: it has expired.
    pub fn days_left(&self) -> i64 {
        days_until(self.not_after)
    }
}

/// Seconds until a moment, given in seconds since the Unix epoch; negative: it has passed.
pub fn seconds_until(moment_s: i64) -> i64 {
    moment_s - unix_now()
}

/// Whole days until a moment, as [`seconds_until`].
pub fn days_until(moment_s: i64) -> i64 {
    seconds_until(moment_s).div_euclid(86_400)
}

/// The certificates of one file, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptions(pub Vec<Description>);

impl Descriptions {
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn read(path: &Path) -> Result<Descriptions, LoadError> {
        let bytes = files::read(path)?;
        let certificates = files::certificates(path, &bytes)?;
        let described = certificates.iter().map(|one| describe(path, one));
        Ok(Descriptions(described.collect::<Result<_, _>>()?))
    }
}

pub(crate) fn describe(
    path: &Path,
    certificate: &CertificateDer<'_>,
) -> Result<Description, LoadError> {
    Description::new(certificate).ok_or_else(|| LoadError::BadCertificate {
        path: path.to_owned(),
        reason: "it is not an X.509 certificate".to_owned(),
    })
}

/// The id of an authority's key, which certificates that it signed name; None: it has none.
pub(crate) fn key_id(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    parsed
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
}

/// The id of the key that signed a certificate; None: it does not name it.
pub(crate) fn signer_id(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    parsed
        .iter_extensions()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(signer) => {
                signer.key_identifier.as_ref().map(|id| id.0.to_vec())
            }
            _ => None,
        })
}

fn names(parsed: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
            GeneralName::RFC822Name(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

/// A time in seconds since 1970, for people.
pub(crate) fn show_time(unix_s: i64) -> String {
    ASN1Time::from_timestamp(unix_s).map_or_else(|_| unix_s.to_string(), |time| time.to_string())
}

pub(crate) fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
