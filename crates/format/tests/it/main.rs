//! Tests of the formats on disks.

mod recipe;
