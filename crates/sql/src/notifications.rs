//! LISTEN and NOTIFY: the notifications of transactions, for sessions of all nodes.
//!
//! Nodes exchange notifications as messages of a group, so each node gets each of them once, in one
//! order, also those of its own sessions. A transaction sends them behind its commit, and its
//! session goes on when they have their place in the order.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use plexus_base::{
    NodeId,
    wire::{self, DecodeError, Fault, Fixed, Writer},
};
use plexus_interconnect::{Reply, executor};
use plexus_membership::groups::{
    GroupError, GroupSender, Groups,
    protocol::{GroupMember, Happened, MAX_MESSAGE, Name},
};

use crate::{
    activity::Activity,
    error::{self, SqlError, code, fail},
    functions::invalid_parameter,
};

/// The longest name of a channel, and the longest payload, in bytes, as in PostgreSQL.
const MAX_CHANNEL: usize = 63;
const MAX_PAYLOAD: usize = 7999;

/// The most channels of a session.
const MOST_CHANNELS: usize = 10_000;

/// The most bytes of the notifications of a transaction.
const MOST_PENDING: usize = 16 << 20;

/// The most bytes of the notifications that sessions of a node have not read.
const MOST_UNREAD: usize = 64 << 20;

/// The bytes that a notification takes beside its texts.
const OVERHEAD: usize = size_of::<Notification>() + 32;

/// The group in which nodes exchange notifications.
const GROUP: &[u8] = b"plexus sql";

/// The wait before a message is sent again because too many wait.
const AGAIN: Duration = Duration::from_millis(1);

wire::layout! {
    struct Head: 16 { number: u64, database: u32, process: u32 }
}

wire::layout! {
    struct Lengths: 4 { channel: u16, payload: u16 }
}

/// A notification for the sessions of a database that listen to its channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notification {
    database: u32,
    /// The session that has sent it.
    pub(crate) process: i32,
    pub(crate) channel: String,
    pub(crate) payload: String,
}

impl Notification {
    fn bytes(&self) -> usize {
        OVERHEAD + self.channel.len() + self.payload.len()
    }
}

/// Reads a message: the number that its sender has given it, and its notifications.
fn decode(bytes: &[u8]) -> Result<(u64, Vec<Notification>), DecodeError> {
    wire::decode("notifications of SQL", bytes, |reader| {
        let Head { number, database, process } = reader.take()?;
        let mut notifications = Vec::new();
        while !reader.is_empty() {
            let Lengths { channel, payload } = reader.take()?;
            let mut text = |len: u16| {
                let text = std::str::from_utf8(reader.bytes(len)?);
                text.map(str::to_owned).map_err(|_| Fault::Field("text"))
            };
            let (channel, payload) = (text(channel)?, text(payload)?);
            notifications.push(Notification { database, process: process as i32, channel, payload });
        }
        Ok((number, notifications))
    })
}

/// A session that listens.
struct Listener {
    database: u32,
    channels: BTreeSet<String>,
    /// The number of a notification before which it has read all.
    next: Option<u64>,
    activity: Arc<Activity>,
}

impl Listener {
    fn wants(&self, notification: &Notification) -> bool {
        notification.database == self.database && self.channels.contains(&notification.channel)
    }
}

/// The notifications that sessions of this node have not read, and the sessions.
#[derive(Default)]
struct Unread {
    notifications: VecDeque<Arc<Notification>>,
    /// The number of the first one.
    first: u64,
    bytes: usize,
    /// The sessions that listen, by their process numbers.
    listeners: BTreeMap<i32, Listener>,
    /// The last number of a message of this node, and those who wait for their place.
    sent: u64,
    waiting: HashMap<u64, Reply<()>>,
}

impl Unread {
    fn add(&mut self, notification: Notification) {
        let number = self.first + self.notifications.len() as u64;
        let mut is_wanted = false;
        for listener in self.listeners.values_mut().filter(|listener| listener.wants(&notification)) {
            is_wanted = true;
            listener.next.get_or_insert(number);
            listener.activity.notify(true);
        }
        if is_wanted {
            self.bytes += notification.bytes();
            self.notifications.push_back(Arc::new(notification));
        }
        while self.bytes > MOST_UNREAD {
            self.forget_first();
        }
    }

    /// Forgets the oldest notification, and ends the sessions that have not read it.
    fn forget_first(&mut self) {
        let Some(notification) = self.notifications.pop_front() else { return };
        self.bytes -= notification.bytes();
        self.first += 1;
        let first = self.first;
        self.listeners.retain(|_, listener| {
            let is_late = listener.next.is_some_and(|next| next < first);
            if is_late {
                listener
                    .activity
                    .end_because("terminating connection because it does not read its notifications");
            }
            !is_late
        });
    }

    fn next(&mut self, process: i32) -> Option<Arc<Notification>> {
        let listener = self.listeners.get_mut(&process)?;
        let from = (listener.next? - self.first) as usize;
        let mut rest = self.notifications.range(from..).zip(self.first + from as u64 + 1..);
        if let Some((notification, next)) = rest.find(|(notification, _)| listener.wants(notification)) {
            listener.next = Some(next);
            return Some(notification.clone());
        }
        listener.next = None;
        listener.activity.notify(false);
        if self.listeners.values().all(|listener| listener.next.is_none()) {
            self.first += self.notifications.len() as u64;
            (self.notifications, self.bytes) = (VecDeque::new(), 0);
        }
        None
    }
}

#[derive(Default)]
struct Board(Mutex<Unread>);

impl Board {
    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of the group for this node. When they end, nothing waits for them.
struct Events(Arc<Board>);

impl Events {
    fn take(&self, me: NodeId, from: GroupMember, bytes: &[u8]) {
        let (number, notifications) = match decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return tracing::error!("a message of {}: {error}", from.node),
        };
        let mut unread = self.0.lock();
        notifications.into_iter().for_each(|notification| unread.add(notification));
        let sender = if from.node == me { unread.waiting.remove(&number) } else { None };
        drop(unread);
        sender.into_iter().for_each(|sender| sender.send(()));
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        drop(mem::take(&mut self.0.lock().waiting));
    }
}

/// The notifications of a node.
pub(crate) struct Notifications {
    board: Arc<Board>,
    group: GroupSender,
}

impl Notifications {
    /// Joins the nodes that exchange notifications.
    pub(crate) fn start(groups: &Groups, me: NodeId) -> Result<Self, GroupError> {
        let board = Arc::new(Board::default());
        let events = Events(board.clone());
        let name = Name::new(GROUP).expect("a short name");
        let group = groups.join_with(name, move |what| {
            if let Happened::Message { from, bytes } = what {
                events.take(me, from, &bytes);
            }
        })?;
        Ok(Self { board, group })
    }

    /// Sends notifications of one session, and waits until they have their place in the order.
    async fn send(&self, notifications: Vec<Notification>) {
        let mut rest = notifications.iter().peekable();
        while let Some(Notification { database, process, .. }) = rest.peek() {
            let (reply, placed) = Reply::new();
            let number = {
                let mut unread = self.board.lock();
                unread.sent += 1;
                let number = unread.sent;
                unread.waiting.insert(number, reply);
                number
            };
            let head = Head { number, database: *database, process: *process as u32 };
            let mut message = Writer::with(&head, 0);
            let has_room = |notification: &Notification, message: &Writer| {
                let more = Lengths::LEN + notification.channel.len() + notification.payload.len();
                message.so_far().len() + more <= MAX_MESSAGE
            };
            while let Some(Notification { channel, payload, .. }) =
                rest.next_if(|next| has_room(next, &message))
            {
                message.put(&Lengths { channel: channel.len() as u16, payload: payload.len() as u16 });
                message.bytes(channel.as_bytes()).bytes(payload.as_bytes());
            }
            let message = message.finish();
            loop {
                match self.group.send(&message).await {
                    Some(Ok(())) => break,
                    Some(Err(_)) => executor::sleep(AGAIN).await,
                    // The node ends.
                    None => return,
                }
            }
            if placed.await.is_none() {
                return;
            }
        }
    }
}

/// The requests of a transaction so far.
#[derive(Default, Debug)]
struct Pending {
    /// The channels to listen to, or no longer; `None` is all of them.
    listens: Vec<(Option<String>, bool)>,
    notifications: Vec<(String, String)>,
    /// The same ones.
    known: HashSet<(String, String)>,
    bytes: usize,
}

/// The notifications of a session.
pub(crate) struct SessionNotifications {
    /// `None` in tests of other parts.
    node: Option<Arc<Notifications>>,
    activity: Arc<Activity>,
    database: u32,
    process: i32,
    pending: RefCell<Pending>,
}

impl fmt::Debug for SessionNotifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pending.fmt(f)
    }
}

/// Returns the memory that a notification of a transaction takes, about.
fn bytes_of((channel, payload): &(String, String)) -> usize {
    OVERHEAD + 2 * (channel.len() + payload.len())
}

impl SessionNotifications {
    pub(crate) fn new(
        node: Option<Arc<Notifications>>,
        activity: Arc<Activity>,
        database: u32,
        process: i32,
    ) -> Self {
        Self { node, activity, database, process, pending: RefCell::default() }
    }

    /// Listens to a channel from the end of the transaction on, or no longer; without a channel, to
    /// none of them.
    pub(crate) fn listen(&self, channel: Option<String>, listens: bool) -> error::Result<()> {
        channel.iter().try_for_each(|channel| check_channel(channel))?;
        let mut pending = self.pending.borrow_mut();
        if pending.listens.len() + if listens { self.channels().len() } else { 0 } >= MOST_CHANNELS {
            fail!(PROGRAM_LIMIT, "a session listens to at most {MOST_CHANNELS} channels");
        }
        // What is said twice in a row is one.
        if pending.listens.last() != Some(&(channel.clone(), listens)) {
            pending.listens.push((channel, listens));
        }
        Ok(())
    }

    /// Sends a notification at the end of the transaction, unless it has sent the same one.
    pub(crate) fn notify(&self, channel: &str, payload: &str) -> error::Result<()> {
        check_channel(channel)?;
        if payload.len() > MAX_PAYLOAD {
            return Err(invalid_parameter("payload string too long"));
        }
        let mut pending = self.pending.borrow_mut();
        let notification = (channel.to_owned(), payload.to_owned());
        if pending.known.contains(&notification) {
            return Ok(());
        }
        pending.bytes += bytes_of(&notification);
        if pending.bytes > MOST_PENDING {
            return Err(SqlError::new(code::PROGRAM_LIMIT, "too many notifications in the NOTIFY queue"));
        }
        pending.known.insert(notification.clone());
        pending.notifications.push(notification);
        Ok(())
    }

    /// Returns the place behind what the transaction has asked for so far.
    pub(crate) fn mark(&self) -> (usize, usize) {
        let pending = self.pending.borrow();
        (pending.listens.len(), pending.notifications.len())
    }

    /// Forgets what is behind a place.
    pub(crate) fn rollback_to(&self, (listens, notifications): (usize, usize)) {
        let pending = &mut *self.pending.borrow_mut();
        pending.listens.truncate(listens);
        for notification in pending.notifications.drain(notifications..) {
            pending.bytes -= bytes_of(&notification);
            pending.known.remove(&notification);
        }
    }

    /// Returns the channels to which the session listens.
    pub(crate) fn channels(&self) -> Vec<String> {
        let Some(node) = &self.node else { return Vec::new() };
        let unread = node.board.lock();
        let listener = unread.listeners.get(&self.process);
        listener.map_or_else(Vec::new, |listener| listener.channels.iter().cloned().collect())
    }

    /// Does what a transaction has asked for if it is committed, and forgets it.
    pub(crate) async fn end_transaction(&self, is_committed: bool) {
        let Pending { listens, notifications, .. } = self.pending.take();
        let Some(node) = self.node.as_ref().filter(|_| is_committed) else { return };
        if !listens.is_empty() {
            self.change_channels(node, listens);
        }
        if !notifications.is_empty() {
            let (database, process) = (self.database, self.process);
            let notification = |(channel, payload)| Notification { database, process, channel, payload };
            node.send(notifications.into_iter().map(notification).collect()).await;
        }
    }

    fn change_channels(&self, node: &Notifications, changes: Vec<(Option<String>, bool)>) {
        let mut unread = node.board.lock();
        let (activity, database) = (&self.activity, self.database);
        let listener = unread.listeners.entry(self.process).or_insert_with(|| Listener {
            database,
            channels: BTreeSet::new(),
            next: None,
            activity: activity.clone(),
        });
        for (channel, listens) in changes {
            match channel {
                None => listener.channels.clear(),
                Some(channel) if listens => drop(listener.channels.insert(channel)),
                Some(channel) => drop(listener.channels.remove(&channel)),
            }
        }
        if listener.channels.is_empty() && listener.next.is_none() {
            unread.listeners.remove(&self.process);
        }
    }

    /// Returns the next notification for the client.
    pub(crate) fn next(&self) -> Option<Arc<Notification>> {
        let node = self.node.as_ref().filter(|_| self.activity.is_notified())?;
        node.board.lock().next(self.process)
    }
}

impl Drop for SessionNotifications {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            node.board.lock().listeners.remove(&self.process);
        }
    }
}

fn check_channel(channel: &str) -> error::Result<()> {
    match channel.len() {
        0 => Err(invalid_parameter("channel name cannot be empty")),
        1..=MAX_CHANNEL => Ok(()),
        _ => Err(invalid_parameter("channel name too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(channel: &str, payload: &str) -> Notification {
        Notification { database: 1, process: 7, channel: channel.into(), payload: payload.into() }
    }

    fn listener(unread: &mut Unread, process: i32, channels: &[&str]) -> Arc<Activity> {
        let activity = Arc::new(Activity::new(0, "a".into(), "b".into(), "c".into(), None, None));
        let channels = channels.iter().map(|channel| (*channel).to_owned()).collect();
        let listener = Listener { database: 1, channels, next: None, activity: activity.clone() };
        unread.listeners.insert(process, listener);
        activity
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_hostile_ones_are_refused() {
        let mut message = Writer::with(&Head { number: 3, database: 1, process: 7 }, 0);
        for (channel, payload) in [("a", "one"), ("b", "")] {
            message.put(&Lengths { channel: channel.len() as u16, payload: payload.len() as u16 });
            message.bytes(channel.as_bytes()).bytes(payload.as_bytes());
        }
        let bytes = message.finish();
        assert_eq!(decode(&bytes), Ok((3, vec![notification("a", "one"), notification("b", "")])));
        (1..bytes.len()).filter(|len| ![16, 24].contains(len)).for_each(|len| {
            assert!(decode(&bytes[..len]).is_err(), "{len}");
        });
        let mut bad = bytes;
        bad[20] = 0xff;
        assert!(decode(&bad).is_err(), "no text");
    }

    #[test]
    fn each_session_reads_its_channels_and_one_that_reads_nothing_is_ended() {
        let mut unread = Unread::default();
        let reads = listener(&mut unread, 1, &["a"]);
        let lags = listener(&mut unread, 2, &["a", "b"]);
        let other = listener(&mut unread, 3, &["b"]);
        unread.add(notification("c", ""));
        assert!(unread.notifications.is_empty() && !reads.is_notified());
        let long = "x".repeat(MAX_PAYLOAD);
        let mut count = 0;
        while unread.listeners.contains_key(&2) {
            unread.add(notification("a", &long));
            assert_eq!(unread.next(1).unwrap().payload, long);
            assert!(unread.next(1).is_none() && !reads.is_notified());
            count += 1;
        }
        assert!(count * MAX_PAYLOAD > MOST_UNREAD - (1 << 20) && unread.bytes <= MOST_UNREAD);
        assert!(lags.is_notified() && !other.is_notified());
        // Nothing is kept for those that have read all.
        unread.add(notification("a", ""));
        assert!(unread.next(1).is_some() && unread.next(1).is_none());
        assert!(unread.notifications.is_empty() && unread.bytes == 0);
    }
}
