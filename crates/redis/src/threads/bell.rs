//! The bell of a thread, by which others wake it.

/// Any thread rings the bell; the thread that it wakes looks at it.
pub trait Bell: Send + Sync {
    /// Wakes the thread. If the thread is awake, it does not fall asleep before it has called
    /// `quiet`.
    fn ring(&self);
    /// Called by the thread that the bell wakes: earlier rings do not wake it any more.
    fn quiet(&self);
}

/// The bell of a thread that never sleeps.
#[cfg(test)]
pub(crate) struct Silent;

#[cfg(test)]
impl Bell for Silent {
    fn ring(&self) {}

    fn quiet(&self) {}
}
