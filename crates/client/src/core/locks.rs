//! What the program asked the lock manager for, what it has, and what it was told.

use std::collections::{BTreeMap, HashMap};

use plexus_base::{
    Partition, hash,
    locks::{Grant, LockRefusal, Mode, Token, VALUE_LEN},
};

use super::{Core, Finished, Limited, Waiting};
use crate::{
    Error,
    locks::{LockEvent, LockKey, LockNews, Mark},
    wire::{
        Head, Status, Use, Verb,
        lock::{ConvertRequest, LockRequest, decode_grant},
    },
};

/// Where it is said what happens to a lock, and under which mark.
#[derive(Clone, Copy)]
pub(crate) struct Post {
    pub(crate) queue: u64,
    pub(crate) mark: Mark,
}

/// A lock that the program has or waits for.
struct Held {
    asked: Option<Asked>,
    grant: Option<Grant>,
    wanted: Option<Mode>,
    post: Option<Post>,
    /// Its events that nobody has taken yet, by their places in the queue.
    events: Vec<u64>,
}

/// A request that is not answered yet.
struct Asked {
    id: u64,
    mode: Mode,
    /// Its answer is an event of the lock's queue.
    posted: bool,
}

impl Held {
    /// Whether the value block may be written now.
    fn may_write(&self) -> bool {
        let asked = self.asked.as_ref().map(|asked| asked.mode);
        self.grant.is_some_and(|grant| grant.mode.usable(asked).writes())
    }
}

/// What has happened to locks of a queue.
#[derive(Default)]
struct Queue {
    /// In the order in which they happened.
    events: BTreeMap<u64, (LockKey, LockEvent)>,
    last: u64,
    /// That all are lost was said.
    told_lost: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    held: HashMap<LockKey, Held>,
    queues: HashMap<u64, Queue>,
    /// Locks that were given up, and whose queue is to be told when their node knows.
    ending: HashMap<u64, (Post, LockKey)>,
    last: u32,
    /// None of them protects anything any more.
    lost: bool,
}

impl Locks {
    pub(crate) fn has_news(&self) -> bool {
        self.queues.values().any(|queue| !queue.events.is_empty() || self.lost && !queue.told_lost)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn open_queue(&mut self, queue: u64) {
        self.queues.insert(queue, Queue::default());
    }

    /// Something happened to a lock, or to one that was given up.
    fn push(&mut self, post: Post, key: LockKey, news: LockNews) {
        let Some(queue) = self.queues.get_mut(&post.queue) else { return };
        queue.last += 1;
        queue.events.insert(queue.last, (key, LockEvent { cookie: post.mark.cookie, news }));
        if let Some(held) = self.held.get_mut(&key) {
            held.events.push(queue.last);
        }
    }

    /// The next event of a queue.
    fn pop(&mut self, queue: u64) -> Option<LockEvent> {
        let (place, (key, event)) = self.queues.get_mut(&queue)?.events.pop_first()?;
        if let Some(held) = self.held.get_mut(&key) {
            held.events.retain(|of_it| *of_it != place);
        }
        Some(event)
    }

    /// That others wait for a lock, if that was said and not heard.
    pub(crate) fn take_wanted(&mut self, key: LockKey) -> Option<Mode> {
        self.held.get_mut(&key)?.wanted.take()
    }
}

impl Core {
    /// Asks for a lock; its key, and the number of the request.
    pub(crate) fn lock(
        &mut self,
        request: &LockRequest<'_>,
        post: Option<Post>,
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
        let id = self.ask_limited(Limited::Lock, worker.index(), head, &request.encode())?;
        let key = LockKey { worker: worker.0, number };
        let asked = Some(Asked { id, mode: request.mode, posted });
        self.locks.held.insert(key, Held { asked, grant: None, wanted: None, post, events: Vec::new() });
        if posted {
            self.abandon(id);
        }
        Ok((key, id))
    }

    /// Asks for another mode; the number of the request.
    pub(crate) fn convert(
        &mut self,
        key: LockKey,
        request: &ConvertRequest,
        mark: Option<Mark>,
        posted: bool,
    ) -> Result<u64, Error> {
        self.verify_locks()?;
        let refuse = |why| Err(Error::NotLocked(why));
        let Some(held) = self.locks.held.get(&key) else { return refuse(LockRefusal::Unknown) };
        let Some(grant) = held.grant.filter(|_| held.asked.is_none()) else {
            return refuse(LockRefusal::Busy);
        };
        if request.value.is_some() && !grant.mode.writes_to(request.mode) {
            return refuse(LockRefusal::NotWriter);
        }
        let head = Head { port: key.number, ..Head::new(Verb::Convert, Use::Locks) };
        let id = self.ask_limited(Limited::Lock, usize::from(key.worker), head, &request.encode())?;
        if let Some(held) = self.locks.held.get_mut(&key) {
            held.asked = Some(Asked { id, mode: request.mode, posted });
            if let (Some(post), Some(mark)) = (&mut held.post, mark) {
                post.mark = mark;
            }
        }
        if posted {
            self.abandon(id);
        }
        Ok(id)
    }

    /// Gives a lock up, whether the program has it or waits for it. Whoever waits for an answer has it from the node.
    pub(crate) fn unlock(&mut self, key: LockKey, value: Option<[u8; VALUE_LEN]>) -> Result<(), Error> {
        self.give_up(key, value)?;
        let head = Head { port: key.number, ..Head::new(Verb::Unlock, Use::Locks) };
        self.send(usize::from(key.worker), head, value.as_ref().map_or(&[], <[u8; VALUE_LEN]>::as_slice));
        Ok(())
    }

    /// The same; its queue is told when the lock's node knows, and of what was asked for it nothing more.
    pub(crate) fn unlock_posted(
        &mut self,
        key: LockKey,
        value: Option<[u8; VALUE_LEN]>,
    ) -> Result<(), Error> {
        self.verify_locks()?;
        let post = self.give_up(key, value)?;
        let head = Head { port: key.number, ..Head::new(Verb::Unlock, Use::Locks) };
        let value = value.as_ref().map_or(&[][..], <[u8; VALUE_LEN]>::as_slice);
        let id = self.ask(usize::from(key.worker), head, value);
        self.abandon(id);
        self.locks.ending.extend(post.map(|post| (id, (post, key))));
        Ok(())
    }

    /// Forgets a lock with its events; where news of it was posted.
    fn give_up(&mut self, key: LockKey, value: Option<[u8; VALUE_LEN]>) -> Result<Option<Post>, Error> {
        let held = match self.locks.held.get(&key) {
            Some(held) if value.is_some() && !held.may_write() => {
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

    /// Asks that what is asked for a lock be answered soon.
    pub(crate) fn cancel_lock(&mut self, key: LockKey) -> Result<(), Error> {
        let Some(held) = self.locks.held.get(&key) else {
            return Err(Error::NotLocked(LockRefusal::Unknown));
        };
        if held.asked.is_some() {
            let head = Head { port: key.number, ..Head::new(Verb::Cancel, Use::Locks) };
            self.send(usize::from(key.worker), head, &[]);
        }
        Ok(())
    }

    /// The next event of a queue; that all is lost comes last.
    pub(crate) fn lock_event(&mut self, queue: u64) -> Option<Result<LockEvent, Error>> {
        if let Some(event) = self.locks.pop(queue) {
            return Some(Ok(event));
        }
        let queue = self.locks.queues.get_mut(&queue)?;
        queue.told_lost = self.locks.lost;
        self.locks.lost.then_some(Err(Error::LocksLost))
    }

    /// Ends a queue, and gives all its locks up.
    pub(crate) fn close_lock_queue(&mut self, queue: u64) {
        self.locks.queues.remove(&queue);
        let of_it = |held: &Held| held.post.is_some_and(|post| post.queue == queue);
        let keys: Vec<LockKey> =
            self.locks.held.iter().filter(|(_, held)| of_it(held)).map(|(key, _)| *key).collect();
        for key in keys {
            // Without a value there is nothing to refuse.
            let _ = self.unlock(key, None);
        }
    }

    fn verify_locks(&self) -> Result<(), Error> {
        match (&self.ended, self.locks.lost) {
            (Some(why), _) => Err(Error::NodeLost(why.clone())),
            (None, true) => Err(Error::LocksLost),
            (None, false) => Ok(()),
        }
    }

    /// A request is answered: what is known of its lock.
    pub(super) fn lock_answered(&mut self, worker: usize, head: &Head, payload: &[u8]) {
        if let Some((post, key)) = self.locks.ending.remove(&head.id) {
            return self.locks.push(post, key, LockNews::Unlocked);
        }
        let key = LockKey { worker: worker as u8, number: head.port };
        let Some(held) = self.locks.held.get_mut(&key) else { return };
        let Some(asked) = held.asked.take_if(|asked| asked.id == head.id) else { return };
        let answer = answer(head.status, head.value, payload);
        if let Ok(grant) = &answer {
            (held.grant, held.wanted) = (Some(*grant), None);
        }
        let post = held.post.filter(|_| asked.posted);
        if held.grant.is_none() {
            self.locks.held.remove(&key);
        }
        if let Some(post) = post {
            self.locks.push(post, key, LockNews::Answered(answer));
        }
    }

    /// Others wait for a lock.
    pub(super) fn lock_wanted(&mut self, worker: usize, head: &Head) {
        let key = LockKey { worker: worker as u8, number: head.port };
        let Some(mode) = u8::try_from(head.value).ok().and_then(Mode::from_wire) else { return };
        let Some(held) = self.locks.held.get_mut(&key).filter(|held| held.grant.is_some()) else { return };
        held.wanted = Some(mode);
        if let Some(post) = held.post.filter(|post| post.mark.wanted) {
            self.locks.push(post, key, LockNews::Wanted(mode));
        }
    }

    /// No lock protects anything any more, and no request will be answered.
    pub(super) fn locks_lost(&mut self) {
        self.locks.lost = true;
        for (post, key) in std::mem::take(&mut self.locks.ending).into_values() {
            self.locks.push(post, key, LockNews::Unlocked);
        }
        let asked = self.locks.held.iter_mut();
        let asked: Vec<_> =
            asked.filter_map(|(key, held)| Some((*key, held.asked.take()?, held.post))).collect();
        for (key, asked, post) in asked {
            match post.filter(|_| asked.posted) {
                Some(post) => self.locks.push(post, key, LockNews::Answered(Err(Error::LocksLost))),
                None => {
                    let none = Finished { status: Status::Stopped, port: 0, value: 0, bytes: Vec::new() };
                    if let Some((_, waiting)) = self.waiting.get_mut(&asked.id) {
                        *waiting = Waiting::Finished(none);
                    }
                }
            }
        }
    }
}

/// What a request came to.
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
