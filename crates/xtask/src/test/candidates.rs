//! Which crates may have a test of a given name: found in the text, so that a run of a few tests
//! builds a few crates.

use std::path::{Path, PathBuf};

use crate::process;

/// A crate of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crate {
    /// Its folder below `crates`, with which the names of its tests begin.
    pub(super) folder: String,
}

impl Crate {
    pub(super) fn package(&self) -> String {
        match self.folder.as_str() {
            own @ ("duramen" | "xtask") => own.to_owned(),
            part => format!("duramen-{part}"),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        process::root().join("crates").join(&self.folder)
    }

    pub(super) fn has_library(&self) -> bool {
        self.path().join("src/lib.rs").exists()
    }

    /// Integration tests that need a process of their own.
    pub(super) fn has_tests_alone(&self) -> bool {
        self.path().join("tests/alone/main.rs").exists()
    }

    pub(super) fn has_integration_tests(&self) -> bool {
        self.path().join("tests/it/main.rs").exists()
    }
}

/// The crates of the store, in order.
///
/// # Errors
/// A sentence, if the folder `crates` cannot be read.
pub(super) fn all() -> Result<Vec<Crate>, String> {
    let folder = process::root().join("crates");
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut crates: Vec<Crate> = names.map(|folder| Crate { folder }).collect();
    crates.retain(|one| one.path().join("Cargo.toml").exists());
    crates.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(crates)
}

/// The crates whose tests may have one of these parts in their names. A name that a macro makes is
/// not found.
///
/// # Errors
/// A sentence, if a source cannot be read.
pub(super) fn of_names(names: &[String]) -> Result<Vec<Crate>, String> {
    let mut found = Vec::new();
    for one in all()? {
        if has_any(&one.path(), &one.folder, names)? {
            found.push(one);
        }
    }
    Ok(found)
}

/// The crates with documentation tests. Others need not be documented to find none.
///
/// # Errors
/// A sentence, if a source cannot be read.
pub(super) fn with_documentation_tests() -> Result<Vec<Crate>, String> {
    let mut found = Vec::new();
    for one in all()?.into_iter().filter(Crate::has_library) {
        if any_source(&one.path(), &["src"], |_, text| {
            has_documentation_test(text)
        })? {
            found.push(one);
        }
    }
    Ok(found)
}

/// True if a block of code in the text's documentation is compiled.
fn has_documentation_test(text: &str) -> bool {
    let mut is_inside = false;
    for line in text.lines() {
        let line = line.trim_start();
        let line = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let Some(language) = line.and_then(|line| line.trim_start().strip_prefix("```")) else {
            continue;
        };
        if !is_inside && !["text", "ignore"].contains(&language) {
            return true;
        }
        is_inside = !is_inside;
    }
    false
}

/// True if a test below `folder`, whose names begin with `prefix`, may have one of these names.
///
/// # Errors
/// A sentence, if a source cannot be read.
pub(super) fn has_any(folder: &Path, prefix: &str, names: &[String]) -> Result<bool, String> {
    any_source(folder, &["src", "tests"], |path, text| {
        is_any(text, &modules(prefix, path), names)
    })
}

/// The same for the tests under a model checker, which are in `tests/it/CHECKER.rs` and in the
/// folder `schedules` beside it.
///
/// # Errors
/// A sentence, if a source cannot be read.
pub(super) fn has_any_under(
    folder: &Path,
    prefix: &str,
    checker: &str,
    names: &[String],
) -> Result<bool, String> {
    any_source(folder, &["tests"], |path, text| {
        let is_schedule = path
            .components()
            .any(|part| part.as_os_str() == "schedules");
        let is_own = path.file_stem().is_some_and(|stem| stem == checker);
        let modules = modules(prefix, path).replace("schedules", &format!("{checker}::schedules"));
        (is_schedule || is_own) && is_any(text, &modules, names)
    })
}

/// True if `is` holds for a Rust file in one of these `parts` of a folder. It gets the file's path
/// in the folder, and its text.
fn any_source(
    folder: &Path,
    parts: &[&str],
    is: impl Fn(&Path, &str) -> bool,
) -> Result<bool, String> {
    let parts = parts.iter().map(|name| folder.join(name));
    let mut left: Vec<PathBuf> = parts.filter(|path| path.is_dir()).collect();
    while let Some(next) = left.pop() {
        let entries = std::fs::read_dir(&next)
            .map_err(|error| format!("cannot list {}: {error}", next.display()))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                if is(path.strip_prefix(folder).unwrap_or(&path), &text) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// True if the text of a file may hold a test with one of these names. `modules` is the path of its
/// module. Each part of a name is looked for in that path, among the file's own modules, and among
/// its functions.
fn is_any(text: &str, modules: &str, names: &[String]) -> bool {
    if !text.contains("#[test]") && !text.contains("proptest!") {
        return false;
    }
    let inside: Vec<&str> = text.lines().filter_map(item).collect();
    let has = |part: &str| modules.contains(part) || inside.iter().any(|item| item.contains(part));
    names.iter().any(|name| name.split("::").all(has))
}

/// The name of the function or module that begins in this line.
fn item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let name = line
        .strip_prefix("fn ")
        .or_else(|| line.strip_prefix("mod "))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

/// `engine::it::threads` for `tests/it/threads.rs`, `engine::cleaner` for `src/cleaner/mod.rs`.
fn modules(prefix: &str, path: &Path) -> String {
    let mut modules = vec![prefix.to_owned()];
    let parts = path.with_extension("");
    let parts = parts.iter().skip(1).filter_map(|part| part.to_str());
    modules.extend(
        parts
            .filter(|part| !["mod", "main", "lib"].contains(part))
            .map(str::to_owned),
    );
    modules.join("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_paths() {
        let of = |path: &str| modules("engine", Path::new(path));
        assert_eq!(of("tests/it/threads.rs"), "engine::it::threads");
        assert_eq!(of("tests/it/main.rs"), "engine::it");
        assert_eq!(of("src/cleaner/mod.rs"), "engine::cleaner");
        assert_eq!(of("src/lib.rs"), "engine");
    }

    #[test]
    fn documentation_tests_are_blocks_of_rust() {
        assert!(has_documentation_test("/// ```\n/// f();\n/// ```\n"));
        assert!(has_documentation_test("    //! ```no_run\n"));
        assert!(!has_documentation_test("//! ```text\n//! a\n//! ```\n"));
        assert!(!has_documentation_test("let text = \"```\";\n"));
        let crates = with_documentation_tests().unwrap();
        assert!(
            crates.iter().any(|one| one.folder == "duramen"),
            "{crates:?}"
        );
        assert!(
            !crates.iter().any(|one| one.folder == "format"),
            "{crates:?}"
        );
    }

    #[test]
    fn a_test_is_found_by_any_part_of_its_name() {
        let names = |words: &[&str]| -> Vec<String> { words.iter().map(|w| (*w).into()).collect() };
        let crates = of_names(&names(&["a_test_is_found_by_any_part_of"])).unwrap();
        assert_eq!(crates.len(), 1);
        assert_eq!(crates[0].package(), "xtask");
        let by_module = of_names(&names(&["xtask::test::candidates"])).unwrap();
        assert_eq!(by_module, crates);
        let inside = of_names(&names(&["test::candidates::tests::names_follow"])).unwrap();
        assert_eq!(inside, crates);
        assert_eq!(of_names(&names(&["no such name"])).unwrap(), []);
        let engine = process::root().join("crates/engine");
        let under = |name: &str| has_any_under(&engine, "engine", "loom", &names(&[name])).unwrap();
        assert!(under("engine::it::loom::schedules::growth") && under("engine::"));
        assert!(!under("engine::it::threads"));
    }
}
