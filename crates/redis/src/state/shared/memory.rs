//! Changes of `memory` while the server runs.

use super::Shared;
use duramen_base::units::MIB;
use duramen_config::{MemoryLimit, ServerConfig, ServerError, format_size};
use duramen_engine::Error;

impl Shared {
    /// Gives the store the engine's part of a new `memory`. Does not wait: more can be used at
    /// once, and less is reached in the background.
    ///
    /// # Errors
    /// [`ServerError::Config`]: the machine has no room for it, or it has none for the data.
    /// Nothing is changed.
    pub(super) fn set_memory(
        &self,
        old: &ServerConfig,
        new: &ServerConfig,
    ) -> Result<(), ServerError> {
        let refuse = |why: String| Err(ServerError::Config(why));
        if new.memory_bytes == old.memory_bytes {
            return Ok(());
        }
        let Some(store) = self.data() else {
            return refuse(
                "memory cannot be changed while the data is loaded: try again when it is there"
                    .to_owned(),
            );
        };
        if new.memory_bytes > old.memory_bytes
            && let Some(limit) = MemoryLimit::now()
        {
            match limit.judge(new.memory_bytes) {
                Ok(None) => {}
                Ok(Some(warning)) => tracing::warn!("{warning}"),
                Err(why) => return refuse(why),
            }
        }
        let fetch_bytes = self.tier().map_or(0, |tier| tier.fetch_bytes());
        let engine_bytes = new.engine_bytes_of(new.memory_bytes, self.memory_at_start, fetch_bytes);
        let beside = new.memory_bytes.saturating_sub(engine_bytes);
        let memory = format_size(new.memory_bytes);
        let least = |minimum: u64| format_size((minimum + beside).next_multiple_of(MIB));
        match store.set_memory(engine_bytes) {
            Ok(()) => {
                let before = format_size(old.memory_bytes);
                tracing::info!("memory is {memory} from now on, after {before}");
                Ok(())
            }
            Err(Error::BudgetTooSmall { minimum, .. }) => refuse(format!(
                "memory: {memory} is too little for the index, buffers, threads and cleaners \
                 of this server: {} is the least now",
                least(minimum)
            )),
            Err(Error::BudgetBelowData {
                live_bytes,
                minimum,
                ..
            }) => refuse(format!(
                "memory: {memory} does not hold the {live_bytes} bytes of live data and their \
                 index: delete some, or choose at least {}",
                least(minimum)
            )),
            Err(Error::BudgetBusy) => refuse(
                "memory cannot be lowered while data is recovered or moved here, or while the data \
                 of a flushed database is counted: try again later"
                    .to_owned(),
            ),
            Err(error) => refuse(format!("memory: {error}")),
        }
    }
}
