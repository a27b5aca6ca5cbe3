//! Changes of the state that the parts of the coordinator share.

use super::calls::{Call, CallKind};
use super::records::Key;
use super::{Output, State};
use duramen_base::ids::{KeyRange, ServerId, TableId, TabletsVersion};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{FromCoordinator, ServerChange};

impl State {
    pub(super) fn put_meta(&mut self) {
        self.records.put(Key::Meta, &self.meta);
    }

    /// The next outputs wait for the store's confirmation that this one leads (coordinator::K8).
    pub(super) fn ask_store(&mut self) {
        if !has_bug(Bug::DeniesAtOnce) {
            self.put_meta();
        }
    }

    /// The server list changes, in this order; its version grows once per batch.
    pub(super) fn change_list(&mut self, change: ServerChange) {
        if self.records.change_list(change) {
            self.meta.list_version.0 += 1;
        }
        self.put_meta();
    }

    /// Sends a request to a server that is UP; its end is handled as its kind says, after
    /// `patience_us` at the latest.
    pub(super) fn ask(
        &mut self,
        to: ServerId,
        question: FromCoordinator,
        kind: CallKind,
        patience_us: u64,
    ) {
        if let Some(server) = self.servers.get(&to) {
            let address = server.record.entry.addresses.native.clone();
            self.ask_at(to, address, question, kind, patience_us);
        }
    }

    pub(super) fn ask_at(
        &mut self,
        to: ServerId,
        address: String,
        question: FromCoordinator,
        kind: CallKind,
        patience_us: u64,
    ) {
        let call = self.asks.begin(Call {
            to,
            kind,
            asked_us: self.now_us,
            deadline_us: self.now_us + patience_us,
        });
        let output = Output::Ask {
            call,
            to,
            address,
            question,
        };
        match kind.is_sign_of_life() {
            true => self.records.tell_at_once(output), // pipeline::P3
            false => self.records.tell(output),
        }
    }

    /// The tablet map changed: its version grows, once per batch at least.
    pub(super) fn touch_map(&mut self) {
        if self.changes.touch() {
            if !has_bug(Bug::VersionReused) {
                self.meta.map_version.0 += 1;
            }
            self.put_meta();
        }
    }

    /// The tablet map changed in this range.
    pub(super) fn change_map(&mut self, table: TableId, range: KeyRange) {
        self.touch_map();
        let version = self.meta.map_version;
        self.changes.add(version, table, range);
    }

    /// The tablets of this server changed.
    pub(super) fn affect(&mut self, server: ServerId) {
        self.touch_map();
        self.records.affect([server]);
    }

    pub(super) fn affect_all(&mut self) {
        self.touch_map();
        self.records.affect(self.servers.up().iter().copied());
    }

    /// The version of new lists of tablets: it is the map's, so that it is stored together with the
    /// tablets.
    pub(super) fn tablets_version(&self) -> TabletsVersion {
        TabletsVersion(self.meta.map_version.0)
    }
}
