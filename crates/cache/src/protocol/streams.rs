//! Reports and what is published, a window at a time: however much there is to say, little of it is under way.

use std::collections::VecDeque;

use plexus_base::{BlockId, NodeId};

use super::{directory::Fault, message::Body};

/// Items that are under way to one node at most.
const WINDOW: u32 = 512;

/// Items after which the receiver asks for more.
const STEP: u32 = WINDOW / 2;

/// What goes to one node.
#[derive(Debug, Default)]
struct Stream {
    waiting: VecDeque<(BlockId, Body)>,
    under_way: u32,
    /// Of what comes from there, taken since more was asked for.
    taken: u32,
}

/// To and from all nodes.
#[derive(Debug)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| Stream::default()).collect())
    }

    /// What was to be said in the last view is not said any more.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.0.len());
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.0.iter().all(|stream| stream.waiting.is_empty())
    }

    pub(super) fn push(&mut self, to: NodeId, block: BlockId, item: Body) {
        self.0[to.index()].waiting.push_back((block, item));
    }

    /// The next item that may go to `to` now.
    pub(super) fn next(&mut self, to: NodeId) -> Option<(BlockId, Body)> {
        let stream = &mut self.0[to.index()];
        if stream.under_way == WINDOW {
            return None;
        }
        let next = stream.waiting.pop_front()?;
        stream.under_way += 1;
        Some(next)
    }

    /// An item came; whether its sender is to be told to go on.
    pub(super) fn took(&mut self, from: NodeId) -> bool {
        let taken = &mut self.0[from.index()].taken;
        *taken += 1;
        let full = *taken == STEP;
        if full {
            *taken = 0;
        }
        full
    }

    /// The receiver says that it can take more.
    pub(super) fn more(&mut self, from: NodeId) -> Result<(), Fault> {
        let under_way = &mut self.0[from.index()].under_way;
        *under_way = under_way.checked_sub(STEP).ok_or("more is asked for than was sent")?;
        Ok(())
    }
}
