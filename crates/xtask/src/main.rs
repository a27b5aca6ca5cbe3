//! `cargo xtask COMMAND`: all chores of this repository, one command each.

mod bench;
mod ci;
#[cfg(test)]
mod commit_msg;
mod fuzz;
mod package;
mod process;
mod release;
mod test;
mod tidy;
mod tools;
mod torture;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  ci                everything a change must pass: format, clippy, docs, tidy, tests, a minute of fuzzing
  test [PART…]      the quick tier of the tests, or the tests whose names have this in them;
                    with --full everything; `--help` lists the parts
  tidy              the rules of the house: crate edges, file headers, unsafe, links, dependencies, licences, prose
                    --prose: list what the rules for prose find, and note how much is left
  count             lines of code, largest types, open fields and circles of imports, for each crate
  fuzz [TARGET] [--seconds N]
                    every fuzz target (or one) for N seconds in total, 60 by default
  torture [--release] [--minutes N] [--seed S] [ARGS…]
                    real servers under clients of all kinds, pauses and kills, every reply watched;
                    `--help` lists the arguments of `duramen-workload torture`
  bench [ARGS…]     a figure of docs/benchmarks.md from a release build; `--help` lists them
  release           the program to ship, at most 15 MB, and its debug lines: target/shipped
  package [--binary FILE] [--out DIR] [--fast]
                    Debian packages of the program to ship: target/packages
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    let result = match command {
        "ci" => no_arguments(rest).and_then(|()| ci::run()),
        "test" => test::run(rest),
        "tidy" if rest == ["--prose"] => tidy::list_prose(),
        "tidy" => no_arguments(rest).and_then(|()| tidy::run()),
        "count" => no_arguments(rest).and_then(|()| tidy::count::run()),
        "fuzz" => fuzz::run(rest),
        "torture" => torture::run(rest),
        "bench" => bench::run(rest),
        "release" => no_arguments(rest).and_then(|()| release::run()),
        "package" => package::run(rest),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("unknown command `{other}`\n\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            if !sentence.is_empty() {
                eprintln!("xtask: {sentence}");
            }
            ExitCode::FAILURE
        }
    }
}

fn no_arguments(rest: &[String]) -> Result<(), String> {
    match rest.first() {
        None => Ok(()),
        Some(argument) => Err(format!(
            "this command takes no arguments, but got `{argument}`"
        )),
    }
}
