//! A disk whose changes wait while a lock is held.

use duramen_backup::Mode;
use duramen_backup::disk::{Disk, File, Front, Fronted};
use duramen_backup::os::OsDisk;
use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};

/// A file whose changes wait while `still` is held.
struct Stoppable {
    below: Arc<dyn File>,
    still: Arc<RwLock<()>>,
}

impl Front for Stoppable {
    fn below(&self) -> &dyn File {
        &*self.below
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let _goes_on = self.still.read().unwrap();
        self.below.write_at(at, bytes)
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let _goes_on = self.still.read().unwrap();
        self.below.write_durably(at, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        let _goes_on = self.still.read().unwrap();
        self.below.sync_data()
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        let _goes_on = self.still.read().unwrap();
        self.below.allocate(at, bytes, zero)
    }
}

/// The disk of a directory, and the lock: its changes wait while somebody has it exclusively.
pub fn stoppable(dir: &Path) -> (Arc<dyn Disk>, Arc<RwLock<()>>) {
    let still = Arc::new(RwLock::new(()));
    let told = still.clone();
    let disk = Fronted::new(
        Arc::new(OsDisk::new(dir, Mode::Buffered)),
        move |below| -> Arc<dyn File> {
            let still = told.clone();
            Arc::new(Stoppable { below, still })
        },
    );
    (Arc::new(disk), still)
}
