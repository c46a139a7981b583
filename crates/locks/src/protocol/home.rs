//! The locks of this node's clients: held locks and waiting requests.
//!
//! A lock has at most one request under way, numbered by `seq`. The master answers each request
//! once, with a grant or a refusal. A cancellation only asks the master to refuse; a grant that was
//! sent first stands. An unlock has no answer.
//!
//! A request is entered in [`Waits`] only if it still waits after its messages were handled. Most
//! are answered by then.

use std::collections::{BTreeMap, BTreeSet};

use plexus_base::{Epoch, Nanos, NodeId};

use super::{
    Action, LockId, LockRefusal, LockRequest, Mode, Name, NewLock, Owner, PartitionSlot, PartitionSlots,
    RequestKind, Token, VALUE_LEN, Value, WaitLimit,
    core::ShardCore,
    master::Fault,
    message::{
        Blocking, Cancel, Granted, LockMessage, MasterRequest, MasterRequestKind, Origin, Record, Refused,
        Unlock,
    },
    recent::RecentMap,
};

/// The most searches that a request remembers to have passed on, so that it passes none twice. At
/// the limit it forgets them all, which only costs messages.
const SEEN_MAX: usize = 1024;

/// How often the time between two searches of a request doubles. A wait that is no deadlock at
/// first rarely becomes one later.
const DOUBLINGS: u32 = 6;

/// Records in one message: 32 KiB with names of average length.
const RECORDS: usize = 384;

/// A lock that a client of this node has or waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HomeLock {
    pub(super) name: Name,
    pub(super) place: PartitionSlot,
    pub(super) owner: Owner,
    pub(super) start_time: u64,
    notify: bool,
    pub(super) seq: u32,
    pub(super) hold: Option<Hold>,
    pub(super) pending: Option<Box<PendingRequest>>,
}

/// The grant of a lock, as its home knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// The mode that is held.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub token: Token,
    /// The number of the request that was granted.
    pub seq: u32,
    /// The value block as it came with the grant.
    pub value: Value,
}

/// A request without an answer yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PendingRequest {
    mode: Mode,
    attempt: bool,
    write: Option<[u8; VALUE_LEN]>,
    since: Nanos,
    /// The view in which it was sent first.
    epoch: Epoch,
    until: Option<Nanos>,
    /// The time of its next timeout or search.
    due: Option<Nanos>,
    /// The reason for which the master was asked to refuse it.
    ending: Option<LockRefusal>,
    /// The number of deadlock searches that it began.
    round: u32,
    /// The last search of each origin that it passed on.
    seen: BTreeMap<Origin, u32>,
}

impl PendingRequest {
    /// True while the request is queued and has not been cancelled.
    pub(super) fn waits(&self) -> bool {
        !self.attempt && self.ending.is_none()
    }

    /// True if the request was sent in an earlier view, perhaps to another master.
    fn is_again(&self, core: &ShardCore) -> bool {
        self.epoch < core.view.epoch
    }

    /// True if the request has passed on neither this search nor a later one of the same origin.
    pub(super) fn first_seen(&mut self, origin: Origin) -> bool {
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        let last = self.seen.entry(Origin { round: 0, ..origin }).or_default();
        let first = origin.round > *last;
        *last = origin.round.max(*last);
        first
    }
}

impl HomeLock {
    fn new(new: NewLock, place: PartitionSlot, hold: Option<Hold>) -> Self {
        let NewLock { owner, start_time, name, notify } = new;
        let seq = hold.map_or(0, |hold| hold.seq);
        Self { name, place, owner, start_time, notify, seq, hold, pending: None }
    }

    /// Returns the resource of this lock.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the owner of this lock.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the start time of its owner's work.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Returns the current grant, if the lock is held.
    #[must_use]
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Returns the mode that the client may use now. While a conversion waits, this is what both
    /// modes allow.
    #[must_use]
    pub fn usable(&self) -> Option<Mode> {
        let mode = self.hold.as_ref()?.mode;
        Some(mode.usable(self.pending.as_ref().map(|pending| pending.mode)))
    }

    /// True if the client may write the value block now.
    pub(super) fn may_write(&self) -> bool {
        self.usable().is_some_and(Mode::writes)
    }

    /// Returns the number and mode of the request without an answer yet.
    #[must_use]
    pub fn asked(&self) -> Option<(u32, Mode)> {
        self.pending.as_ref().map(|pending| (self.seq, pending.mode))
    }

    /// True while a request is queued that was not cancelled and may wait.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.pending.as_deref().is_some_and(PendingRequest::waits)
    }

    /// Returns the record of the held lock for a new master.
    ///
    /// A conversion of an earlier view without an answer may have been granted there. If the new
    /// mode allows other writers, they may have written since. A conversion of this view cannot
    /// have been granted before its master knows all.
    fn record(&self, lock: LockId, core: &ShardCore) -> Option<Record> {
        let Hold { mode, token, seq, value } = self.hold?;
        let knows = |pending: &PendingRequest| pending.mode.keeps_value() || !pending.is_again(core);
        let value = if self.pending.as_deref().is_none_or(knows) { value } else { value.lost() };
        Some(Record { lock, seq, name: self.name.clone(), mode, notify: self.notify, token, value })
    }

    /// Returns the request that is under way, as a message for the master.
    fn request(&self, lock: LockId, core: &ShardCore) -> Option<LockMessage> {
        let &HomeLock { ref name, seq, notify, ref hold, ref pending, .. } = self;
        let pending = pending.as_deref()?;
        let &PendingRequest { mode, attempt, write: value, since, .. } = pending;
        let (name, waited_ns, again) = (name.clone(), core.now.since(since).0, pending.is_again(core));
        let kind = match hold {
            None => MasterRequestKind::New { notify },
            Some(_) => MasterRequestKind::Conversion { value },
        };
        Some(LockMessage::Request(MasterRequest { lock, seq, name, mode, attempt, again, waited_ns, kind }))
    }

    /// Returns the cancellation of that request, if it was cancelled.
    fn cancellation(&self, lock: LockId) -> Option<LockMessage> {
        let why = self.pending.as_ref()?.ending?;
        Some(LockMessage::Cancel(Cancel { lock, seq: self.seq, name: self.name.clone(), why }))
    }
}

/// The home half of a shard: the locks of this node's clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Home {
    /// Boxed, because the map moves its values as locks come and go.
    pub(super) locks: RecentMap<LockId, Box<HomeLock>>,
    /// The box of a released lock, kept so that a thread that takes lock after lock does not
    /// allocate.
    spare: Option<Box<HomeLock>>,
    waits: Waits,
}

/// The requests that are queued and not cancelled. These are exactly the requests with a timer.
#[derive(Clone, Debug, Default)]
struct Waits {
    due: BTreeSet<(Nanos, LockId)>,
    owned: BTreeSet<(Owner, LockId)>,
}

impl Waits {
    fn add(&mut self, at: Nanos, owner: Owner, lock: LockId) {
        self.due.insert((at, lock));
        self.owned.insert((owner, lock));
    }

    /// Removes a request, if it is there.
    fn remove(&mut self, at: Option<Nanos>, owner: Owner, lock: LockId) {
        if let Some(at) = at {
            self.due.remove(&(at, lock));
            self.owned.remove(&(owner, lock));
        }
    }
}

impl Home {
    pub(super) fn next_tick(&self) -> Option<Nanos> {
        self.waits.due.first().map(|(at, _)| *at)
    }

    /// Returns the locks that `owner` waits for.
    pub(super) fn waiting_of(&self, owner: Owner) -> Vec<LockId> {
        let range = (owner, LockId(0))..=(owner, LockId(u64::MAX));
        self.waits.owned.range(range).map(|(_, lock)| *lock).collect()
    }

    /// Returns all waiting requests.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (LockId, Owner)> {
        self.waits.owned.iter().map(|(owner, lock)| (*lock, *owner))
    }

    /// True if there is room for one more lock.
    pub(super) fn has_room(&self, core: &ShardCore) -> bool {
        self.locks.len() < core.config.locks_max
    }

    /// Enters a new lock that was granted at once.
    pub(super) fn hold(
        &mut self,
        lock: LockId,
        new: NewLock,
        place: PartitionSlot,
        hold: Hold,
        core: &mut ShardCore,
    ) {
        core.counts.requests += 1;
        core.counts.granted += 1;
        let held = HomeLock::new(new, place, Some(hold));
        let held = match self.spare.take() {
            Some(mut spare) => {
                *spare = held;
                spare
            }
            None => Box::new(held),
        };
        self.assert_new(lock);
        self.locks.add_recent(lock, held);
    }

    #[inline]
    fn assert_new(&self, lock: LockId) {
        assert!(self.locks.get(&lock).is_none(), "{lock:?} is a lock already");
    }

    /// Sends the master a request for a lock or a conversion, unless it is refused here.
    pub(super) fn request(&mut self, request: LockRequest, core: &mut ShardCore) {
        let LockRequest { lock, mode, timeout, kind } = request;
        let (refused, value) = match kind {
            RequestKind::New(new) => {
                core.counts.requests += 1;
                if self.has_room(core) {
                    let place = core.masters.slot(new.name.partition());
                    self.assert_new(lock);
                    self.locks.tree().insert(lock, Box::new(HomeLock::new(new, place, None)));
                    (None, None)
                } else {
                    core.counts.too_many += 1;
                    (Some(LockRefusal::TooManyLocks), None)
                }
            }
            RequestKind::Conversion { value } => {
                core.counts.conversions += 1;
                (self.no_conversion(lock, mode, value.is_some()), value)
            }
        };
        match refused {
            Some(why) => core.out.push(Action::Refused { lock, why }),
            None => self.ask(lock, mode, timeout, value, core),
        }
    }

    /// Returns the reason why a lock cannot be converted to `mode` now, if there is one.
    fn no_conversion(&self, lock: LockId, mode: Mode, writes: bool) -> Option<LockRefusal> {
        match self.locks.get(&lock).map(|held| &**held) {
            None => Some(LockRefusal::Unknown),
            Some(HomeLock { hold: Some(Hold { seq: u32::MAX, .. }), pending: None, .. }) => {
                Some(LockRefusal::TooManyConversions)
            }
            Some(HomeLock { hold: Some(hold), pending: None, .. }) => {
                (writes && !hold.mode.writes_to(mode)).then_some(LockRefusal::NotWriter)
            }
            Some(_) => Some(LockRefusal::Busy),
        }
    }

    /// Sends the master a request that was checked. [`Home::await_answer`] must follow.
    fn ask(
        &mut self,
        lock: LockId,
        mode: Mode,
        timeout: WaitLimit,
        write: Option<[u8; VALUE_LEN]>,
        core: &mut ShardCore,
    ) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let until = match timeout {
            WaitLimit::Until(time) => Some(time),
            WaitLimit::Try | WaitLimit::Forever => None,
        };
        let attempt = timeout == WaitLimit::Try;
        held.seq += 1;
        held.pending = Some(Box::new(PendingRequest {
            mode,
            attempt,
            write,
            since: core.now,
            epoch: core.view.epoch,
            until,
            due: None,
            ending: None,
            round: 0,
            seen: BTreeMap::new(),
        }));
        if let Some(request) = held.request(lock, core) {
            core.ask_master(held.place, request);
        }
    }

    /// Sets the timer of a request that is still without an answer after its messages were handled.
    pub(super) fn await_answer(&mut self, lock: LockId, core: &ShardCore) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let unnoted = |pending: &&mut PendingRequest| pending.waits() && pending.due.is_none();
        let Some(pending) = held.pending.as_deref_mut().filter(unnoted) else { return };
        let look = core.now + Nanos(core.config.deadlock_ns);
        let at = pending.until.map_or(look, |until| until.min(look));
        pending.due = Some(at);
        self.waits.add(at, held.owner, lock);
    }

    /// Releases a lock and tells the master.
    pub(super) fn unlock(&mut self, lock: LockId, value: Option<[u8; VALUE_LEN]>, core: &mut ShardCore) {
        if value.is_some() && self.locks.get(&lock).is_some_and(|held| !held.may_write()) {
            return core.out.push(Action::Refused { lock, why: LockRefusal::NotWriter });
        }
        let Some(held) = self.remove(lock) else { return };
        if held.pending.is_some() {
            core.counts.cancelled += 1;
            core.out.push(Action::Refused { lock, why: LockRefusal::Cancelled });
        }
        let HomeLock { name, place, .. } = *held;
        core.ask_master(place, LockMessage::Unlock(Unlock { lock, name, died: false, value }));
    }

    /// Forgets a lock that is released and has no request under way.
    pub(super) fn forget(&mut self, lock: LockId) {
        self.spare = self.locks.remove(&lock);
    }

    pub(super) fn client_gone(&mut self, locks: &[LockId], core: &mut ShardCore) {
        for lock in locks.iter().copied() {
            let Some(held) = self.remove(lock) else { continue };
            // Only the mode that was granted counts. A client cannot have used a mode that the
            // master grants later.
            let died = held.hold.is_some_and(|hold| hold.mode.writes());
            let HomeLock { name, place, .. } = *held;
            core.ask_master(place, LockMessage::Unlock(Unlock { lock, name, died, value: None }));
        }
    }

    fn remove(&mut self, lock: LockId) -> Option<Box<HomeLock>> {
        let held = self.locks.remove(&lock)?;
        if let Some(pending) = &held.pending {
            self.waits.remove(pending.due, held.owner, lock);
        }
        Some(held)
    }

    /// Asks the master to refuse a waiting request, unless that was done before.
    pub(super) fn end(&mut self, lock: LockId, why: LockRefusal, core: &mut ShardCore) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let Some(pending) = held.pending.as_mut().filter(|pending| pending.ending.is_none()) else { return };
        pending.ending = Some(why);
        self.waits.remove(pending.due.take(), held.owner, lock);
        if let Some(cancellation) = held.cancellation(lock) {
            core.ask_master(held.place, cancellation);
        }
    }

    /// Cancels the requests whose timeout is over. Returns the other due requests with their search
    /// number; they look for a deadlock.
    pub(super) fn due(&mut self, core: &mut ShardCore) -> Vec<(LockId, u32)> {
        let mut looking = Vec::new();
        while let Some((at, lock)) = self.waits.due.first().copied().filter(|(at, _)| *at <= core.now) {
            let pending = self.locks.get_mut(&lock).and_then(|held| held.pending.as_mut());
            let pending = pending.expect("a waiting request is entered");
            if pending.until.is_some_and(|until| until <= core.now) {
                self.end(lock, LockRefusal::TimedOut, core);
                continue;
            }
            pending.round += 1;
            let look = core.now + Nanos(core.config.deadlock_ns << pending.round.min(DOUBLINGS));
            let next = pending.until.map_or(look, |until| until.min(look));
            pending.due = Some(next);
            self.waits.due.remove(&(at, lock));
            self.waits.due.insert((next, lock));
            looking.push((lock, pending.round));
        }
        looking
    }

    pub(super) fn granted(&mut self, granted: Granted, core: &mut ShardCore) -> Result<(), Fault> {
        let Granted { lock, seq, mode, token, value } = granted;
        let Some(held) = self.locks.get_mut(&lock).filter(|held| held.seq == seq) else { return Ok(()) };
        let Some(pending) = &held.pending else { return Ok(()) };
        if pending.mode != mode {
            return Err("a grant of another mode than was asked for");
        }
        core.counts.granted += 1;
        core.counts.too_late += u64::from(pending.ending.is_some());
        self.waits.remove(pending.due, held.owner, lock);
        held.pending = None;
        held.hold = Some(Hold { mode, token, seq, value });
        core.out.push(Action::Granted { lock, mode, token, value });
        Ok(())
    }

    pub(super) fn refused(&mut self, refused: Refused, core: &mut ShardCore) {
        let Refused { lock, seq, why } = refused;
        let Some(held) = self.locks.get_mut(&lock).filter(|held| held.seq == seq) else { return };
        let Some(pending) = held.pending.take() else { return };
        self.waits.remove(pending.due, held.owner, lock);
        if held.hold.is_none() {
            self.locks.remove(&lock);
        }
        match why {
            LockRefusal::TimedOut => core.counts.timed_out += 1,
            LockRefusal::Deadlock => core.counts.deadlocks += 1,
            LockRefusal::TooManyWaiting => core.counts.too_many += 1,
            LockRefusal::NotGranted => core.counts.not_granted += 1,
            _ => core.counts.cancelled += 1,
        }
        core.out.push(Action::Refused { lock, why });
    }

    pub(super) fn blocking(&mut self, blocking: Blocking, core: &mut ShardCore) {
        let Blocking { lock, seq, wanted } = blocking;
        let hold = self.locks.get(&lock).and_then(|held| held.hold);
        if hold.is_some_and(|hold| hold.seq == seq) {
            core.counts.blocking += 1;
            core.out.push(Action::Blocking { lock, wanted });
        }
    }

    /// Reports all locks in these partitions to a master that does not know them. Held locks come
    /// first in batches, then the waiting requests. Held locks are sorted in the order of the
    /// master's map, so that neighbours are inserted together and hit the cache.
    pub(super) fn report(&self, to: NodeId, need: &PartitionSlots, core: &mut ShardCore) {
        let (mut records, mut requests) = (Vec::new(), Vec::new());
        for (lock, held) in self.locks.iter().filter(|(_, held)| need.contains(held.place)) {
            records.extend(held.record(*lock, core));
            requests.extend(held.request(*lock, core));
            requests.extend(held.cancellation(*lock));
        }
        // Cached keys keep the sequential read order instead of random access.
        records.sort_by_cached_key(|record| record.name.rank());
        let mut records = records.into_iter();
        while !records.as_slice().is_empty() {
            core.send(to, LockMessage::Records(records.by_ref().take(RECORDS).collect()));
        }
        requests.into_iter().for_each(|message| core.send(to, message));
    }
}
