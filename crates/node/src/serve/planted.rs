//! Bugs that tests plant to see whether they would be found. Without feature `planted` there are
//! none.

/// A rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Anything is served, whoever owns it.
    ViewIsNotLookedAt,
    /// X2, rifl L10: copies from before this server owned the key are executed.
    TenureIsNotLookedAt,
    /// X3: the completion record is in another group than the effect.
    RecordApart,
    /// X3: what had an effect may be executed again.
    AbandonAfterEffect,
    /// X4: a condition that failed is tried again when a late copy comes.
    FailuresAreNotRecorded,
    /// X5: a repetition is answered before the first execution is durable.
    FinishBeforeDurable,
    /// X6: what did not fit into an answer is passed over by its cursor.
    CutIsSkipped,
    /// X8: what waits for flash counts as being executed.
    ColdIsNotAbandoned,
    /// X8: the parts of a request that meet nothing on flash are done before it waits for the
    /// others, and again after it.
    PartsBeforeTheyWait,
}

/// The bug that is planted, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planted(#[cfg(feature = "planted")] Option<Bug>);

impl Planted {
    /// False at compile time without the feature.
    #[inline(always)]
    pub(super) fn is(self, bug: Bug) -> bool {
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
impl super::Servant {
    /// The same with one bug.
    #[must_use]
    pub fn with_bug(mut self, bug: Bug) -> Self {
        self.planted = Planted(Some(bug));
        self
    }
}

#[cfg(feature = "planted")]
impl super::Clients {
    /// One bug in what remembers requests.
    pub fn plant(&self, bug: duramen_cluster::rifl::Bug) {
        self.each().for_each(|mut tracker| {
            let changed = tracker.clone().with_bug(bug);
            *tracker = changed;
        });
    }
}
