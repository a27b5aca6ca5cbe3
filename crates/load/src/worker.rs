//! One thread of the generator: its connections, its epoll instance, its schedule.

use super::connection::Connection;
use super::requests::Source;
use super::{Doing, Failure, Result, clock};
use super::{Limit, Load, Outcome};
use rustix::event::epoll;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 256 * 1024;
/// Time for the remaining replies after the last request.
const DRAIN: Duration = Duration::from_secs(10);

struct Worker<'a> {
    load: &'a Load,
    source: Source,
    connections: Vec<Connection>,
    epoll: OwnedFd,
    outcome: Outcome,
    /// Connections that wait until a pipeline is due.
    idle: Vec<usize>,
    schedule: Option<Schedule>,
    /// Requests still to be sent.
    left: u64,
    in_flight: usize,
    buffer: Vec<u8>,
    progress: &'a AtomicU64,
}

/// Open loop: the times when pipelines are due, in ticks. A pipeline for which no connection is
/// free keeps its time, and all behind it keep theirs: so one number is enough, however late they
/// are.
struct Schedule {
    next: f64,
    interval: f64,
}

impl Schedule {
    /// The due time of the first pipeline that is not sent yet, if it has come; the pipeline is
    /// sent then.
    fn take_due(&mut self, now: u64) -> Option<u64> {
        if (now as f64) < self.next {
            return None;
        }
        let due = self.next as u64;
        self.next += self.interval;
        Some(due)
    }
}

/// Runs thread `n` of `threads`.
pub(super) fn run(load: &Load, n: usize, threads: usize, progress: &AtomicU64) -> Result<Outcome> {
    clock::ns_per_tick();
    let mut worker = Worker::new(load, n, threads, progress)?;
    let begun = Instant::now();
    let end = match load.limit {
        Limit::Time(duration) => Some(begun + duration),
        Limit::Requests(_) => None,
    };
    worker.start()?;
    let mut events = Vec::with_capacity(1024);
    let mut stopped: Option<Instant> = None;
    loop {
        if stopped.is_none() && (worker.left == 0 || end.is_some_and(|end| Instant::now() >= end)) {
            worker.left = 0;
            stopped = Some(Instant::now());
        }
        if worker.left == 0 && worker.in_flight == 0 {
            break;
        }
        if stopped.is_some_and(|since| since.elapsed() > DRAIN) {
            let waiting = format!(
                "{} pipelines unanswered after {} s",
                worker.in_flight,
                DRAIN.as_secs()
            );
            return Err(Failure::new("waiting for the last replies", waiting));
        }
        worker.turn(&mut events)?;
    }
    worker.outcome.seconds = begun.elapsed().as_secs_f64();
    Ok(worker.outcome)
}

impl<'a> Worker<'a> {
    fn new(
        load: &'a Load,
        n: usize,
        threads: usize,
        progress: &'a AtomicU64,
    ) -> Result<Worker<'a>> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).doing("creating an epoll instance")?;
        let mine = (n..load.connections).step_by(threads).count();
        let mut connections = Vec::with_capacity(mine);
        for token in 0..mine {
            let connection = Connection::open(load)?;
            let data = epoll::EventData::new_u64(token as u64);
            epoll::add(&epoll, &connection.stream, data, epoll::EventFlags::IN)
                .doing("watching a connection")?;
            connections.push(connection);
        }
        let source = Source::new(
            load.command,
            load.access,
            load.keys,
            load.value_bytes,
            n as u64,
            threads as u64,
        )
        .speaking(load.native);
        let schedule = load.rate.map(|rate| Schedule {
            next: clock::now() as f64,
            interval: 1e9 / clock::ns_per_tick() / (rate / threads as f64) * load.pipeline as f64,
        });
        Ok(Worker {
            load,
            source,
            idle: (0..mine).rev().collect(),
            connections,
            epoll,
            outcome: Outcome::default(),
            schedule,
            left: match load.limit {
                Limit::Time(_) => u64::MAX,
                Limit::Requests(requests) => requests.div_ceil(threads as u64),
            },
            in_flight: 0,
            buffer: vec![0; BUFFER_BYTES],
            progress,
        })
    }

    /// Closed loop: every connection gets its first pipeline.
    fn start(&mut self) -> Result<()> {
        if self.schedule.is_none() {
            while let Some(token) = self.idle.pop() {
                self.send(token, clock::now())?;
            }
        }
        Ok(())
    }

    fn send(&mut self, token: usize, since: u64) -> Result<()> {
        let wanted = (self.load.pipeline.max(1) as u64).min(self.left);
        let (source, connection) = (&mut self.source, &mut self.connections[token]);
        let writes = source.writes;
        let sent = connection.send(since, self.load.wait_replicas, |out| {
            (0..wanted).take_while(|_| source.encode(out)).count() as u64
        })?;
        connection.writes = source.writes - writes;
        self.left = if sent < wanted { 0 } else { self.left - sent };
        self.in_flight += usize::from(sent > 0);
        if connection.blocked {
            self.watch(token, epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
        }
        Ok(())
    }

    fn watch(&self, token: usize, flags: epoll::EventFlags) -> Result<()> {
        let data = epoll::EventData::new_u64(token as u64);
        epoll::modify(&self.epoll, &self.connections[token].stream, data, flags)
            .doing("watching a connection")
    }

    /// Waits for events, handles them, and sends the due pipelines.
    fn turn(&mut self, events: &mut Vec<epoll::Event>) -> Result<()> {
        let spin = self.load.spin || self.schedule.is_some();
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: if spin { 0 } else { 100_000_000 },
        };
        events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::new("waiting for events", error)),
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        for event in events.iter() {
            self.handle(event.data.u64() as usize, event.flags, &mut buffer)?;
        }
        self.buffer = buffer;
        self.send_due()
    }

    fn handle(&mut self, token: usize, flags: epoll::EventFlags, buffer: &mut [u8]) -> Result<()> {
        let connection = &mut self.connections[token];
        if flags.contains(epoll::EventFlags::OUT) {
            connection.flush()?;
            if !connection.blocked {
                self.watch(token, epoll::EventFlags::IN)?;
            }
        }
        let connection = &mut self.connections[token];
        let arrived = connection.receive(buffer)?;
        self.outcome.errors += arrived.errors;
        self.outcome.nulls += arrived.nulls;
        if !arrived.complete {
            return Ok(());
        }
        let now = clock::now();
        let ns = clock::to_ns(now.saturating_sub(connection.since));
        let pipelined = connection.pipelined;
        self.outcome.latencies.record_many_ns(ns, pipelined);
        let of_one_kind = match connection.writes {
            0 => Some(&mut self.outcome.read_latencies),
            writes if writes == pipelined => Some(&mut self.outcome.write_latencies),
            _ => None,
        };
        if let Some(latencies) = of_one_kind {
            latencies.record_many_ns(ns, pipelined);
        }
        self.outcome.requests += pipelined;
        self.progress.fetch_add(pipelined, Ordering::Relaxed);
        self.in_flight -= 1;
        match &mut self.schedule {
            _ if self.left == 0 => self.idle.push(token),
            None => self.send(token, now)?,
            Some(schedule) => match schedule.take_due(now) {
                Some(due) => self.send(token, due)?,
                None => self.idle.push(token),
            },
        }
        Ok(())
    }

    fn send_due(&mut self) -> Result<()> {
        while self.left > 0
            && let Some(token) = self.idle.last().copied()
        {
            let schedule = self.schedule.as_mut();
            let Some(due) = schedule.and_then(|schedule| schedule.take_due(clock::now())) else {
                return Ok(());
            };
            self.idle.pop();
            self.send(token, due)?;
        }
        Ok(())
    }
}
