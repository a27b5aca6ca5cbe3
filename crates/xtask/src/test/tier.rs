//! The two tiers of tests, and the arguments of `cargo xtask test`.

use crate::process;

/// How much a run tests. Tests read it from `DURAMEN_TEST_TIER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// For each change: minutes.
    Quick,
    /// Everything, with each part's own minimum of runs: about an hour.
    Full,
}

impl Tier {
    /// The value of `DURAMEN_TEST_TIER`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Tier::Quick => "quick",
            Tier::Full => "full",
        }
    }
}

pub(super) const USAGE: &str = "\
cargo xtask test [--full] [--list] [--workers N] [PART…]

Runs the quick tier of the tests, or the PARTs of it; the last line is `N passed, N failed`.

  --full        everything, with more runs of each simulator and of each history; the result is
                written to docs/test-runs.md if no PART is given
  --list        print the names of the tests, and run none
  --workers N   tests that run side by side; two more than the cores if missing

A PART is one of these, or a part of a test's name, of Rust or Python:
  tidy            the rules of the house, and the messages of new commits
  rust            all tests of the store's crates; `doc` alone: their documentation tests
  heap, figures   the tests of these workspaces; without PART, the quick tier runs them only if
                  they or the crates that they use have changed since the last full run
  fuzz            the fuzz targets compile (full tier)
  interleavings   the engine's synchronisation under loom and shuttle
  checker         the tests of the checker of histories
  planted         the tests in which each planted bug has to be found (docs/protocols.md)
  python          real clients and real servers
";

/// The page with a table of all planted bugs, and the heading above it.
const PLANTED_PAGE: &str = "docs/protocols.md";
const PLANTED_HEADING: &str = "## Planted bugs";

/// The names of tests in the table of planted bugs.
fn planted_tests(page: &str) -> Vec<String> {
    let table = page
        .split_once(PLANTED_HEADING)
        .map_or("", |(_, rest)| rest);
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let tests = rows.filter_map(|row| row.rsplit(" | ").next());
    let names = tests.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// Parts that are no part of a test's name.
pub(super) const PARTS: [&str; 9] = [
    "tidy",
    "rust",
    "doc",
    "heap",
    "figures",
    "fuzz",
    "interleavings",
    "checker",
    "python",
];

/// The arguments of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) tier: Tier,
    pub(super) list: bool,
    pub(super) workers: usize,
    /// Chosen parts of `PARTS`.
    parts: Vec<String>,
    /// Parts of names of tests.
    pub(super) names: Vec<String>,
}

impl Request {
    /// # Errors
    /// A sentence about the wrong argument.
    pub(super) fn of(arguments: &[String]) -> Result<Request, String> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let mut request = Request {
            tier: Tier::Quick,
            list: false,
            workers: cores + 2,
            parts: Vec::new(),
            names: Vec::new(),
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--full" => request.tier = Tier::Full,
                "--list" => request.list = true,
                "--workers" => {
                    let number = words.next().and_then(|number| number.parse().ok());
                    request.workers = number
                        .filter(|number| (1..=64).contains(number))
                        .ok_or("--workers needs a number from 1 to 64")?;
                }
                option if option.starts_with('-') => {
                    return Err(format!("unknown option `{option}`\n\n{USAGE}"));
                }
                "planted" => {
                    let page = process::root().join(PLANTED_PAGE);
                    let text = std::fs::read_to_string(page).map_err(|error| error.to_string())?;
                    request.names.extend(planted_tests(&text));
                }
                part if PARTS.contains(&part) => request.parts.push(part.to_owned()),
                name => request.names.push(name.to_owned()),
            }
        }
        Ok(request)
    }

    /// True if no part and no name was given.
    pub(super) fn is_everything(&self) -> bool {
        self.parts.is_empty() && self.names.is_empty()
    }

    /// True if this part as a whole is wanted.
    pub(super) fn has(&self, part: &str) -> bool {
        self.is_everything() || self.parts.iter().any(|chosen| chosen == part)
    }

    /// True if a part was named.
    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// True if anything but these parts is wanted.
    pub(super) fn parts_besides(&self, parts: &[&str]) -> bool {
        let is_other = |part: &String| !parts.contains(&part.as_str());
        self.is_everything() || !self.names.is_empty() || self.parts.iter().any(is_other)
    }

    /// True if this part was named.
    pub(super) fn names_part(&self, part: &str) -> bool {
        self.parts.iter().any(|chosen| chosen == part)
    }

    /// True if a test of this name is wanted, which belongs to `part`.
    pub(super) fn wants(&self, part: &str, name: &str) -> bool {
        self.has(part)
            || self
                .names
                .iter()
                .any(|wanted| name.contains(wanted.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[&str]) -> Result<Request, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Request::of(&words)
    }

    #[test]
    fn without_parts_everything_is_wanted() {
        let all = request(&["--full"]).unwrap();
        assert_eq!(all.tier, Tier::Full);
        assert!(all.is_everything() && all.has("heap") && all.wants("rust", "any"));
        assert!(!all.names_part("heap"));
    }

    #[test]
    fn a_part_or_a_name_excludes_the_others() {
        let some = request(&["heap", "moves"]).unwrap();
        assert!(some.has("heap") && !some.has("rust") && !some.is_everything());
        assert!(some.wants("rust", "sim::it::clusters::moves::x"));
        assert!(!some.wants("rust", "sim::it::clusters::x") && some.wants("heap", "any"));
    }

    /// `scripts/test planted` chose the tests with this word in their names: a tenth of those that
    /// find a planted bug.
    #[test]
    fn planted_means_every_test_in_the_table() {
        let page = "## Planted bugs\n\n| bug | rule | tests |\n|---|---|---|\n\
            | `A` | one: `x` | `a_is_found`, `b_is_found` |\n| `B` | two | `c` |\n\n## More\n| `D` | d | `d` |\n";
        assert_eq!(planted_tests(page), ["a_is_found", "b_is_found", "c"]);
        let some = request(&["planted"]).unwrap();
        assert!(
            some.names.len() > 150 && !some.has("rust"),
            "{}",
            some.names.len()
        );
        assert!(some.wants("rust", "it::trap_4_hits_that_do_not_wait_are_found"));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        assert!(request(&["--fast"]).unwrap_err().contains("--fast"));
        assert!(request(&["--workers"]).unwrap_err().contains("1 to 64"));
        assert!(request(&["--workers", "0"]).is_err());
        assert_eq!(request(&["--workers", "3"]).unwrap().workers, 3);
    }
}
