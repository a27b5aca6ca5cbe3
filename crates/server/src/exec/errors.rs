//! Error replies by the word that they begin with, for `INFO errorstats`.

/// The words that error replies of this server begin with. The first stands for any other.
pub(crate) const NAMES: [&str; 15] = [
    "ERR",
    "OOM",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
    "NOPROTO",
    "EXECABORT",
    "LOADING",
    "MOVED",
    "CROSSSLOT",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "NOPERM",
    "BUSYKEY",
];

/// The place of an error's word in [`NAMES`].
pub(crate) fn place(text: &str) -> usize {
    let word = text.split(' ').next().unwrap_or_default();
    NAMES.iter().position(|name| *name == word).unwrap_or(0)
}
