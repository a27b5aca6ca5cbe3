//! Tables and servers by their names.

use crate::failure::Failure;
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{ServerEntry, ServerStatus, Status, TableEntry};

/// The table of that name.
pub(super) fn table<'s>(status: &'s Status, name: &str) -> Result<&'s TableEntry, Failure> {
    let found = status.tables.iter().find(|table| table.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = status.tables.iter().map(|t| t.name.as_str()).collect();
        Failure::Coordinator(format!(
            "there is no table `{name}`; there are: {}",
            names.join(", ")
        ))
    })
}

/// The name of a table, or its number.
pub(super) fn of_table(status: &Status, id: duramen_base::ids::TableId) -> String {
    let found = status.tables.iter().find(|table| table.table == id);
    found.map_or_else(|| id.to_string(), |table| table.name.clone())
}

/// Parses `slot.generation`.
fn id(text: &str) -> Option<ServerId> {
    let (slot, generation) = text.split_once('.')?;
    Some(ServerId::new(slot.parse().ok()?, generation.parse().ok()?))
}

/// The server of `2.1`, or of `2` (the generation of slot 2 that is UP), or of one of its
/// addresses.
pub(super) fn server<'s>(status: &'s Status, text: &str) -> Result<&'s ServerEntry, Failure> {
    let is_up = |entry: &&ServerEntry| entry.status == ServerStatus::Up;
    let all = || status.servers.iter();
    let is_addressed = |entry: &&ServerEntry| {
        let addresses = &entry.addresses;
        let others = [&addresses.resp, &addresses.plain, &addresses.admin];
        addresses.native == text || others.into_iter().flatten().any(|other| other == text)
    };
    let found = match (id(text), text.parse::<u32>()) {
        (Some(id), _) => all().find(|entry| entry.server == id),
        (None, Ok(slot)) => all().filter(is_up).find(|entry| entry.server.slot == slot),
        (None, Err(_)) => all().filter(is_up).find(is_addressed),
    };
    found.ok_or_else(|| {
        let up: Vec<String> = all()
            .filter(is_up)
            .take(20)
            .map(|entry| format!("{} at {}", entry.server, entry.addresses.native))
            .collect();
        let up = if up.is_empty() { "none".to_owned() } else { up.join(", ") };
        Failure::Coordinator(format!(
            "no server `{text}` is a member; UP are: {up}. Name it as in `duramen status`: 2.1, 2, or an address"
        ))
    })
}
