//! Bugs that tests plant to check that they are found. Without feature `planted` there are none.

/// A violation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// rifl::L1: a repetition that arrives during the first execution is executed as well.
    InProgressRunsAgain,
    /// rifl::L3: a request that the client has acknowledged is executed again when it arrives once
    /// more.
    AcknowledgedRunsAgain,
    /// rifl::L4: the cleaner drops records that the client has not acknowledged.
    CleanerForgets,
    /// rifl::L5: a client whose lease has ended is served as a new one.
    NoLeaseCheck,
    /// rifl::L6: records stay behind when their tablet moves.
    RecordsStayBehind,
    /// rifl::L7: a record that was found in a log does not count.
    LogForgotten,
    /// rifl::L8: a client is dropped while its lease continues.
    ForgetsTheLiving,
    /// rifl::L9: the closer a lease is to its end, the sooner it is asked about again.
    AsksEverSooner,
}

impl super::Tracker {
    /// The same with one bug.
    #[cfg(feature = "planted")]
    pub fn with_bug(mut self, bug: Bug) -> Self {
        self.planted = Some(bug);
        self
    }

    /// True if this bug is planted; false at compile time without the feature.
    #[inline]
    pub(super) fn has_bug(&self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.planted == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}
