//! A coordinator's certificates, read again while it runs.
//!
//! **Concurrency** a thread of its own reads the files: a slow disk delays no answer.

use crate::{Error, Options};
use duramen_tls::{Identity, Reloaded};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval at which the files are looked at: short beside the days for which a certificate that is
/// renewed in time is still valid.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A certificate is to be renewed before it is left with this many seconds.
const LEFT_MIN_S: i64 = 30 * 86_400;

/// Looks at the files, if there are any, for as long as the coordinator runs.
pub(crate) fn watch(options: &Options) -> Result<(), Error> {
    let all = [&options.identity, &options.admin_identity];
    let all: Vec<&Arc<Identity>> = all.into_iter().flatten().collect();
    // Both identities have the same files, so one report is enough.
    if let Some(first) = all.first() {
        say(first);
    }
    let watched: Vec<Weak<Identity>> = all.into_iter().map(Arc::downgrade).collect();
    if watched.is_empty() {
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("certificates".to_owned());
    let started = thread.spawn(move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let all: Vec<_> = watched.iter().filter_map(Weak::upgrade).collect();
            if all.is_empty() {
                return;
            }
            all.iter().for_each(|identity| reload(identity));
        }
    });
    let failed = |reason| Error::System {
        doing: "start a thread",
        reason,
    };
    started.map(drop).map_err(failed)
}

/// Reads the files now. New connections use what is new; established ones stay. Files that cannot
/// be used change nothing. The result is logged.
pub fn reload(identity: &Identity) {
    match identity.reload() {
        Ok(Reloaded::Same) => {}
        Ok(Reloaded::New) => {
            tracing::info!("new certificates are in use for new connections");
            say(identity);
        }
        Err(error) => tracing::warn!("the last certificates stay in use: {error}"),
    }
}

/// Logs what is wrong with certificates that can be used.
fn say(identity: &Identity) {
    for warning in identity.warnings() {
        tracing::warn!("{warning}");
    }
    if let Some(left) = identity.seconds_left()
        && left < LEFT_MIN_S
    {
        let days = left / 86_400;
        tracing::warn!(
            days,
            "the certificate expires soon: renew it by `duramen cert rotate`"
        );
    }
}
