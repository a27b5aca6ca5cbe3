//! Reading of PEM files, and writing of files that must be whole and, for keys, private.

use crate::error::LoadError;
use rustix::fs::OFlags;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Longest file that is read: far above any bundle of authorities.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// # Errors
/// [`LoadError::Read`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let read = || {
        let mut bytes = Vec::new();
        // Without the flag, opening a pipe would wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            Err(io::Error::other("it is longer than 16 MiB"))
        } else {
            Ok(bytes)
        }
    };
    read().map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}

/// All certificates of a file.
///
/// # Errors
/// The bytes are not PEM, or hold no certificate.
pub(crate) fn certificates(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    let parsed = parsed.map_err(|error| malformed(path, &error))?;
    if parsed.is_empty() {
        return Err(LoadError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(parsed)
}

/// The private key of a file.
///
/// # Errors
/// The bytes are not PEM, hold no key, or one with a password.
pub(crate) fn key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, LoadError> {
    let path = path.to_owned();
    let text = String::from_utf8_lossy(bytes);
    if text.contains("ENCRYPTED") {
        return Err(LoadError::EncryptedKey { path });
    }
    match PrivateKeyDer::from_pem_slice(bytes) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => Err(LoadError::NoKey { path }),
        Err(error) => Err(malformed(&path, &error)),
    }
}

fn malformed(path: &Path, error: &pem::Error) -> LoadError {
    let reason = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line: the file is cut short",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is not complete",
        pem::Error::Base64Decode(_) => "a section is not base64",
        _ => "it cannot be parsed",
    };
    LoadError::Malformed {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Whether other users may read the file: for a key, a reason for a warning.
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

/// Writes a file so that it is there as a whole or not at all, with `mode` from its first byte on.
/// `replaces`: an older file may be there.
///
/// # Errors
/// The disk, or a file that is there and must not be.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, replaces: bool) -> io::Result<()> {
    if !replaces && path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let draft = dir.join(format!(
        ".{}.{}.new",
        name.to_string_lossy(),
        std::process::id()
    ));
    let result = write_draft(&draft, bytes, mode).and_then(|()| match replaces {
        true => fs::rename(&draft, path),
        // Fails if the file is there meanwhile.
        false => fs::hard_link(&draft, path).and_then(|()| fs::remove_file(&draft)),
    });
    if result.is_err() {
        let _ = fs::remove_file(&draft);
    }
    result?;
    File::open(&dir)?.sync_all()
}

fn write_draft(draft: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let _ = fs::remove_file(draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(draft)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tls::T3.
    #[test]
    fn a_private_file_is_never_readable_for_others() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.key");
        write(&path, b"one", 0o600, false).expect("it is new");
        assert!(!is_open_to_others(&path));
        let again = write(&path, b"two", 0o600, false).expect_err("it is there");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("it is there"), b"one");
        write(&path, b"two", 0o600, true).expect("it may be replaced");
        assert_eq!(fs::read(&path).expect("it is there"), b"two");
        assert!(!is_open_to_others(&path));
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn files_that_are_no_keys_are_told_apart() {
        let path = Path::new("x.pem");
        let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n";
        let error = key(path, encrypted).expect_err("it has a password");
        assert!(matches!(error, LoadError::EncryptedKey { .. }), "{error}");
        let error = key(path, b"hello").expect_err("it is no key");
        assert!(matches!(error, LoadError::NoKey { .. }), "{error}");
        let error = certificates(path, b"hello").expect_err("it is no certificate");
        assert!(matches!(error, LoadError::NoCertificate { .. }), "{error}");
        let cut = b"-----BEGIN CERTIFICATE-----\nAAAA\n";
        let error = certificates(path, cut).expect_err("its end is missing");
        assert!(matches!(error, LoadError::Malformed { .. }), "{error}");
        let error = read(Path::new("/nowhere/x.pem")).expect_err("it is missing");
        assert!(error.to_string().contains("/nowhere/x.pem"), "{error}");
    }
}
