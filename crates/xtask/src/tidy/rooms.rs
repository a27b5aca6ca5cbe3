//! Rule: the rooms of a crate, which are the modules of its root, import in one direction.
//!
//! An import of something inside a room is an import of the room; see `circles.rs` for the forms of
//! imports. Tests may import everything.

use std::collections::BTreeMap;

use super::modules::{Modules, Place};

/// The rooms directly below each room of a crate; it may import those and all that they may import.
/// A room stands behind those below it, so there is no circle.
type Rooms = &'static [(&'static str, &'static [&'static str])];

/// The crates with such a list, by the folders of their sources. The head of a room's `mod.rs` says
/// which purpose it has.
const CRATES: &[(&str, Rooms)] = &[("crates/redis/src", REDIS), ("crates/server/src", SERVER)];

const REDIS: Rooms = &[
    ("figures", &[]),
    ("membership", &[]),
    ("durability", &[]),
    ("flash", &[]),
    ("threads", &["figures"]),
    ("blocking", &["threads"]),
    ("reply", &["durability", "threads"]),
    ("state", &["membership", "flash", "blocking", "reply"]),
    ("command", &["state"]),
    ("access", &["command"]),
    ("monitor", &["command"]),
    ("pubsub", &["command"]),
    ("tracking", &["command"]),
    ("values", &["command"]),
    ("keyspace", &["values"]),
    ("connection", &["access", "monitor", "pubsub", "tracking"]),
    ("script", &["access", "monitor", "tracking"]),
    ("transaction", &["keyspace", "pubsub", "script"]),
    ("operation", &["keyspace"]),
    ("table", &["connection", "operation", "transaction"]),
    ("executor", &["table"]),
    ("start", &["pubsub", "tracking"]),
];

const SERVER: Rooms = &[
    ("admin", &[]),
    ("closing", &[]),
    ("doors", &[]),
    ("native", &[]),
    ("member", &["doors"]),
    ("reactor", &["doors", "native"]),
    ("server", &["admin", "closing", "member", "reactor"]),
];

pub(super) fn check(crates: &BTreeMap<String, Modules>, complaints: &mut Vec<String>) {
    for (sources, rooms) in CRATES {
        match crates.get(*sources) {
            Some(modules) => compare(sources, rooms, modules, complaints),
            None => complaints.push(format!(
                "{sources}: there is no such crate, remove its rooms"
            )),
        }
    }
}

/// Complaints about rooms without a row, rows without a room, and imports that no row allows.
fn compare(sources: &str, rooms: Rooms, modules: &Modules, complaints: &mut Vec<String>) {
    let found = modules.names_at_root();
    for (room, _) in rooms.iter().filter(|(room, _)| !found.contains(room)) {
        complaints.push(format!(
            "{sources}: there is no room `{room}`, remove its row"
        ));
    }
    let has_row = |room: &&str| rooms.iter().any(|(known, _)| known == room);
    for room in found.iter().filter(|room| !has_row(room)) {
        complaints.push(format!(
            "{sources}: room `{room}` has no row in {}: say what it may import",
            file!()
        ));
    }
    let imports = modules.imports();
    for (room, targets) in imports.get(&Place::new()).into_iter().flatten() {
        for (target, path) in targets {
            if has_row(&room.as_str()) && !may_import(rooms, room, target) {
                complaints.push(format!(
                    "{sources}: room `{room}` must not import `{path}`: move a type to where it belongs, or let the room below be handed what it needs"
                ));
            }
        }
    }
}

fn may_import(rooms: Rooms, room: &str, other: &str) -> bool {
    let row = rooms.iter().find(|(known, _)| *known == room);
    let mut below = row.map_or(&[][..], |(_, below)| below).iter();
    below.any(|lower| *lower == other || may_import(rooms, lower, other))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ROOMS: Rooms = &[("a", &[]), ("b", &["a"]), ("c", &["b"])];

    fn complaints(root: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![(Path::new("lib.rs"), root.to_owned())];
        let files = files.iter();
        all.extend(files.map(|(path, text)| (Path::new(*path), (*text).to_owned())));
        let mut complaints = Vec::new();
        compare("src", ROOMS, &Modules::new(&all), &mut complaints);
        complaints
    }

    const ALL: &str = "pub mod a;\nmod b;\nmod c;\n#[cfg(test)]\nmod tests;\n";

    #[test]
    fn a_room_imports_those_below_it() {
        let files = [
            ("a.rs", "#[cfg(test)]\nmod tests { use crate::c; }"),
            ("b/mod.rs", "mod x;\nmod y;"),
            ("b/x.rs", "use crate::a::Z;\nuse super::y;"),
            ("b/y.rs", ""),
            ("c.rs", "use crate::b::X;\nfn f() -> crate::a::Z {}"),
        ];
        assert_eq!(complaints(ALL, &files), [""; 0]);
    }

    #[test]
    fn a_room_must_not_import_those_above_it() {
        for import in ["use crate::c::{self, X};", "fn f() { crate::c::d::g() }"] {
            let files = [
                ("a.rs", ""),
                ("b/mod.rs", "mod x;"),
                ("b/x.rs", import),
                ("c.rs", ""),
            ];
            let complaints = complaints(ALL, &files);
            assert_eq!(complaints.len(), 1, "{complaints:?}");
            let complaint = &complaints[0];
            assert!(
                complaint.starts_with("src: room `b` must not import `crate::c"),
                "{complaint}"
            );
        }
    }

    #[test]
    fn each_room_has_a_row_and_each_row_a_room() {
        let files = [("a.rs", ""), ("c.rs", ""), ("d.rs", "use crate::c;")];
        let complaints = complaints("mod a;\nmod c;\nmod d;\n", &files);
        assert_eq!(complaints[0], "src: there is no room `b`, remove its row");
        assert!(
            complaints[1].starts_with("src: room `d` has no row in "),
            "{complaints:?}"
        );
        assert_eq!(complaints.len(), 2);
    }

    #[test]
    fn a_row_names_only_rooms_before_it() {
        for (sources, rooms) in CRATES {
            for (n, (room, below)) in rooms.iter().enumerate() {
                let stands_before = |lower: &&str| rooms[..n].iter().any(|(one, _)| one == lower);
                assert!(below.iter().all(stands_before), "{sources}: {room}");
            }
        }
    }
}
