//! A thread that does pieces of work one after the other: for work that would delay a thread that
//! serves clients or answers pings.

use super::start::{Starter, Work};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Maximum pieces of work that wait; a further one is refused. A person or a tool waits for each of
/// them.
const WAITING_MAX: usize = 1_024;

/// A thread for pieces of work. It starts with the first piece of work. When this is dropped, it
/// ends after the last one.
pub struct Background {
    name: &'static str,
    starter: Starter,
    queue: Mutex<Option<SyncSender<Work>>>,
}

impl Background {
    pub fn new(name: &'static str, starter: Starter) -> Background {
        Background {
            name,
            starter,
            queue: Mutex::default(),
        }
    }

    /// Gives the thread a piece of work.
    ///
    /// # Errors
    /// The reason for which the work will not be done: the thread cannot be started, or too much
    /// work waits.
    pub fn give(&self, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = match &mut *queue {
            Some(queue) => queue,
            none => none.insert(self.start()?),
        };
        queue.try_send(Box::new(work)).map_err(|error| match error {
            TrySendError::Full(_) => "too many such requests wait: try again later".to_owned(),
            TrySendError::Disconnected(_) => "the thread for such requests has ended".to_owned(),
        })
    }

    fn start(&self) -> Result<SyncSender<Work>, String> {
        let (queue, works) = sync_channel::<Work>(WAITING_MAX);
        let do_all = move || works.into_iter().for_each(|work| work());
        let started = self.starter.start(self.name, do_all);
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::start::STARTER;
    use std::sync::mpsc::channel;

    #[test]
    fn work_is_done_in_order_by_one_thread_and_is_bounded() {
        let background = Background::new("test", STARTER);
        let (done, results) = channel();
        let (open, gate) = sync_channel::<()>(0);
        let first = background.give(move || gate.recv().expect("the test goes on"));
        first.expect("room");
        let mut given = 0;
        let refused = loop {
            let done = done.clone();
            let number = given;
            let me = move || {
                done.send((number, std::thread::current().id()))
                    .expect("kept")
            };
            match background.give(me) {
                Ok(()) => given += 1,
                Err(why) => break why,
            }
        };
        assert!(refused.contains("too many"), "{refused}");
        assert!((WAITING_MAX - 1..=WAITING_MAX).contains(&given), "{given}");
        open.send(()).expect("it waits");
        drop((background, done));
        let results: Vec<_> = results.into_iter().collect();
        assert!(results.iter().map(|(number, _)| *number).eq(0..given));
        assert!(results.iter().all(|(_, thread)| *thread == results[0].1));
    }
}
