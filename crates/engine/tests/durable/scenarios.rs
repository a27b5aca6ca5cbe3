//! Scenarios of 90-traps.md, part I, by name.
