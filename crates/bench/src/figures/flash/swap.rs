//! A swap file. It needs root, and is taken away again, however this program ends.

use crate::harness::{Doing, Failure, Result, Undo, interrupt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Waits until its standard input ends, which is when this program does at the latest, then takes
/// the swap file off. What is in it must fit into RAM, so the kernel may refuse until whoever uses
/// it has gone.
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
    /// Of `bytes` in a directory, which is this program's own.
    ///
    /// # Errors
    /// The file cannot be made, or the kernel does not take it.
    pub fn new(dir: &Path, bytes: u64) -> Result<Swap> {
        let file = dir.join("swap");
        run(Command::new("fallocate")
            .args(["-l", &bytes.to_string()])
            .arg(&file))?;
        run(Command::new("chmod").arg("600").arg(&file))?;
        run(Command::new("mkswap").arg(&file))?;
        // From here on somebody takes it off: before it is on.
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
                // What fails is seen by `swapon --show`: the file is then still in use, and stays.
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
