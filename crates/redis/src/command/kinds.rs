//! The effects of commands without keys, besides their replies. EXEC decides by them whether its
//! queue can be taken back, and what may be left out when no client sees its reply.

use super::flag;
use super::spec::Spec;

/// Whether a command has no effect but its reply.
pub(crate) fn only_answers(spec: &Spec) -> bool {
    spec.has(flag::READONLY | flag::REPORTS | flag::TELLS)
}

/// Whether a command changes more than data, which cannot be taken back. Messages, and the name of
/// the client's connection, count as data: they come with the commit, or come again.
pub(crate) fn acts(spec: &Spec) -> bool {
    // A draft has no form for a walk over a slot.
    let walks_slot = spec.has(flag::WHOLE) && !spec.has(flag::READONLY);
    !spec.has_keys() && !spec.has(flag::WITH_DATA) && (walks_slot || !only_answers(spec))
}

/// Whether the command has no keys, may take milliseconds, and is no walk over a table.
pub(crate) fn may_take_long(spec: &Spec) -> bool {
    !spec.has_keys() && spec.has(flag::SWEEPS | flag::REPORTS)
}
