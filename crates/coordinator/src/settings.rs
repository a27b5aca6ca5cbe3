//! Settings of a new cluster: their defaults and their limits.

use duramen_wire::native::message::{ClusterSettings, ReplicaLayout};

/// An error in the settings, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {must}, not {is}")]
pub struct SettingsError {
    pub what: &'static str,
    pub must: String,
    pub is: String,
}

/// Defaults, for a few servers in one room. `hash_seed` must be random: an attacker must not be
/// able to choose keys with the same hash.
pub fn defaults(hash_seed: u64) -> ClusterSettings {
    ClusterSettings {
        replicas: 2,
        segment_bytes: 2 << 20,
        hash_seed,
        ping_interval_ms: 100,
        ping_timeout_ms: 50,
        verdict_timeout_ms: 250,
        read_lease_ms: 1000,
        client_lease_ms: 300_000,
        partition_bytes: 128 << 20,
        partition_records: 1 << 20,
        rpc_window: 512,
        layout: ReplicaLayout::Scatter,
    }
}

/// Checks the limits of the settings.
///
/// # Errors
/// The first setting that is wrong.
pub fn check(settings: &ClusterSettings) -> Result<(), SettingsError> {
    let within = |what, is: u64, least: u64, most: u64| match (least..=most).contains(&is) {
        true => Ok(()),
        false => Err(SettingsError {
            what,
            must: format!("{least} to {most}"),
            is: is.to_string(),
        }),
    };
    within("replicas", settings.replicas.into(), 1, 16)?;
    let segment_bytes = u64::from(settings.segment_bytes);
    within("segment size", segment_bytes, 2 << 20, 8 << 20)?;
    if !segment_bytes.is_power_of_two() {
        return Err(SettingsError {
            what: "segment size",
            must: "a power of two".to_owned(),
            is: segment_bytes.to_string(),
        });
    }
    within(
        "ping interval (ms)",
        settings.ping_interval_ms.into(),
        10,
        60_000,
    )?;
    within(
        "ping timeout (ms)",
        settings.ping_timeout_ms.into(),
        5,
        60_000,
    )?;
    within(
        "verdict timeout (ms)",
        settings.verdict_timeout_ms.into(),
        10,
        60_000,
    )?;
    within("read lease (ms)", settings.read_lease_ms.into(), 50, 60_000)?;
    within(
        "client lease (ms)",
        settings.client_lease_ms.into(),
        1_000,
        86_400_000,
    )?;
    within(
        "partition bytes",
        settings.partition_bytes,
        1 << 20,
        1 << 40,
    )?;
    within(
        "partition records",
        settings.partition_records,
        1_000,
        1 << 40,
    )?;
    within("rpc window", settings.rpc_window.into(), 1, 65_536)?;
    if let Some(scatter) = settings.layout.copyset_scatter() {
        // Each group of `replicas` servers gives a scatter width of one less.
        let least = u64::from(settings.replicas).saturating_sub(1).max(1);
        within("copyset scatter width", scatter.into(), least, 10_000)?;
    }
    if let Some(zone_bytes) = settings.layout.zone_bytes() {
        within("zone size", zone_bytes, 16 * segment_bytes, 1 << 40)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Spoil = fn(&mut ClusterSettings);

    #[test]
    fn defaults_are_right_and_each_wrong_setting_is_named() {
        assert_eq!(check(&defaults(1)), Ok(()));
        let wrong: [(&str, Spoil); 9] = [
            ("replicas", |s| s.replicas = 0),
            ("segment size", |s| s.segment_bytes = 3 << 20),
            ("segment size", |s| s.segment_bytes = 1 << 20),
            ("ping interval (ms)", |s| s.ping_interval_ms = 1),
            ("read lease (ms)", |s| s.read_lease_ms = 0),
            ("partition bytes", |s| s.partition_bytes = 0),
            ("rpc window", |s| s.rpc_window = 0),
            ("copyset scatter width", |s| {
                s.layout = ReplicaLayout::Copysets { scatter: 0 };
            }),
            ("zone size", |s| s.layout = ReplicaLayout::Zones { mib: 16 }),
        ];
        for (what, spoil) in wrong {
            let mut settings = defaults(1);
            spoil(&mut settings);
            assert_eq!(check(&settings).map_err(|error| error.what), Err(what));
        }
    }
}
