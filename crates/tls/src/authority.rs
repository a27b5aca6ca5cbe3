//! A certificate authority of one cluster, in a directory: `ca.crt`, `ca.key`, and `NAME.crt` with
//! `NAME.key` for each server or client.
//!
//! **Invariants**
//! - A1: a key file has mode 0600 from its first byte on (`files::write`), and each file is there
//!   as a whole or not at all.
//! - A2: `ca.crt` has the certificate of the key in `ca.key`, also if a rotation was cut off.
//!   Beside it stands at most one other, until [`Authority::forget_last`]: so certificates of both
//!   are trusted while one replaces the other.
//! - A3: no existing file is replaced, except by [`Authority::renew`] and [`Authority::rotate`],
//!   whose purpose that is.

use crate::certificate::{self, Description, Descriptions};
use crate::error::LoadError;
use crate::files;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

const CERTIFICATE_FILE: &str = "ca.crt";
const KEY_FILE: &str = "ca.key";
const CERTIFICATE_MODE: u32 = 0o644;
const KEY_MODE: u32 = 0o600;
/// A certificate is valid from this long before it was made, because clocks of other machines may
/// be behind.
const CLOCK_SKEW: Duration = Duration::minutes(10);
/// Longest validity that may be asked for, in days: a hundred years.
const DAYS_MAX: u32 = 36_500;

/// A certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{} is there already, and is not overwritten: choose another name or directory, or use \
         `rotate`",
        path.display()
    )]
    Exists { path: PathBuf },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(
        "`{name}` cannot be the name of a file: use letters, digits, `.`, `-` and `_`, not `ca`, \
         and no `.` in front"
    )]
    BadName { name: String },
    #[error("`{san}` is neither a host name nor an IP address")]
    BadSan { san: String },
    #[error("{days} days of validity are not possible: choose 1 to {DAYS_MAX}")]
    BadDays { days: u32 },
    #[error("{} is not an authority: make one by `duramen cert init DIR`", dir.display())]
    NoAuthority { dir: PathBuf, source: LoadError },
    #[error("{} has one authority only: there is no last one to forget", path.display())]
    OnlyOne { path: PathBuf },
    #[error(
        "{} has the authority before too, which signed certificates that may be in use: when none \
         is, end the overlap by `duramen cert rotate --end-overlap`, then rotate again",
        path.display()
    )]
    Overlaps { path: PathBuf },
    #[error(
        "the authority before signed {}: replace each by `duramen cert rotate NAME` and give it \
         out, or remove its file if nobody uses it any more; then end the overlap",
        listed(files)
    )]
    InUse { files: Vec<PathBuf> },
    #[error("cannot make the certificate: {0}")]
    Refused(#[from] rcgen::Error),
}

/// A certificate that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its common name, and the name of its files.
    pub name: String,
    /// Host names and IP addresses that it is for. A client's may have none.
    pub sans: Vec<String>,
    /// The validity of the certificate, in days.
    pub days: u32,
}

/// The files of a certificate that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub description: Description,
}

/// An authority: it signs certificates with the key in its directory.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// The own certificate, and perhaps the one before (A2).
    certificates: Vec<CertificateDer<'static>>,
    /// Whether the certificate before this one is still trusted. Not so after a rotation that was
    /// cut off: the other certificate has signed nothing then.
    overlaps: bool,
}

impl Authority {
    /// Makes an authority in `dir`, which is created if it is not there.
    ///
    /// # Errors
    /// [`MakeError`]; there may be a key without a certificate then, which is of no use.
    pub fn create(dir: &Path, name: &str, days: u32) -> Result<Authority, MakeError> {
        for file in [KEY_FILE, CERTIFICATE_FILE] {
            let path = dir.join(file);
            if path.exists() {
                return Err(MakeError::Exists { path });
            }
        }
        std::fs::create_dir_all(dir).map_err(|source| MakeError::Write {
            path: dir.to_owned(),
            source,
        })?;
        let (key, certificate) = new_root(name, days)?;
        save(
            &dir.join(KEY_FILE),
            key.serialize_pem().as_bytes(),
            KEY_MODE,
            false,
        )?;
        let path = dir.join(CERTIFICATE_FILE);
        save(&path, pem(&certificate).as_bytes(), CERTIFICATE_MODE, false)?;
        Authority::new(dir, vec![certificate], key)
    }

    /// # Errors
    /// [`MakeError::NoAuthority`].
    pub fn open(dir: &Path) -> Result<Authority, MakeError> {
        let absent = |source| MakeError::NoAuthority {
            dir: dir.to_owned(),
            source,
        };
        let path = dir.join(CERTIFICATE_FILE);
        let bytes = files::read(&path).map_err(absent)?;
        let certificates = files::certificates(&path, &bytes)?;
        let path = dir.join(KEY_FILE);
        let bytes = files::read(&path).map_err(absent)?;
        let key = files::key(&path, &bytes)?;
        let key = KeyPair::try_from(&key).map_err(|error| LoadError::BadKey {
            path,
            reason: error.to_string(),
        })?;
        Authority::new(dir, certificates, key)
    }

    /// `certificates`: one of them is that of `key` (A2).
    fn new(
        dir: &Path,
        mut certificates: Vec<CertificateDer<'static>>,
        key: KeyPair,
    ) -> Result<Authority, MakeError> {
        let own = certificates.iter().position(|one| is_of(one, &key));
        let Some(own) = own else {
            return Err(MakeError::Load(LoadError::KeyMismatch {
                certificate: dir.join(CERTIFICATE_FILE),
                key: dir.join(KEY_FILE),
            }));
        };
        let overlaps = own == 0 && certificates.len() > 1;
        certificates.swap(0, own);
        Ok(Authority {
            dir: dir.to_owned(),
            issuer: Issuer::from_ca_cert_der(&certificates[0], key)?,
            certificates,
            overlaps,
        })
    }

    /// The file with the certificates of this authority, for those who trust it.
    pub fn certificate_file(&self) -> PathBuf {
        self.dir.join(CERTIFICATE_FILE)
    }

    /// Makes a certificate for `request`, for a server and for a client.
    ///
    /// # Errors
    /// [`MakeError::Exists`]: it is there.
    pub fn issue(&self, request: &Request) -> Result<Issued, MakeError> {
        self.make(request, false)
    }

    /// Replaces the certificate and key of this name; the old ones are gone. If `sans` of the
    /// request is empty, the names of the old certificate stay.
    ///
    /// # Errors
    /// [`MakeError::Load`]: there is none.
    pub fn renew(&self, request: &Request) -> Result<Issued, MakeError> {
        check_name(&request.name)?;
        let path = self.dir.join(format!("{}.crt", request.name));
        let old = Descriptions::read(&path)?;
        let mut request = request.clone();
        if request.sans.is_empty() {
            let names = old.0.first().map(|first| first.names.clone());
            request.sans = names.unwrap_or_default();
        }
        self.make(&request, true)
    }

    fn make(&self, request: &Request, replaces: bool) -> Result<Issued, MakeError> {
        check_name(&request.name)?;
        let certificate = self.dir.join(format!("{}.crt", request.name));
        let key = self.dir.join(format!("{}.key", request.name));
        for path in [&certificate, &key] {
            if !replaces && path.exists() {
                return Err(MakeError::Exists { path: path.clone() });
            }
        }
        let pair = KeyPair::generate()?;
        let made = leaf(request)?.signed_by(&pair, &self.issuer)?;
        // The certificate is written last: a server that reloads in between finds that the files do
        // not fit each other, keeps its old ones, and looks again.
        save(&key, pair.serialize_pem().as_bytes(), KEY_MODE, replaces)?;
        let text = pem(made.der());
        save(&certificate, text.as_bytes(), CERTIFICATE_MODE, replaces)?;
        Ok(Issued {
            description: crate::certificate::describe(&certificate, made.der())?,
            certificate,
            key,
        })
    }

    /// Replaces the authority's key and certificate. Its file then has both certificates, so that
    /// those that it signed before stay trusted until [`forget_last`](Self::forget_last).
    ///
    /// # Errors
    /// [`MakeError::Overlaps`]: a third authority would have to drop the first, whose certificates
    /// may be in use; [`MakeError::Write`].
    pub fn rotate(self, name: &str, days: u32) -> Result<Authority, MakeError> {
        if self.overlaps {
            let path = self.certificate_file();
            return Err(MakeError::Overlaps { path });
        }
        let (key, certificate) = new_root(name, days)?;
        let mut certificates = vec![certificate];
        certificates.extend(self.certificates.into_iter().take(1));
        let path = self.dir.join(CERTIFICATE_FILE);
        // The key is written last (A2).
        let all: String = certificates.iter().map(pem).collect();
        save(&path, all.as_bytes(), CERTIFICATE_MODE, true)?;
        let text = key.serialize_pem();
        save(&self.dir.join(KEY_FILE), text.as_bytes(), KEY_MODE, true)?;
        Authority::new(&self.dir, certificates, key)
    }

    /// Checks that no certificate in the directory that has not expired needs the authority that
    /// [`forget_last`](Self::forget_last) forgets. A file that is no certificate needs no
    /// authority. `ca.crt` does not count: a root may name itself as its signer.
    ///
    /// # Errors
    /// [`MakeError::InUse`] names those that cannot; [`MakeError::Load`].
    pub fn check_last_unused(&self) -> Result<(), MakeError> {
        let others = self.certificates.iter().skip(1);
        let last: Vec<Vec<u8>> = others.filter_map(certificate::key_id).collect();
        let unreadable = |source| LoadError::Read {
            path: self.dir.clone(),
            source,
        };
        let own = self.certificate_file();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let is_certificate = path.extension().is_some_and(|end| end == "crt");
            if is_certificate && path != own && needs_one_of(&path, &last) {
                files.push(path);
            }
        }
        files.sort();
        if files.is_empty() {
            Ok(())
        } else {
            Err(MakeError::InUse { files })
        }
    }

    /// Ends the overlap after a [`rotate`](Self::rotate): certificates of the last authority are
    /// not trusted any more. [`check_last_unused`](Self::check_last_unused) tells whether any of
    /// this directory would be lost.
    ///
    /// # Errors
    /// [`MakeError::OnlyOne`].
    pub fn forget_last(&mut self) -> Result<(), MakeError> {
        let path = self.certificate_file();
        if self.certificates.len() < 2 {
            return Err(MakeError::OnlyOne { path });
        }
        self.certificates.truncate(1);
        self.overlaps = false;
        let all: String = self.certificates.iter().map(pem).collect();
        save(&path, all.as_bytes(), CERTIFICATE_MODE, true)
    }
}

/// Whether the file has a certificate that has not expired and was signed by one of these keys.
fn needs_one_of(path: &Path, key_ids: &[Vec<u8>]) -> bool {
    let read = files::read(path).and_then(|bytes| files::certificates(path, &bytes));
    let is_signed = |one: &CertificateDer<'_>| {
        certificate::signer_id(one).is_some_and(|id| key_ids.contains(&id))
            && Description::new(one).is_some_and(|one| one.seconds_left() >= 0)
    };
    read.is_ok_and(|certificates| certificates.iter().any(is_signed))
}

/// The files' names in a sentence.
fn listed(files: &[PathBuf]) -> String {
    let names = files.iter().map(|file| file.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Whether the certificate is that of `key`.
fn is_of(certificate: &CertificateDer<'_>, key: &KeyPair) -> bool {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    // The parsed key is the bare point, as is the key of the pair.
    parsed.is_ok_and(|(_, parsed)| {
        *parsed.public_key().subject_public_key.data == *key.public_key_raw()
    })
}

fn save(path: &Path, bytes: &[u8], mode: u32, replaces: bool) -> Result<(), MakeError> {
    files::write(path, bytes, mode, replaces).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => MakeError::Exists {
            path: path.to_owned(),
        },
        _ => MakeError::Write {
            path: path.to_owned(),
            source,
        },
    })
}

fn check_name(name: &str) -> Result<(), MakeError> {
    let is_good = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if is_good && !name.is_empty() && !name.starts_with('.') && name != "ca" {
        Ok(())
    } else {
        Err(MakeError::BadName {
            name: name.to_owned(),
        })
    }
}

/// Parameters with subject and validity.
fn params(common_name: &str, days: u32) -> Result<CertificateParams, MakeError> {
    if days == 0 || days > DAYS_MAX {
        return Err(MakeError::BadDays { days });
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + Duration::days(i64::from(days));
    Ok(params)
}

fn new_root(name: &str, days: u32) -> Result<(KeyPair, CertificateDer<'static>), MakeError> {
    let mut params = params(name, days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.der().clone();
    Ok((key, certificate))
}

/// A server or client: each may open connections to the other.
fn leaf(request: &Request) -> Result<CertificateParams, MakeError> {
    let mut sans = Vec::new();
    for san in &request.sans {
        let one = CertificateParams::new([san.clone()].to_vec());
        let bad = || MakeError::BadSan { san: san.clone() };
        let is_name = crate::identity::server_name(san.trim_start_matches("*.")).is_ok();
        if !is_name {
            return Err(bad());
        }
        sans.extend(one.map_err(|_| bad())?.subject_alt_names);
    }
    let mut params = params(&request.name, request.days)?;
    params.subject_alt_names = sans;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    Ok(params)
}

/// A certificate in PEM form.
fn pem(certificate: &CertificateDer<'static>) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = STANDARD.encode(certificate);
    for line in encoded.as_bytes().chunks(64) {
        let _ = writeln!(text, "{}", String::from_utf8_lossy(line));
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
