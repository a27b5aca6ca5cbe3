//! Writes the histories of simulated clusters, one file per seed, for the checker of real servers'
//! histories (tests/checker): `histories DIR FIRST COUNT`.

use duramen_sim::cluster::{Plan, Profile, run};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &args[..] {
        [dir, first, count] => first
            .parse::<u64>()
            .ok()
            .zip(count.parse::<u64>().ok())
            .map(|of| (dir, of)),
        _ => None,
    };
    let Some((dir, (first, count))) = parsed else {
        eprintln!("usage: histories DIR FIRST COUNT");
        return ExitCode::from(2);
    };
    for seed in first..first + count {
        let outcome = run(Plan::of(Profile::Mixed, seed));
        let path = PathBuf::from(dir).join(format!("seed-{seed}.jsonl"));
        if let Err(error) = std::fs::write(&path, outcome.history.to_json_lines()) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
        for why in &outcome.violations {
            eprintln!("seed {seed}: {why}");
        }
    }
    ExitCode::SUCCESS
}
