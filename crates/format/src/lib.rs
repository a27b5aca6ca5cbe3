//! Every byte that outlives a process.
