//! A swap file. It needs root, and is removed again, however this program ends.

use crate::harness::{Doing, Failure, Result, Undo, interrupt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Waits until its standard input ends, at the latest with this program, then removes the swap
/// file. Its contents must fit into RAM, so the kernel may refuse until the programs that use it
/// have ended.
const KEEPER: &str = r#"
trap '' INT TERM HUP
cat > /dev/null
tries=0
while grep -q "^$1 " /proc/swaps && [ $tries -lt 120 ]; do
    swapoff "$1" 2> /dev/null || sleep 0.5
    tries=$((tries + 1))
done
grep -q "^$1 " /proc/swaps && exit 1
rm -f "$1"
rmdir "$(dirname "$1")" 2> /dev/null
exit 0
"#;

/// A swap file that is in use.
pub struct Swap {
    _undo: Undo,
}

impl Swap {
    /// A swap file of `bytes` in a directory of this program.
    ///
    /// # Errors
    /// The file cannot be made, or the kernel refuses it.
    pub fn new(dir: &Path, bytes: u64) -> Result<Swap> {
        let file = dir.join("swap");
        run(Command::new("fallocate")
            .args(["-l", &bytes.to_string()])
            .arg(&file))?;
        run(Command::new("chmod").arg("600").arg(&file))?;
        run(Command::new("mkswap").arg(&file))?;
        // The keeper starts before the swap file is in use: so the file is always removed.
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&file)
            .stdin(Stdio::piped())
            .spawn()
            .doing("starting what takes the swap file off")?;
        interrupt::spare(keeper.id());
        let swap = Swap {
            _undo: Undo::new(move || {
                drop(keeper.stdin.take());
                // A failure shows in `swapon --show`: the file is then still in use, and stays.
                let _ = keeper.wait();
            }),
        };
        run(Command::new("swapon").arg(&file))?;
        Ok(swap)
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().doing(&name)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(name, String::from_utf8_lossy(&output.stderr)))
}
