//! Clusters as processes: output and effects of the command line.

mod asynchronous;
mod certificates;
mod command;
mod coordinator;
mod etcd;
mod local;
mod process;
mod redis;
mod stop;
mod tls;
mod up;

use command::{CLOSED, duramen};

#[test]
fn nobody_there_is_exit_code_4_and_says_who_was_asked() {
    for args in [
        &["status"][..],
        &["table", "list"],
        &["tablet", "list"],
        &["drain", "1.1"],
    ] {
        let answer = duramen(args)
            .coordinators(&CLOSED.join(","))
            .timeout(args)
            .run();
        answer.expect_error(4, "no coordinator answered");
        for address in CLOSED {
            answer.expect_error(4, &format!("{address}: Connection refused"));
        }
    }
}

#[test]
fn wrong_places_and_options_are_exit_code_2() {
    for (args, named) in [
        (&["tablet", "split", "db0"][..], "--slot"),
        (&["tablet", "split", "db0", "--slot", "16384"], "16383"),
        (
            &["tablet", "split", "db0", "--slot", "1", "--hash", "2"],
            "--hash",
        ),
        (
            &["tablet", "migrate", "db0", "--slots", "9-5", "--to", "1"],
            "lower first",
        ),
        (&["tablet", "migrate", "db0", "--slots", "0-5"], "--to"),
        (
            &[
                "tablet",
                "migrate",
                "db0",
                "--all",
                "--to",
                "1",
                "--wait-for",
                "1s",
            ],
            "--wait",
        ),
        (&["table", "create", "t", "--servers", "0"], "--servers"),
        (&["table", "create", "t", "--servers", "2"], "--coordinator"),
        (&["status", "--watch", "0"], "0.1"),
        (&["crash"], "<SERVER>"),
    ] {
        duramen(args).run().expect_error(2, named);
    }
}
