//! `duramen-bench`: the figures of `docs/benchmarks.md`, one subcommand each.

use std::process::ExitCode;

/// dashmap's figures are taken with jemalloc, as in its usual deployments; Duramen itself hardly
/// allocates.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    duramen_bench::figure::main(&duramen_bench::figures::FIGURES)
}
