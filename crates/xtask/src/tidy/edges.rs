//! Rule: a crate uses only the crates below it, and its name describes it.

use super::House;

/// The crates directly below each crate; it may use those and all that they may use. The map in
/// ARCHITECTURE.md has the direction `base ← format ← {engine, backup}`, `base ← wire ← {cluster,
/// client}`, `{engine, backup, cluster} ← duramen ← {config, node} ← redis ← server ← cli`. bench,
/// sim, workload, xtask and fuzz are programs around the product: no crate uses them. harness is
/// for tests: see [`FOR_TESTS`].
const BELOW: &[(&str, &[&str])] = &[
    ("duramen-base", &[]),
    ("duramen-acl", &["duramen-base"]),
    ("duramen-cipher", &["duramen-base"]),
    ("duramen-disk", &["duramen-base"]),
    ("duramen-flash", &["duramen-disk"]),
    ("duramen-alloc", &["duramen-flash"]),
    ("duramen-direct", &["duramen-alloc"]),
    ("duramen-format", &["duramen-base"]),
    ("duramen-engine", &["duramen-format", "duramen-disk"]),
    (
        "duramen-backup",
        &["duramen-format", "duramen-disk", "duramen-cipher"],
    ),
    ("duramen-cluster", &["duramen-wire"]),
    (
        "duramen",
        &["duramen-engine", "duramen-backup", "duramen-cluster"],
    ),
    ("duramen-wire", &["duramen-format"]),
    ("duramen-net", &["duramen-wire", "duramen-tls"]),
    ("duramen-script", &["duramen-base"]),
    ("duramen-shm", &["duramen-base"]),
    ("duramen-tls", &[]),
    ("duramen-types", &["duramen-base"]),
    (
        "duramen-client",
        &["duramen-wire", "duramen-shm", "duramen-tls"],
    ),
    ("duramen-load", &["duramen-wire", "duramen-tls"]),
    (
        "duramen-coordinator",
        &[
            "duramen-cluster",
            "duramen-net",
            "duramen-client",
            "duramen-acl",
        ],
    ),
    ("duramen-node", &["duramen"]),
    ("duramen-config", &["duramen", "duramen-shm", "duramen-tls"]),
    (
        "duramen-redis",
        &[
            "duramen-config",
            "duramen-node",
            "duramen-acl",
            "duramen-script",
            "duramen-types",
        ],
    ),
    (
        "duramen-server",
        &["duramen-redis", "duramen-net", "duramen-client"],
    ),
    (
        "duramen-bench",
        &["duramen", "duramen-load", "duramen-client", "duramen-alloc"],
    ),
    (
        "duramen-cli",
        &["duramen-server", "duramen-load", "duramen-coordinator"],
    ),
    ("duramen-harness", &["duramen-cluster"]),
    ("duramen-sim", &["duramen-server", "duramen-harness"]),
    ("xtask", &[]),
    ("duramen-fuzz", &["duramen-sim"]),
    ("duramen-workload", &["duramen-client"]),
];

/// The tests of any crate may use it, also those of a crate that it uses.
const FOR_TESTS: &str = "duramen-harness";

/// The crates directly below this one; `None`: it has no row.
fn below(name: &str) -> Option<&'static [&'static str]> {
    let row = BELOW.iter().find(|(known, _)| *known == name)?;
    Some(row.1)
}

fn may_see(name: &str, other: &str) -> bool {
    let mut below = below(name).unwrap_or_default().iter();
    below.any(|lower| *lower == other || may_see(lower, other))
}

/// Names that do not describe a crate.
const VAGUE: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];

pub(super) fn check(house: &House, complaints: &mut Vec<String>) {
    for package in house.packages() {
        let Some(name) = package["name"].as_str() else {
            continue;
        };
        if VAGUE
            .iter()
            .any(|vague| name.split('-').any(|part| part == *vague))
        {
            complaints.push(format!(
                "crate `{name}`: say what it is, not that it is shared"
            ));
        }
        if below(name).is_none() {
            complaints.push(format!(
                "crate `{name}` has no row in BELOW (crates/xtask/src/tidy/edges.rs): say what it may see"
            ));
            continue;
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let seen = dependency["name"].as_str().unwrap_or_default();
            let ours = dependency["path"].is_string();
            let is_for_tests = seen == FOR_TESTS && dependency["kind"] == "dev";
            if ours && !is_for_tests && seen != name && !may_see(name, seen) {
                complaints.push(format!(
                    "crate `{name}` must not see `{seen}`: lower never sees upper (ARCHITECTURE.md, Map)"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn complaints(name: &str, sees: &str) -> Vec<String> {
        let house = House {
            root: PathBuf::new(),
            files: Vec::new(),
            architecture: String::new(),
            metadata: vec![serde_json::json!({"packages": [
                {"name": name, "source": null, "dependencies": [{"name": sees, "path": "/x"}]}
            ]})],
        };
        let mut complaints = Vec::new();
        check(&house, &mut complaints);
        complaints
    }

    #[test]
    fn lower_must_not_see_upper() {
        assert_eq!(complaints("duramen-server", "duramen-engine"), [""; 0]);
        assert_eq!(complaints("duramen-engine", "duramen-server").len(), 1);
        assert_eq!(complaints("duramen-wire", "duramen-engine").len(), 1);
        assert_eq!(complaints("duramen-cli", "duramen-base"), [""; 0]);
        assert_eq!(complaints("duramen-engine", "duramen-wire").len(), 1);
        assert_eq!(complaints("duramen-server", "duramen-sim").len(), 1);
        assert_eq!(complaints("duramen-server", "duramen-config"), [""; 0]);
        assert_eq!(complaints("duramen-redis", "duramen-net").len(), 1);
    }

    #[test]
    fn unknown_and_vague_crates_are_refused() {
        assert_eq!(complaints("duramen-magic", "duramen-base").len(), 1);
        assert_eq!(complaints("duramen-utils", "duramen-base").len(), 2);
    }
}
