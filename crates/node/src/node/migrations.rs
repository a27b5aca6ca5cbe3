//! Connects migrations to the node: passes inputs to them, and carries out their outputs.

use super::Node;
use crate::interface::NodeOutput;
use crate::migration::{Environment, Migrations, Outputs};
use crate::occupancy;
use crate::ranges::Ranges;
use crate::requests::RequestId;
use duramen_base::ids::{KeyRange, MigrationId, ServerId, TableId};
use duramen_wire::native::message::MigrateEntries;

impl Node {
    /// Runs a step of the migrations, and carries out their outputs.
    pub(super) fn migrate(
        &mut self,
        step: impl FnOnce(&mut Migrations, &Environment<'_>, &mut Outputs),
        out: &mut Vec<NodeOutput>,
    ) {
        let Some(life) = self.life.as_mut().filter(|_| !self.ended) else {
            return;
        };
        let assignment = self.member.assignment();
        let env = Environment {
            me: self.member.id(),
            told: assignment.latest(),
            is_made: assignment.done() == assignment.latest().version,
            store: &life.store,
            clients: life.client_leases.clients(),
        };
        let mut outputs = Outputs::default();
        step(&mut life.migrations, &env, &mut outputs);
        self.do_migrations(outputs, out);
    }

    fn do_migrations(&mut self, outputs: Outputs, out: &mut Vec<NodeOutput>) {
        let Outputs {
            answers,
            requests,
            reports,
            locked,
            unlocked,
            jobs,
        } = outputs;
        for (request, answer) in answers {
            out.push(NodeOutput::AnswerPeer {
                request,
                answer,
                payload: duramen_wire::native::Slice::default(),
            });
        }
        self.ask_peers(requests, out);
        self.report(reports, out);
        let has_changed = !locked.is_empty() || !unlocked.is_empty();
        for (migration, table, range) in locked {
            let ranges = Ranges::new([(table, range)]).expect("a range of a list");
            self.member.assignment_mut().lock(migration, ranges);
        }
        for migration in unlocked {
            self.member.assignment_mut().unlock(migration);
        }
        if has_changed {
            self.publish(out);
        }
        out.extend(jobs.into_iter().map(NodeOutput::Job));
    }

    /// The source of a migration has sent a message.
    pub(super) fn entries_arrived(
        &mut self,
        now_us: u64,
        request: RequestId,
        sender: ServerId,
        message: MigrateEntries,
        entries: Vec<u8>,
        out: &mut Vec<NodeOutput>,
    ) {
        if let Some(life) = &mut self.life {
            life.migrations.wants(message.migration, sender);
        }
        self.begin_targets(out);
        self.migrate(
            |migrations, env, outputs| {
                migrations.arrived(now_us, request, sender, message, entries, env, outputs);
            },
            out,
        );
    }

    /// Begins targets, if the list is applied and no part of the range is here.
    fn begin_targets(&mut self, out: &mut Vec<NodeOutput>) {
        let assignment = self.member.assignment();
        let Some(life) = self.life.as_ref().filter(|_| !self.ended) else {
            return;
        };
        let (room, waiting) = life.migrations.waiting();
        if room == 0 || assignment.done() != assignment.latest().version {
            return;
        }
        let is_free = |(_, table, range): &(_, TableId, KeyRange)| {
            let ranges = Ranges::new([(*table, *range)]).expect("a range of a list");
            !occupancy::is_occupied(assignment, life, &ranges)
        };
        let ready = waiting.filter(is_free).take(room).map(|(id, ..)| id);
        let ready: Vec<MigrationId> = ready.collect();
        if !ready.is_empty() {
            let begin = |migrations: &mut Migrations, env: &Environment<'_>, out: &mut Outputs| {
                for id in ready {
                    migrations.begin(id, env.store, out);
                }
            };
            self.migrate(begin, out);
        }
    }

    /// Continues the migrations; then a purge and an order of the list, if nothing blocks them
    /// (migration::M4).
    pub(super) fn move_on(&mut self, now_us: u64, out: &mut Vec<NodeOutput>) {
        self.migrate(
            |migrations, env, outputs| migrations.follow(env.told, outputs),
            out,
        );
        self.migrate(
            |migrations, env, outputs| migrations.poll(now_us, env, outputs),
            out,
        );
        self.begin_targets(out);
        let life = self.life.as_ref();
        if let Some(life) = life.filter(|life| life.migrations.is_settled()) {
            let jobs = self.orders.take(life);
            out.extend(jobs.map(NodeOutput::Job));
        }
    }
}
