//! `duramen top`: shows a server live.
//!
//! It requests `INFO`, `LATENCY HISTOGRAM` and `PING` once per interval over one connection. On a
//! terminal it draws a page until `q` is pressed; elsewhere it prints one line per interval, for
//! logs and scripts.

mod latency;
mod sample;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::SIGTERM;

use crate::arguments::interval;
use crate::client::{ConnectArgs, Connection};
use crate::failure::Failure;
use sample::{Reading, Sample};

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct TopArgs {
    /// Time between two readings, in seconds.
    #[arg(long, short = 'i', default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    interval: f64,
    /// Print one reading, taken over one interval, and stop.
    #[arg(long)]
    once: bool,
    /// Stop after this many readings; 0 = never.
    #[arg(long, default_value_t = 0, value_name = "N")]
    readings: u64,
}

const HELP: &str = "\
Keys: q, Esc or Ctrl-C quit; p pauses; + and - change the interval.
If standard output is not a terminal, one line per interval is printed instead.

EXAMPLES
  duramen top
  duramen top --once --json | jq .ops_per_second
  duramen top --json --interval 10 >> readings.jsonl

Exit codes: 0 done, 2 wrong usage, 3 error from the server, 4 no connection.";

/// Readings kept for the curves.
const HISTORY: usize = 300;

/// Interval of checks for signals.
const SIGNAL_PAUSE: Duration = Duration::from_millis(250);

/// Runs until it is stopped.
pub(crate) fn run(args: &TopArgs, connect: &ConnectArgs) -> Result<(), Failure> {
    let mut server = Connection::open(connect)?;
    let readings = if args.once { 1 } else { args.readings };
    if connect.json || args.once || !io::stdout().is_terminal() {
        return lines(&mut server, args.interval, readings, connect.json);
    }
    let ended = Arc::new(AtomicBool::new(false));
    // Not SIGHUP: without the terminal there is nothing to restore.
    signal_hook::flag::register(SIGTERM, ended.clone()).map_err(|reason| Failure::Input {
        what: "signals".to_owned(),
        reason,
    })?;
    let mut terminal = ratatui::try_init().map_err(Failure::stdout)?;
    let result = page(&mut terminal, &mut server, args.interval, readings, &ended);
    ratatui::restore();
    result
}

/// One line per reading.
fn lines(server: &mut Connection, interval: f64, readings: u64, json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let mut before = Sample::take(server)?;
    let mut taken = 0;
    if !json {
        writeln!(out, "{}", Reading::HEADER).map_err(Failure::stdout)?;
    }
    while readings == 0 || taken < readings {
        std::thread::sleep(Duration::from_secs_f64(interval));
        let now = Sample::take(server)?;
        let reading = Reading::between(&before, &now);
        let line = if json {
            reading.json().to_string()
        } else {
            reading.line()
        };
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .map_err(Failure::stdout)?;
        before = now;
        taken += 1;
    }
    Ok(())
}

/// Contents of the page.
struct Page {
    address: String,
    interval: Duration,
    paused: bool,
    /// Oldest first; at most [`HISTORY`].
    history: Vec<Reading>,
}

fn page(
    terminal: &mut ratatui::DefaultTerminal,
    server: &mut Connection,
    interval: f64,
    readings: u64,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    let mut page = Page {
        address: server.address().to_owned(),
        interval: Duration::from_secs_f64(interval),
        paused: false,
        history: Vec::new(),
    };
    let mut before = Sample::take(server)?;
    let (mut due, mut taken) = (Instant::now() + page.interval, 0);
    loop {
        terminal
            .draw(|frame| view::draw(frame, &page))
            .map_err(Failure::stdout)?;
        // Relaxed: the flag orders nothing else.
        if ended.load(Ordering::Relaxed) || (readings > 0 && taken >= readings) {
            return Ok(());
        }
        let wait = due
            .saturating_duration_since(Instant::now())
            .min(SIGNAL_PAUSE);
        if event::poll(wait).map_err(Failure::stdout)? {
            if let Event::Key(key) = event::read().map_err(Failure::stdout)?
                && !page.press(key)
            {
                return Ok(());
            }
            continue;
        }
        if Instant::now() < due {
            continue;
        }
        due = Instant::now() + page.interval;
        let now = Sample::take(server)?;
        if !page.paused {
            if page.history.len() >= HISTORY {
                page.history.remove(0);
            }
            page.history.push(Reading::between(&before, &now));
            taken += 1;
        }
        before = now;
    }
}

impl Page {
    /// Handles a key; returns whether to continue.
    fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(Duration::from_secs(60)),
            KeyCode::Char('-') => {
                self.interval = (self.interval / 2).max(Duration::from_millis(125))
            }
            _ => {}
        }
        true
    }
}
