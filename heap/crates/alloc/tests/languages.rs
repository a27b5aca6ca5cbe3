//! Programs in C and C++, built by this machine's compilers: with the shared library, the static
//! one, and under sanitizers.

mod compiler;

use compiler::{can_build, crate_dir, libraries, said};
use std::process::{Command, Output};

/// A program of `tests/c`.
struct Program<'p> {
    compiler: &'p str,
    name: &'p str,
    flags: &'p [&'p str],
    linked: &'p [&'p str],
    /// Arguments behind the program's folder.
    arguments: &'p [&'p str],
}

/// Suppressed for ThreadSanitizer: it does not see the library's own locks, which are Rust's. It
/// checks the program's accesses, not the library's.
const UNSEEN: &str = "called_from_lib:libduramen_alloc.so\n";

impl Program<'_> {
    /// Builds it and runs it; `None`: the machine cannot; a message reports that.
    fn ran(&self) -> Option<Output> {
        let dir = tempfile::tempdir().unwrap();
        let (compiler, flags) = (self.compiler, self.flags);
        if !can_build(compiler, flags, dir.path()) {
            return None;
        }
        let program = dir.path().join("program");
        let source = crate_dir().join("tests/c").join(self.name);
        compiler::build(compiler, &source, flags, self.linked, &program);
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let unseen = dir.path().join("unseen");
        std::fs::write(&unseen, UNSEEN).unwrap();
        let ran = Command::new(&program)
            .arg(&data)
            .args(self.arguments)
            .env(
                "ASAN_OPTIONS",
                "detect_leaks=0:allow_user_segv_handler=1:handle_segv=1:handle_sigbus=1",
            )
            .env(
                "TSAN_OPTIONS",
                format!(
                    "halt_on_error=1:report_signal_unsafe=0:suppressions={}",
                    unseen.display()
                ),
            )
            .output()
            .unwrap();
        if said(&ran).contains("ThreadSanitizer: unexpected memory mapping") {
            println!("skipped: with these addresses, ThreadSanitizer does not begin");
            return None;
        }
        Some(ran)
    }

    /// The program prints `ok`, or ends with 77 on a kernel that cannot do it.
    fn run(&self) {
        let Some(ran) = self.ran() else {
            return;
        };
        let what = format!("{} {:?} {:?}", self.name, self.flags, self.arguments);
        match ran.status.code() {
            Some(0) => assert!(said(&ran).contains("ok"), "{}", said(&ran)),
            Some(77) => println!("{}", said(&ran)),
            _ => panic!("{what}: {}: {}", ran.status, said(&ran)),
        }
    }
}

fn run(compiler: &str, name: &str, flags: &[&str], linked: &[&str]) {
    let program = Program {
        compiler,
        name,
        flags,
        linked,
        arguments: &["userfault"],
    };
    program.run();
}

const SHARED: [&str; 3] = ["-LLIBRARIES", "-lduramen_alloc", "-Wl,-rpath,LIBRARIES"];

#[test]
fn c_with_the_shared_library() {
    run("cc", "heap.c", &["-std=c11"], &SHARED);
}

/// The same by `mprotect`, where foreign signals, system calls and a forked child differ.
#[test]
fn c_by_mprotect() {
    let program = Program {
        compiler: "cc",
        name: "heap.c",
        flags: &["-std=c11"],
        linked: &SHARED,
        arguments: &["protect"],
    };
    program.run();
}

/// Each kind of bad input of a program, by both kinds of faults.
fn trouble(kind: &str) {
    let program = Program {
        compiler: "cc",
        name: "trouble.c",
        flags: &["-std=c11"],
        linked: &SHARED,
        arguments: &[kind],
    };
    program.run();
}

#[test]
fn trouble_by_userfaultfd() {
    trouble("userfault");
}

#[test]
fn trouble_by_mprotect() {
    trouble("protect");
}

/// Threads that count in objects of which few are in RAM, while checkpoints are made: `thousands`
/// of steps each.
fn counters(flags: &[&str], kind: &str, thousands: &str) {
    let program = Program {
        compiler: "cc",
        name: "counters.c",
        flags,
        linked: &SHARED,
        arguments: &[kind, thousands],
    };
    program.run();
}

#[test]
fn no_count_is_lost_by_userfaultfd() {
    counters(&["-std=c11"], "userfault", "4");
}

#[test]
fn no_count_is_lost_by_mprotect() {
    counters(&["-std=c11"], "protect", "3");
}

/// ThreadSanitizer checks accesses of the program to objects, whose pages come and go: it finds a
/// planted race.
#[test]
fn no_count_is_lost_under_thread_sanitizer() {
    let flags = ["-std=c11", "-fsanitize=thread"];
    counters(&flags, "userfault", "2");
    let racing = Program {
        compiler: "cc",
        name: "counters.c",
        flags: &[flags[0], flags[1], "-DRACE"],
        linked: &SHARED,
        arguments: &["userfault", "2"],
    };
    let Some(ran) = racing.ran() else {
        return;
    };
    let found = said(&ran).contains("ThreadSanitizer: data race");
    assert!(found || ran.status.code() == Some(77), "{}", said(&ran));
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

/// As in the header: `cc program.c $(pkg-config --cflags --libs duramen_alloc)`, after
/// `scripts/install-alloc`.
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
    let top = crate_dir().join("../../..");
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
