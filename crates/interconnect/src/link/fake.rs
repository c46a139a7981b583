//! A scripted rail for tests that records what it was given.

use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard},
};

use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_fabric::{Access, Frame, Health, Lane, Lost, Put, Rail, RailKind, SendError};

use super::{Link, LinkInfo, NewRail, Settings, arrive::encode_closed, protocol::RailClosed};
use crate::{Channel, message::Header};

/// The script and the records of a fake rail.
#[derive(Default)]
pub(crate) struct Script {
    /// The error with which every frame and put is refused.
    pub(crate) refuses: Option<SendError>,
    /// The sends that find no room. Then there is some.
    pub(crate) full: usize,
    /// True if there may be room again.
    has_room: bool,
    /// The reason with which the next flush finds the rail dead.
    pub(crate) dies: Option<Lost>,
    /// The frames that the peer has sent, the oldest first.
    pub(crate) arrivals: VecDeque<(Lane, Vec<u8>)>,
    /// The frames that were taken.
    pub(crate) sent: Vec<Vec<u8>>,
    /// The number of frames that were flushed.
    pub(crate) pushed: usize,
}

/// One handle of the script; the rail has the other.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<Script>>);

impl Fake {
    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    /// Returns true if the rail has not been dropped.
    pub(crate) fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The rail, as it comes to a link.
    pub(crate) fn rail(&self, kind: RailKind) -> Box<dyn Rail> {
        Box::new(FakeRail { fake: self.clone(), kind })
    }

    /// A link to node 1 over this rail alone.
    pub(crate) fn link(&self, kind: RailKind) -> Link {
        let info = LinkInfo::new(NodeId(1), Incarnation(1), WorkerId(0));
        let mut link = Link::new(info, Settings::default(), Arc::default());
        let (rail, health, path) = (self.rail(kind), Health::default(), String::new());
        link.attach(NewRail { slot: 0, generation: 1, rail, health, path });
        link
    }

    /// Adds the peer's notice that it has closed a rail.
    pub(crate) fn add_closed_notice(&self, closed: RailClosed) {
        let frame = [&Header::closed().encode()[..], &encode_closed(closed)].concat();
        self.script().arrivals.push_back((Lane::Prompt, frame));
    }
}

/// A put of `data` on a channel that needs no other rail. Only the peer knows whether it fits its
/// window.
pub(crate) fn put(data: &[u8]) -> (Epoch, Channel, Put<'_>) {
    let window = plexus_fabric::WindowId(1);
    (Epoch(1), Channel::CacheRequests, Put { window, offset: 0, generation: 0, data })
}

struct FakeRail {
    fake: Fake,
    kind: RailKind,
}

impl Rail for FakeRail {
    fn kind(&self) -> RailKind {
        self.kind
    }

    fn send(&mut self, _: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        let mut script = self.fake.script();
        match script.refuses {
            Some(error) => Err(error),
            None if script.full > 0 => {
                script.full -= 1;
                script.has_room = true;
                Err(SendError::Full)
            }
            None => {
                script.sent.push([head, body].concat());
                Ok(())
            }
        }
    }

    fn put(&mut self, lane: Lane, _: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.send(lane, head, body)
    }

    fn write(&mut self, lane: Lane, _: Put<'_>) -> Result<(), SendError> {
        self.send(lane, &[], &[])
    }

    /// Accepts every access.
    fn direct(&mut self, _: Access<'_>) -> Option<Result<u64, SendError>> {
        Some(Ok(0))
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        let mut arrivals = std::mem::take(&mut self.fake.script().arrivals);
        let now = arrivals.len().min(limit);
        arrivals.drain(..now).for_each(|(lane, frame)| deliver(lane, Frame::of(&frame)));
        self.fake.script().arrivals = arrivals;
        Ok(now)
    }

    fn flush(&mut self) -> Result<(), Lost> {
        let mut script = self.fake.script();
        script.pushed = script.sent.len();
        script.dies.take().map_or(Ok(()), Err)
    }

    fn pending(&mut self) -> bool {
        let mut script = self.fake.script();
        std::mem::take(&mut script.has_room) || !script.arrivals.is_empty()
    }

    fn register(&self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        Ok(())
    }
}
