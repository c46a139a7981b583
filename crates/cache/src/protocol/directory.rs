//! The master's side: the holders of each block, and one conversion at a time.
//!
//! The directory does not know frames, sessions or disks: messages in, messages out. It has an
//! [`Entry`] for each block that was ever requested. The entry outlives the last holder, because it
//! has the version that must be found on disk.
//!
//! A *conversion* changes the holders of a block. It begins when a request reaches the head of the
//! block's queue and ends with the requester's `Done`. Until then no other conversion of the block
//! begins, and consistent reads wait behind it too. A consistent read is forwarded and forgotten,
//! unless no node holds the block. Then the requester reads the disk, which must not meet a write,
//! so the read takes its turn like a conversion that leaves no holder.

use std::collections::BTreeSet;

use plexus_base::{BlockId, NodeId, NodeSet};

use super::{
    Ask, Config, Counts, Mode,
    hasher::BlockMap,
    lists::{List, Lists},
    message::{MessageBody, Source, Target},
};

/// A message for a block that waits for its turn.
#[derive(Clone, Copy, Hash, Debug)]
enum Pending {
    Request { from: NodeId, ask: Ask, have: Mode, target: Target },
    Evict { from: NodeId, version: u64 },
    Ensure { from: NodeId, version: u64 },
}

impl Pending {
    fn from(&self) -> NodeId {
        match self {
            Self::Request { from, .. } | Self::Evict { from, .. } | Self::Ensure { from, .. } => *from,
        }
    }

    fn kind(&self) -> PendingKind {
        match self {
            Self::Request { ask: Ask::Cr, .. } => PendingKind::Copy,
            Self::Request { .. } | Self::Evict { .. } => PendingKind::Conversion,
            Self::Ensure { .. } => PendingKind::Write,
        }
    }
}

/// The effect of a message: on the holders of the block, on nothing, or on the block on disk.
#[derive(PartialEq, Eq)]
enum PendingKind {
    Conversion,
    Copy,
    Write,
}

/// The conversion in flight.
#[derive(Clone, Copy, Hash, Debug)]
struct Conversion {
    requester: NodeId,
    ask: Ask,
    target: Target,
    /// The nodes whose `Invalidated` is awaited.
    invalidating: NodeSet,
    /// The source of the block, once all other copies are invalidated.
    from: From,
    /// True if an invalidated copy passed on the debt.
    owed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum From {
    Holder(NodeId),
    Requester,
    Disk,
}

#[derive(Clone, Hash, Debug)]
struct Entry {
    holders: NodeSet,
    /// True if the one holder has X.
    exclusive: bool,
    /// The holder that owes the write-back, unless the disk has the holders' version.
    debtor: Option<NodeId>,
    /// The version that must be found on disk while no node holds the block; 0: unknown.
    version: u64,
    /// The number of the last conversion begun.
    seq: u32,
    conversion: Option<Conversion>,
    queue: List,
}

impl Entry {
    /// The entry of a block that was never requested.
    const NEW: Self = Self {
        holders: NodeSet::EMPTY,
        exclusive: false,
        debtor: None,
        version: 0,
        seq: 0,
        conversion: None,
        queue: List::EMPTY,
    };
}

/// A block that members report as held.
pub(super) struct RestoredBlock {
    pub(super) holders: NodeSet,
    pub(super) exclusive: bool,
    pub(super) debtor: Option<NodeId>,
}

/// The blocks that no node may read from disk now, because the redo of nodes that are gone may have
/// later versions.
#[derive(Clone, Hash, Debug)]
pub(super) enum Doubt {
    /// Every block: the streams have not been scanned. Requests wait.
    All,
    /// Every block: the streams cannot be scanned. Requests are refused.
    Refused,
    /// These blocks: they have not been replayed.
    Some(BTreeSet<BlockId>),
}

impl Doubt {
    pub(super) fn contains(&self, block: BlockId) -> bool {
        match self {
            Self::All | Self::Refused => true,
            Self::Some(blocks) => !blocks.is_empty() && blocks.contains(&block),
        }
    }
}

/// The directory's outgoing messages: the receiver, the block, the content.
pub(super) type Mail = Vec<(NodeId, BlockId, MessageBody)>;

/// A protocol violation of a peer.
pub(super) type Fault = &'static str;

#[derive(Clone, Hash, Debug)]
pub(super) struct Directory {
    me: NodeId,
    /// The frames in a set: a node never asks for more copies of one block at a time.
    ways: usize,
    /// The faults of requests that waited, with their senders.
    pub(super) faults: Vec<(NodeId, Fault)>,
    entries: BlockMap<Entry>,
    pending: Lists<Pending>,
    /// The number of conversions in flight.
    in_flight: usize,
    /// The blocks whose requests wait for recovery.
    pub(super) doubt: Doubt,
    /// The blocks that cannot be recovered.
    pub(super) unrecovered: BTreeSet<BlockId>,
    /// True when this node is about to leave: no conversion begins any more.
    pub(super) closing: bool,
}

impl Directory {
    pub(super) fn new(config: &Config) -> Self {
        let (me, ways) = (config.me, config.ways as usize);
        Self {
            me,
            ways,
            faults: Vec::new(),
            entries: BlockMap::default(),
            pending: Lists::new(),
            in_flight: 0,
            doubt: Doubt::Some(BTreeSet::new()),
            unrecovered: BTreeSet::new(),
            closing: false,
        }
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.pending = Lists::new();
        (self.in_flight, self.closing) = (0, false);
        self.unrecovered.clear();
    }

    /// Restores a block that members report as held.
    pub(super) fn restore(&mut self, block: BlockId, restored: RestoredBlock) {
        let RestoredBlock { holders, exclusive, debtor } = restored;
        self.entries.insert(block, Entry { holders, exclusive, debtor, ..Entry::NEW });
    }

    /// Names the holder that takes over the debt of a restored block.
    pub(super) fn set_debtor(&mut self, block: BlockId, node: NodeId) {
        self.entries.get_mut(&block).expect("a restored block").debtor = Some(node);
    }

    /// Returns whether a node holds the block.
    pub(super) fn is_held(&self, block: BlockId) -> bool {
        self.entries.get(&block).is_some_and(|entry| !entry.holders.is_empty())
    }

    /// Lets the requests go on that waited for the scan of redo streams, with the blocks that are
    /// in doubt from now on.
    pub(super) fn scanned(&mut self, doubt: Doubt, mail: &mut Mail) {
        self.doubt = doubt;
        let waits = |entry: &Entry| entry.conversion.is_none() && !entry.queue.is_empty();
        let mut waiting: Vec<BlockId> =
            self.entries.iter().filter(|(_, entry)| waits(entry)).map(|(block, _)| *block).collect();
        waiting.sort_unstable();
        waiting.into_iter().for_each(|block| self.proceed(block, mail));
    }

    /// Ends the doubt about a block: the disk has `version` of it, or it cannot be recovered.
    pub(super) fn replayed(&mut self, block: BlockId, version: Option<u64>, mail: &mut Mail) {
        if let Doubt::Some(blocks) = &mut self.doubt {
            blocks.remove(&block);
        }
        match version {
            Some(version) => self.entries.entry(block).or_insert(Entry::NEW).version = version,
            None => _ = self.unrecovered.insert(block),
        }
        self.proceed(block, mail);
    }

    /// Handles a request to have the block written.
    pub(super) fn ensure(
        &mut self,
        from: NodeId,
        block: BlockId,
        version: u64,
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        self.entries.entry(block).or_insert(Entry::NEW);
        self.enqueue(block, Pending::Ensure { from, version }, mail)
    }

    /// Returns the holders of `block`, and whether in X; `None` while that is about to change.
    pub(super) fn holders(&self, block: BlockId) -> Option<(NodeSet, bool)> {
        match self.entries.get(&block) {
            Some(entry) if entry.conversion.is_some() => None,
            Some(entry) => Some((entry.holders, entry.exclusive && !entry.holders.is_empty())),
            None => Some((NodeSet::EMPTY, false)),
        }
    }

    /// Returns whether a conversion is in flight.
    pub(super) fn converts(&self) -> bool {
        self.in_flight > 0
    }

    /// Handles a request.
    pub(super) fn request(
        &mut self,
        from: NodeId,
        block: BlockId,
        (ask, have, target): (Ask, Mode, Target),
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        self.entries.entry(block).or_insert(Entry::NEW);
        self.enqueue(block, Pending::Request { from, ask, have, target }, mail)
    }

    /// Removes a holder at its own request. The answer is sent once no conversion is in flight,
    /// ahead of waiting requests. So the holder has obeyed all earlier orders, or they are on their
    /// way ahead of the answer.
    pub(super) fn evict(
        &mut self,
        from: NodeId,
        block: BlockId,
        version: u64,
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        self.enqueue(block, Pending::Evict { from, version }, mail)
    }

    /// Lets a message wait for its turn, unless its sender has too many of the kind. The conversion
    /// in flight does not count: a `Done` may be overtaken by the next request.
    fn enqueue(&mut self, block: BlockId, message: Pending, mail: &mut Mail) -> Result<(), Fault> {
        let entry = self.entries.get_mut(&block).ok_or("Evict of a block that was not requested")?;
        // One frame of the node's set asks for the block or gives it up, the others ask for copies.
        let most = if message.kind() == PendingKind::Copy { self.ways } else { 1 };
        let is_same =
            |waiting: &Pending| (waiting.from(), waiting.kind()) == (message.from(), message.kind());
        if self.pending.iter(entry.queue).filter(is_same).count() >= most {
            return Err("more requests for a block than a node can have");
        }
        match message {
            Pending::Evict { .. } => self.pending.push_front(&mut entry.queue, message),
            _ => self.pending.push_back(&mut entry.queue, message),
        }
        self.proceed(block, mail);
        Ok(())
    }

    /// Notes that a copy is gone.
    pub(super) fn invalidated(
        &mut self,
        from: NodeId,
        block: BlockId,
        (seq, owed): (u32, bool),
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        const FAULT: Fault = "Invalidated that was not requested";
        let entry = self.entries.get_mut(&block).ok_or(FAULT)?;
        let conversion = entry.conversion.as_mut().filter(|_| entry.seq == seq).ok_or(FAULT)?;
        if !conversion.invalidating.contains(from) {
            return Err(FAULT);
        }
        if conversion.owed && owed {
            return Err("two nodes owed the write-back of one block");
        }
        conversion.invalidating.remove(from);
        conversion.owed |= owed;
        entry.holders.remove(from);
        if conversion.invalidating.is_empty() {
            send(entry, block, mail);
        }
        Ok(())
    }

    /// Ends a conversion: the requester has the block, or could not read it.
    pub(super) fn done(
        &mut self,
        from: NodeId,
        block: BlockId,
        (seq, held): (u32, bool),
        counts: &mut Counts,
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        const FAULT: Fault = "Done without a conversion";
        let entry = self.entries.get_mut(&block).ok_or(FAULT)?;
        let conversion = entry
            .conversion
            .filter(|c| entry.seq == seq && c.requester == from && c.invalidating.is_empty())
            .ok_or(FAULT)?;
        match (held, conversion.ask) {
            (true, Ask::S) => {
                if conversion.from == From::Disk {
                    entry.debtor = None;
                }
                entry.exclusive = false;
                entry.holders.insert(from);
            }
            (true, Ask::X | Ask::New) => {
                entry.holders = NodeSet::EMPTY;
                entry.holders.insert(from);
                (entry.exclusive, entry.debtor) = (true, Some(from));
            }
            (true, Ask::Cr) => return Err("a consistent copy was kept"),
            (false, _) if conversion.from == From::Disk => {}
            (false, _) => return Err("a block that was given was not taken"),
        }
        entry.conversion = None;
        self.in_flight -= 1;
        counts.conversions += 1;
        self.proceed(block, mail);
        Ok(())
    }

    /// Begins every conversion that may begin now. A request that cannot be right is dropped, and
    /// those behind it are served.
    fn proceed(&mut self, block: BlockId, mail: &mut Mail) {
        let me = self.me;
        let Some(entry) = self.entries.get_mut(&block) else { return };
        let waits = |pending: Option<Pending>| matches!(pending, Some(Pending::Request { .. }));
        while entry.conversion.is_none() {
            let next = self.pending.front(entry.queue);
            if self.closing && waits(next) {
                break;
            }
            let reads_disk = entry.holders.is_empty() && !matches!(next, Some(Pending::Evict { .. }));
            let is_refused =
                reads_disk && (matches!(self.doubt, Doubt::Refused) || self.unrecovered.contains(&block));
            if reads_disk && !is_refused && self.doubt.contains(block) {
                break;
            }
            match self.pending.pop_front(&mut entry.queue) {
                None => break,
                Some(Pending::Evict { from, version }) => {
                    // A debtor has written before it leaves.
                    entry.debtor = entry.debtor.filter(|debtor| *debtor != from);
                    if entry.holders.remove(from) && entry.holders.is_empty() {
                        // The last to leave has written what it owed: this version is on the disk.
                        (entry.version, entry.exclusive) = (version, false);
                    }
                    mail.push((from, block, MessageBody::Evicted));
                }
                Some(Pending::Ensure { from, version }) => {
                    // The last holder may have written it since.
                    if is_refused && entry.version < version {
                        mail.push((from, block, MessageBody::Saved { version: 0 }));
                    } else if let Some(debtor) = entry.debtor {
                        mail.push((debtor, block, MessageBody::Save { requester: from, version }));
                    } else {
                        mail.push((from, block, MessageBody::Saved { version }));
                    }
                }
                Some(Pending::Request { from, target, .. }) if is_refused => {
                    mail.push((from, block, MessageBody::Refused { target, unrecovered: true }));
                }
                Some(Pending::Request { from, ask: Ask::Cr, target, .. }) if !entry.holders.is_empty() => {
                    let holder = source(entry.holders, [from, me], entry.seq);
                    let forward = MessageBody::Forward {
                        ask: Ask::Cr,
                        requester: from,
                        target,
                        seq: entry.seq,
                        owed: false,
                    };
                    mail.push((holder, block, forward));
                }
                Some(Pending::Request { from, ask, have, target }) => {
                    match begin(entry, me, from, (ask, have, target)) {
                        Ok(()) => {
                            self.in_flight += 1;
                            order(entry, block, mail);
                        }
                        Err(fault) => self.faults.push((from, fault)),
                    }
                }
            }
        }
    }

    /// Whether a debt is here, between the copy that is gone and the node that will get X.
    pub(super) fn has_collected(&self, block: BlockId) -> bool {
        let conversion = self.entries.get(&block).and_then(|entry| entry.conversion);
        conversion.is_some_and(|c| c.owed && !c.invalidating.is_empty())
    }

    /// Requests that wait or are being served, for tests and statistics.
    pub(super) fn is_quiet(&self) -> bool {
        self.entries.values().all(|entry| entry.conversion.is_none() && entry.queue.is_empty())
    }
}

/// Decides what the next conversion takes.
fn begin(
    entry: &mut Entry,
    me: NodeId,
    requester: NodeId,
    (ask, have, target): (Ask, Mode, Target),
) -> Result<(), Fault> {
    let holds = entry.holders.contains(requester);
    if holds && (have == Mode::N || entry.exclusive || ask != Ask::X) {
        return Err("a request for what the requester holds already");
    }
    entry.seq = entry.seq.wrapping_add(1);
    let (from, invalidating) = if entry.holders.is_empty() {
        (From::Disk, NodeSet::EMPTY)
    } else if ask == Ask::S {
        (From::Holder(source(entry.holders, [me, me], entry.seq)), NodeSet::EMPTY)
    } else if holds {
        (From::Requester, entry.holders.without(requester))
    } else {
        let from = source(entry.holders, [me, me], entry.seq);
        (From::Holder(from), entry.holders.without(from))
    };
    assert!(!entry.exclusive || invalidating.is_empty(), "X with others beside it");
    entry.conversion = Some(Conversion { requester, ask, target, invalidating, from, owed: false });
    Ok(())
}

/// Sends the orders that must precede the grant.
fn order(entry: &Entry, block: BlockId, mail: &mut Mail) {
    let conversion = entry.conversion.expect("begun just now");
    for holder in conversion.invalidating.iter() {
        mail.push((holder, block, MessageBody::Invalidate { seq: entry.seq }));
    }
    if conversion.invalidating.is_empty() {
        send(entry, block, mail);
    }
}

/// Lets the block go to the requester, once all other copies that must go are gone.
fn send(entry: &Entry, block: BlockId, mail: &mut Mail) {
    let Conversion { requester, ask, target, invalidating, from, owed } =
        entry.conversion.expect("a conversion is in flight");
    assert!(invalidating.is_empty(), "{block} granted before all copies were invalidated");
    let seq = entry.seq;
    let grant = |source, behind| MessageBody::Grant { ask, target, seq, source, owed, behind };
    mail.push(match from {
        From::Holder(holder) => (holder, block, MessageBody::Forward { ask, requester, target, seq, owed }),
        From::Requester => (requester, block, grant(Source::Keep, owed)),
        From::Disk => (requester, block, grant(Source::Disk { version: entry.version }, false)),
    });
}

/// Returns the holder that gives the block: one of the `preferred` if it can (a message fewer),
/// else each in turn.
fn source(holders: NodeSet, preferred: [NodeId; 2], seq: u32) -> NodeId {
    if let Some(node) = preferred.into_iter().find(|node| holders.contains(*node)) {
        return node;
    }
    let at = seq as usize % holders.len();
    holders.iter().nth(at).expect("a block that is held has holders")
}
