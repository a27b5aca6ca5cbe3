//! A backup of 64 KiB segments, and its service.

use duramen_backup::disk::Disk;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Geometry, Identity, Mode, Options};
use duramen_base::ids::ServerId;
use duramen_node::{BackupConfig, BackupService};
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const ME: ServerId = ServerId::new(4, 1);
pub(crate) const SEED: u64 = 5;
pub(crate) const LEASE_MS: u32 = 100;
pub(crate) const SEGMENT_BYTES: u32 = 64 << 10;

/// A disk in this directory.
pub(crate) fn disk_in(dir: &TempDir) -> Arc<OsDisk> {
    Arc::new(OsDisk::new(&dir.path().join("store"), Mode::Buffered))
}

/// A backup with an empty disk, and its service.
pub(crate) fn backup_on(disk: Arc<dyn Disk>, frames: u32) -> (Arc<Backup>, BackupService<u32>) {
    let geometry = Geometry {
        segment_bytes: SEGMENT_BYTES,
        wal_bytes: 1 << 20,
        frames,
    };
    let identity = Identity {
        cluster: "home".to_owned(),
        server: 1,
        hash_seed: SEED,
    };
    let made = Backup::create(disk, &Options::default(), &geometry, &identity);
    let backup = Arc::new(made.expect("an empty disk"));
    let service = service_of(backup.clone());
    (backup, service)
}

/// A new process's service of this backup.
pub(crate) fn service_of(backup: Arc<Backup>) -> BackupService<u32> {
    let config = BackupConfig {
        server: ME,
        hash_seed: SEED,
        read_lease_ms: LEASE_MS,
        ahead_bytes: 1 << 20,
    };
    BackupService::new(backup, config, 0)
}
