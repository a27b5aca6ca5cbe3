//! Programs in C and C++, built by this machine's compilers: with the shared library, the static one, and under AddressSanitizer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where cargo has put the libraries: beside this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
}

/// Whether the machine has this compiler, and can link with these flags.
fn can_build(compiler: &str, flags: &[&str], dir: &Path) -> bool {
    let empty = dir.join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
    let built = Command::new(compiler)
        .args(flags)
        .arg(&empty)
        .arg("-o")
        .arg(dir.join("empty"))
        .output();
    let works = built.is_ok_and(|built| built.status.success());
    if !works {
        println!("skipped: {compiler} {flags:?} builds nothing here");
    }
    works
}

fn said(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(error)
}

/// Builds a program and runs it: it says `ok`, or ends with 77 for a kernel that cannot do it.
fn run(compiler: &str, name: &str, flags: &[&str], linked: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    if !can_build(compiler, flags, dir.path()) {
        return;
    }
    let program = dir.path().join("program");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let libraries = libraries();
    let built = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-g"])
        .args(flags)
        .arg("-I")
        .arg(include)
        .arg(source(name))
        .args(
            linked
                .iter()
                .map(|flag| flag.replace("LIBRARIES", libraries.to_str().unwrap())),
        )
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", said(&built));
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let ran = Command::new(&program)
        .arg(&data)
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=0:allow_user_segv_handler=1:handle_segv=1:handle_sigbus=1",
        )
        .output()
        .unwrap();
    match ran.status.code() {
        Some(0) => assert!(said(&ran).contains("ok"), "{}", said(&ran)),
        Some(77) => println!("{}", said(&ran)),
        _ => panic!("{name} {flags:?}: {}: {}", ran.status, said(&ran)),
    }
}

const SHARED: [&str; 3] = ["-LLIBRARIES", "-lduramen_alloc", "-Wl,-rpath,LIBRARIES"];

#[test]
fn c_with_the_shared_library() {
    run("cc", "heap.c", &["-std=c11"], &SHARED);
}

#[test]
fn c_with_the_static_library() {
    run(
        "cc",
        "heap.c",
        &["-std=c11"],
        &["LIBRARIES/libduramen_alloc.a"],
    );
}

#[test]
fn c_under_address_sanitizer() {
    run("cc", "heap.c", &["-std=c11", "-fsanitize=address"], &SHARED);
}

#[test]
fn cpp_with_the_shared_library() {
    run("c++", "heap.cpp", &["-std=c++17"], &SHARED);
}

#[test]
fn cpp_under_address_sanitizer() {
    run(
        "c++",
        "heap.cpp",
        &["-std=c++17", "-fsanitize=address"],
        &SHARED,
    );
}

/// As the header says: `cc program.c $(pkg-config --cflags --libs duramen_alloc)`, after `scripts/install-alloc`.
#[test]
fn installed_and_found_by_pkg_config() {
    if Command::new("pkg-config")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: no pkg-config here");
        return;
    }
    let prefix = tempfile::tempdir().unwrap();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = Command::new(top.join("scripts/install-alloc"))
        .arg("--from")
        .arg(libraries())
        .arg(prefix.path())
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", said(&installed));
    let found = Command::new("pkg-config")
        .args(["--cflags", "--libs", "duramen_alloc"])
        .env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig"))
        .output()
        .unwrap();
    assert!(found.status.success(), "{}", said(&found));
    let flags = String::from_utf8(found.stdout).unwrap();
    let library = format!("-Wl,-rpath,{}/lib", prefix.path().display());
    let mut flags: Vec<&str> = flags.split_whitespace().collect();
    flags.push(&library);
    run("c++", "heap.cpp", &["-std=c++17"], &flags);
}
