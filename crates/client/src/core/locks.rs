//! The locks of the program: its requests, the locks that it holds and their events.

use std::collections::{BTreeMap, HashMap};

use plexus_base::{
    Partition, hash,
    locks::{Grant, LockRefusal, Mode, Token, VALUE_LEN},
};

use super::{ClientCore, Finished, Limited, OperationState};
use crate::{
    Error,
    locks::{EventMark, LockEvent, LockEventKind, LockKey},
    wire::{
        Head, Status, Use, Verb,
        lock::{ConvertRequest, NewLockMessage, decode_grant},
    },
};

/// The queue that gets the events of a lock, and their mark.
#[derive(Clone, Copy)]
pub(crate) struct EventTarget {
    pub(crate) queue: u64,
    pub(crate) mark: EventMark,
}

/// A lock that the program holds or waits for.
struct ProgramLock {
    request: Option<PendingRequest>,
    grant: Option<Grant>,
    wanted: Option<Mode>,
    post: Option<EventTarget>,
    /// The numbers of its events that are still in the queue.
    events: Vec<u64>,
}

/// A request that is not answered yet.
struct PendingRequest {
    id: u64,
    mode: Mode,
    /// True if the answer is an event of the lock's queue.
    posted: bool,
}

impl ProgramLock {
    /// Returns true if the value block may be written now.
    fn may_write(&self) -> bool {
        let requested = self.request.as_ref().map(|request| request.mode);
        self.grant.is_some_and(|grant| grant.mode.usable(requested).writes())
    }
}

/// The events of one queue.
#[derive(Default)]
struct Queue {
    /// The events, in the order in which they happened.
    events: BTreeMap<u64, (LockKey, LockEvent)>,
    last: u64,
    /// The queue has reported that all locks are lost.
    reported_lost: bool,
}

/// A release that the node confirms.
struct Ending {
    /// The queue that gets an event; `None` if a caller waits.
    post: Option<(EventTarget, LockKey)>,
    /// True if the release writes the value block.
    writes: bool,
}

/// The locks, queues and pending releases of an attachment.
#[derive(Default)]
pub(crate) struct Locks {
    held: HashMap<LockKey, ProgramLock>,
    queues: HashMap<u64, Queue>,
    /// Released locks that the node has not confirmed yet.
    ending: HashMap<u64, Ending>,
    last: u32,
    /// True once the locks protect nothing, because the cluster has stopped.
    lost: bool,
}

impl Locks {
    pub(crate) fn has_events(&self) -> bool {
        self.queues.values().any(|queue| !queue.events.is_empty() || self.lost && !queue.reported_lost)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn open_queue(&mut self, queue: u64) {
        self.queues.insert(queue, Queue::default());
    }

    /// Adds an event of a lock, also of one that was released.
    fn push(&mut self, post: EventTarget, key: LockKey, kind: LockEventKind) {
        let Some(queue) = self.queues.get_mut(&post.queue) else { return };
        queue.last += 1;
        queue.events.insert(queue.last, (key, LockEvent { cookie: post.mark.cookie, kind }));
        if let Some(held) = self.held.get_mut(&key) {
            held.events.push(queue.last);
        }
    }

    /// Takes the next event of a queue.
    fn pop(&mut self, queue: u64) -> Option<LockEvent> {
        let (place, (key, event)) = self.queues.get_mut(&queue)?.events.pop_first()?;
        if let Some(held) = self.held.get_mut(&key) {
            held.events.retain(|of_it| *of_it != place);
        }
        Some(event)
    }

    /// Takes the blocking notice of a lock, if there is one.
    pub(crate) fn take_wanted(&mut self, key: LockKey) -> Option<Mode> {
        self.held.get_mut(&key)?.wanted.take()
    }
}

impl ClientCore {
    /// Requests a lock. Returns its key and the number of the request.
    pub(crate) fn lock(
        &mut self,
        request: &NewLockMessage<'_>,
        post: Option<EventTarget>,
        posted: bool,
    ) -> Result<(LockKey, u64), Error> {
        self.verify_locks()?;
        let worker = Partition::of(hash::hash(request.name)).worker(self.pipes.len() as u8);
        let locks = &mut self.locks;
        let number = loop {
            locks.last = locks.last.wrapping_add(1);
            if !locks.held.contains_key(&LockKey { worker: worker.0, number: locks.last }) {
                break locks.last;
            }
        };
        let head = Head { port: number, ..Head::new(Verb::Lock, Use::Locks) };
        let id = self.request_limited(Limited::Lock, worker.index(), head, &request.encode())?;
        let key = LockKey { worker: worker.0, number };
        let request = Some(PendingRequest { id, mode: request.mode, posted });
        self.locks
            .held
            .insert(key, ProgramLock { request, grant: None, wanted: None, post, events: Vec::new() });
        if posted {
            self.abandon(id);
        }
        Ok((key, id))
    }

    /// Requests another mode. Returns the number of the request.
    pub(crate) fn convert(
        &mut self,
        key: LockKey,
        request: &ConvertRequest,
        mark: Option<EventMark>,
        posted: bool,
    ) -> Result<u64, Error> {
        self.verify_locks()?;
        let refuse = |why| Err(Error::NotLocked(why));
        let Some(held) = self.locks.held.get(&key) else { return refuse(LockRefusal::Unknown) };
        let Some(grant) = held.grant.filter(|_| held.request.is_none()) else {
            return refuse(LockRefusal::Busy);
        };
        if request.value.is_some() && !grant.mode.writes_to(request.mode) {
            return refuse(LockRefusal::NotWriter);
        }
        let head = Head { port: key.number, ..Head::new(Verb::Convert, Use::Locks) };
        let id = self.request_limited(Limited::Lock, usize::from(key.worker), head, &request.encode())?;
        if let Some(held) = self.locks.held.get_mut(&key) {
            held.request = Some(PendingRequest { id, mode: request.mode, posted });
            if let (Some(post), Some(mark)) = (&mut held.post, mark) {
                post.mark = mark;
            }
        }
        if posted {
            self.abandon(id);
        }
        Ok(id)
    }

    /// Releases a lock, held or waited for. The node still answers a pending request.
    pub(crate) fn unlock(&mut self, key: LockKey) -> Result<(), Error> {
        self.give_up(key, false)?;
        let head = Head { port: key.number, ..Head::new(Verb::Unlock, Use::Locks) };
        self.send(usize::from(key.worker), head, &[]);
        Ok(())
    }

    /// Releases a lock and writes its value block. The node answers the request, whose number is
    /// returned, when the master has the value.
    pub(crate) fn unlock_writing(&mut self, key: LockKey, value: [u8; VALUE_LEN]) -> Result<u64, Error> {
        self.verify_locks()?;
        self.give_up(key, true)?;
        let id = self.ask_release(key, &value);
        self.locks.ending.insert(id, Ending { post: None, writes: true });
        Ok(id)
    }

    /// Releases a lock. Its queue gets one event when the node has confirmed, and no event of
    /// earlier requests.
    pub(crate) fn unlock_posted(
        &mut self,
        key: LockKey,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<(), Error> {
        self.verify_locks()?;
        let writes = value.is_some();
        let post = self.give_up(key, writes)?.map(|post| (post, key));
        let id = self.ask_release(key, value.as_ref().map_or(&[], <[u8; VALUE_LEN]>::as_slice));
        self.abandon(id);
        self.locks.ending.insert(id, Ending { post, writes });
        Ok(())
    }

    fn ask_release(&mut self, key: LockKey, value: &[u8]) -> u64 {
        let head = Head { port: key.number, ..Head::new(Verb::Unlock, Use::Locks) };
        self.ask(usize::from(key.worker), head, value)
    }

    /// Removes a lock with its events. Returns the queue that it reported to.
    fn give_up(&mut self, key: LockKey, writes: bool) -> Result<Option<EventTarget>, Error> {
        let held = match self.locks.held.get(&key) {
            Some(held) if writes && !held.may_write() => {
                return Err(Error::NotLocked(LockRefusal::NotWriter));
            }
            _ => self.locks.held.remove(&key).ok_or(Error::NotLocked(LockRefusal::Unknown))?,
        };
        if let Some(queue) = held.post.and_then(|post| self.locks.queues.get_mut(&post.queue)) {
            for place in held.events {
                queue.events.remove(&place);
            }
        }
        Ok(held.post)
    }

    /// Asks the node to answer a pending request soon.
    pub(crate) fn cancel_lock(&mut self, key: LockKey) -> Result<(), Error> {
        let Some(held) = self.locks.held.get(&key) else {
            return Err(Error::NotLocked(LockRefusal::Unknown));
        };
        if held.request.is_some() {
            let head = Head { port: key.number, ..Head::new(Verb::Cancel, Use::Locks) };
            self.send(usize::from(key.worker), head, &[]);
        }
        Ok(())
    }

    /// Takes the next event of a queue. The loss of all locks is reported after the last event.
    pub(crate) fn lock_event(&mut self, queue: u64) -> Option<Result<LockEvent, Error>> {
        if let Some(event) = self.locks.pop(queue) {
            return Some(Ok(event));
        }
        let queue = self.locks.queues.get_mut(&queue)?;
        queue.reported_lost = self.locks.lost;
        self.locks.lost.then_some(Err(Error::LocksLost))
    }

    /// Removes a queue and releases all its locks.
    pub(crate) fn close_lock_queue(&mut self, queue: u64) {
        self.locks.queues.remove(&queue);
        let of_it = |held: &ProgramLock| held.post.is_some_and(|post| post.queue == queue);
        let keys: Vec<LockKey> =
            self.locks.held.iter().filter(|(_, held)| of_it(held)).map(|(key, _)| *key).collect();
        for key in keys {
            // A release without a value is never refused.
            let _ = self.unlock(key);
        }
    }

    fn verify_locks(&self) -> Result<(), Error> {
        match (&self.ended, self.locks.lost) {
            (Some(why), _) => Err(Error::NodeLost(why.clone())),
            (None, true) => Err(Error::LocksLost),
            (None, false) => Ok(()),
        }
    }

    /// Handles the answer of a request and updates the state of its lock.
    pub(super) fn lock_answered(&mut self, worker: usize, head: &Head, payload: &[u8]) {
        if let Some(ending) = self.locks.ending.remove(&head.id) {
            // The queue reports that the cluster has stopped after its last event.
            if let Some((post, key)) = ending.post.filter(|_| head.status == Status::Ok) {
                self.locks.push(post, key, LockEventKind::Unlocked);
            }
            return;
        }
        let key = LockKey { worker: worker as u8, number: head.port };
        let Some(held) = self.locks.held.get_mut(&key) else { return };
        let Some(request) = held.request.take_if(|request| request.id == head.id) else { return };
        let answer = answer(head.status, head.value, payload);
        if let Ok(grant) = &answer {
            (held.grant, held.wanted) = (Some(*grant), None);
        }
        let post = held.post.filter(|_| request.posted);
        if held.grant.is_none() {
            self.locks.held.remove(&key);
        }
        if let Some(post) = post {
            self.locks.push(post, key, LockEventKind::Answered(answer));
        }
    }

    /// Handles a blocking notice.
    pub(super) fn lock_wanted(&mut self, worker: usize, head: &Head) {
        let key = LockKey { worker: worker as u8, number: head.port };
        let Some(mode) = u8::try_from(head.value).ok().and_then(Mode::from_wire) else { return };
        let Some(held) = self.locks.held.get_mut(&key).filter(|held| held.grant.is_some()) else { return };
        held.wanted = Some(mode);
        if let Some(post) = held.post.filter(|post| post.mark.wanted) {
            self.locks.push(post, key, LockEventKind::Wanted(mode));
        }
    }

    /// Handles the loss of all locks; no request will be answered.
    pub(super) fn locks_lost(&mut self) {
        self.locks.lost = true;
        for (id, Ending { post, writes }) in std::mem::take(&mut self.locks.ending) {
            match post {
                // A stop releases the lock too, but writes no value.
                Some((post, key)) if !writes => self.locks.push(post, key, LockEventKind::Unlocked),
                Some(_) => {}
                None => self.stopped(id),
            }
        }
        let held = self.locks.held.iter_mut();
        let requests: Vec<_> =
            held.filter_map(|(key, held)| Some((*key, held.request.take()?, held.post))).collect();
        for (key, request, post) in requests {
            match post.filter(|_| request.posted) {
                Some(post) => self.locks.push(post, key, LockEventKind::Answered(Err(Error::LocksLost))),
                None => self.stopped(request.id),
            }
        }
    }

    /// Ends an operation because the cluster has stopped.
    fn stopped(&mut self, id: u64) {
        let none = Finished { status: Status::Stopped, port: 0, value: 0, bytes: Vec::new() };
        if let Some((_, waiting)) = self.waiting.get_mut(&id) {
            *waiting = OperationState::Finished(none);
        }
    }
}

/// Converts the answer of the node to a grant or an error.
pub(crate) fn answer(status: Status, value: u64, bytes: &[u8]) -> Result<Grant, Error> {
    match status {
        Status::Ok => match decode_grant(bytes) {
            Ok((mode, block)) => Ok(Grant { mode, token: Token(value), value: block }),
            Err(error) => Err(Error::NodeLost(error.to_string())),
        },
        Status::Stopped => Err(Error::LocksLost),
        _ => {
            let why = u8::try_from(value).ok().and_then(LockRefusal::from_wire);
            Err(Error::NotLocked(why.unwrap_or(LockRefusal::Unknown)))
        }
    }
}
