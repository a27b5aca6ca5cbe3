//! Requests of operators and tools.

use super::callers::Callers;
use super::migrations::Migrations;
use super::records::TabletRecord;
use super::recoveries::Recoveries;
use super::suspects::Suspects;
use super::{Coordinator, Server, State, invalid, refused};
use duramen_base::ids::{RouteHash, ServerId, TableId};
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, MIGRATIONS_SHOWN, Overview, PAGE_TABLETS_MAX,
    STATUS_TABLETS_MAX, ServerLoad, ServerShare, Status, TableEntry, TableShare, TabletPage,
    TabletRoute, Wait,
};

impl Coordinator {
    pub(super) fn administer(&mut self, admin: Admin) -> CoordinatorAnswer {
        let done = CoordinatorAnswer::Admin(AdminAnswer::Done);
        match admin {
            Admin::CreateTable {
                name,
                servers,
                level,
            } => self.state.create_table(name, servers, level),
            Admin::DropTable { name } => self.drop_table(&name),
            Admin::Split { table, at } => match self.state.cut(table, at) {
                Ok(()) => done,
                Err(refusal) => refused(refusal),
            },
            Admin::Migrate { table, range, to } => {
                self.migrations.migrate(&mut self.state, table, range, to)
            }
            Admin::AbortMigration { migration } => {
                if self
                    .migrations
                    .abort(&mut self.state, migration, "somebody aborted it")
                {
                    return done;
                }
                invalid(format!("there is no migration {migration}"))
            }
            Admin::Drain { server } => self.migrations.drain(&mut self.state, server),
            Admin::Undrain { server } => self.migrations.undrain(&mut self.state, server),
            Admin::Status => self.view().bounded_status(),
            Admin::Overview => {
                CoordinatorAnswer::Admin(AdminAnswer::Overview(Box::new(self.view().overview())))
            }
            Admin::Tablets { table, from, most } => {
                CoordinatorAnswer::Admin(AdminAnswer::Tablets(self.view().page(table, from, most)))
            }
            Admin::Settings => {
                CoordinatorAnswer::Admin(AdminAnswer::Settings(self.state.meta.settings.clone()))
            }
            Admin::Recoveries => {
                CoordinatorAnswer::Admin(AdminAnswer::Recoveries(self.recovery_statuses()))
            }
            Admin::Rebalance { is_dry } => {
                let recovered = self.recoveries.first();
                let (state, migrations) = (&mut self.state, &mut self.migrations);
                self.balance.rebalance(state, migrations, recovered, is_dry)
            }
            Admin::Balance => {
                let recovered = self.recoveries.first();
                let status = self
                    .balance
                    .status(&self.state, &self.migrations, recovered);
                CoordinatorAnswer::Admin(AdminAnswer::Balance(Box::new(status)))
            }
            Admin::Members => CoordinatorAnswer::Admin(AdminAnswer::Members(self.members_health())),
            Admin::Waits => CoordinatorAnswer::Admin(AdminAnswer::Waits(self.waits())),
            Admin::Losses { server } => self.recoveries.losses(server),
            Admin::AcceptLoss { server, token } => {
                self.recoveries.accept_loss(&mut self.state, server, token)
            }
            Admin::CrashServer { server } => {
                if !self.state.servers.is_up(server) {
                    return invalid(format!("server {server} is not UP"));
                }
                self.crash(server);
                done
            }
        }
    }

    fn view(&self) -> View<'_> {
        View {
            state: &self.state,
            callers: &self.callers,
            migrations: &self.migrations,
            recoveries: &self.recoveries,
            suspects: &self.suspects,
        }
    }

    /// The whole cluster, with every tablet.
    pub fn status(&self) -> Status {
        self.view().status()
    }

    /// A summary of the cluster. Its time and size do not depend on the number of tablets.
    pub fn overview(&self) -> Overview {
        self.view().overview()
    }

    /// All that waits for an operator now, and all that may have to wait later.
    pub fn waits(&self) -> Vec<Wait> {
        self.view().waits()
    }
}

/// The parts of a coordinator, for requests that only read them.
#[derive(Clone, Copy)]
pub(super) struct View<'c> {
    pub state: &'c State,
    pub callers: &'c Callers,
    pub migrations: &'c Migrations,
    pub recoveries: &'c Recoveries,
    pub suspects: &'c Suspects,
}

impl View<'_> {
    /// The whole cluster, with every tablet.
    pub(super) fn status(&self) -> Status {
        let tablets = self.state.tables.tablets();
        Status {
            tablets: tablets
                .map(|(at, tablet)| self.shown(*at, tablet))
                .collect(),
            migrations: self.migrations.statuses(self.state.now_us, usize::MAX),
            ..self.glance()
        }
    }

    fn bounded_status(&self) -> CoordinatorAnswer {
        let tablets = self.state.tables.tablets().len();
        if tablets > STATUS_TABLETS_MAX {
            return invalid(format!(
                "the cluster has {tablets} tablets, more than {STATUS_TABLETS_MAX}: ask for `Overview` and `Tablets`"
            ));
        }
        CoordinatorAnswer::Admin(AdminAnswer::Status(Box::new(self.status())))
    }

    /// The status without its tablets and the migrations in progress.
    fn glance(&self) -> Status {
        Status {
            cluster: self.state.meta.cluster.clone(),
            term: self.state.config.term,
            leader: self.state.config.name.clone(),
            list_version: self.state.meta.list_version,
            map_version: self.state.meta.map_version,
            servers: self
                .state
                .servers
                .values()
                .map(|server| server.record.entry.clone())
                .collect(),
            tables: self.state.tables.entries().cloned().collect(),
            tablets: Vec::new(),
            recoveries: self.recoveries.statuses(self.state),
            migrations: Vec::new(),
            migrations_ended: self.migrations.ended().cloned().collect(),
            settings: self.state.meta.settings.clone(),
            loads: self.state.servers.iter().map(load).collect(),
        }
    }

    /// A summary of the cluster. Its time and size do not depend on the number of tablets.
    pub(super) fn overview(&self) -> Overview {
        let spread = |entry: &TableEntry| {
            let (tablets, owners) = self.state.tables.shares.of_table(entry.table);
            TableShare {
                table: entry.table,
                tablets,
                owners,
            }
        };
        Overview {
            status: Status {
                migrations: self
                    .migrations
                    .statuses(self.state.now_us, MIGRATIONS_SHOWN),
                ..self.glance()
            },
            tablets: self.state.tables.tablets().len() as u64,
            tablets_unserved: self.migrations.unserved(self.state) as u64,
            migrations: self.migrations.ids().len() as u64,
            tables: self.state.tables.entries().map(spread).collect(),
            servers: self
                .state
                .servers
                .keys()
                .map(|id| self.share(*id))
                .collect(),
        }
    }

    fn share(&self, id: ServerId) -> ServerShare {
        ServerShare {
            server: id,
            tablets: self.state.tables.tablets_owned(id) as u64,
            room: self.state.servers.get(&id).and_then(|s| s.room.report()),
            waits_for: self.migrations.drain_waits_for(self.state, id),
        }
    }

    fn page(
        &self,
        only: Option<TableId>,
        from: Option<(TableId, RouteHash)>,
        most: u32,
    ) -> TabletPage {
        let begin = from.max(only.map(|table| (table, RouteHash::MIN)));
        let begin = begin.unwrap_or((TableId(0), RouteHash::MIN));
        let most = (most as usize).clamp(1, PAGE_TABLETS_MAX);
        let fits = |at: &(TableId, RouteHash)| only.is_none_or(|only| only == at.0);
        let mut rest = self
            .state
            .tables
            .tablets_from(begin)
            .take_while(|(at, _)| fits(at));
        let page = rest.by_ref().take(most);
        let tablets = page.map(|(at, tablet)| self.shown(*at, tablet)).collect();
        TabletPage {
            map_version: self.state.meta.map_version,
            tablets,
            next: rest.next().map(|(at, _)| *at),
        }
    }

    /// A tablet for people: the map counts it as served when its owner is UP.
    fn shown(&self, at: (TableId, RouteHash), tablet: &TabletRecord) -> TabletRoute {
        TabletRoute {
            served: self.migrations.is_served(self.state, at, tablet.owner),
            ..self.state.route(at.0, at.1, tablet)
        }
    }
}

fn load((id, server): (&ServerId, &Server)) -> ServerLoad {
    let (bytes, records) = server.loads.sums();
    ServerLoad {
        server: *id,
        bytes,
        records,
    }
}
