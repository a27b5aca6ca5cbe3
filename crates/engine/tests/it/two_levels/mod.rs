//! Two-level cleaning and restart, against a simulated log writer: no acknowledged data are lost,
//! and no dead data come back.

mod disk;
mod flash;
mod flips;
mod full;
mod model;
mod planted;
mod restart;
mod scenarios;
mod verified;
mod zones;
