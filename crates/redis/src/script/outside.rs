//! The state of the request around a script, set aside while commands of the script run.

use crate::command::context::Context;
use crate::state::db::{DBS, Db};
use crate::state::interpreters::Running;
use duramen_engine::TableId;
use duramen_wire::resp::Protocol;

/// The state of the request around the commands of a script.
pub(crate) struct Outside {
    db: Db,
    protocol: Protocol,
    table: TableId,
    in_exec: bool,
    exec_dbs: Option<[Option<TableId>; DBS]>,
    begun: u64,
    room_bytes_max: usize,
}

impl Outside {
    pub(crate) fn enter(ctx: &mut Context<'_>, running: &Running) -> Outside {
        let memory = ctx.thread.config(ctx.shared).scripts.memory_bytes;
        let outside = Outside {
            db: ctx.client.db(),
            protocol: ctx.client.protocol(),
            table: ctx.table,
            in_exec: ctx.thread.exec.runs(),
            exec_dbs: ctx.thread.exec.dbs().copied(),
            begun: ctx.thread.timing.meter().begin_inner(),
            room_bytes_max: ctx.reply.bytes_max(),
        };
        // An interpreter could not hold a longer reply.
        ctx.reply.set_bytes_max(outside.room_bytes_max.min(memory));
        ctx.client.select(running.db);
        ctx.thread.exec.set_runs(true);
        if outside.exec_dbs.is_none() {
            ctx.thread.exec.begin_walks();
            ctx.thread.exec.set_dbs(Some(running.tables)); // script::run::L4
        }
        outside
    }

    pub(crate) fn leave(self, ctx: &mut Context<'_>) {
        ctx.client.select(self.db);
        ctx.client.reply_in(self.protocol);
        ctx.table = self.table;
        ctx.thread.exec.set_runs(self.in_exec);
        ctx.thread.exec.set_dbs(self.exec_dbs);
        ctx.reply.set_bytes_max(self.room_bytes_max);
        ctx.thread
            .timing
            .meter()
            .end_inner(ctx.request.spec.number, self.begun);
    }
}
