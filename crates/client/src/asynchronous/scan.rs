//! A scan of an asynchronous client.

use super::Handle;
use crate::error::Error;
use crate::outcome::Object;
use crate::scan::Progress;
use duramen_base::ids::TableId;
use std::sync::Arc;

/// See [`AsyncTable::scan`](super::AsyncTable::scan).
#[derive(Debug)]
pub struct AsyncScan {
    handle: Arc<Handle>,
    progress: Progress,
}

impl AsyncScan {
    pub(super) fn new(handle: Arc<Handle>, table: TableId) -> AsyncScan {
        AsyncScan {
            handle,
            progress: Progress::new(table),
        }
    }

    /// The next object and its key; `None` if the scan is complete. After an error the next call
    /// requests the same piece again. A future that is dropped loses no object.
    pub async fn next(&mut self) -> Option<Result<(Vec<u8>, Object), Error>> {
        loop {
            if let Some(object) = self.progress.object() {
                return Some(Ok(object));
            }
            let work = self.progress.request()?;
            let settled = self.handle.call(work, Ok).await;
            if let Err(error) = settled.and_then(|settled| self.progress.answered(settled)) {
                return Some(Err(error));
            }
        }
    }
}
