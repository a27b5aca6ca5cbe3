//! Programs in C and C++, built by this machine's compilers: with the shared library, the static one, and under AddressSanitizer.

mod compiler;

use compiler::{can_build, crate_dir, libraries, said};
use std::process::Command;

/// Builds a program and runs it: it says `ok`, or ends with 77 for a kernel that cannot do it.
fn run(compiler: &str, name: &str, flags: &[&str], linked: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    if !can_build(compiler, flags, dir.path()) {
        return;
    }
    let program = dir.path().join("program");
    let source = crate_dir().join("tests/c").join(name);
    compiler::build(compiler, &source, flags, linked, &program);
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
    let top = crate_dir().join("../..");
    let installed = Command::new(top.join("scripts/install-alloc"))
        .arg("--from")
        .arg(libraries())
        .arg(prefix.path())
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", said(&installed));
    let shared = std::fs::read(prefix.path().join("lib/libduramen_alloc.so")).unwrap();
    let name = b"\0libduramen_alloc.so.0\0";
    assert!(
        shared.windows(name.len()).any(|bytes| bytes == name),
        "programs look for the library by the number of its interface"
    );
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
