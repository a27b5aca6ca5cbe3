//! Code shared by all figures: machine facts, alternation of peers, reports, plots.

pub mod alternate;
pub mod cgroup;
pub mod dash;
pub mod interrupt;
pub mod machine;
pub mod plot;
pub mod render;
pub mod report;
pub mod store;

pub use alternate::{Contender, alternate, median};
pub use cgroup::Group;
pub use duramen_load::{
    Chooser, Distribution, Doing, Failure, Latencies, Random, Result, Zipf, clock, fresh_seed,
};
pub use interrupt::Undo;
pub use plot::{Chart, Scale, Series};
pub use report::{Bound, Report, Row};

use std::path::PathBuf;

/// Options of every figure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A small size that ends within minutes: good for a look, not for quoting.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Directory of the JSON file and the plots.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "target/bench"
    )]
    pub out: PathBuf,
    /// Rounds of A B A B; the median of them is shown.
    #[arg(long, global = true, value_name = "N")]
    pub rounds: Option<usize>,
    /// The command line as it was given, for the report.
    #[arg(skip)]
    pub command: String,
}

impl Options {
    /// One of two sizes, by `--quick`.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// `--rounds`, or 5, or 3 with `--quick`.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(self.size(5, 3)).max(1)
    }

    /// Keeps the command line of this process for the report.
    pub fn note_command(&mut self) {
        self.command = command_line(std::env::args());
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Options {
        Options {
            quick: true,
            out: PathBuf::from("target/bench"),
            rounds: None,
            command: "test".to_owned(),
        }
    }
}

/// The command in a form that a reader can repeat: the program by its name, and paths as `PATH`.
fn command_line(mut args: impl Iterator<Item = String>) -> String {
    let program = args.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    args.fold(name, |line, word| {
        line + " " + if word.starts_with('/') { "PATH" } else { &word }
    })
}

/// One line of progress, on standard error.
pub fn say(line: std::fmt::Arguments<'_>) {
    eprintln!("{line}");
}

/// Prints progress like `println!`, but to standard error: standard output is for results.
macro_rules! progress {
    ($($word:tt)*) => { $crate::harness::say(format_args!($($word)*)) };
}
pub(crate) use progress;

#[cfg(test)]
mod tests {
    use super::command_line;

    #[test]
    fn commands_are_shown_without_their_directory() {
        let args = [
            "/somewhere/target/release/duramen-bench",
            "types",
            "--duramen",
            "/tmp/mine",
        ];
        let line = command_line(args.into_iter().map(str::to_owned));
        assert_eq!(line, "duramen-bench types --duramen PATH");
    }
}
