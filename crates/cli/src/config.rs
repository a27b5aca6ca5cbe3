//! `duramen config`.

use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct ConfigArgs {}

pub(crate) fn run(_: ConfigArgs) -> ExitCode {
    eprintln!("duramen: this build has no server to configure yet");
    ExitCode::from(2)
}
