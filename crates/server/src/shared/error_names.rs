//! Error replies by their first word, for `INFO errorstats`.

/// The first words of this server's error replies. The first entry stands for all others.
pub(crate) const NAMES: [&str; 21] = [
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
    "WRONGTYPE",
    "INVALIDOBJ",
    "NOSCRIPT",
    "NOTBUSY",
    "NOGROUP",
    "UNBLOCKED",
];

/// The position of an error's first word in [`NAMES`].
pub(crate) fn position(text: &str) -> usize {
    let word = text.split(' ').next().unwrap_or_default();
    NAMES.iter().position(|name| *name == word).unwrap_or(0)
}
