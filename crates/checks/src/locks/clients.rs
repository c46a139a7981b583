//! The actions of lock clients.

use plexus_base::Nanos;
use plexus_locks::protocol::{
    Event, LockId, LockRequest, Mode, NewLock, Owner, RequestKind, VALUE_LEN, WaitLimit,
};

use super::{Id, Lock, Locks, LocksEvent, values};
use crate::{failure::Broken, harness::Instance};

/// The maximum number of locks of a client.
const MOST: usize = 4;

/// A client: one owner until it dies, then another replaces it.
pub(crate) struct Client {
    owner: Owner,
    start_time: u64,
}

impl Locks {
    pub(crate) fn client(&mut self) -> Client {
        self.next_owner += 1;
        Client { owner: Owner(self.next_owner), start_time: self.engine.now() }
    }

    /// Takes one action of a client.
    pub(crate) fn act(&mut self, instance: Instance, client: usize) -> Result<(), Broken> {
        let Instance { node, .. } = instance;
        let own = |(id, lock): (&Id, &Lock)| (id.0 == node && lock.client == client).then_some(*id);
        let all: Vec<Id> = self.locks.iter().filter_map(own).collect();
        let (waiting, held): (Vec<Id>, Vec<Id>) =
            all.into_iter().partition(|id| self.locks[id].asked.is_some());
        if self.ending {
            // A waiting client has not decided yet; it is called again when it is answered.
            if waiting.is_empty() {
                for id in held {
                    self.unlock(id)?;
                }
            }
            return Ok(());
        }
        self.engine.schedule_in(1..=self.params.think_ns, None, LocksEvent::Client(instance, client));
        let random = &mut self.engine.random;
        if random.percent(self.params.client_deaths) {
            return self.die(node, client);
        }
        if !waiting.is_empty() {
            let id = *random.pick(&waiting);
            return match random.below(100) {
                0..4 => self.cancel(id),
                4..6 => self.unlock(id),
                6..20 if self.params.several && waiting.len() + held.len() < MOST => self.lock(node, client),
                _ => Ok(()),
            };
        }
        let called = held.iter().copied().find(|id| self.locks[id].told);
        match random.below(100) {
            0..60 if called.is_some() => called.map_or(Ok(()), |id| self.unlock(id)),
            0..45 if held.len() < MOST => self.lock(node, client),
            45..70 if !held.is_empty() => {
                let id = *self.engine.random.pick(&held);
                self.convert(id)
            }
            70..90 if !held.is_empty() => {
                let id = *self.engine.random.pick(&held);
                self.unlock(id)
            }
            _ => Ok(()),
        }
    }

    fn mode(&mut self) -> Mode {
        let random = &mut self.engine.random;
        let strong = random.percent(self.params.strong);
        *random.pick(if strong {
            &[Mode::EX, Mode::EX, Mode::PW]
        } else {
            &[Mode::NL, Mode::CR, Mode::CW, Mode::PR]
        })
    }

    fn timeout(&mut self) -> WaitLimit {
        let now = self.engine.now();
        let random = &mut self.engine.random;
        match random.below(100) {
            0..20 => WaitLimit::Try,
            20..45 => WaitLimit::Until(Nanos(now + random.below(self.params.think_ns * 4))),
            _ => WaitLimit::Forever,
        }
    }

    fn lock(&mut self, node: usize, client: usize) -> Result<(), Broken> {
        let name = self.engine.random.below(self.names.len() as u64) as usize;
        let worker = usize::from(self.names[name].partition().worker(self.params.workers).0);
        if self.shard(node, worker).is_none() {
            return Ok(());
        }
        let (mode, timeout) = (self.mode(), self.timeout());
        let notify = self.engine.random.percent(70);
        self.next_lock += 1;
        self.operations += 1;
        let lock = LockId(self.next_lock);
        let (granted, asked, told, requests, cancelled) = (None, Some(mode), false, 1, false);
        let since = self.engine.now();
        let new =
            Lock { worker, client, name, granted, asked, notify, told, requests, since, timeout, cancelled };
        self.locks.insert((node, lock), new);
        let Some(up) = self.cluster.node(node) else { return Ok(()) };
        let Client { owner, start_time } = up.clients[client];
        let name = self.names[name].clone();
        let kind = RequestKind::New(NewLock { owner, start_time, name, notify });
        self.handle(node, worker, Event::Request(LockRequest { lock, mode, timeout, kind }))
    }

    fn convert(&mut self, id: Id) -> Result<(), Broken> {
        let (mode, timeout) = (self.mode(), self.timeout());
        self.operations += 1;
        let value = self.written(id, Some(mode));
        let Some(lock) = self.locks.get_mut(&id) else { return Ok(()) };
        (lock.asked, lock.timeout, lock.cancelled) = (Some(mode), timeout, false);
        (lock.requests, lock.since) = (lock.requests + 1, self.engine.now());
        let worker = lock.worker;
        let kind = RequestKind::Conversion { value };
        self.handle(id.0, worker, Event::Request(LockRequest { lock: id.1, mode, timeout, kind }))
    }

    fn cancel(&mut self, id: Id) -> Result<(), Broken> {
        let Some(lock) = self.locks.get_mut(&id) else { return Ok(()) };
        lock.cancelled = true;
        let worker = lock.worker;
        self.handle(id.0, worker, Event::Cancel { lock: id.1 })
    }

    pub(crate) fn unlock(&mut self, id: Id) -> Result<(), Broken> {
        let value = self.written(id, None);
        let Some(lock) = self.locks.get(&id) else { return Ok(()) };
        let worker = lock.worker;
        if lock.asked.is_none() {
            self.locks.remove(&id);
        } else if let Some(lock) = self.locks.get_mut(&id) {
            (lock.granted, lock.cancelled) = (None, true);
        }
        self.handle(id.0, worker, Event::Unlock { lock: id.1, value })
    }

    /// Returns the value to write as the lock changes to mode `to`, or `None`.
    fn written(&mut self, id: Id, to: Option<Mode>) -> Option<[u8; VALUE_LEN]> {
        let from = self.locks.get(&id)?.mode()?;
        let may = from.writes() && to.is_none_or(|to| to.is_within(from));
        (may && self.engine.random.percent(70)).then(|| values::write(self, id, to.is_some()))
    }

    fn die(&mut self, node: usize, client: usize) -> Result<(), Broken> {
        let own: Vec<(Id, usize)> = self
            .locks
            .iter()
            .filter(|(id, lock)| id.0 == node && lock.client == client)
            .map(|(id, lock)| (*id, lock.worker))
            .collect();
        for (id, _) in &own {
            values::ends(self, *id);
            self.locks.remove(id);
        }
        let next = self.client();
        if let Some(up) = self.cluster.node_mut(node) {
            up.clients[client] = next;
        }
        for worker in 0..usize::from(self.params.workers) {
            let here = own.iter().filter(|(_, at)| *at == worker);
            let locks = here.map(|((_, lock), _)| *lock).collect();
            self.handle(node, worker, Event::ClientGone { locks })?;
        }
        Ok(())
    }

    /// Ends all locks of the clients of a dead node.
    pub(crate) fn nodes_locks_end(&mut self, node: usize) {
        let own: Vec<Id> = self.locks.keys().filter(|id| id.0 == node).copied().collect();
        for id in own {
            values::ends(self, id);
            self.locks.remove(&id);
        }
    }

    pub(crate) fn granted(&mut self, id: Id, mode: Mode) {
        if let Some(lock) = self.locks.get_mut(&id) {
            (lock.granted, lock.asked, lock.told) = (Some(mode), None, false);
        }
        self.called_again(id);
    }

    pub(crate) fn refused(&mut self, id: Id) {
        let Some(lock) = self.locks.get_mut(&id) else { return };
        lock.asked = None;
        let held = lock.granted.is_some();
        self.called_again(id);
        if !held {
            self.locks.remove(&id);
        }
    }

    pub(crate) fn blocking(&mut self, id: Id) {
        if let Some(lock) = self.locks.get_mut(&id) {
            lock.told = true;
        }
    }

    /// Calls a client again after an answer; at the end clients act only then.
    fn called_again(&mut self, id: Id) {
        if self.ending
            && let Some(lock) = self.locks.get(&id)
        {
            let (instance, client) = (self.cluster.instance(id.0), lock.client);
            self.engine.schedule_in(1..=self.params.think_ns, None, LocksEvent::Client(instance, client));
        }
    }
}
