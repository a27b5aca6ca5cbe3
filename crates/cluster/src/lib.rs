//! What replicas of a log need to agree on, as state machines: no thread, clock, socket or file in here.
