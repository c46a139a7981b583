//! The counts of a shard. There is one writer; readers get a copy from the driver.

plexus_base::counts! {
    /// The counts since the shard was created.
    pub struct Counts {
        /// Locks that clients requested.
        requests,
        /// Conversions that clients requested.
        conversions,
        /// Requests and conversions granted to clients.
        granted,
        /// Requests refused because they may not wait.
        not_granted,
        /// Requests that timed out.
        timed_out,
        /// Requests that were cancelled.
        cancelled,
        /// Requests refused because a limit was reached.
        too_many,
        /// Deadlock victims.
        deadlocks,
        /// Cancellations that came too late: the lock was granted.
        too_late,
        /// Blocking notices to clients.
        blocking,
        /// Deadlock searches begun.
        probes,
        /// Circles found, before confirmation.
        circles,
        /// Locks of dead nodes that were released here.
        purged,
        /// Locks of live nodes that were taken over from another master.
        rebuilt,
        /// Waiting requests that were taken over.
        waiting_rebuilt,
        /// Value blocks that may not be the last any more.
        values_lost,
        /// Value blocks of rebuilt resources that a holder or the master before knew to be the
        /// last.
        values_kept,
        /// Messages of an older view that were used, because the master has stayed.
        late,
        /// Messages of an older view, dropped.
        old_epoch,
        /// Messages of a newer view, kept until it came.
        new_epoch,
        /// Messages from incarnations that are not members, dropped.
        non_members,
        /// Messages that no correct member sends, dropped.
        faults,
    }
}
