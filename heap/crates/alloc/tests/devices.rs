//! Flash on devices with sectors of 512 bytes, 4,096 bytes or more, and a checkpoint on a device
//! other than that of the objects: loop devices, if the machine allows them.

mod common;

use common::{assert_filled, fill, options};
use duramen_alloc::{Faults, Options};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const OBJECTS: usize = 3000;
const WORDS: usize = 250;
const RAM: u64 = 5 << 20;
const FLASH: u64 = 32 << 20;

/// A loop device over a file, perhaps with a file system; removed on drop.
struct Loop {
    device: PathBuf,
    mounted: Option<PathBuf>,
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

impl Loop {
    /// `None`: the machine does not allow it; a message reports that.
    fn new(dir: &Path, name: &str, sector: usize) -> Option<Loop> {
        let file = dir.join(name);
        std::fs::File::create(&file)
            .unwrap()
            .set_len(2 * FLASH)
            .unwrap();
        let made = said(
            Command::new("losetup")
                .args(["--find", "--show", "--sector-size", &sector.to_string()])
                .arg(&file),
        );
        match made {
            Ok(device) => Some(Loop {
                device: device.into(),
                mounted: None,
            }),
            Err(error) => {
                println!("skipped: no loop device with sectors of {sector} bytes: {error}");
                None
            }
        }
    }

    fn mounted(dir: &Path, name: &str, sector: usize) -> Option<Loop> {
        let mut made = Loop::new(dir, name, sector)?;
        let place = dir.join(format!("{name}-mounted"));
        std::fs::create_dir(&place).unwrap();
        let formatted = said(
            Command::new("mkfs.ext4")
                .args(["-q", "-F"])
                .arg(&made.device),
        );
        let mounted =
            formatted.and_then(|_| said(Command::new("mount").arg(&made.device).arg(&place)));
        if let Err(error) = mounted {
            println!("skipped: no file system on a loop device: {error}");
            return None;
        }
        made.mounted = Some(place);
        made.into()
    }

    fn place(&self) -> &Path {
        self.mounted.as_deref().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(place) = &self.mounted {
            let _ = said(Command::new("umount").arg(place));
        }
        let _ = said(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// The tests of this file share a process, which has one heap.
static ALONE: Mutex<()> = Mutex::new(());

/// A heap five times as large as its RAM: written, read, stored in a checkpoint, and read again
/// after a restore.
fn live(flash: &Path, checkpoint: &Path) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, restore) in [
        (Faults::Userfault, false),
        (Faults::Userfault, true),
        (Faults::Protect, true),
    ] {
        let options = Options {
            flash_file: flash.to_path_buf(),
            ..options(Path::new(""), FLASH, RAM, kind)
        };
        if let Err(error) = duramen_alloc::init(&options) {
            assert!(kind == Faults::Userfault, "{error}");
            println!("skipped: {error}");
            return;
        }
        if restore {
            duramen_alloc::restore(checkpoint).unwrap();
        } else {
            let array = duramen_alloc::oalloc(OBJECTS, WORDS * 8).unwrap();
            duramen_alloc::set_root(0, array).unwrap();
        }
        let array = duramen_alloc::root(0).unwrap().addr();
        let stride = duramen_alloc::stride(WORDS * 8);
        for version in 1..3 {
            for index in 0..OBJECTS {
                let object = (array + index * stride) as *mut u64;
                // SAFETY: an array of this many objects with this many words.
                unsafe {
                    if restore || version > 1 {
                        let before = if version > 1 { version - 1 } else { 2 };
                        assert_filled(object, WORDS, index as u64, before);
                    }
                    fill(object, WORDS, index as u64, version);
                }
            }
        }
        let stats = duramen_alloc::stats().unwrap();
        assert!(stats.from_flash > 1000, "{stats:?}");
        duramen_alloc::checkpoint(checkpoint).unwrap();
        // SAFETY: it is not used any more.
        unsafe { duramen_alloc::close() }.unwrap();
    }
}

/// A device of 4,096-byte sectors was read at multiples of 512: the program ended with SIGBUS.
#[test]
fn partitions_with_short_and_long_sectors() {
    for sector in [512, 1024, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = Loop::new(dir.path(), "device", sector) else {
            continue;
        };
        live(&device.device, &dir.path().join("checkpoint"));
    }
}

/// The flash file and the checkpoint on one file system with long sectors, then on two different
/// ones.
#[test]
fn files_on_devices_with_long_sectors() {
    let dir = tempfile::tempdir().unwrap();
    let Some(long) = Loop::mounted(dir.path(), "long", 4096) else {
        return;
    };
    let place = long.place();
    live(&place.join("flash"), &place.join("checkpoint"));
    live(&place.join("flash"), &dir.path().join("elsewhere"));
    std::fs::remove_file(place.join("flash")).unwrap();
    live(&dir.path().join("flash"), &place.join("elsewhere"));
}

/// Unusable devices are refused when they are opened, with the remedy.
#[test]
fn partitions_with_sectors_that_are_too_long_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(dir.path(), "device", 16_384) else {
        return;
    };
    let options = Options {
        flash_file: device.device.clone(),
        ..options(Path::new(""), FLASH, RAM, Faults::Protect)
    };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let error = duramen_alloc::init(&options).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("in units of 16384 bytes; at most 4096"),
        "{said}"
    );
    assert_eq!(error.code(), -2);
}
