//! The counts of a shard. It has one writer; the driver copies them out.

use std::hash::{Hash, Hasher};

/// Counts decide nothing: shards that differ in nothing else are equal.
impl Hash for Counts {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

plexus_base::counts! {
    /// Counts since the shard was made.
    pub struct Counts {
        /// Sessions that had to ask the shard.
        wants,
        /// Of these, served from a block that was here in a sufficient mode.
        local,
        /// Requests sent to masters, this node's own included.
        requests,
        /// Blocks that arrived from another node in two messages between nodes.
        transfers_2,
        /// Blocks that arrived from another node in three messages between nodes.
        transfers_3,
        /// Grants of X on a copy that was here already.
        grants_keep,
        /// Grants of blocks on disk.
        grants_disk,
        /// Of these, blocks of which a session makes a new page: they are not read.
        blank_pages,
        /// Consistent copies received from a holder.
        copies_in,
        /// Consistent copies given.
        copies_out,
        /// Blocks given away (X).
        given,
        /// Copies given (S).
        shared,
        /// Shared copies given up for another's X.
        invalidated,
        /// Blocks written to the disk.
        disk_writes,
        /// Writes that failed.
        write_failures,
        /// Blocks read from the disk.
        disk_reads,
        /// Reads that failed.
        read_failures,
        /// Blocks given up for room or at hand-back.
        evictions,
        /// Sessions that had to wait because every frame of the set was busy.
        full_sets,
        /// Batches of local sessions served ahead of another node's request.
        turns,
        /// Conversions finished as master.
        conversions,
        /// Changes of view.
        views,
        /// Blocks and last messages on others that were sent in the view before and taken.
        late,
        /// Blocks held here that masters were told of after a change of view.
        reported,
        /// Debts taken over because the nodes that owed them are gone.
        debts_taken,
        /// Blocks given away with records that were not durable.
        carried,
        /// Frames that waited until their redo was durable.
        flush_waits,
        /// Blocks in doubt that replay recovered.
        recovered,
        /// Blocks in doubt whose redo is incomplete or damaged.
        unrecovered,
        /// Messages of an older view, dropped.
        old_epoch,
        /// Messages of a newer view, kept aside.
        new_epoch,
        /// Messages that no correct peer sends, dropped.
        faults,
        /// Nanoseconds from requests to their grants, summed.
        asked_ns,
    }
}
