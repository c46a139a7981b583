//! The locks of this node's clients: what is held, what is waited for, and since when.
//!
//! A lock has at most one request under way, numbered by `seq`. Each is answered once, by the master's grant or refusal: a cancellation only asks the
//! master to refuse, and where the grant was faster it stands. Nothing waits for the end of an unlock.
//!
//! Only a request that waits after what it set off has been handled is noted in the [`Waits`]: most are answered by then.

use std::collections::{BTreeMap, BTreeSet};

use plexus_base::{Epoch, Nanos, NodeId};

use super::{
    Action, LockId, LockRefusal, Mode, Name, Owner, PartitionSlot, PartitionSlots, Token, VALUE_LEN, Value,
    WaitLimit, Want,
    core::Core,
    master::Fault,
    message::{Blocking, Body, Cancel, Convert, Granted, Origin, Record, Refused, Request, Unlock},
};

/// Requests whose searches a request remembers to have passed on, so that none passes twice. Where there are more it forgets them all, which only
/// costs messages.
const SEEN_MAX: usize = 1024;

/// How often the time between two searches of a request doubles: what is no deadlock at first will hardly be one later.
const DOUBLINGS: u32 = 6;

/// Records in one message: 32 KiB with names of middling length.
const RECORDS: usize = 384;

/// A lock that a client of this node has or waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    pub(super) name: Name,
    pub(super) place: PartitionSlot,
    pub(super) owner: Owner,
    pub(super) start_time: u64,
    notify: bool,
    pub(super) seq: u32,
    pub(super) hold: Option<Hold>,
    pub(super) pending: Option<Box<Pending>>,
}

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// In which mode.
    pub mode: Mode,
    /// With which token.
    pub token: Token,
    /// By which of its requests.
    pub seq: u32,
    /// The value block as it came with the grant.
    pub value: Value,
}

/// A request that is not answered yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    mode: Mode,
    attempt: bool,
    write: Option<[u8; VALUE_LEN]>,
    since: Nanos,
    /// The view in which it was asked first.
    epoch: Epoch,
    until: Option<Nanos>,
    /// When something is to be done about it.
    due: Option<Nanos>,
    /// The master was asked to refuse it.
    ending: Option<LockRefusal>,
    /// Searches for a deadlock that it began.
    round: u32,
    /// The last search that it passed on, of each request that searches.
    seen: BTreeMap<Origin, u32>,
}

impl Pending {
    /// Whether it waits, and nobody has thought better of it.
    pub(super) fn waits(&self) -> bool {
        !self.attempt && self.ending.is_none()
    }

    /// Whether it was asked in an earlier view before, of another master perhaps.
    fn is_again(&self, core: &Core) -> bool {
        self.epoch < core.view.epoch
    }

    /// Whether the search comes by for the first time, and none that was begun later has.
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

impl Held {
    /// Of what.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Whose.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The age of its owner's work.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// How it is held, if it is.
    #[must_use]
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// The mode that its client may use now: while a conversion waits, what both modes allow.
    #[must_use]
    pub fn usable(&self) -> Option<Mode> {
        let mode = self.hold.as_ref()?.mode;
        Some(mode.usable(self.pending.as_ref().map(|pending| pending.mode)))
    }

    /// The request that is not answered yet: its number and the mode it wants.
    #[must_use]
    pub fn asked(&self) -> Option<(u32, Mode)> {
        self.pending.as_ref().map(|pending| (self.seq, pending.mode))
    }

    /// Whether a request waits that was not cancelled and may wait.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.pending.as_deref().is_some_and(Pending::waits)
    }

    /// What a new master is to be told of how it is held, if it is. A conversion that was asked in an earlier view and is not answered may have been granted
    /// there: if others can write beside that, they may have written since. One of this view nobody has granted before its master knows all.
    fn record(&self, lock: LockId, core: &Core) -> Option<Record> {
        let Hold { mode, token, seq, value } = self.hold?;
        let knows = |pending: &Pending| pending.mode.keeps_value() || !pending.is_again(core);
        let value = if self.pending.as_deref().is_none_or(knows) { value } else { value.lost() };
        Some(Record { lock, seq, name: self.name.clone(), mode, notify: self.notify, token, value })
    }

    /// What the master is to be told of the request that is under way.
    fn request(&self, lock: LockId, core: &Core) -> Option<Body> {
        let &Held { ref name, seq, notify, ref hold, ref pending, .. } = self;
        let pending = pending.as_deref()?;
        let &Pending { mode, attempt, write: value, since, .. } = pending;
        let (name, waited_ns, again) = (name.clone(), core.now.since(since).0, pending.is_again(core));
        Some(match hold {
            None => Body::Request(Request { lock, seq, name, mode, attempt, notify, again, waited_ns }),
            Some(_) => Body::Convert(Convert { lock, seq, name, mode, attempt, again, waited_ns, value }),
        })
    }

    /// And that it is no longer wanted, if so.
    fn cancellation(&self, lock: LockId) -> Option<Body> {
        let why = self.pending.as_ref()?.ending?;
        Some(Body::Cancel(Cancel { lock, seq: self.seq, name: self.name.clone(), why }))
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Home {
    /// In boxes: the map moves what it holds as locks come and go.
    pub(super) locks: BTreeMap<LockId, Box<Held>>,
    waits: Waits,
}

/// The requests that wait and nobody has thought better of: exactly those with a time when something is to be done about them.
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

    /// A request that is there no more, if it was.
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

    /// The locks that `owner` waits for.
    pub(super) fn waiting_of(&self, owner: Owner) -> Vec<LockId> {
        let range = (owner, LockId(0))..=(owner, LockId(u64::MAX));
        self.waits.owned.range(range).map(|(_, lock)| *lock).collect()
    }

    /// All that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (LockId, Owner)> {
        self.waits.owned.iter().map(|(owner, lock)| (*lock, *owner))
    }

    /// Whether there is room for one more lock.
    pub(super) fn has_room(&self, core: &Core) -> bool {
        self.locks.len() < core.config.locks_max
    }

    /// A new lock that was granted at once.
    pub(super) fn hold(&mut self, want: Want, place: PartitionSlot, hold: Hold, core: &mut Core) {
        let Want { lock, owner, start_time, name, notify, .. } = want;
        core.counts.requests += 1;
        core.counts.granted += 1;
        let held =
            Held { name, place, owner, start_time, notify, seq: hold.seq, hold: Some(hold), pending: None };
        self.insert(lock, held);
    }

    /// A new lock, for which the master is asked.
    pub(super) fn lock(&mut self, want: Want, core: &mut Core) {
        let Want { lock, owner, start_time, name, mode, timeout, notify } = want;
        core.counts.requests += 1;
        if !self.has_room(core) {
            core.counts.too_many += 1;
            return core.out.push(Action::Refused { lock, why: LockRefusal::TooManyLocks });
        }
        let place = core.masters.slot(name.partition());
        let held = Held { name, place, owner, start_time, notify, seq: 0, hold: None, pending: None };
        self.insert(lock, held);
        self.ask(lock, mode, timeout, None, core);
    }

    fn insert(&mut self, lock: LockId, held: Held) {
        let before = self.locks.insert(lock, Box::new(held));
        assert!(before.is_none(), "{lock:?} is a lock already");
    }

    pub(super) fn convert(
        &mut self,
        lock: LockId,
        mode: Mode,
        timeout: WaitLimit,
        value: Option<[u8; VALUE_LEN]>,
        core: &mut Core,
    ) {
        core.counts.conversions += 1;
        let refused = match self.locks.get(&lock).map(|held| &**held) {
            None => Some(LockRefusal::Unknown),
            Some(Held { hold: Some(hold), pending: None, .. }) => {
                let writes = hold.mode.writes_to(mode);
                match hold.seq {
                    u32::MAX => Some(LockRefusal::TooManyConversions),
                    _ => (value.is_some() && !writes).then_some(LockRefusal::NotWriter),
                }
            }
            Some(_) => Some(LockRefusal::Busy),
        };
        match refused {
            Some(why) => core.out.push(Action::Refused { lock, why }),
            None => self.ask(lock, mode, timeout, value, core),
        }
    }

    /// Asks the master for what was found to be in order. [`Home::await_answer`] follows.
    fn ask(
        &mut self,
        lock: LockId,
        mode: Mode,
        timeout: WaitLimit,
        write: Option<[u8; VALUE_LEN]>,
        core: &mut Core,
    ) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let until = match timeout {
            WaitLimit::Until(time) => Some(time),
            WaitLimit::Try | WaitLimit::Forever => None,
        };
        let attempt = timeout == WaitLimit::Try;
        held.seq += 1;
        held.pending = Some(Box::new(Pending {
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

    /// What was asked has been done as far as it can be now: sees to it that a request that is not answered does not wait for ever.
    pub(super) fn await_answer(&mut self, lock: LockId, core: &Core) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let unnoted = |pending: &&mut Pending| pending.waits() && pending.due.is_none();
        let Some(pending) = held.pending.as_deref_mut().filter(unnoted) else { return };
        let look = core.now + Nanos(core.config.deadlock_ns);
        let at = pending.until.map_or(look, |until| until.min(look));
        pending.due = Some(at);
        self.waits.add(at, held.owner, lock);
    }

    /// What the master is to be told, if anything.
    pub(super) fn unlock(
        &mut self,
        lock: LockId,
        value: Option<[u8; VALUE_LEN]>,
        core: &mut Core,
    ) -> Option<(PartitionSlot, Unlock)> {
        let may_write = |held: &Held| held.usable().is_some_and(Mode::writes);
        if value.is_some() && self.locks.get(&lock).is_some_and(|held| !may_write(held)) {
            core.out.push(Action::Refused { lock, why: LockRefusal::NotWriter });
            return None;
        }
        let held = self.remove(lock)?;
        if held.pending.is_some() {
            core.counts.cancelled += 1;
            core.out.push(Action::Refused { lock, why: LockRefusal::Cancelled });
        }
        let Held { name, place, .. } = *held;
        Some((place, Unlock { lock, name, died: false, value }))
    }

    pub(super) fn client_gone(&mut self, locks: &[LockId], core: &mut Core) {
        for lock in locks.iter().copied() {
            let Some(held) = self.remove(lock) else { continue };
            // Only what it was told that it has: what the master grants meanwhile, to another of these too, nobody has used.
            let died = held.hold.is_some_and(|hold| hold.mode.writes());
            let Held { name, place, .. } = *held;
            core.ask_master(place, Body::Unlock(Unlock { lock, name, died, value: None }));
        }
    }

    fn remove(&mut self, lock: LockId) -> Option<Box<Held>> {
        let held = self.locks.remove(&lock)?;
        if let Some(pending) = &held.pending {
            self.waits.remove(pending.due, held.owner, lock);
        }
        Some(held)
    }

    /// Asks the master to refuse what waits, if nobody has yet.
    pub(super) fn end(&mut self, lock: LockId, why: LockRefusal, core: &mut Core) {
        let Some(held) = self.locks.get_mut(&lock) else { return };
        let Some(pending) = held.pending.as_mut().filter(|pending| pending.ending.is_none()) else { return };
        pending.ending = Some(why);
        self.waits.remove(pending.due.take(), held.owner, lock);
        if let Some(cancellation) = held.cancellation(lock) {
            core.ask_master(held.place, cancellation);
        }
    }

    /// What is due: ends the wait of those whose timeout is over; the others, with the number of the search, are to look for a deadlock.
    pub(super) fn due(&mut self, core: &mut Core) -> Vec<(LockId, u32)> {
        let mut looking = Vec::new();
        while let Some((at, lock)) = self.waits.due.first().copied().filter(|(at, _)| *at <= core.now) {
            let pending = self.locks.get_mut(&lock).and_then(|held| held.pending.as_mut());
            let pending = pending.expect("who waits is there");
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

    pub(super) fn granted(&mut self, granted: Granted, core: &mut Core) -> Result<(), Fault> {
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

    pub(super) fn refused(&mut self, refused: Refused, core: &mut Core) {
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

    pub(super) fn blocking(&mut self, blocking: Blocking, core: &mut Core) {
        let Blocking { lock, seq, wanted } = blocking;
        let hold = self.locks.get(&lock).and_then(|held| held.hold);
        if hold.is_some_and(|hold| hold.seq == seq) {
            core.counts.blocking += 1;
            core.out.push(Action::Blocking { lock, wanted });
        }
    }

    /// Tells a master that does not know them of all locks in these places: what is held in batches, then what is waited for. What is held comes in
    /// the order in which the master will keep it: there each finds its place beside the last, where it would miss every cache otherwise.
    pub(super) fn report(&self, to: NodeId, need: &PartitionSlots, core: &mut Core) {
        let (mut records, mut requests) = (Vec::new(), Vec::new());
        for (lock, held) in self.locks.iter().filter(|(_, held)| need.contains(held.place)) {
            records.extend(held.record(*lock, core));
            requests.extend(held.request(*lock, core));
            requests.extend(held.cancellation(*lock));
        }
        // What was read in a row is not looked for again here and there.
        records.sort_by_cached_key(|record| record.name.rank());
        let mut records = records.into_iter();
        while !records.as_slice().is_empty() {
            core.send(to, Body::Records(records.by_ref().take(RECORDS).collect()));
        }
        requests.into_iter().for_each(|message| core.send(to, message));
    }
}
