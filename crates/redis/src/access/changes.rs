//! Changes of the users while the server runs: by commands, by the file of users, by the
//! coordinator of the cluster.

use crate::membership::{Membership, UNFIT_ANSWER};
use crate::state::Shared;
use crate::state::access::users::{loaded, read};
use crate::threads::clients::ClientRecord;
use crate::threads::mailbox::Message;
use duramen_acl::{Catalog, Users};
use duramen_config::file::{USERS_BYTES_MAX, write_private};
use duramen_wire::native::message::{ClusterUsers, CoordinatorAnswer, ToCoordinator};
use std::sync::Arc;
use std::time::Instant;

/// Error reply: there is no file to load or save.
pub(crate) const NO_FILE: &str = "This Redis instance is not configured to use an ACL file. You \
may want to specify users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming \
you have a Redis configuration file set) in order to store users in the Redis configuration.";

/// Refuses users whose printed rules would not make the same users: no member could read them.
fn check_printed(users: &Users, rules: &[u8], catalog: &Catalog) -> Result<(), String> {
    match users.load(rules, "the users", catalog) {
        Ok(again) if again.print_with_ids() == rules => Ok(()),
        Ok(_) => Err("the printed rules of a user mean something else".to_owned()),
        Err(fault) => Err(format!("the printed rules of a user are wrong: {fault}")),
    }
}

/// `ACL LOAD`: reads the file of users again. Blocks until it is read.
///
/// # Errors
/// The text of the reply; nothing is changed.
pub(crate) fn load_users(shared: &Shared, deadline: Instant) -> Result<(), String> {
    let Some(file) = shared.acl().file() else {
        return Err(NO_FILE.to_owned());
    };
    let place = file.display().to_string();
    let text = read(file).map_err(|error| error.to_string());
    let config = shared.config();
    let loaded = text.and_then(|text| match shared.membership() {
        None => {
            shared.acl().load(&text, &place, &config)?;
            users_changed(shared);
            Ok(())
        }
        Some(membership) => {
            let catalog = shared.acl().catalog();
            let load = |users: &mut Users| {
                *users = loaded(users, (&text, &place), &config, catalog)?;
                Ok(())
            };
            change_cluster_users(shared, membership, deadline, load).map(drop)
        }
    });
    loaded.map_err(|faults| {
        format!(
            "{faults} WARNING: ACL errors detected, no change to the previously active ACL \
             rules was performed"
        )
    })
}

/// Takes over the users of the cluster, unless this server has them, or newer ones, already.
///
/// # Errors
/// The reason why these users are not understood here; nothing is changed (users::V2).
pub fn adopt_users(shared: &Shared, newest: &ClusterUsers) -> Result<(), String> {
    take_users(shared, newest, false)
}

fn take_users(shared: &Shared, newest: &ClusterUsers, is_first: bool) -> Result<(), String> {
    if !shared.acl().adopt(newest, is_first)? {
        return Ok(());
    }
    let revision = newest.revision;
    tracing::info!(revision, "the users of the cluster are in force");
    let binds = &shared.config().bind;
    if shared.acl().is_open() && binds.iter().any(|address| !address.is_loopback()) {
        tracing::warn!(
            "the default user of the cluster needs no password, and this member listens beyond \
             this machine"
        );
    }
    users_changed(shared);
    Ok(())
}

/// Takes over the users of the cluster before the first client is served. Clients that came
/// before were let in by this member's own users: their connections are closed (users::V3).
///
/// # Errors
/// As [`adopt_users`].
pub fn adopt_first_users(shared: &Shared, newest: &ClusterUsers) -> Result<(), String> {
    take_users(shared, newest, true)?;
    shared.acl().note_heard();
    if newest.revision > 0 {
        for record in shared.threads.clients() {
            shared
                .threads
                .post(&record, Message::Close { client: record.id });
        }
    }
    Ok(())
}

/// Whether this is a member that serves no data yet, so that its users are not to be changed
/// (users::V4).
pub(crate) fn joins_a_cluster(shared: &Shared) -> bool {
    shared.config().is_member() && shared.membership().is_none()
}

/// Changes the users of the cluster by `make`, which may be called several times. Blocks until
/// `deadline`, or until the coordinator has stored them; then they are in force here, and the
/// coordinator tells the other members. Returns also the clients whose connections are being
/// closed for it.
///
/// # Errors
/// `make` has failed, or the coordinator has not answered: the text says whether it is known
/// that nothing was changed.
pub(crate) fn change_cluster_users<T>(
    shared: &Shared,
    membership: &Membership,
    deadline: Instant,
    make: impl Fn(&mut Users) -> Result<T, String>,
) -> Result<(T, Vec<Arc<ClientRecord>>), String> {
    let _one = shared.acl().lock_cluster_changes();
    membership.change_kept("users", deadline, |ask| {
        let (revision, before) = shared.acl().snapshot();
        let mut users = Users::clone(&before);
        let made = make(&mut users)?;
        let rules = users.print_with_ids();
        if revision > 0 && rules == before.print_with_ids() {
            return Ok(Some((made, users_changed(shared))));
        }
        check_printed(&users, &rules, shared.acl().catalog())?;
        let wanted = ClusterUsers {
            revision: revision + 1,
            rules,
        };
        let answer = ask(&ToCoordinator::SetUsers(wanted.clone()))?;
        let CoordinatorAnswer::Users(newest) = answer else {
            return Err(UNFIT_ANSWER.to_owned());
        };
        adopt_users(shared, &newest)?;
        Ok((*newest == wanted).then(|| (made, users_changed(shared))))
    })
}

/// `ACL SAVE`: writes all users to the file. Blocks until it is on disk.
///
/// # Errors
/// The text of the reply; the old file is complete.
pub(crate) fn save_users(shared: &Shared) -> Result<(), String> {
    let Some(file) = shared.acl().file() else {
        return Err(NO_FILE.to_owned());
    };
    let text = shared.acl().users().print();
    let failed = |why: String| {
        tracing::warn!("ACL SAVE: {why}");
        format!("There was an error trying to save the ACLs: {why}")
    };
    if text.len() as u64 > USERS_BYTES_MAX {
        return Err(failed(format!(
            "the users have {} bytes, more than the {USERS_BYTES_MAX} that a start reads: \
             remove some, or some of their rules",
            text.len()
        )));
    }
    write_private(file, &text).map_err(|error| failed(error.to_string()))
}

/// Must be called after users changed. Closes the connections of users that are gone, and those of
/// monitors and of clients that track in broadcast mode whose users may not use all tables any
/// more. Wakes all threads. Returns the closed connections.
pub(crate) fn users_changed(shared: &Shared) -> Vec<Arc<ClientRecord>> {
    let users = shared.acl().users();
    let is_gone = |record: &Arc<ClientRecord>| {
        let text = record.text();
        let user = users.get(&text.user).map(|user| user.id());
        !text.user.is_empty() && user != Some(text.user_id)
    };
    let hears_of_all = |record: &Arc<ClientRecord>, command| {
        let user = users.get(&record.text().user);
        user.is_some_and(|user| user.may_use_all_tables(command, shared.acl().catalog()))
    };
    let mut monitors = shared.commands.monitors().clone();
    monitors.retain(|monitor| !hears_of_all(monitor, "monitor"));
    shared.commands.end_monitors(&monitors);
    let broadcasters = shared.tracking().broadcasters();
    let hears_too_much = |record: &Arc<ClientRecord>| {
        broadcasters.contains(&record.id) && !hears_of_all(record, "client|tracking")
    };
    let mut closed = shared.threads.clients();
    closed.retain(|record| is_gone(record) || hears_too_much(record));
    closed.extend(monitors);
    for record in &closed {
        shared
            .threads
            .post(record, Message::Close { client: record.id });
    }
    shared.threads.post_all(&Message::Wake);
    closed
}
