//! The counts of a shard. It has one writer; the driver copies them out.

use plexus_base::Nanos;

/// Counts since the shard was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sessions that had to ask the shard.
    pub wants: u64,
    /// Of these, served from a block that was here in a sufficient mode.
    pub local: u64,
    /// Requests sent to masters, this node's own included.
    pub requests: u64,
    /// Blocks that arrived from another node in two messages between nodes.
    pub transfers_2: u64,
    /// Blocks that arrived from another node in three messages between nodes.
    pub transfers_3: u64,
    /// Grants of X on a copy that was here already.
    pub grants_keep: u64,
    /// Grants of blocks on disk.
    pub grants_disk: u64,
    /// Consistent copies received from a holder.
    pub copies_in: u64,
    /// Consistent copies given.
    pub copies_out: u64,
    /// Blocks given away (X).
    pub given: u64,
    /// Copies given (S).
    pub shared: u64,
    /// Shared copies given up for another's X.
    pub invalidated: u64,
    /// Blocks written to the disk.
    pub disk_writes: u64,
    /// Writes that failed.
    pub write_failures: u64,
    /// Blocks read from the disk.
    pub disk_reads: u64,
    /// Reads that failed.
    pub read_failures: u64,
    /// Blocks given up for room or at hand-back.
    pub evictions: u64,
    /// Sessions that had to wait because every frame of the set was busy.
    pub full_sets: u64,
    /// Batches of local sessions served ahead of another node's request.
    pub turns: u64,
    /// Conversions finished as master.
    pub conversions: u64,
    /// Changes of view.
    pub views: u64,
    /// Blocks and last messages on others that were sent in the view before and taken.
    pub late: u64,
    /// Blocks held here that masters were told of after a change of view.
    pub reported: u64,
    /// Debts taken over because the nodes that owed them are gone.
    pub debts_taken: u64,
    /// Requests refused because the block is lost.
    pub lost_refused: u64,
    /// Messages of an older view, dropped.
    pub old_epoch: u64,
    /// Messages of a newer view, kept aside.
    pub new_epoch: u64,
    /// Messages that no correct peer sends, dropped.
    pub faults: u64,
    /// Time from requests to their grants, summed.
    pub asked: Nanos,
}

impl Counts {
    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        self.wants += other.wants;
        self.local += other.local;
        self.requests += other.requests;
        self.transfers_2 += other.transfers_2;
        self.transfers_3 += other.transfers_3;
        self.grants_keep += other.grants_keep;
        self.grants_disk += other.grants_disk;
        self.copies_in += other.copies_in;
        self.copies_out += other.copies_out;
        self.given += other.given;
        self.shared += other.shared;
        self.invalidated += other.invalidated;
        self.disk_writes += other.disk_writes;
        self.write_failures += other.write_failures;
        self.disk_reads += other.disk_reads;
        self.read_failures += other.read_failures;
        self.evictions += other.evictions;
        self.full_sets += other.full_sets;
        self.turns += other.turns;
        self.conversions += other.conversions;
        self.views += other.views;
        self.late += other.late;
        self.reported += other.reported;
        self.debts_taken += other.debts_taken;
        self.lost_refused += other.lost_refused;
        self.old_epoch += other.old_epoch;
        self.new_epoch += other.new_epoch;
        self.faults += other.faults;
        self.asked = self.asked + other.asked;
    }

    /// Returns every count with its name.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("wants", self.wants),
            ("local", self.local),
            ("requests", self.requests),
            ("transfers_2", self.transfers_2),
            ("transfers_3", self.transfers_3),
            ("grants_keep", self.grants_keep),
            ("grants_disk", self.grants_disk),
            ("copies_in", self.copies_in),
            ("copies_out", self.copies_out),
            ("given", self.given),
            ("shared", self.shared),
            ("invalidated", self.invalidated),
            ("disk_writes", self.disk_writes),
            ("write_failures", self.write_failures),
            ("disk_reads", self.disk_reads),
            ("read_failures", self.read_failures),
            ("evictions", self.evictions),
            ("full_sets", self.full_sets),
            ("turns", self.turns),
            ("conversions", self.conversions),
            ("views", self.views),
            ("late", self.late),
            ("reported", self.reported),
            ("debts_taken", self.debts_taken),
            ("lost_refused", self.lost_refused),
            ("old_epoch", self.old_epoch),
            ("new_epoch", self.new_epoch),
            ("faults", self.faults),
            ("asked_ns", self.asked.0),
        ]
    }
}
