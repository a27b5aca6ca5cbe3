//! A backup that is asked whether it works again, on a disk that has no room for a while.

use crate::disk::{ME, backup_on, disk_in};
use duramen_backup::Error;
use duramen_backup::disk::{File, Front, Fronted};
use duramen_base::ids::ServerId;
use duramen_node::{Asked, Reply};
use duramen_wire::native::message::{Peer, PeerAnswer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let below = disk_in(&dir);
    let shown = is_full.clone();
    let disk = Fronted::new(below, move |file| -> Arc<dyn File> {
        Arc::new(FillingFile(file, shown.clone()))
    });
    let (_, mut service) = backup_on(Arc::new(disk), 16);
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
