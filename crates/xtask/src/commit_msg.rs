//! `scripts/commit-msg` on sample messages, in a repository of its own.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/commit-msg");
const PRODUCT: &str = "crates/base/src/lib.rs";

/// A repository with one commit, which has the file `PRODUCT`.
struct Repository(TempDir);

impl Repository {
    fn new() -> Repository {
        let repository = Repository(tempfile::tempdir().expect("a folder"));
        repository.git(&["init", "-q", "-b", "main"]);
        repository.write(PRODUCT, "one\ntwo\nthree\nfour\n");
        repository.commit("base: begin\n\nWhy.");
        repository
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .current_dir(self.0.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env_remove("GIT_DIR")
            .env_remove("GIT_INDEX_FILE")
            .output()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
    }

    fn git(&self, arguments: &[&str]) -> Output {
        let user = ["-c", "user.name=A", "-c", "user.email=a@example.org"];
        let output = self.run("git", &[&user, arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    /// Writes a file and stages it.
    fn write(&self, path: &str, text: &str) {
        let file = self.0.path().join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        fs::write(file, text).expect("a file");
        self.git(&["add", path]);
    }

    fn commit(&self, message: &str) {
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
    }

    /// The faults that the hook finds in a message for the staged files; empty: it accepts it.
    fn faults(&self, message: &str) -> String {
        let file = self.0.path().join("message");
        fs::write(&file, message).expect("a message");
        let output = self.run(SCRIPT, &[&file.display().to_string()]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(!errors.is_empty())));
        errors
    }
}

#[test]
fn a_subject_has_its_form() {
    let repository = Repository::new();
    let longest = format!("wire: {}", "é".repeat(66));
    for good in [
        "wire: refuse a length of 0",
        "redis/exec, wire: refuse a length of 0",
        "engine tests: wait for the cleaner",
        "heap: keep 2.5 % free",
        "fixup! What it was",
        "Merge branch 'main'",
        "Revert \"wire: refuse a length of 0\"",
        "# A remark.\n\nwire: refuse a length of 0\n# A remark.\n\nWhy.\n",
        "wire: refuse a length of 0\n\nWhy.\n# ----- >8 -----\ndiff",
        &longest,
    ] {
        assert_eq!(repository.faults(good), "", "{good}");
    }
    for (bad, fault) in [
        ("", "is empty"),
        ("Refuse a length of 0", "not `area: imperative`"),
        ("Wire: refuse a length of 0", "not `area: imperative`"),
        ("EXEC: refuse a length of 0", "not `area: imperative`"),
        ("wire:refuse a length of 0", "not `area: imperative`"),
        ("a word too many for it: refuse", "not `area: imperative`"),
        ("wire: refused lengths: \\n %s.", "full stop"),
        ("wire: adds a length", "`adds` is no imperative"),
        ("wire: fixed a length", "`fixed` is no imperative"),
        ("wire: refuse a length of 0\nWhy.", "second line"),
        (&format!("{longest}e"), "73 characters"),
    ] {
        let faults = repository.faults(bad);
        assert!(faults.contains(fault), "{bad}: {faults}");
        assert_eq!(faults.lines().count(), 1, "{bad}: {faults}");
    }
}

#[test]
fn a_change_of_the_product_needs_a_body() {
    let repository = Repository::new();
    repository.write(PRODUCT, "one\ntwo\nthree\nfive\n");
    for good in [
        "base: count to five\n\nWhy.",
        "docs: tell how to count",
        "docs, comments: tell how to count",
        "Revert \"base: count to four\"",
    ] {
        assert_eq!(repository.faults(good), "", "{good}");
    }
    for bad in [
        "base: count to five",
        "docs, base: count to five",
        "base: count to five\n\nSigned-off-by: A <a@example.org>\n",
        "base: count to five\n\n# A remark.\n",
    ] {
        let faults = repository.faults(bad);
        assert!(faults.contains("has no body"), "{bad}: {faults}");
    }
}

#[test]
fn other_files_and_moves_need_no_body() {
    for path in [
        "README.md",
        "crates/xtask/src/main.rs",
        "crates/sim/src/lib.rs",
        "crates/base/tests/it/main.rs",
        "crates/base/src/count/tests.rs",
        "crates/base/src/tests/count.rs",
    ] {
        let repository = Repository::new();
        repository.write(path, "one\n");
        assert_eq!(repository.faults("base: count"), "", "{path}");
    }
    for path in [
        "heap/crates/alloc/src/lib.rs",
        "crates/redis/src/executor/x.rs",
    ] {
        let repository = Repository::new();
        repository.write(path, "one\n");
        assert_ne!(repository.faults("base: count"), "", "{path}");
    }
    let repository = Repository::new();
    repository.git(&["mv", PRODUCT, "crates/base/src/numbers.rs"]);
    assert_eq!(repository.faults("base: name the numbers"), "");
    repository.write("crates/base/src/numbers.rs", "one\ntwo\nthree\nfive\n");
    assert_ne!(repository.faults("base: name the numbers"), "");
}

#[test]
fn all_commits_of_a_range_but_merges_are_checked() {
    let repository = Repository::new();
    repository.git(&["switch", "-q", "-c", "side"]);
    repository.write("side.md", "side\n");
    repository.commit("docs: add a side");
    repository.git(&["switch", "-q", "main"]);
    repository.write(PRODUCT, "one\n");
    repository.commit("No area");
    repository.git(&["merge", "-q", "--no-ff", "side", "-m", "A side joins."]);
    repository.write(PRODUCT, "two\n");
    repository.commit("base: count to two");
    let output = repository.run(SCRIPT, &["--range", "HEAD~2..HEAD"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("\"base: count to two\""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let output = repository.run(SCRIPT, &["--range", "HEAD~3..HEAD"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors.lines().count(), 3, "{errors}");
    let output = repository.run(SCRIPT, &["--range", "HEAD~2..side"]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_clone_without_the_first_commit_is_not_checked() {
    let repository = Repository::new();
    repository.commit("No area");
    let without_git = Repository(tempfile::tempdir().expect("a folder"));
    for place in [&repository, &without_git] {
        let output = place.run(SCRIPT, &["--range"]);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("skipped"));
    }
}

#[test]
fn git_calls_the_hook_in_a_worktree_too() {
    let repository = Repository::new();
    let hooks = Path::new(SCRIPT).parent().expect("a folder");
    repository.git(&["config", "core.hooksPath", &hooks.display().to_string()]);
    repository.git(&["worktree", "add", "-q", "tree", "-b", "side"]);
    let tree = [
        "-C",
        "tree",
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
    ];
    let commit = |message: &str| {
        let arguments = ["commit", "-q", "--allow-empty", "-m", message];
        repository.run("git", &[&tree[..], &arguments].concat())
    };
    let refused = commit("No area");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not `area: imperative`"));
    assert!(commit("base: count").status.success());
}
