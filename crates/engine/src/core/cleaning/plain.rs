//! The passes of a store without a log.

use super::Tally;
use super::fruitless::Fruitless;

/// The passes of a context, each over victims in memory or over victims on flash.
#[derive(Default)]
pub struct PlainPasses {
    /// Rounds of victims in memory, and on flash.
    in_memory: Fruitless,
    on_flash: Fruitless,
    /// The running pass, if it evicts nothing: then it should gain something.
    running: Option<Running>,
    /// Entries of the victims are evicted.
    evict: bool,
}

/// A pass that evicts nothing.
struct Running {
    on_flash: bool,
    /// Victims that it has emptied, and their bytes.
    victims: (u64, u64),
    /// Survivors that the context had opened before, and bytes that it had moved.
    before: (u64, u64),
}

impl PlainPasses {
    /// The rounds of victims in memory, or on flash.
    pub fn rounds(&mut self, on_flash: bool) -> &mut Fruitless {
        match on_flash {
            true => &mut self.on_flash,
            false => &mut self.in_memory,
        }
    }

    pub fn begin(&mut self, evict: bool, on_flash: bool, tally: &Tally) {
        self.running = (!evict).then(|| Running {
            on_flash,
            victims: (0, 0),
            before: tally.plain_survivors(),
        });
    }

    /// Notes that a victim with this many bytes of entries is empty.
    pub fn note_emptied(&mut self, bytes: u64) {
        if let Some(pass) = &mut self.running {
            pass.victims = (pass.victims.0 + 1, pass.victims.1 + bytes);
        }
    }

    /// Ends the pass whose victims are all empty.
    pub fn finish(&mut self, tally: &Tally) {
        let Some(pass) = self.running.take() else {
            return;
        };
        let ((opened, moved), before) = (tally.plain_survivors(), pass.before);
        let survivors = (opened - before.0, moved - before.1);
        self.rounds(pass.on_flash)
            .pass_ended(pass.victims, survivors);
    }

    /// True if entries of the victims are evicted.
    pub fn evict(&self) -> bool {
        self.evict
    }

    pub fn set_evict(&mut self, evict: bool) {
        self.evict = evict;
    }
}
