//! Rates of servers and their processor time per request, measured in turns.

use super::Server;
use crate::harness::{Contender, Failure, Result, alternate, median};
use duramen_load::{Load, Outcome};
use std::cell::RefCell;

/// Medians of several sides, in their order.
pub struct Costs {
    /// Requests per second.
    pub rates: Vec<f64>,
    /// Microseconds of the server's processor time per request.
    pub cpu_us: Vec<f64>,
}

impl Costs {
    /// Measures all sides in turns, `rounds` times. `run` returns one rate and one processor time.
    pub fn in_turns<S>(
        sides: &[S],
        rounds: usize,
        run: impl Fn(&S) -> Result<(f64, f64)>,
    ) -> Result<Costs> {
        let times: Vec<_> = sides.iter().map(|_| RefCell::new(Vec::new())).collect();
        let run = &run;
        let sides = sides.iter().zip(&times).enumerate();
        let mut contenders: Vec<_> = sides
            .map(|(n, (side, times))| {
                Contender::new(n.to_string(), move || {
                    let (rate, cpu_us) = run(side)?;
                    times.borrow_mut().push(cpu_us);
                    Ok(rate)
                })
            })
            .collect();
        let rates = alternate(rounds, &mut contenders)?;
        drop(contenders);
        let cpu_us = times.iter().map(|times| median(&times.borrow())).collect();
        Ok(Costs { rates, cpu_us })
    }
}

impl Server {
    /// Runs a load; returns its outcome, and microseconds of the server's processor time per
    /// request.
    ///
    /// # Errors
    /// Requests were refused.
    pub fn cost_of(&self, load: &Load) -> Result<(Outcome, f64)> {
        let before = self.cpu_ns()?;
        let outcome = load.run()?;
        let cpu_ns = self.cpu_ns()? - before;
        match outcome.errors {
            0 => {
                let cpu_us = cpu_ns as f64 / 1000.0 / outcome.requests as f64;
                Ok((outcome, cpu_us))
            }
            errors => Err(Failure::new(
                format!("loading {} by {:?}", self.name, load.command),
                format!("{errors} requests were refused"),
            )),
        }
    }
}
