//! Programs that disturb a library in their process: `tests/c/hostile.c`, by both kinds of faults,
//! and under sanitizers if they work. Each function there has its story.

mod compiler;

use compiler::{can_build, crate_dir, said};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const KINDS: [&str; 2] = ["userfault", "protect"];
/// A program that has not ended by then is taken to wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);
const SHARED: [&str; 3] = ["-LLIBRARIES", "-lduramen_alloc", "-Wl,-rpath,LIBRARIES"];
/// Suppressed for ThreadSanitizer: it does not see the library's own locks, which are Rust's.
const UNSEEN: &str = "called_from_lib:libduramen_alloc.so\n";

/// The program, built once for each sanitizer; `None`: the machine cannot; a message reports that.
fn program(sanitizer: Option<&str>) -> Option<&'static Path> {
    static BUILT: [OnceLock<Option<(PathBuf, tempfile::TempDir)>>; 3] =
        [const { OnceLock::new() }; 3];
    let place = match sanitizer {
        None => 0,
        Some("address") => 1,
        Some(_) => 2,
    };
    let built = BUILT[place].get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let flag = sanitizer.map(|name| format!("-fsanitize={name}"));
        let mut flags = vec!["-std=c11"];
        flags.extend(flag.as_deref());
        if !can_build("cc", &flags, dir.path()) {
            return None;
        }
        let program = dir.path().join("hostile");
        let source = crate_dir().join("tests/c/hostile.c");
        compiler::build("cc", &source, &flags, &SHARED, &program);
        Some((program, dir))
    });
    built.as_ref().map(|(program, _)| program.as_path())
}

/// Its output when it has ended, or was ended after [`PATIENCE`].
fn ran(program: &Path, kind: &str, name: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let unseen = dir.path().join("unseen");
    std::fs::write(&unseen, UNSEEN).unwrap();
    let mut child = Command::new(program)
        .arg(dir.path())
        .args([kind, name])
        .env("ASAN_OPTIONS", "detect_leaks=0:allow_user_segv_handler=1")
        .env(
            "TSAN_OPTIONS",
            format!(
                "halt_on_error=1:report_signal_unsafe=0:suppressions={}",
                unseen.display()
            ),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{name} by {kind} waits for ever: {}", said(&output));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn run(sanitizer: Option<&str>, kind: &str, name: &str) {
    let Some(program) = program(sanitizer) else {
        return;
    };
    let output = ran(program, kind, name);
    let said = said(&output);
    if said.contains("ThreadSanitizer: unexpected memory mapping") {
        println!("skipped: with these addresses, ThreadSanitizer does not begin");
        return;
    }
    match output.status.code() {
        Some(0) => assert!(said.contains("ok"), "{said}"),
        Some(77) => println!("{said}"),
        _ => panic!("{name} by {kind}: {}: {said}", output.status),
    }
}

fn by_both(name: &str) {
    for kind in KINDS {
        run(None, kind, name);
    }
}

#[test]
fn a_cancelled_thread_holds_nothing() {
    by_both("cancel");
}

#[test]
fn a_handler_that_jumps_interrupts_no_fault() {
    by_both("jumping");
}

#[test]
fn a_forked_child_has_nothing_and_holds_nothing() {
    by_both("forking");
}

#[test]
fn a_program_whose_memory_is_locked_goes_on() {
    by_both("locking");
}

#[test]
fn no_signal_of_the_program_reaches_the_librarys_threads() {
    by_both("signals");
}

#[test]
fn what_a_device_writes_into_pinned_pages_stays() {
    by_both("direct");
}

#[test]
fn sizes_near_each_limit_are_memory_or_an_error() {
    by_both("limits");
}

#[test]
fn of_frees_at_the_same_time_one_succeeds() {
    by_both("double_frees");
}

#[test]
fn closing_leaves_a_later_handler() {
    by_both("closing");
}

#[test]
fn a_function_may_fail_in_a_thread_that_ends() {
    by_both("ending");
}

#[test]
fn a_handler_that_leaves_a_failed_fault_leaves_no_lock() {
    by_both("leaving");
}

#[test]
fn a_program_that_takes_pages_away_does_not_wait_for_itself() {
    by_both("advising");
}

#[test]
fn no_file_of_the_library_is_a_standard_stream() {
    by_both("streams");
}

#[test]
fn a_limit_of_file_sizes_is_an_error() {
    by_both("file_limit");
}

/// All except `locking`: AddressSanitizer turns `mlockall` into a function without effect.
#[test]
fn under_address_sanitizer() {
    for name in [
        "cancel",
        "jumping",
        "forking",
        "signals",
        "direct",
        "limits",
        "double_frees",
        "closing",
    ] {
        for kind in KINDS {
            run(Some("address"), kind, name);
        }
    }
}

/// The tests without asynchronous signals, which ThreadSanitizer delays until the thread calls into
/// it, perhaps for ever; and without `mlockall`, as above.
#[test]
fn under_thread_sanitizer() {
    for name in ["direct", "limits", "double_frees"] {
        run(Some("thread"), "userfault", name);
    }
}
