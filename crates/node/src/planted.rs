//! Bugs that tests plant to see whether they would be found. Without feature `planted` there are none.

/// A rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// M1: the source of a migration serves on after its last look at what was written.
    SourceServesOn,
    /// M1: any newer list ends the lock.
    AnyListUnlocks,
    /// M3: the last message is taken for all of them.
    LastIsEnough,
    /// M3: complete, it is said, before it is durable.
    ReportedBeforeDurable,
    /// V1: the target serves as soon as it has everything.
    ServedBeforeListed,
    /// M6: the target does not hear which versions were given.
    SafeVersionStays,
    /// M7: completion records stay at the source.
    RecordsStay,
    /// What is written beside the copying is sent once, and not what is written beside that.
    RoundsAreLost,
    /// The source purges when the target has answered the last message.
    PurgedEarly,
}

/// The bug that is planted, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted(#[cfg(feature = "planted")] Option<Bug>);

impl Planted {
    /// False at compile time without the feature.
    #[inline(always)]
    pub(crate) fn is(self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.0 == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}

#[cfg(feature = "planted")]
impl crate::Node {
    /// From now on with this bug.
    pub fn plant(&mut self, bug: Bug) {
        self.planted = Planted(Some(bug));
    }
}
