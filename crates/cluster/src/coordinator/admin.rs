//! What people and tools ask.

use super::{Coordinator, Server, invalid};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{Admin, AdminAnswer, CoordinatorAnswer, ServerLoad, Status};

impl Coordinator {
    pub(super) fn administer(&mut self, admin: Admin) -> CoordinatorAnswer {
        let done = CoordinatorAnswer::Admin(AdminAnswer::Done);
        match admin {
            Admin::CreateTable {
                name,
                servers,
                level,
            } => self.create_table(name, servers, level),
            Admin::DropTable { name } => self.drop_table(&name),
            Admin::Split { table, at } => self.split(table, at),
            Admin::Migrate { table, range, to } => self.migrate(table, range, to),
            Admin::AbortMigration { migration } => {
                if self.abort_migration(migration, "somebody aborted it") {
                    return done;
                }
                invalid(format!("there is no migration {migration}"))
            }
            Admin::Drain { server } => self.drain(server),
            Admin::Undrain { server } => self.undrain(server),
            Admin::Status => CoordinatorAnswer::Admin(AdminAnswer::Status(Box::new(self.status()))),
            Admin::Recoveries => {
                CoordinatorAnswer::Admin(AdminAnswer::Recoveries(self.recovery_statuses()))
            }
            Admin::CrashServer { server } => {
                if !self.is_up(server) {
                    return invalid(format!("server {server} is not UP"));
                }
                self.crash(server);
                done
            }
        }
    }

    /// The cluster at a glance.
    pub fn status(&self) -> Status {
        Status {
            cluster: self.meta.cluster.clone(),
            term: self.config.term,
            leader: self.config.name.clone(),
            list_version: self.meta.list_version,
            map_version: self.meta.map_version,
            servers: self
                .servers
                .values()
                .map(|server| server.record.entry.clone())
                .collect(),
            tables: self.tables.values().cloned().collect(),
            tablets: self.routes(|_| true),
            recoveries: self.recovery_statuses(),
            migrations: self.migration_statuses(),
            migrations_ended: self.moved.iter().cloned().collect(),
            settings: self.meta.settings.clone(),
            loads: self.servers.iter().map(load).collect(),
        }
    }
}

fn load((id, server): (&ServerId, &Server)) -> ServerLoad {
    let sum = |of: fn(&duramen_wire::native::message::RangeLoad) -> u64| {
        let each = server.loads.iter().map(of);
        each.fold(0, u64::saturating_add)
    };
    ServerLoad {
        server: *id,
        bytes: sum(|load| load.bytes),
        records: sum(|load| load.records),
    }
}
