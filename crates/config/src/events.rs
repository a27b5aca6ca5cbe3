//! Classes of keyspace events, as `notify-keyspace-events` names them by letters.

/// A set of classes of events, and of the channels that they go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventClasses(u32);

impl EventClasses {
    /// Events go to the channel of their key.
    pub const KEYSPACE: EventClasses = EventClasses(1);
    /// Events go to the channel of their name.
    pub const KEYEVENT: EventClasses = EventClasses(1 << 1);
    pub const GENERIC: EventClasses = EventClasses(1 << 2);
    pub const STRING: EventClasses = EventClasses(1 << 3);
    pub const LIST: EventClasses = EventClasses(1 << 4);
    pub const SET: EventClasses = EventClasses(1 << 5);
    pub const HASH: EventClasses = EventClasses(1 << 6);
    pub const SORTED_SET: EventClasses = EventClasses(1 << 7);
    pub const EXPIRED: EventClasses = EventClasses(1 << 8);
    pub const EVICTED: EventClasses = EventClasses(1 << 9);
    pub const STREAM: EventClasses = EventClasses(1 << 10);
    /// Events of modules: accepted, although there are no modules.
    pub const MODULE: EventClasses = EventClasses(1 << 11);
    pub const MISS: EventClasses = EventClasses(1 << 12);
    pub const NEW: EventClasses = EventClasses(1 << 13);

    /// `A`: all but misses and new keys.
    const ALL: EventClasses = EventClasses(0b1111_1111_1100);

    /// Letters in the order in which Redis shows them.
    const LETTERS: [(char, EventClasses); 14] = [
        ('g', EventClasses::GENERIC),
        ('$', EventClasses::STRING),
        ('l', EventClasses::LIST),
        ('s', EventClasses::SET),
        ('h', EventClasses::HASH),
        ('z', EventClasses::SORTED_SET),
        ('x', EventClasses::EXPIRED),
        ('e', EventClasses::EVICTED),
        ('t', EventClasses::STREAM),
        ('d', EventClasses::MODULE),
        ('n', EventClasses::NEW),
        ('K', EventClasses::KEYSPACE),
        ('E', EventClasses::KEYEVENT),
        ('m', EventClasses::MISS),
    ];

    /// Reads letters; returns `None` if one of them names no class.
    pub fn parse(text: &str) -> Option<EventClasses> {
        let mut classes = 0;
        for letter in text.chars() {
            classes |= match letter {
                'A' => EventClasses::ALL.0,
                letter => {
                    let mut known = EventClasses::LETTERS.iter();
                    known.find(|(known, _)| *known == letter)?.1.0
                }
            };
        }
        Some(EventClasses(classes))
    }

    pub const fn from_bits(bits: u32) -> EventClasses {
        EventClasses(bits)
    }

    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether this set has one of these classes.
    #[inline]
    pub const fn has(self, classes: EventClasses) -> bool {
        self.0 & classes.0 != 0
    }

    /// The classes of which events are published; none if they would go to no channel.
    pub fn in_use(self) -> EventClasses {
        let channels = EventClasses(EventClasses::KEYSPACE.0 | EventClasses::KEYEVENT.0);
        if self.has(channels) {
            self
        } else {
            EventClasses::default()
        }
    }
}

impl std::fmt::Display for EventClasses {
    /// Writes the letters as Redis does, except that `n` is also written behind `A`, so that CONFIG
    /// REWRITE keeps it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = EventClasses::ALL;
        let has_all = self.0 & all.0 == all.0;
        if has_all {
            f.write_str("A")?;
        }
        for (letter, class) in EventClasses::LETTERS {
            if self.has(class) && !(has_all && all.has(class)) {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_and_shown_as_in_redis() {
        for (given, shown) in [
            ("", ""),
            ("KEA", "AKE"),
            ("EAm", "AEm"),
            ("zxK", "zxK"),
            ("AKEn", "AnKE"),
            ("nK", "nK"),
            ("g$lshzxetdKE", "AKE"),
            ("mnE", "nEm"),
        ] {
            let classes = EventClasses::parse(given).expect("letters of classes");
            assert_eq!(classes.to_string(), shown, "{given}");
        }
        assert_eq!(EventClasses::parse("Kq"), None);
    }

    #[test]
    fn events_without_a_channel_are_not_in_use() {
        let classes = |text| EventClasses::parse(text).expect("letters of classes");
        assert!(!classes("gx").in_use().has(EventClasses::GENERIC));
        assert!(classes("gxE").in_use().has(EventClasses::GENERIC));
    }
}
