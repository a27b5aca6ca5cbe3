//! Commands on keys, whatever their values are.

pub(crate) mod databases;
pub(crate) mod dump;
pub(crate) mod expire;
pub(crate) mod keys;
pub(crate) mod scan;
pub(crate) mod sort;
