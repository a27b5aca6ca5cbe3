//! A figure, and the program that a table of figures makes: one subcommand each.

use crate::harness::{Options, Report, Result, interrupt};
use clap::{ArgMatches, Args, Command, FromArgMatches as _};
use std::process::ExitCode;

/// One figure: the fields are the arguments of its subcommand, the comment is its help.
pub trait Figure: Args {
    /// The subcommand; also the file and the section of its report, if it makes one alone.
    const NAME: &'static str;

    /// Measures. A helper process of another figure makes no report.
    ///
    /// # Errors
    /// It could not measure.
    fn run(&self, options: &Options) -> Result<Vec<Report>>;
}

/// A row of a table of figures.
pub struct Entry {
    name: &'static str,
    command: fn() -> Command,
    run: fn(&ArgMatches, &Options) -> Result<Vec<Report>>,
}

/// The row of `F`.
pub const fn entry<F: Figure>() -> Entry {
    Entry {
        name: F::NAME,
        command: || F::augment_args(Command::new(F::NAME)),
        run: |matches, options| {
            let figure = F::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
            figure.run(options)
        },
    }
}

const HELP: &str = "\
Interrupted (SIGINT, SIGTERM, SIGHUP), it ends the servers that it started and removes their files; a second signal ends it at once.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage, 128 + n ended by signal n.";

fn command(figures: &[Entry]) -> Command {
    Options::augment_args(Command::new("duramen-bench"))
        .about(
            "Measures Duramen: each figure prints its tables and writes them as JSON, with plots",
        )
        .after_help(HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(figures.iter().map(|figure| (figure.command)()))
}

/// The program: runs the figure that the command line names, prints its reports and saves them.
/// Errors go to standard error.
pub fn main(figures: &[Entry]) -> ExitCode {
    let matches = command(figures).get_matches();
    let mut options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    options.note_command();
    let result = interrupt::watch().and_then(|()| run(figures, &matches, &options));
    interrupt::yield_to_signals();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(figures: &[Entry], matches: &ArgMatches, options: &Options) -> Result<()> {
    let (name, matches) = matches.subcommand().expect("clap demands a subcommand");
    let entry = figures.iter().find(|entry| entry.name == name);
    let entry = entry.expect("clap knows the names of the table alone");
    for report in (entry.run)(matches, options)? {
        report.print();
        report.save(&options.out)?;
        println!("\nsaved in {}", options.out.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::FIGURES;

    #[test]
    fn the_command_line_is_well_formed() {
        command(&FIGURES).debug_assert();
    }

    #[test]
    fn options_may_stand_before_and_behind_the_figure() {
        for line in ["duramen-bench --quick ycsb", "duramen-bench ycsb --quick"] {
            let matches = command(&FIGURES).get_matches_from(line.split(' '));
            assert!(Options::from_arg_matches(&matches).unwrap().quick, "{line}");
        }
    }
}
