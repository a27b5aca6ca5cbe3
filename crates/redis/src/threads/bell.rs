//! The bell of a thread, by which others wake it.

/// It is rung by any thread, and looked at by the thread that it wakes.
pub trait Bell: Send + Sync {
    /// Wakes the thread, or keeps it from falling asleep until it is quiet.
    fn ring(&self);
    /// Called by the thread that it wakes: those who rang before wake it no more.
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
