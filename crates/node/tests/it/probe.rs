//! A backup that is asked whether it works again, on a disk that has no room for a while.

use duramen_backup::disk::{File, Front, Fronted};
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Error, Geometry, Identity, Mode, Options};
use duramen_base::ids::ServerId;
use duramen_node::{Asked, BackupConfig, BackupService, Reply};
use duramen_wire::native::message::{Peer, PeerAnswer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ME: ServerId = ServerId::new(4, 1);
const MASTER: ServerId = ServerId::new(3, 7);

/// A file that refuses all writes while the disk is full.
struct FillingFile(Arc<dyn File>, Arc<AtomicBool>);

impl Front for FillingFile {
    fn below(&self) -> &dyn File {
        &*self.0
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.0.write_at(at, bytes),
        }
    }
}

/// A disk without room refused the write; the next attempt made none, and answered.
#[test]
fn a_probe_is_answered_only_after_a_write_that_succeeded() {
    let dir = tempfile::tempdir().unwrap();
    let is_full = Arc::new(AtomicBool::new(false));
    let below = Arc::new(OsDisk::new(&dir.path().join("store"), Mode::Buffered));
    let shown = is_full.clone();
    let disk = Fronted::new(below, move |file| -> Arc<dyn File> {
        Arc::new(FillingFile(file, shown.clone()))
    });
    let geometry = Geometry {
        segment_bytes: 1 << 16,
        wal_bytes: 1 << 20,
        frames: 16,
    };
    let identity = Identity {
        cluster: "home".to_owned(),
        server: 1,
        hash_seed: 5,
    };
    let options = Options::default();
    let backup = Backup::create(Arc::new(disk), &options, &geometry, &identity).unwrap();
    let config = BackupConfig {
        server: ME,
        hash_seed: 5,
        read_lease_ms: 100,
        ahead_bytes: 1 << 20,
    };
    let mut service = BackupService::new(Arc::new(backup), config, 0);
    let probe = Asked {
        tag: 1,
        sender: MASTER,
        target: ME,
        question: &Peer::SyncReplicas { log: MASTER },
        payload: &[1],
    };
    let mut out: Vec<Reply<u32>> = Vec::new();
    service.asked(0, probe, &mut out);
    is_full.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let done = service.run(&|| 0, &mut out);
        assert!(matches!(done, Err(Error::Full { .. })), "B12: {done:?}");
    }
    is_full.store(false, Ordering::Relaxed);
    service.run(&|| 0, &mut out).unwrap();
    assert!(matches!(
        out[..],
        [Reply {
            tag: 1,
            answer: PeerAnswer::Synced,
            ..
        }]
    ));
}
