//! The programs of `examples`, built by this machine's compiler and run small: with the library,
//! and by malloc alone.

mod compiler;

use compiler::{can_build, crate_dir, said};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SANITIZED: [&str; 3] = [
    "-std=gnu11",
    "-DPLAIN_MALLOC",
    "-fsanitize=address,undefined",
];

/// A program of `examples`, in a directory of its own.
struct Example {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Example {
    /// `None`: there is no compiler.
    fn build(name: &str, flags: &[&str]) -> Option<Example> {
        let dir = tempfile::tempdir().unwrap();
        if !can_build("cc", flags, dir.path()) {
            return None;
        }
        let program = dir.path().join("program");
        let source = crate_dir().join("examples").join(format!("{name}.c"));
        let plain = flags.contains(&"-DPLAIN_MALLOC");
        let linked: &[&str] = if plain {
            &[]
        } else {
            &["LIBRARIES/libduramen_alloc.a"]
        };
        compiler::build("cc", &source, flags, linked, &program);
        Some(Example { dir, program })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(&self.program)
            .args(arguments)
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .output()
            .unwrap()
    }

    /// The line of JSON at the end of a run; `None`: this kernel cannot do it.
    fn measure(&self, arguments: &[&str]) -> Option<String> {
        let output = self.run(arguments);
        if output.status.code() == Some(77) {
            println!("skipped: {}", said(&output));
            return None;
        }
        let line = said(&output);
        assert!(output.status.success(), "{arguments:?}: {line}");
        assert!(
            line.starts_with('{') && line.ends_with("}\n") && line.lines().count() == 1,
            "{arguments:?}: one line of JSON, not {line}"
        );
        Some(line)
    }
}

/// A number of the line.
fn number(line: &str, name: &str) -> f64 {
    let (_, behind) = line
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("{name} in {line}"));
    let end = behind.find([',', '}']).unwrap();
    behind[..end].parse().unwrap()
}

/// Runs a program with more data than RAM by `memory`; the program itself compares the data that it
/// reads with the data that it wrote.
fn by_library(name: &str, memory: &str, sizes: &[&str]) {
    let Some(example) = Example::build(name, &["-std=gnu11"]) else {
        return;
    };
    let flash = example.path("flash");
    let mut arguments = vec!["--memory", memory, "--flash", flash.to_str().unwrap()];
    arguments.extend(["--ram-mb", "6", "--threads", "4", "--operations", "4000"]);
    arguments.extend(sizes);
    let Some(line) = example.measure(&arguments) else {
        return;
    };
    assert_eq!(number(&line, "operations"), 4000.0);
    assert!(number(&line, "writes") > 1000.0, "{line}");
    assert!(
        number(&line, "from_flash") > 100.0,
        "data are not in RAM: {line}"
    );
}

fn by_malloc(name: &str, sizes: &[&str]) {
    let Some(example) = Example::build(name, &SANITIZED) else {
        return;
    };
    let mut arguments = vec!["--threads", "4", "--operations", "20000"];
    arguments.extend(sizes);
    let line = example
        .measure(&arguments)
        .expect("malloc needs nothing of a kernel");
    assert_eq!(number(&line, "operations"), 20_000.0);
    let help = example.run(&["--help"]);
    assert!(
        help.status.success() && said(&help).contains("--operations"),
        "{}",
        said(&help)
    );
    for wrong in [
        &["--threads", "0"][..],
        &["--threads"],
        &["--nothing", "1"],
        &["--seed", "x"],
    ] {
        let output = example.run(wrong);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}: {output:?}");
        assert!(said(&output).contains(wrong[0]), "{}", said(&output));
    }
}

const TREE: [&str; 6] = [
    "--keys",
    "400000",
    "--key-bytes",
    "20",
    "--random-order",
    "0",
];
const PACKETS: [&str; 2] = ["--packets", "16000"];
const CACHE: [&str; 4] = ["--sets", "80000", "--fill", "4"];
const ARRAY: [&str; 2] = ["--data-mb", "12"];

#[test]
fn a_tree_by_objects() {
    by_library("btree", "opp", &TREE);
}

#[test]
fn a_tree_by_pages() {
    by_library("btree", "mp", &TREE);
}

#[test]
fn a_tree_by_malloc_in_any_order_is_whole() {
    let sizes = ["--keys", "30000", "--check", "1", "--random-order", "1"];
    by_malloc("btree", &sizes);
}

#[test]
fn packets_by_objects() {
    by_library("packets", "opp", &PACKETS);
}

#[test]
fn packets_by_pages() {
    by_library("packets", "mp", &PACKETS);
}

#[test]
fn packets_by_malloc() {
    by_malloc("packets", &["--packets", "3000"]);
}

#[test]
fn an_index_by_pages() {
    by_library("hashcache", "mp", &CACHE);
}

#[test]
fn an_index_by_malloc() {
    by_malloc("hashcache", &["--sets", "5000", "--fill", "12"]);
}

#[test]
fn an_array_by_objects() {
    by_library("array", "opp", &ARRAY);
}

#[test]
fn an_array_by_objects_with_either_mechanism() {
    for faults in ["1", "2"] {
        by_library(
            "array",
            "opp",
            &[&ARRAY[..], &["--faults", faults]].concat(),
        );
    }
}

#[test]
fn an_array_by_pages() {
    by_library("array", "mp", &ARRAY);
}

#[test]
fn an_array_by_malloc_a_mapped_file_and_the_device_itself() {
    by_malloc("array", &["--data-mb", "4"]);
    let Some(example) = Example::build("array", &["-std=gnu11"]) else {
        return;
    };
    let flash = example.path("flash");
    for memory in ["mmap", "device"] {
        let mut arguments = vec!["--memory", memory, "--flash", flash.to_str().unwrap()];
        arguments.extend(["--data-mb", "4", "--operations", "1000"]);
        if memory == "device" && !takes_direct(&flash) {
            println!("skipped: no direct reads on this file system");
            continue;
        }
        let line = example.measure(&arguments).expect("neither is the library");
        assert_eq!(number(&line, "operations"), 1000.0);
    }
}

#[test]
fn an_array_is_measured_with_each_share_of_writes() {
    let Some(example) = Example::build("array", &SANITIZED) else {
        return;
    };
    let output = example.run(&["--data-mb", "1", "--write-steps", "0,100"]);
    let said = said(&output);
    let writes: Vec<f64> = said.lines().map(|line| number(line, "writes")).collect();
    assert_eq!(writes, [0.0, 100_000.0], "{said}");
    let wrong = example.run(&["--write-steps", "0,101"]);
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
}

#[test]
fn the_largest_working_set_is_all_that_memory_holds() {
    let Some(example) = Example::build("hashcache", &SANITIZED) else {
        return;
    };
    let arguments = ["--sets", "3000", "--find-working-sets", "1"];
    let line = example
        .measure(&arguments)
        .expect("malloc needs nothing of a kernel");
    let most = number(&line, "working_sets_most");
    assert!(
        (2900.0..=3000.0).contains(&most),
        "all are in memory: {line}"
    );
}

#[test]
fn pages_by_the_kernel_alone() {
    let Some(example) = Example::build("pairs", &["-std=gnu11"]) else {
        return;
    };
    let arguments = ["--threads", "2", "--operations", "3000", "--pages", "4096"];
    if let Some(line) = example.measure(&arguments) {
        assert_eq!(number(&line, "writes"), 3000.0);
    }
}

/// Each access of the program faults, or it fails by itself.
#[test]
fn costs_of_faults_and_of_reads() {
    let Some(example) = Example::build("costs", &["-std=gnu11", "-DPLAIN_MALLOC"]) else {
        return;
    };
    for kind in ["userfaultfd", "mprotect", "small", "huge"] {
        let arguments = ["--memory", kind, "--data-mb", "64", "--operations", "5"];
        if let Some(line) = example.measure(&arguments) {
            assert_eq!(number(&line, "accesses"), 5.0 * 1024.0);
            assert!(number(&line, "access_ns") > 0.0, "{line}");
        }
    }
    let unknown = example.run(&["--memory", "opp"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

#[test]
fn memcached_s_load_is_a_program() {
    let flags = [
        "-std=gnu11",
        "-DPLAIN_MALLOC",
        "-I",
        concat!(env!("CARGO_MANIFEST_DIR"), "/examples"),
    ];
    let Some(example) = Example::build("memcached/load", &flags) else {
        return;
    };
    let nobody = example.run(&["--port", "1"]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(said(&nobody).contains("port 1"), "{}", said(&nobody));
}

/// Whether a file can be read without the page cache.
fn takes_direct(file: &Path) -> bool {
    let read = Command::new("dd")
        .arg(format!("if={}", file.display()))
        .args(["of=/dev/null", "iflag=direct", "bs=4096", "count=1"])
        .output();
    read.is_ok_and(|read| read.status.success())
}

#[test]
fn an_index_by_objects_goes_on_in_another_life() {
    by_library("hashcache", "opp", &CACHE);
    let Some(example) = Example::build("hashcache", &["-std=gnu11"]) else {
        return;
    };
    let (flash, checkpoint) = (example.path("flash"), example.path("checkpoint"));
    let checkpoint = checkpoint.to_str().unwrap();
    let mut arguments = vec!["--flash", flash.to_str().unwrap(), "--ram-mb", "6"];
    arguments.extend(["--operations", "2000"]);
    let mut first = arguments.clone();
    first.extend(CACHE);
    first.extend(["--checkpoint", checkpoint]);
    if example.measure(&first).is_none() {
        return;
    }
    let mut second = arguments.clone();
    second.extend(["--restore", checkpoint, "--writes", "0"]);
    let line = example.measure(&second).unwrap();
    assert_eq!(number(&line, "sets"), 80_000.0);
    assert!(
        number(&line, "hits") > 1900.0,
        "what the index was filled with is there: {line}"
    );
    assert!(number(&line, "restore_seconds") > 0.0);
}
