//! Tests of backups through their public parts.

mod device;
