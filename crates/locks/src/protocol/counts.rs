//! What a shard counts, plainly: one writer; who asks its driver is given a copy.

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Counts since the shard was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counts {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counts {
            /// Adds what another shard counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Every count with its name.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counts! {
    /// Locks that clients asked for.
    requests,
    /// Conversions that clients asked for.
    conversions,
    /// Requests and conversions granted to clients.
    granted,
    /// Not granted because they were not to wait.
    not_granted,
    /// Not granted in time.
    timed_out,
    /// Cancelled.
    cancelled,
    /// Refused because there were too many.
    too_many,
    /// Victims of a deadlock.
    deadlocks,
    /// Cancellations that came too late: the lock was granted.
    too_late,
    /// Clients told that others wait.
    blocking,
    /// Searches for a deadlock begun.
    probes,
    /// Circles found, to be confirmed.
    circles,
    /// Locks of dead nodes that were released here.
    purged,
    /// Locks of living nodes that were taken over from another master.
    rebuilt,
    /// Waiting requests that were taken over.
    waiting_rebuilt,
    /// Value blocks that may not be the last any more.
    values_lost,
    /// Value blocks of rebuilt resources that are still the last, as the master before or a holder says.
    values_kept,
    /// Messages of an older view from a member to a master that has stayed: used.
    late,
    /// Messages of an older view, dropped.
    old_epoch,
    /// Messages of a newer view, kept until it came.
    new_epoch,
    /// Messages from lives that are no members, dropped.
    strangers,
    /// Messages that no correct member sends, dropped.
    faults,
}
