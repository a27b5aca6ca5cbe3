//! A pool of threads that read from a device, for readers without io_uring.
//!
//! **Concurrency** a pool belongs to one thread; memory that it was given belongs to a pool thread
//! until the answer returns it.

use crate::error::Error;
use crate::memory::Aligned;
use crate::quiet::quietly;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Threads of a reader without io_uring.
const THREADS: usize = 4;

/// Slot of the request, offset, number of bytes, and the memory for them.
type Job = (u32, u64, usize, Aligned);
/// Slot of the request, the memory, and the result.
pub type Answer = (u32, Aligned, io::Result<()>);

/// The threads, and the channels to them.
pub struct Pool {
    jobs: Option<Sender<Job>>,
    answers: Receiver<Answer>,
    /// An eventfd that counts answers.
    pub bell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub fn new(
        read: impl Fn(u64, &mut [u8]) -> io::Result<()> + Clone + Send + 'static,
    ) -> Result<Pool, Error> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags)
            .map_err(|error| Error::device("making an eventfd")(error.into()))?;
        let bell = Arc::new(bell);
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        let (told, answers) = channel();
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (read, waiting) = (read.clone(), Arc::clone(&waiting));
            let (told, bell) = (told.clone(), Arc::clone(&bell));
            let named = std::thread::Builder::new().name("flash-read".to_owned());
            let thread = quietly(|| named.spawn(move || work(&read, &waiting, &told, &bell)))
                .map_err(Error::device("starting a thread that reads from flash"))?;
            threads.push(thread);
        }
        Ok(Pool {
            jobs: Some(jobs),
            answers,
            bell,
            threads,
        })
    }

    pub fn give(&mut self, number: u32, at: u64, bytes: usize, buffer: Aligned) {
        let jobs = self.jobs.as_ref().expect("the threads live");
        let sent = jobs.send((number, at, bytes, buffer));
        sent.expect("the threads live");
    }

    pub fn take(&mut self) -> Option<Answer> {
        if let Ok(answer) = self.answers.try_recv() {
            return Some(answer);
        }
        let mut counter = [0; 8];
        // Resets the bell before the last check: an answer that comes later rings again.
        let _ = rustix::io::read(&*self.bell, &mut counter);
        self.answers.try_recv().ok()
    }

    pub fn wait(&mut self) -> Result<Answer, Error> {
        let gone =
            |_| Error::device("waiting for a thread that reads")(io::ErrorKind::Other.into());
        self.answers.recv().map_err(gone)
    }
}

/// Loop of a thread; it ends when the pool has closed the queue of jobs.
fn work(
    read: &impl Fn(u64, &mut [u8]) -> io::Result<()>,
    waiting: &Mutex<Receiver<Job>>,
    told: &Sender<Answer>,
    bell: &OwnedFd,
) {
    loop {
        let next = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok((number, at, bytes, mut buffer)) = next else {
            return;
        };
        let result = read(at, &mut buffer.bytes_mut()[..bytes]);
        if told.send((number, buffer, result)).is_err() {
            return;
        }
        // The write fails only at 2^64 answers that were not read.
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}
