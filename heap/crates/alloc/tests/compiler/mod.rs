//! This machine's compilers for C and C++, and the libraries that cargo has built.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of the libraries that cargo has built: beside the test.
pub fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

/// The folder of this crate's sources.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether the machine has this compiler, can link with these flags, and runs the resulting
/// program.
pub fn can_build(compiler: &str, flags: &[&str], dir: &Path) -> bool {
    let empty = dir.join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
    let built = Command::new(compiler)
        .args(flags)
        .arg(&empty)
        .arg("-o")
        .arg(dir.join("empty"))
        .output();
    let works = built.is_ok_and(|built| built.status.success())
        && Command::new(dir.join("empty"))
            .status()
            .is_ok_and(|ended| ended.success());
    if !works {
        println!("skipped: {compiler} {flags:?} builds nothing here that runs");
    }
    works
}

/// The output of a program.
pub fn said(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(error)
}

/// The libraries, by the names that linkers look for: links in a directory beside `program`.
fn linkable(program: &Path) -> PathBuf {
    let dir = program.with_file_name("libraries");
    std::fs::create_dir_all(&dir).unwrap();
    for (name, is) in [
        ("libduramen_alloc.a", "libduramen_alloc.a"),
        ("libduramen_alloc.so", "libduramen_alloc.so"),
        ("libduramen_alloc.so.0", "libduramen_alloc.so"),
    ] {
        std::os::unix::fs::symlink(libraries().join(is), dir.join(name)).unwrap();
    }
    dir
}

/// Builds `program` from one source; in `linked` the word LIBRARIES stands for the libraries'
/// folder.
pub fn build(compiler: &str, source: &Path, flags: &[&str], linked: &[&str], program: &Path) {
    let libraries = linkable(program);
    let built = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-g"])
        .args(flags)
        .arg("-I")
        .arg(crate_dir().join("include"))
        .arg(source)
        .args(
            linked
                .iter()
                .map(|flag| flag.replace("LIBRARIES", libraries.to_str().unwrap())),
        )
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", said(&built));
}
