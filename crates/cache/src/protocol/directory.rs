//! The master's side: who holds each block, and one conversion at a time.
//!
//! Knows nothing of frames, sessions or disks: messages in, messages out. For each block that was ever asked for there is
//! an [`Entry`]; it outlives the last holder, because it remembers the version that must be found on the disk.
//!
//! A *conversion* changes who holds a block. It begins when a request reaches the head of the block's queue and ends with
//! the requester's `Done`; until then nothing else is begun for the block except that consistent reads wait behind it too.
//! A consistent read is forwarded and forgotten, unless nobody holds the block: then the requester reads the disk, and that
//! must not meet a write, so it takes its turn like a conversion that leaves nobody holding.

use std::collections::HashMap;

use plexus_base::{BlockId, NodeId, NodeSet};

use super::{
    Ask, Config, Counts, Mode,
    hasher::Fixed,
    lists::{List, Lists},
    message::{Body, Source, Target},
    past::Known,
};

/// What arrived for a block and waits for its turn.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Request { from: NodeId, ask: Ask, have: Mode, target: Target },
    Evict { from: NodeId, version: u64 },
}

impl Pending {
    fn from(&self) -> NodeId {
        match self {
            Self::Request { from, .. } | Self::Evict { from, .. } => *from,
        }
    }

    /// Whether it may change who holds the block.
    fn converts(&self) -> bool {
        !matches!(self, Self::Request { ask: Ask::Cr, .. })
    }
}

/// The conversion in flight.
#[derive(Clone, Copy, Debug)]
struct Conversion {
    requester: NodeId,
    ask: Ask,
    target: Target,
    /// Nodes whose `Invalidated` is awaited.
    invalidating: NodeSet,
    /// Where the block will come from, when all are invalidated.
    from: From,
    /// Collected from invalidated copies.
    owed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Holder(NodeId),
    Requester,
    Disk,
}

#[derive(Debug)]
struct Entry {
    holders: NodeSet,
    /// The one holder has X.
    exclusive: bool,
    /// Nobody had X since the block was last read from the disk: the disk has what the holders have.
    clean: bool,
    /// What must be found on the disk while nobody holds the block; 0: unknown.
    version: u64,
    /// Of the last conversion begun.
    seq: u32,
    conversion: Option<Conversion>,
    queue: List,
}

/// Where the directory's messages go: the receiver, the block, what it is told.
pub(super) type Mail = Vec<(NodeId, BlockId, Body)>;

/// What a peer did that no correct peer does.
pub(super) type Fault = &'static str;

#[derive(Debug)]
pub(super) struct Directory {
    me: NodeId,
    /// Frames in a set: a node asks for no more copies of one block at a time.
    ways: usize,
    /// What is wrong with requests that waited, and whose they were.
    pub(super) faults: Vec<(NodeId, Fault)>,
    // Its hasher is fixed: the same on every run.
    entries: HashMap<BlockId, Entry, Fixed>,
    pending: Lists<Pending>,
    /// Conversions in flight.
    in_flight: usize,
    /// This node is about to leave: nothing is begun any more.
    pub(super) closing: bool,
}

impl Directory {
    pub(super) fn new(config: &Config) -> Self {
        let (me, ways) = (config.me, config.ways as usize);
        Self {
            me,
            ways,
            faults: Vec::new(),
            entries: HashMap::default(),
            pending: Lists::new(),
            in_flight: 0,
            closing: false,
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.pending = Lists::new();
        (self.in_flight, self.closing) = (0, false);
    }

    /// What stands of each block when no conversion is ever finished: who may hold it, the requester in flight included.
    pub(super) fn known(&self) -> impl Iterator<Item = (BlockId, Known)> {
        self.entries.iter().map(|(block, entry)| {
            let mut known =
                Known { holders: entry.holders, clean: entry.clean, version: entry.version, doubted: false };
            if let Some(conversion) = entry.conversion.filter(|conversion| conversion.ask != Ask::Cr) {
                known.clean = conversion.ask == Ask::S && (known.clean || conversion.from == From::Disk);
                known.holders.insert(conversion.requester);
            }
            (*block, known)
        })
    }

    /// A block that members hold, or whose version on the disk is known, as they report it.
    pub(super) fn restore(&mut self, block: BlockId, holders: NodeSet, exclusive: bool, known: (bool, u64)) {
        let (clean, version) = known;
        let entry =
            Entry { holders, exclusive, clean, version, seq: 0, conversion: None, queue: List::EMPTY };
        self.entries.insert(block, entry);
    }

    /// Who holds `block`, and whether in X; nothing while that is about to change.
    pub(super) fn holders(&self, block: BlockId) -> Option<(NodeSet, bool)> {
        match self.entries.get(&block) {
            Some(entry) if entry.conversion.is_some() => None,
            Some(entry) => Some((entry.holders, entry.exclusive && !entry.holders.is_empty())),
            None => Some((NodeSet::EMPTY, false)),
        }
    }

    /// Whether a conversion is in flight.
    pub(super) fn converts(&self) -> bool {
        self.in_flight > 0
    }

    /// A request arrived.
    pub(super) fn request(
        &mut self,
        from: NodeId,
        block: BlockId,
        (ask, have, target): (Ask, Mode, Target),
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        let entry = self.entries.entry(block).or_insert(Entry {
            holders: NodeSet::EMPTY,
            exclusive: false,
            clean: false,
            version: 0,
            seq: 0,
            conversion: None,
            queue: List::EMPTY,
        });
        let request = Pending::Request { from, ask, have, target };
        // One frame of the node's set asks for the block, the others for copies. What is in flight does not count: a
        // `Done` may be overtaken by the next request.
        let same = |waiting: &Pending| waiting.from() == from && waiting.converts() == request.converts();
        let most = if request.converts() { 1 } else { self.ways };
        if self.pending.iter(entry.queue).filter(same).count() >= most {
            return Err("more requests for a block than a node can have");
        }
        self.pending.push_back(&mut entry.queue, request);
        self.proceed(block, mail);
        Ok(())
    }

    /// A holder wants to be one no longer. Answered as soon as no conversion is in flight, ahead of those that wait: so
    /// whatever was ordered of the holder before has been obeyed, or is on its way to it ahead of the answer.
    pub(super) fn evict(
        &mut self,
        from: NodeId,
        block: BlockId,
        version: u64,
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        let entry = self.entries.get_mut(&block).ok_or("Evict of a block that nobody asked for")?;
        let evicts = |waiting: &Pending| waiting.from() == from && matches!(waiting, Pending::Evict { .. });
        if self.pending.iter(entry.queue).any(|waiting| evicts(&waiting)) {
            return Err("Evict of a block that is being evicted");
        }
        self.pending.push_front(&mut entry.queue, Pending::Evict { from, version });
        self.proceed(block, mail);
        Ok(())
    }

    /// A copy is gone.
    pub(super) fn invalidated(
        &mut self,
        from: NodeId,
        block: BlockId,
        (seq, owed): (u32, bool),
        mail: &mut Mail,
    ) -> Result<(), Fault> {
        const FAULT: Fault = "Invalidated that nobody asked for";
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

    /// The requester has it, or could not read it.
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
                entry.clean |= conversion.from == From::Disk;
                entry.exclusive = false;
                entry.holders.insert(from);
            }
            (true, Ask::X) => {
                entry.holders = NodeSet::EMPTY;
                entry.holders.insert(from);
                (entry.exclusive, entry.clean) = (true, false);
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

    /// Begins whatever may begin now. A request that cannot be right is dropped, and those behind it are served.
    fn proceed(&mut self, block: BlockId, mail: &mut Mail) {
        let me = self.me;
        let Some(entry) = self.entries.get_mut(&block) else { return };
        let waits = |pending: Option<Pending>| matches!(pending, Some(Pending::Request { .. }));
        while entry.conversion.is_none() {
            if self.closing && waits(self.pending.front(entry.queue)) {
                break;
            }
            match self.pending.pop_front(&mut entry.queue) {
                None => break,
                Some(Pending::Evict { from, version }) => {
                    if entry.holders.remove(from) && entry.holders.is_empty() {
                        // The last to leave has written what it owed: this version is on the disk.
                        (entry.version, entry.exclusive) = (version, false);
                    }
                    mail.push((from, block, Body::Evicted));
                }
                Some(Pending::Request { from, ask: Ask::Cr, target, .. }) if !entry.holders.is_empty() => {
                    let holder = source(entry.holders, [from, me], entry.seq);
                    let forward =
                        Body::Forward { ask: Ask::Cr, requester: from, target, seq: entry.seq, owed: false };
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

/// Sends what the conversion needs first.
fn order(entry: &Entry, block: BlockId, mail: &mut Mail) {
    let conversion = entry.conversion.expect("begun just now");
    for holder in conversion.invalidating.iter() {
        mail.push((holder, block, Body::Invalidate { seq: entry.seq }));
    }
    if conversion.invalidating.is_empty() {
        send(entry, block, mail);
    }
}

/// All other copies that must go are gone: lets the block go to the requester.
fn send(entry: &Entry, block: BlockId, mail: &mut Mail) {
    let Conversion { requester, ask, target, invalidating, from, owed } =
        entry.conversion.expect("a conversion is in flight");
    assert!(invalidating.is_empty(), "{block} granted before all copies were invalidated");
    let seq = entry.seq;
    let grant = |source, behind| Body::Grant { ask, target, seq, source, owed, behind };
    mail.push(match from {
        From::Holder(holder) => (holder, block, Body::Forward { ask, requester, target, seq, owed }),
        From::Requester => (requester, block, grant(Source::Keep, owed)),
        From::Disk => (requester, block, grant(Source::Disk { version: entry.version }, false)),
    });
}

/// Who of the holders gives the block: one of the `preferred` if it can (a message fewer), else each in turn.
fn source(holders: NodeSet, preferred: [NodeId; 2], seq: u32) -> NodeId {
    if let Some(node) = preferred.into_iter().find(|node| holders.contains(*node)) {
        return node;
    }
    let at = seq as usize % holders.len();
    holders.iter().nth(at).expect("a block that is held has holders")
}
