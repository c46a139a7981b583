//! Flow control for reports and publications: only a window of items is under way at a time.

use std::collections::VecDeque;

use plexus_base::{BlockId, NodeId};

use super::{directory::Fault, message::MessageBody};

/// The most items that are under way to one node.
const WINDOW: u32 = 512;

/// The items after which the receiver asks for more.
const STEP: u32 = WINDOW / 2;

/// The items to and from one node.
#[derive(Clone, Hash, Debug, Default)]
struct Stream {
    waiting: VecDeque<(BlockId, MessageBody)>,
    under_way: u32,
    /// The items taken from there since more was asked for.
    taken: u32,
}

/// The streams to and from all nodes.
#[derive(Clone, Hash, Debug)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| Stream::default()).collect())
    }

    /// Drops the items of the last view.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.0.len());
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.0.iter().all(|stream| stream.waiting.is_empty())
    }

    pub(super) fn push(&mut self, to: NodeId, block: BlockId, item: MessageBody) {
        self.0[to.index()].waiting.push_back((block, item));
    }

    /// Returns the next item that may go to `to` now.
    pub(super) fn next(&mut self, to: NodeId) -> Option<(BlockId, MessageBody)> {
        let stream = &mut self.0[to.index()];
        if stream.under_way == WINDOW {
            return None;
        }
        let next = stream.waiting.pop_front()?;
        stream.under_way += 1;
        Some(next)
    }

    /// Counts an item that came. Returns whether its sender is to be told to go on.
    pub(super) fn took(&mut self, from: NodeId) -> bool {
        let taken = &mut self.0[from.index()].taken;
        *taken += 1;
        let full = *taken == STEP;
        if full {
            *taken = 0;
        }
        full
    }

    /// Notes that the receiver can take more.
    pub(super) fn more(&mut self, from: NodeId) -> Result<(), Fault> {
        let under_way = &mut self.0[from.index()].under_way;
        *under_way = under_way.checked_sub(STEP).ok_or("more is asked for than was sent")?;
        Ok(())
    }
}
