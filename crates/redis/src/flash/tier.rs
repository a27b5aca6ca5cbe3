//! The second tier: flash for entries for which memory has no room and that are rarely read.
//!
//! The engine decides which entries go there, and reports the place of each entry that it needs.
//! The thread that runs the request fetches the entry (`command::cold`, `reactor::flash`).
//!
//! **Invariants**
//! - Y1: without the setting `flash-file` there is no tier, and nothing here runs.
//! - Y2: the bytes fetched at once are bounded, per reactor thread and per request. They are taken
//!   from the memory budget, except where the share is below the minimum.
//!
//! Paper: [Badam11 §3]; differs: segments move as a whole, and flash is not the durable place of
//! anything.

use super::encrypted::EncryptedDevice;
use duramen_config::{FETCH_BYTES_MIN, ServerConfig, ServerError, seldom};
use duramen_disk::{Device, Error, FileDevice, SpanReader, UNIT_BYTES};
use duramen_engine::flash::FlashOptions;
use std::fs::Metadata;
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All threads together may fetch into the memory budget divided by this.
const FETCH_PART: u64 = 16;
/// Most bytes that a thread may fetch at once: far more than any device works on at once.
const FETCH_BYTES_MAX: usize = 64 << 20;

/// A server's flash.
pub struct Tier {
    device: Arc<Reported>,
    path: PathBuf,
    /// The bytes that each reactor thread may fetch at once (Y2).
    fetch_bytes: usize,
}

/// A device whose failures are logged.
struct Reported(Arc<dyn Device>);

/// Logs that a read has failed.
pub fn report_read(error: &std::io::Error) {
    seldom!(error, "reading from flash fails: {error}");
}

fn report_write(error: &std::io::Error) {
    seldom!(error, "writing to flash fails: {error}");
}

impl Device for Reported {
    fn read_at(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(at, into).inspect_err(report_read)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(at, bytes).inspect_err(report_write)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn lies_in(&self, found: &Metadata) -> bool {
        self.0.lies_in(found)
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.0.descriptor()
    }

    fn decrypt(&self, at: u64, bytes: &mut [u8]) {
        self.0.decrypt(at, bytes);
    }
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Tier({} bytes of {})",
            self.device.bytes(),
            self.path.display()
        )
    }
}

impl Tier {
    /// Opens the flash file or partition that the settings name; `None`: they name none.
    ///
    /// # Errors
    /// [`ServerError::Flash`], [`ServerError::Config`]: see their texts.
    pub fn open(config: &ServerConfig) -> Result<Option<Tier>, ServerError> {
        if config.flash_file.is_empty() {
            return Ok(None);
        }
        let path = PathBuf::from(&config.flash_file);
        check_kind(&path)?;
        let opened = FileDevice::open(&path, config.flash_bytes);
        let device = opened.map_err(|source| ServerError::Flash {
            advice: advice(&source),
            path: path.clone(),
            source,
        })?;
        if device.bytes() + (UNIT_BYTES as u64) <= config.flash_bytes {
            return Err(ServerError::Config(format!(
                "flash-size is {} bytes, but the partition {} has {} only",
                config.flash_bytes,
                path.display(),
                device.bytes()
            )));
        }
        if !device.is_past_cache() {
            tracing::warn!(
                path = %path.display(),
                "the file system of the flash file has no direct access: what lies there takes memory of the page cache too"
            );
        }
        let device: Arc<dyn Device> = match config.key_source() {
            None => Arc::new(device),
            Some(_) => Arc::new(EncryptedDevice::new(device)?),
        };
        Ok(Some(Tier::new(device, path, config)))
    }

    fn new(device: Arc<dyn Device>, path: PathBuf, config: &ServerConfig) -> Tier {
        let share = config.memory_bytes / FETCH_PART / config.reactor_threads() as u64;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        Tier {
            device: Arc::new(Reported(device)),
            path,
            fetch_bytes: share.clamp(FETCH_BYTES_MIN, FETCH_BYTES_MAX),
        }
    }

    /// A reader for one thread.
    ///
    /// # Errors
    /// As [`SpanReader::new`].
    pub fn reader(&self, depth: u32) -> Result<SpanReader, Error> {
        SpanReader::new(self.device.clone(), depth, true)
    }

    /// The tier as an option of the engine.
    pub fn options(&self) -> FlashOptions {
        FlashOptions {
            device: self.device.clone(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    /// Bytes that a reactor thread fetches at once; a single request may not need more.
    pub fn fetch_bytes(&self) -> usize {
        self.fetch_bytes
    }
}

/// Refuses a path that exists and is neither a file nor a block device.
fn check_kind(path: &Path) -> Result<(), ServerError> {
    let Ok(metadata) = path.metadata() else {
        return Ok(()); // opening it reports the reason
    };
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(ServerError::Config(format!(
        "flash-file {} is {}: name a regular file or a partition",
        path.display(),
        if kind.is_dir() {
            "a directory"
        } else {
            "a special file"
        }
    )))
}

/// The advice that ends the error text.
fn advice(error: &Error) -> &'static str {
    let (Error::Device { source, .. } | Error::Open { source, .. }) = error else {
        return match error {
            Error::InUse { .. } => "; give each server its own, or stop the other one",
            Error::OfStore { .. } => "; name a separate file",
            _ => "",
        };
    };
    match source.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "; the server's user must be able to read and write it"
        }
        std::io::ErrorKind::NotFound => "; make its directory first",
        std::io::ErrorKind::StorageFull => {
            "; free space on its file system, or choose a smaller flash-size"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &Path) -> ServerConfig {
        ServerConfig {
            flash_file: path.display().to_string(),
            flash_bytes: 64 << 20,
            ..ServerConfig::default()
        }
    }

    fn refusal(path: &Path) -> String {
        Tier::open(&config(path)).expect_err("refused").to_string()
    }

    #[test]
    fn no_file_no_tier() {
        assert!(
            Tier::open(&ServerConfig::default())
                .expect("none")
                .is_none()
        );
    }

    #[test]
    fn with_a_key_the_file_shows_nothing() {
        const SECRET: &[u8] = b"a secret of a client";
        for is_encrypted in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("flash");
            let mut config = config(&path);
            if is_encrypted {
                config.encryption_key_file = "read by the store alone".to_owned();
            }
            let tier = Tier::open(&config).expect("opened").expect("a tier");
            let mut memory = duramen_disk::Aligned::zeroed(64 << 10);
            memory.bytes_mut()[100..120].copy_from_slice(SECRET);
            tier.device
                .write_at(1 << 20, memory.bytes())
                .expect("written");
            let file = std::fs::read(&path).expect("the file");
            let is_shown = file.windows(SECRET.len()).any(|some| some == SECRET);
            assert_eq!(is_shown, !is_encrypted);
            let mut found = duramen_disk::Aligned::zeroed(64 << 10);
            let read = tier.device.read_at(1 << 20, found.bytes_mut());
            read.expect("read");
            assert!(found.bytes() == memory.bytes());
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let said = refusal(dir.path());
        assert!(
            said.contains("is a directory: name a regular file"),
            "{said}"
        );
        let said = refusal(&dir.path().join("none/flash"));
        assert!(said.contains("make its directory first"), "{said}");
        let said = refusal(Path::new("/dev/null"));
        assert!(said.contains("special file"), "{said}");
        let path = dir.path().join("flash");
        let first = Tier::open(&config(&path)).expect("opened").expect("a tier");
        assert_eq!(first.bytes(), 64 << 20);
        let said = refusal(&path);
        assert!(
            said.contains("in use by another process; give each server its own"),
            "{said}"
        );
    }

    /// A flash file that was `frames` or `wal` of another server's store, even of a running one,
    /// was once accepted without an error, and everything in that store was lost.
    #[test]
    fn no_part_of_a_store_is_flash() {
        use duramen_backup::os::OsDisk;
        use duramen_backup::{Backup, Geometry, Identity, Mode, Options};
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let raw = dir.path().join("device");
        let file = std::fs::File::create(&raw).expect("a device");
        file.set_len(24 << 20).expect("its length");
        let create = |path: &Path, mode| {
            let geometry = Geometry {
                segment_bytes: 1 << 20,
                wal_bytes: 1 << 20,
                frames: 12,
            };
            let identity = Identity {
                cluster: String::new(),
                server: 7,
                hash_seed: 5,
            };
            let disk = Arc::new(OsDisk::new(path, mode));
            let options = Options::default();
            Backup::create(disk, &options, &geometry, &identity).expect("a store")
        };
        let running = create(&store, Mode::Buffered);
        drop(create(&raw, Mode::Raw));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(store.join("wal"), &link).expect("a link");
        // Copies with other names are recognized by their first blocks.
        for name in ["superblock", "wal"] {
            std::fs::copy(store.join(name), dir.path().join(name)).expect("a copy");
        }
        std::fs::rename(dir.path().join("superblock"), dir.path().join("other")).expect("named");
        let before = std::fs::read(store.join("frames")).expect("frames");
        let names = ["superblock", "wal", "frames", "LOCK", "heat"];
        let inside = names.map(|name| store.join(name));
        let outside = ["link", "device", "wal", "other"].map(|name| dir.path().join(name));
        for path in inside.iter().chain(&outside) {
            let said = refusal(path);
            assert!(
                said.contains("everything in it would be lost; name a separate file"),
                "{said}"
            );
        }
        drop(running);
        assert!(refusal(&store.join("frames")).contains("is the file `frames` of a store"));
        assert!(std::fs::read(store.join("frames")).expect("frames") == before);
        assert!(!store.join("heat").exists());
    }

    #[test]
    fn what_is_fetched_at_once_has_room_for_the_largest_entries() {
        let dir = tempfile::tempdir().expect("a directory");
        let device: Arc<dyn Device> =
            Arc::new(FileDevice::open(&dir.path().join("flash"), 64 << 20).expect("opened"));
        for (memory, threads) in [(64 << 20, 1), (64 << 20, 64), (1 << 40, 1)] {
            let config = ServerConfig {
                memory_bytes: memory,
                threads,
                ..ServerConfig::default()
            };
            let bytes = Tier::new(Arc::clone(&device), PathBuf::new(), &config).fetch_bytes();
            assert!((FETCH_BYTES_MIN..=FETCH_BYTES_MAX).contains(&bytes));
        }
    }
}
