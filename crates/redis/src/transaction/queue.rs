//! The step that queues a request between MULTI and EXEC.

use crate::command::flag;
use crate::command::kinds::acts;
use crate::command::spec::Request;
use crate::state::transaction::queue::{Facts, Transaction};

impl Transaction {
    /// Adds a copy of a request. Returns false, and adds nothing, if the copies would exceed 2 GiB.
    #[inline]
    pub(crate) fn push(&mut self, request: &Request<'_>) -> bool {
        let (spec, args, hashes) = (request.spec, &request.args, request.hashes);
        let facts = Facts {
            command: spec.number as u16,
            flags: spec.flags,
            names_dbs: spec.names.are_databases(),
            acts: acts(spec),
            runs_scripts: spec.has(flag::SCRIPTING) && spec.has_keys(),
            sorts_by_keys: spec.keys.reads_unnamed(args, spec.has(flag::WRITE)),
            lacks_hashes: hashes.len() != spec.key_count(args),
        };
        self.add(args, hashes, &facts)
    }
}
