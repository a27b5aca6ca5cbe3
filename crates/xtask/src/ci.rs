//! `cargo xtask ci`: everything a change must pass, cheapest first, with a time for each part.

use crate::process::{self, section};
use crate::{fuzz, test, tidy};

/// Fuzzing time for all targets together: enough to catch a new coarse mistake, not a search.
const FUZZ_SECONDS: u64 = 60;

pub(crate) fn run() -> Result<(), String> {
    section("whole CI", || {
        section("format", || {
            process::run(&mut process::cargo(&["fmt", "--all", "--check"]))
        })?;
        section("tidy", tidy::run)?;
        section("clippy", || {
            process::run(&mut process::cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]))
        })?;
        section("docs", || {
            process::run(
                process::cargo(&[
                    "doc",
                    "--workspace",
                    "--no-deps",
                    "--document-private-items",
                    "--quiet",
                ])
                // With private items, so that links to them resolve.
                .env(
                    "RUSTDOCFLAGS",
                    "-D warnings -A rustdoc::private-intra-doc-links",
                ),
            )
        })?;
        section("fuzz", || fuzz::all(FUZZ_SECONDS))?;
        test::run(&[])
    })
}
