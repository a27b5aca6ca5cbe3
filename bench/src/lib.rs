//! The papers' tables and figures, with peers side by side; `docs/benchmarks.md` shows the results.
//!
//! `figures` has one module per figure and the table [`figures::FIGURES`]; [`harness`] and
//! [`servers`] are what figures share. The load generator is the product's: `duramen_load`.

pub mod figure;
pub mod figures;
pub mod harness;
pub mod servers;
