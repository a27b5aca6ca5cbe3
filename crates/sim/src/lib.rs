//! A simulated disk under the real code of backup and master, driven from seeds. Used by tests alone.
