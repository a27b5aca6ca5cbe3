//! Bugs that tests plant to check that they are found. Without feature `planted` there are none.

/// A violation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Keys of other owners are served too.
    ViewIsNotLookedAt,
    /// serve::X2, rifl::L10: copies from before this server owned the key are executed.
    TenureIsNotLookedAt,
    /// serve::X3: the completion record is in another group than the effect.
    RecordApart,
    /// serve::X3: a request with an effect may be executed again.
    AbandonAfterEffect,
    /// serve::X4: a failed condition is evaluated again for a late copy.
    FailuresAreNotRecorded,
    /// serve::X5: a repetition is answered before the first execution is durable.
    FinishBeforeDurable,
    /// serve::X6: the cursor passes objects that did not fit into an answer.
    CutIsSkipped,
    /// serve::X8: a request that waits for flash counts as being executed.
    ColdIsNotAbandoned,
    /// serve::X8: the operations of a request that need nothing from flash are done before it waits
    /// for the others, and again after it.
    PartsBeforeTheyWait,
}

/// The planted bug, if there is one.
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
    /// Plants one bug in the trackers.
    pub fn plant(&self, bug: duramen_cluster::rifl::Bug) {
        self.each().for_each(|mut tracker| {
            let changed = tracker.clone().with_bug(bug);
            *tracker = changed;
        });
    }
}
