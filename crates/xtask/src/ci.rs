//! `cargo xtask ci`: everything a change must pass, cheapest first, with a time for each part.

use crate::process::{self, section};
use crate::{fuzz, release, test, tidy};

/// Fuzzing time for all targets together: enough to catch a new coarse mistake, not a search.
const FUZZ_SECONDS: u64 = 60;

pub(crate) fn run() -> Result<(), String> {
    section("whole CI", || {
        section("tidy", tidy::run)?;
        section("store", || build(process::STORE))?;
        section("heap", || build(process::HEAP))?;
        section("bench", || build(process::BENCH))?;
        section("release", release::run)?;
        section("fuzz", || fuzz::all(FUZZ_SECONDS))?;
        test::run(&[])
    })
}

/// Format, clippy and docs of a workspace.
fn build(workspace: &str) -> Result<(), String> {
    section("format", || {
        let check = ["fmt", "--all", "--check", "--manifest-path", workspace];
        process::run(&mut process::cargo(&check))
    })?;
    section("clippy", || {
        process::run(process::within(workspace, "clippy").args([
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
            process::within(workspace, "doc")
                .args([
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
    })
}
