//! The C programs: built here, run within a limit of RAM, with their output as lines of JSON.

use super::FlashArgs;
use super::swap::Swap;
use crate::harness::{Doing, Failure, Group, Result, Row, progress};
use crate::servers::Scratch;
use duramen_base::units::MIB;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// RAM of a program beside the library's budget: its code, stacks, and page tables, for which the
/// library leaves up to 8 MiB.
const BESIDE_BYTES: u64 = 12 * MIB;
/// The same for a program without the library: RAM that it does not need is left for its data.
const PLAIN_BESIDE_BYTES: u64 = 4 * MIB;
/// Programs that are built.
const PROGRAMS: [&str; 6] = ["array", "btree", "packets", "hashcache", "pairs", "costs"];
/// The program that is built by direct calls as well, and the name of that one.
const DIRECT: (&str, &str) = ("packets", "packets-direct");

/// The state shared by all parts.
pub struct Bench {
    pub scratch: Scratch,
    /// Size of a swap file; `None`: none can be used here.
    swap_bytes: Option<u64>,
    built: BTreeMap<&'static str, PathBuf>,
}

/// The output of one run of a program.
#[derive(Clone, Debug)]
pub struct Run(Value);

impl Run {
    /// A number of the output; NaN if it is missing.
    pub fn number(&self, name: &str) -> f64 {
        self.0.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    /// Per operation.
    pub fn each(&self, name: &str) -> f64 {
        self.number(name) / self.number("operations")
    }

    /// Per operation that wrote; NaN without any.
    pub fn per_write(&self, name: &str) -> f64 {
        let writes = self.number("writes");
        if writes == 0.0 {
            return f64::NAN;
        }
        self.number(name) / writes
    }

    /// Rate and response times.
    pub fn times(&self, row: Row) -> Row {
        row.number("k/s", self.number("per_second") / 1e3, 3)
            .number("mean µs", self.number("mean_us"), 3)
            .number("deviation µs", self.number("deviation_us"), 3)
            .number("p50 µs", self.number("p50_us"), 3)
            .number("p99 µs", self.number("p99_us"), 3)
            .number("CPU µs", 1e6 * self.each("cpu_seconds"), 3)
    }
}

impl Bench {
    pub fn new(args: &FlashArgs) -> Result<Bench> {
        let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        let scratch =
            Scratch::new(&dir).doing(format!("making a directory in {}", dir.display()))?;
        let built = build(args.library.as_deref(), scratch.path())?;
        let swap_bytes = match Swap::new(scratch.path(), MIB) {
            Ok(_) => Some((2 * data_bytes(args) + 64 * MIB).next_multiple_of(MIB)),
            Err(failure) => {
                progress!("no swap file can be used here: {failure}");
                None
            }
        };
        Ok(Bench {
            scratch,
            swap_bytes,
            built,
        })
    }

    pub fn can_swap(&self) -> bool {
        self.swap_bytes.is_some()
    }

    /// A swap file of `bytes`, or of as many as the programs need, which is removed when this is
    /// dropped: other runs must not swap during their measurement.
    pub fn swap_of(&self, bytes: u64) -> Result<Option<Swap>> {
        let swap = |least: u64| Swap::new(self.scratch.path(), least.max(bytes));
        self.swap_bytes.map(swap).transpose()
    }

    /// The flash file.
    pub fn flash(&self) -> PathBuf {
        self.scratch.path().join("flash")
    }

    /// Removes the flash file: the next run begins without data of an earlier one.
    pub fn clear(&self) {
        // It need not exist.
        let _ = std::fs::remove_file(self.flash());
    }

    pub fn program(&self, name: &str) -> Result<&Path> {
        let found = self.built.get(name);
        found
            .map(PathBuf::as_path)
            .ok_or_else(|| Failure::new(name, "no such program"))
    }

    /// Runs a program with RAM of `ram_bytes` for its objects; returns each line of its output.
    pub fn run(
        &self,
        name: &str,
        memory: &str,
        ram_bytes: u64,
        arguments: &[String],
    ) -> Result<Vec<Run>> {
        self.run_beside(name, memory, (ram_bytes, 0), arguments)
    }

    /// As [`run`](Self::run), with `more_bytes` of RAM for other data of the program.
    pub fn run_beside(
        &self,
        name: &str,
        memory: &str,
        (ram_bytes, more_bytes): (u64, u64),
        arguments: &[String],
    ) -> Result<Vec<Run>> {
        let _swap = if memory == "malloc" {
            self.swap_of(0)?
        } else {
            None
        };
        let by_library = matches!(memory, "opp" | "mp" | "direct");
        let beside = if by_library {
            BESIDE_BYTES
        } else {
            PLAIN_BESIDE_BYTES
        };
        let limit = Group::new(ram_bytes + more_bytes + beside)
            .doing("making a memory cgroup (are you root?)")?;
        // A program that swaps has no flash file: the counted device is that of the swap file.
        let flash = if memory == "malloc" {
            self.scratch.path().to_path_buf()
        } else {
            self.flash()
        };
        let mut command = limit.command(self.program(name)?);
        command.arg("--flash").arg(&flash);
        command.args(["--memory", memory]);
        command.args(["--ram-mb", &(ram_bytes / MIB).to_string()]);
        let about = format!("{name} by {memory}, {}", arguments.join(" "));
        said(&about, command.args(arguments))
    }
}

/// Runs a program to its end; returns each line of JSON that it printed.
pub fn said(about: &str, command: &mut Command) -> Result<Vec<Run>> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.doing(format!("running {about}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let how = format!("{}: {}{said}", output.status, error.trim());
        return Err(Failure::new(about, how));
    }
    let lines = said.lines().map(|line| {
        let value: Value = serde_json::from_str(line).doing(format!("{about} said {line}"))?;
        Ok(Run(value))
    });
    let lines: Vec<Run> = lines.collect::<Result<_>>()?;
    if let Some(last) = lines.last() {
        progress!("{about}: {:.0}/s", last.number("per_second"));
    }
    Ok(lines)
}

/// Bytes of data of the array and the programs.
pub fn data_bytes(args: &FlashArgs) -> u64 {
    args.data_mb.unwrap_or(args.options.size(384, 96)) * MIB
}

/// Arguments in the form of the programs.
pub fn arguments(pairs: &[(&str, u64)]) -> Vec<String> {
    let each = pairs
        .iter()
        .flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
    each.collect()
}

/// Builds the programs against the libraries.
fn build(library: Option<&Path>, into: &Path) -> Result<BTreeMap<&'static str, PathBuf>> {
    let beside = std::env::current_exe().doing("finding this program")?;
    let beside = beside.with_file_name("libduramen_alloc.a");
    let library = library.unwrap_or(&beside);
    let direct = library.with_file_name("libduramen_direct.a");
    for library in [library, &direct] {
        if !library.exists() {
            let how = "it is not there; build it first (in heap/: cargo build --profile ship --workspace)";
            return Err(Failure::new(library.display().to_string(), how));
        }
    }
    let mut built = BTreeMap::new();
    for name in PROGRAMS {
        built.insert(name, compile(name, &[], library, &into.join(name))?);
    }
    let (source, name) = DIRECT;
    let flags = ["-DPLAIN_MALLOC", "-DDIRECT"];
    built.insert(name, compile(source, &flags, &direct, &into.join(name))?);
    Ok(built)
}

/// Compiles a program of the heap's examples; returns its path.
fn compile(source: &str, flags: &[&str], library: &Path, program: &Path) -> Result<PathBuf> {
    let heap = Path::new(env!("CARGO_MANIFEST_DIR")).join("../heap/crates");
    let output = Command::new("cc")
        .args(["-O2", "-std=gnu11"])
        .args(flags)
        .arg("-I")
        .arg(heap.join("alloc/include"))
        .arg("-I")
        .arg(heap.join("direct/include"))
        .arg(heap.join(format!("alloc/examples/{source}.c")))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(program)
        .output()
        .doing("running the C compiler, cc")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::new(format!("building {source}.c"), error));
    }
    Ok(program.to_owned())
}
