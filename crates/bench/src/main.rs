//! `duramen-bench`: the figures of `docs/benchmarks.md`, one subcommand each.

use std::process::ExitCode;

/// dashmap's figures are taken with jemalloc, as in its usual deployments; Duramen itself hardly
/// allocates.
#[cfg(feature = "peers")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    duramen_bench::cli_main(std::env::args().collect())
}
