//! The packet cache of the heap's examples by direct calls, built by this machine's compiler: it
//! compares each packet that it gets with the one that it put.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo has built last, beside the test: its name ends with a hash.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let paths = files.map(|file| file.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libduramen_direct") && name.ends_with(".a")
    });
    let age = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    paths
        .max_by_key(age)
        .expect("cargo builds it with the test")
}

/// A number of the program's line.
fn number(line: &str, name: &str) -> f64 {
    let (_, behind) = line
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("{name} in {line}"));
    let end = behind.find([',', '}']).unwrap();
    behind[..end].parse().unwrap()
}

#[test]
fn packets_by_direct_calls() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-std=gnu11"])
        .args(["-DPLAIN_MALLOC", "-DDIRECT", "-I"])
        .arg(here.join("include"))
        .arg(here.join("../alloc/examples/packets.c"))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    let ran = Command::new(&program)
        .arg("--flash")
        .arg(dir.path().join("flash"))
        .args(["--ram-mb", "6", "--packets", "16000", "--threads", "4"])
        .args(["--operations", "8000"])
        .output()
        .unwrap();
    let line = String::from_utf8_lossy(&ran.stdout);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{line}{said}");
    assert_eq!(number(&line, "operations"), 8000.0);
    assert!(number(&line, "evicted") > 3000.0, "{line}");
    assert!(number(&line, "hits") > 3000.0, "{line}");
    assert!(number(&line, "from_flash") > 1000.0, "{line}");
}
