//! Tests of the scripts of this repository.

mod commit_msg;
