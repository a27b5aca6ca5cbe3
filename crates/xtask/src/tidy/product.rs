//! The product: its sources without tests, comments and the content of texts.

use super::modules::{Place, place};
use super::sources::code_only;
use super::tests_blanked::without_tests;
use super::{House, read};

/// Crates that no user's program contains.
const OTHERS: [&str; 4] = ["harness", "sim", "workload", "xtask"];

/// A file of a crate.
pub(super) struct Source {
    /// The folder of the crate.
    pub(super) package: String,
    pub(super) place: Place,
    pub(super) code: String,
}

/// The files of the crates, those with tests alone left out.
pub(super) fn sources(house: &House) -> Result<Vec<Source>, String> {
    let mut found = Vec::new();
    for file in house.with_extension("rs") {
        let Some(sources) = file.ancestors().find(|folder| folder.ends_with("src")) else {
            continue;
        };
        let Some(package) = sources.parent().filter(|package| is_product(package)) else {
            continue;
        };
        let Some(place) = file.strip_prefix(sources).ok().and_then(place) else {
            continue;
        };
        let text = read(&house.root.join(file))?;
        found.push(Source {
            package: package.display().to_string(),
            place,
            code: without_tests(&code_only(&text)),
        });
    }
    Ok(found)
}

fn is_product(package: &std::path::Path) -> bool {
    let is_crate = package.parent().is_some_and(|all| all.ends_with("crates"));
    is_crate && !OTHERS.iter().any(|other| package.ends_with(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_product_is_what_users_get() {
        for (package, expected) in [
            ("crates/redis", true),
            ("heap/crates/alloc", true),
            ("crates/sim", false),
            ("bench", false),
        ] {
            assert_eq!(is_product(Path::new(package)), expected, "{package}");
        }
    }
}
