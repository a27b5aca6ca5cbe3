//! Descriptions of the command line: help, completions, manual pages.

use std::process::{Command, Output};

fn duramen(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_duramen"))
        .args(args)
        .output()
        .expect("the binary under test runs")
}

fn text(args: &[&str]) -> String {
    let output = duramen(args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn help_teaches() {
    let help = text(&["--help"]);
    for part in [
        "EXAMPLES",
        "EXIT CODES",
        "duramen serve",
        "could not be reached",
    ] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
    for command in ["get", "set", "incr", "scan", "expire", "top"] {
        let help = text(&[command, "--help"]);
        assert!(
            help.contains("EXAMPLES") && help.contains("DURAMEN_PASSWORD"),
            "{help}"
        );
    }
    for command in [
        "status",
        "tablet split",
        "tablet migrate",
        "drain",
        "crash",
        "coordinator",
        "up",
    ] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = text(&words);
        assert!(
            help.contains("EXAMPLES") && help.contains("Exit codes"),
            "{help}"
        );
    }
    assert!(text(&["join", "--help"]).contains("--coordinator"));
    // Nothing said what `--level memory` promises in a cluster.
    let up = text(&["up", "--help"]);
    let up = up.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(up.contains("lost if the owner is killed"), "{up}");
    // Each command has a description of its own.
    assert!(!help.contains("Where the server is"), "{help}");
}

#[test]
fn wrong_usage_is_exit_code_2_and_names_what_is_near() {
    for (args, named) in [
        (&["gett", "k"][..], "get"),
        (&["get"], "<KEY>"),
        (&["get", "k", "--jsn"], "--json"),
        (&["incr", "k", "x"], "x"),
        (&["scan", "--batch", "0"], "--batch"),
        (&["set", "k", "v", "--nx", "--xx"], "--xx"),
        (&["top", "--interval", "0"], "0.1"),
        (&[], "Usage"),
    ] {
        let output = duramen(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
    }
}

#[test]
fn completions_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for word in ["incrbyfloat", "completions", "no-newline"] {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
    }
    let script = std::env::temp_dir().join(format!("duramen-completions-{}", std::process::id()));
    std::fs::write(&script, text(&["completions", "bash"])).expect("a file can be written");
    let checked = Command::new("bash").arg("-n").arg(&script).status();
    std::fs::remove_file(&script).expect("the file is there");
    assert!(checked.expect("bash runs").success());
}

#[test]
fn manual_pages() {
    let page = text(&["man"]);
    assert!(page.contains(".TH duramen 1") && page.contains("EXIT CODES"));
    let folder = std::env::temp_dir().join(format!("duramen-man-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    text(&["man", "--out", &folder.to_string_lossy()]);
    for name in [
        "duramen.1",
        "duramen-get.1",
        "duramen-serve.1",
        "duramen-table-list.1",
        "duramen-tablet-migrate.1",
        "duramen-coordinator.1",
        "duramen-up.1",
    ] {
        let page = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(
            page.contains(&format!(".TH {}", name.trim_end_matches(".1"))),
            "{name}: {page}"
        );
    }
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    let output = duramen(&["man", "--out", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all"));
}
