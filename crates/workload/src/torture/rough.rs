//! A client that misbehaves, or stops others: it only checks that it is answered.

use super::setting::{Setting, is_refusal};
use super::wire::{Result, Trouble, Wire, words};
use crate::resp::Reply;
use duramen_base::random::Random;
use std::time::Duration;

pub(crate) struct Rough {
    random: Random,
}

/// Commands that concern the whole server or other databases; any of them may be refused.
const LINES: [&str; 35] = [
    "INFO everything",
    "DBSIZE",
    "RANDOMKEY",
    "KEYS s:*",
    "MEMORY STATS",
    "MEMORY DOCTOR",
    "CLIENT LIST",
    "CLIENT INFO",
    "CONFIG GET *",
    "COMMAND COUNT",
    "SLOWLOG GET 10",
    "LATENCY HISTOGRAM",
    "OBJECT ENCODING s:1",
    "SELECT 9",
    "FLUSHDB",
    "SELECT 10",
    "SWAPDB 10 11",
    "SWAPDB 11 9",
    "MOVE m 11",
    "SET m value",
    "SET n value EX 1",
    "SET p value PX 20",
    "EXPIRE m 1",
    "BGSAVE",
    "DURAMEN.SCRUB",
    "DURAMEN.TABLE LIST",
    "DURAMEN.TABLE CREATE extra",
    "DURAMEN.TABLE DROP extra",
    "DURAMEN.SCAN 0 COUNT 1000",
    "WAITAOF 1 0 100",
    "RPUSH waited a",
    "BLPOP waited other 0.02",
    "BLMOVE waited other LEFT RIGHT 0.02",
    "ZADD scored 1 a",
    "BZPOPMIN scored 0.01",
];

impl Rough {
    pub(crate) fn new(random: Random) -> Rough {
        Rough { random }
    }

    pub(crate) fn turn(&mut self, wire: &mut Wire, setting: &Setting) -> Result<()> {
        match self.random.index(24) {
            0 => self.cut(wire),
            1 => self.garbage(wire),
            2 => self.pause(wire, setting),
            3 => self.kill(wire),
            4 => self.leave_replies(wire),
            5 => self.watch_many(wire),
            6 if setting.plan.flushes => {
                wire.ask("SELECT 0")?;
                wire.ask("FLUSHALL").map(drop)
            }
            7 => {
                wire.ask("MULTI")?;
                wire.ask("SET rough:1 queued")?;
                Err(Trouble::Gone("left inside of MULTI".to_owned()))
            }
            8 => self.expiring(wire),
            _ => {
                let line = LINES[self.random.index(LINES.len())];
                let mut commands = vec![words(line); 1 + self.random.index(4)];
                let mut listing = None;
                if setting.plan.flash && line.starts_with("KEYS") {
                    listing = setting.listing.try_lock().ok();
                    commands.truncate(usize::from(listing.is_some()));
                }
                // Databases 9 to 11 belong to rough clients. Database 0 belongs to all clients.
                if matches!(line, "FLUSHDB" | "MOVE m 11") {
                    wire.ask("SELECT 9")?;
                }
                wire.send_all(&commands)?;
                for _ in commands {
                    wire.reply(line)?;
                }
                drop(listing);
                Ok(())
            }
        }
    }

    /// Ends the connection in the middle of a request.
    fn cut(&mut self, wire: &mut Wire) -> Result<()> {
        let whole = b"*3\r\n$3\r\nSET\r\n$7\r\nrough:2\r\n$10\r\n0123456789\r\n";
        wire.send(&whole[..self.random.index(whole.len())])?;
        Err(Trouble::Gone("cut".to_owned()))
    }

    fn garbage(&mut self, wire: &mut Wire) -> Result<()> {
        let length = 1 + self.random.index(4_096);
        let bytes: Vec<u8> = (0..length).map(|_| self.random.index(256) as u8).collect();
        wire.send(&bytes)?;
        Err(Trouble::Gone("garbage".to_owned()))
    }

    /// Holds all clients up for a moment; that time is excused.
    fn pause(&mut self, wire: &mut Wire, setting: &Setting) -> Result<()> {
        let milliseconds = 20 + self.random.index(200);
        let kind = ["ALL", "WRITE"][self.random.index(2)];
        let excuse = setting.watch.excuse();
        let asked = wire.ask(&format!("CLIENT PAUSE {milliseconds} {kind}"));
        std::thread::sleep(Duration::from_millis(milliseconds as u64));
        drop(excuse);
        asked.map(drop)
    }

    /// Makes the server close the connection of another client.
    fn kill(&mut self, wire: &mut Wire) -> Result<()> {
        let Reply::Bulk(list) = wire.ask("CLIENT LIST")? else {
            return Ok(());
        };
        let list = String::from_utf8_lossy(&list).into_owned();
        let ids: Vec<&str> = list
            .lines()
            .filter_map(|line| line.split(' ').next()?.strip_prefix("id="))
            .collect();
        if !ids.is_empty() {
            let id = ids[self.random.index(ids.len())];
            wire.ask(&format!("CLIENT KILL ID {id}"))?;
        }
        Ok(())
    }

    /// Requests long replies and reads none of them.
    fn leave_replies(&mut self, wire: &mut Wire) -> Result<()> {
        let commands = vec![words("CONFIG GET *"); 200 + self.random.index(800)];
        wire.send_all(&commands)?;
        Err(Trouble::Gone("replies are left".to_owned()))
    }

    fn watch_many(&mut self, wire: &mut Wire) -> Result<()> {
        let mut asked = words("WATCH");
        asked.extend((0..1 + self.random.index(2_000)).map(|key| format!("x:{key}").into_bytes()));
        wire.call(&asked)?;
        wire.ask("UNWATCH").map(drop)
    }

    /// A key that has expired is not shown.
    fn expiring(&mut self, wire: &mut Wire) -> Result<()> {
        wire.ask("SELECT 0")?;
        let key = format!(
            "e:{}:{}",
            self.random.index(1 << 40),
            self.random.index(1 << 20)
        );
        let set = wire.ask(&format!("SET {key} value PX 10"))?;
        if is_refusal(&set) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(30));
        match wire.ask(&format!("GET {key}"))? {
            Reply::Null => Ok(()),
            refused if is_refusal(&refused) => Ok(()),
            other => Err(Trouble::Failed(format!(
                "{key} has expired and is shown: {other:?}"
            ))),
        }
    }
}
