//! Positions in the log, until the engine has them.

/// What has to be durable before a result may be shown.
#[derive(Clone, Debug, Default)]
pub struct Position(());
