//! `duramen-workload torture`: a real server, clients of all kinds, faults, and a watchdog.
//!
//! A run is a series of episodes. Each episode has a plan that is drawn from its number (settings,
//! clients, faults), so `--seed N --episodes 1` repeats the plan of one. The choices of threads and
//! the kernel are not repeated.
//!
//! **Checks**
//! - Every reply arrives within the limit, excluding pauses that the run makes itself (`watch`).
//! - Clients with keys of their own check every reply (`own`). Sums of transfers, counters and
//!   scans are right. After `kill -9` nothing acknowledged is lost, nothing is half done.
//! - SIGTERM ends the server cleanly, and its next start has everything.
//! - Resident memory stays within `--rss-bound` percent of the budget, plus a fixed allowance.

mod clients;
mod own;
mod plan;
mod rough;
mod server;
mod setting;
mod watch;
mod wire;

use clap::Parser;
use clients::Client;
use duramen_base::random::Random;
use plan::Plan;
use serde_json::json;
use server::Server;
use setting::Setting;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use watch::Watch;
use wire::{Trouble, Wire};

/// Resident memory beside the bound: 10 MB, and the requests and replies of 64 connections with
/// pipelines of large values.
const RSS_ALLOWANCE: u64 = 32 << 20;
/// A client retries a refused connection after this time.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug, Parser)]
#[command(about = "Tortures a real server and watches every reply")]
pub(crate) struct Arguments {
    /// The program `duramen`.
    #[arg(long, value_parser = absolute)]
    server: PathBuf,
    /// Number of the first episode.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ends after this time; the episode in progress is finished.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Ends after so many episodes, if that is earlier.
    #[arg(long)]
    episodes: Option<u64>,
    /// Length of an episode in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Reactor threads of every server; drawn if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Connections of an episode.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Longest time that a reply may take, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    limit_ms: u64,
    /// Most resident memory in percent of the budget; 0: not checked.
    #[arg(long, default_value_t = 110)]
    rss_bound: u64,
    /// Folder for data and logs; those of a failed episode are kept. A temporary one if not given.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// The absolute path: servers run in folders of their own.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| error.to_string())
}

/// Totals of a run.
#[derive(Debug, Default)]
struct Totals {
    episodes: u64,
    operations: u64,
    refusals: u64,
    kills: u64,
    pauses: u64,
    restarts: u64,
    longest: Duration,
    /// Most resident memory beyond the budget, in bytes.
    beside_max: i64,
}

/// Runs episodes until the time is over; the first failure is returned as an error.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("duramen-torture-{}", std::process::id())),
    };
    let until = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut totals = Totals::default();
    let mut seed = arguments.seed;
    while Instant::now() < until && arguments.episodes.is_none_or(|most| totals.episodes < most) {
        let plan = Plan::draw(seed, arguments.threads);
        let own = folder.join(format!("episode-{seed}"));
        // The files of an earlier run with this number would be found by this one.
        let _ = std::fs::remove_dir_all(&own);
        std::fs::create_dir_all(&own)
            .map_err(|error| format!("cannot create {}: {error}", own.display()))?;
        let began = Instant::now();
        let mut episode = Episode::new(arguments, plan.clone(), &own);
        let result = episode.run(&mut totals);
        let peak = episode.setting.watch.rss_max.load(Ordering::Relaxed);
        let beside = peak as i64 - (plan.memory_mb << 20) as i64;
        totals.beside_max = totals.beside_max.max(beside);
        let Err(sentence) = result else {
            println!(
                "episode {seed}: {:.0} s, {} MiB resident at most, {plan:?}",
                began.elapsed().as_secs_f64(),
                peak >> 20,
            );
            let _ = std::fs::remove_dir_all(&own);
            seed += 1;
            continue;
        };
        return Err(format!(
            "episode {seed} failed: {plan:?}\n{sentence}\nits files: {}\nagain: duramen-workload \
             torture --server {} --seed {seed} --episodes 1 --seconds {} --clients {}",
            own.display(),
            arguments.server.display(),
            arguments.seconds,
            arguments.clients,
        ));
    }
    let _ = std::fs::remove_dir(&folder);
    println!(
        "{}",
        json!({
            "episodes": totals.episodes, "operations": totals.operations,
            "refusals": totals.refusals, "kills": totals.kills, "pauses": totals.pauses,
            "restarts": totals.restarts, "longest_ms": totals.longest.as_millis() as u64,
            "resident_beyond_memory_mib": totals.beside_max >> 20,
        })
    );
    Ok(())
}

struct Episode<'a> {
    arguments: &'a Arguments,
    server: Mutex<Server>,
    setting: Setting,
    random: Random,
}

impl<'a> Episode<'a> {
    fn new(arguments: &'a Arguments, plan: Plan, folder: &Path) -> Episode<'a> {
        let watch = Arc::new(Watch::new(Duration::from_millis(arguments.limit_ms)));
        let server = Server::new(&arguments.server, folder, plan.arguments(folder));
        Episode {
            arguments,
            server: Mutex::new(server),
            random: Random::new(plan.seed ^ 0x6661_756c),
            setting: Setting::new(plan, watch),
        }
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&mut self, totals: &mut Totals) -> Result<(), String> {
        self.server().start()?;
        let watch = self.setting.watch.clone();
        let port = self.server().port;
        let mut wire = Wire::open(port, &watch).map_err(|error| error.to_string())?;
        clients::load(&mut wire, &self.setting.plan).map_err(|trouble| format!("{trouble:?}"))?;
        drop(wire);
        let mut random = std::mem::replace(&mut self.random, Random::new(0));
        let this = &self;
        std::thread::scope(|scope| {
            for number in 0..this.arguments.clients {
                scope.spawn(move || this.drive(number));
            }
            scope.spawn(|| watch.tick(|| this.look()));
            let length = Duration::from_secs_f64(this.arguments.seconds);
            this.make_faults(&mut random, Instant::now() + length, totals);
            if watch.failure().is_some() {
                // Collected while the clients still wait.
                let description = this.server().describe();
                println!("{description}");
            }
            watch.stop();
        });
        totals.episodes += 1;
        totals.operations += watch.operations.load(Ordering::Relaxed);
        totals.refusals += watch.refusals.load(Ordering::Relaxed);
        totals.longest = totals.longest.max(watch.longest());
        if let Some(sentence) = watch.failure() {
            return Err(sentence);
        }
        self.finish(totals)
    }

    /// Samples memory, and detects the end of the server.
    fn look(&self) {
        // Faults hold the lock while they keep the server down.
        let Ok(mut server) = self.server.try_lock() else {
            return;
        };
        if let Some(sentence) = server.has_ended() {
            self.setting.watch.fail(sentence);
        }
        let (Some(rss), percent) = (server.rss(), self.arguments.rss_bound) else {
            return;
        };
        self.setting.watch.rss_max.fetch_max(rss, Ordering::Relaxed);
        let budget = self.setting.plan.memory_mb << 20;
        let bound = budget * percent / 100 + RSS_ALLOWANCE;
        if percent > 0 && rss > bound {
            let sentence = format!("{rss} bytes resident, more than {bound}");
            self.setting.watch.fail(sentence);
        }
    }

    /// Runs one client, with a new connection after each one that ends.
    fn drive(&self, number: usize) {
        let watch = &self.setting.watch;
        let mut client = Client::new(number, &self.setting.plan, self.arguments.clients);
        let port = self.server().port;
        while !watch.is_stopped() {
            let Ok(mut wire) = Wire::open(port, watch) else {
                std::thread::sleep(RETRY);
                continue;
            };
            let mut outcome = wire.await_loaded();
            while outcome.is_ok() {
                if watch.is_stopped() {
                    return;
                }
                outcome = client.turn(&mut wire, &self.setting);
            }
            client.lost();
            watch.disconnections.fetch_add(1, Ordering::Relaxed);
            if let Err(Trouble::Failed(sentence)) = outcome {
                watch.fail(format!("client {number}: {sentence}"));
            }
        }
    }

    /// Pauses, kills and restarts the server until the time is over.
    fn make_faults(&self, random: &mut Random, until: Instant, totals: &mut Totals) {
        let watch = &self.setting.watch;
        while Instant::now() < until && !watch.is_stopped() {
            let rest = Duration::from_millis(300 + random.index(1_500) as u64);
            let next = (Instant::now() + rest).min(until);
            while Instant::now() < next && !watch.is_stopped() {
                std::thread::sleep(watch::TICK);
            }
            if watch.is_stopped() {
                return;
            }
            let fault = random.index(6);
            let mut server = self.server();
            let _excuse = watch.excuse();
            let result = match fault {
                0 | 1 => {
                    server.pause();
                    std::thread::sleep(Duration::from_millis(50 + random.index(800) as u64));
                    server.go_on();
                    totals.pauses += 1;
                    Ok(())
                }
                2 | 3 if self.setting.plan.survives_kills() => {
                    server.kill();
                    totals.kills += 1;
                    server.start()
                }
                4 if self.setting.plan.on_disk => {
                    totals.restarts += 1;
                    server.stop().and_then(|()| server.start())
                }
                _ => Ok(()),
            };
            if let Err(sentence) = result {
                watch.fail(sentence);
            }
        }
    }

    /// After the clients have ended, the data are right, also after a clean stop.
    fn finish(&mut self, totals: &mut Totals) -> Result<(), String> {
        let mut server = self.server();
        let watch = Arc::new(Watch::new(Duration::from_millis(self.arguments.limit_ms)));
        for round in 0..2 {
            let look = |port: u16| -> wire::Result<()> {
                let opened = Wire::open(port, &watch);
                let mut wire = opened.map_err(|error| Trouble::Gone(error.to_string()))?;
                wire.await_loaded()?;
                if self.setting.plan.keeps_keys() {
                    clients::check_sum(&mut wire)?;
                    clients::check_counters(&mut wire, &self.setting)?;
                }
                wire.ask("PING").map(drop)
            };
            if let Err(trouble) = look(server.port) {
                let description = server.describe();
                return Err(format!("at the end: {trouble:?}\n{description}"));
            }
            server.stop()?;
            if round == 1 || !self.setting.plan.on_disk {
                break;
            }
            totals.restarts += 1;
            server.start()?;
        }
        Ok(())
    }
}
