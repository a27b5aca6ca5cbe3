//! Refusals of requests that the rights of their client's user do not allow.

use duramen_acl::Denied;

/// Reason for which a request may not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The client must log in first.
    LogIn,
    Denied(Denied),
}

/// Error reply to a client that must log in first.
pub(crate) const NO_AUTH: &str = "NOAUTH Authentication required.";

/// The text of the error reply to a request that its user may not make, as in Redis.
pub(crate) fn denial_text(denied: Denied, user: &str, command: &str) -> String {
    match denied {
        Denied::Command => {
            format!("NOPERM User {user} has no permissions to run the '{command}' command")
        }
        Denied::Key(_) => "NOPERM No permissions to access a key".to_owned(),
        Denied::Channel(_) => "NOPERM No permissions to access a channel".to_owned(),
        Denied::Table(_) => "NOPERM No permissions to access a table".to_owned(),
    }
}

/// The text for a queued request that its user may not make any more when EXEC runs, as in Redis.
pub(crate) fn late_denial_text(denied: Denied) -> String {
    let why = match denied {
        Denied::Command => "no permission to execute the command or subcommand",
        Denied::Key(_) => "no permission to touch the specified keys",
        Denied::Channel(_) => {
            "no permission to access one of the channels used as arguments to the command"
        }
        Denied::Table(_) => "no permission to access the table",
    };
    format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC \
         call. This command is no longer allowed for the following reason: {why}"
    )
}
