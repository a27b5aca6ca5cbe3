//! Requests of native clients to a master, against a model; and the same with one rule broken,
//! which must be found.

mod cold;
mod enumerate;
mod history;
mod once;
mod planted;
mod world;

/// Conditions, versions, expiry, numbers, copies, late copies, and replayed entries.
#[test]
fn histories_are_those_of_the_model() {
    for seed in 0..400 {
        if let Err(why) = history::run(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}
