//! `duramen serve`.

use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct ServeArgs {}

pub(crate) fn run(_: ServeArgs) -> ExitCode {
    eprintln!("duramen: this build has no server yet");
    ExitCode::from(2)
}
