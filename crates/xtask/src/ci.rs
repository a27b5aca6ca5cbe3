//! `cargo xtask ci`: everything a change must pass, cheapest first, with a time for each part.

use crate::process::{self, section};
use crate::{fuzz, test, tidy};

/// Fuzzing time for all targets together: enough to catch a new coarse mistake, not a search.
const FUZZ_SECONDS: u64 = 60;

pub(crate) fn run() -> Result<(), String> {
    section("whole CI", || {
        section("format", || {
            each_workspace(|manifest| {
                let format = ["fmt", "--all", "--check", "--manifest-path", manifest];
                process::run(&mut process::cargo(&format))
            })
        })?;
        section("tidy", tidy::run)?;
        section("clippy", || {
            let clippy = ["clippy", "--workspace", "--all-targets", "--quiet"];
            each_workspace(|manifest| {
                let mut command = process::cargo_of(manifest, &clippy);
                process::run(command.args(["--", "-D", "warnings"]))
            })
        })?;
        section("docs", || {
            let doc = [
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
                "--quiet",
            ];
            // With private items, so that links to them resolve.
            let flags = "-D warnings -A rustdoc::private-intra-doc-links";
            each_workspace(|manifest| {
                let mut command = process::cargo_of(manifest, &doc);
                process::run(command.env("RUSTDOCFLAGS", flags))
            })
        })?;
        section("fuzz", || fuzz::all(FUZZ_SECONDS))?;
        test::run(&[])
    })
}

fn each_workspace(work: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
    process::WORKSPACES.into_iter().try_for_each(work)
}
