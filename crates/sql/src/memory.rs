//! The memory for rows that the statements of a node keep, all together.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::error::{Result, error};

/// A statement asks for so many bytes at a time.
const PART: usize = 4 << 20;

/// The memory of a node.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    most: usize,
    used: AtomicUsize,
}

impl NodeMemory {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicUsize::new(0) })
    }
}

/// The part of it that the present statement of a session has.
#[derive(Debug)]
pub(crate) struct StatementMemory {
    node: Arc<NodeMemory>,
    own: Cell<usize>,
}

impl StatementMemory {
    pub(crate) fn new(node: Arc<NodeMemory>) -> Self {
        Self { node, own: Cell::new(0) }
    }

    /// Holds so much until the end of the statement. The first part is free.
    ///
    /// # Errors
    /// The statements of the node have no more.
    pub(crate) fn hold(&self, bytes: usize) -> Result<()> {
        let wanted = bytes / PART * PART;
        let more = wanted.saturating_sub(self.own.get());
        if more == 0 {
            return Ok(());
        }
        let add = |used: usize| Some(used + more).filter(|used| *used <= self.node.most);
        if self.node.used.fetch_update(Relaxed, Relaxed, add).is_err() {
            let most = self.node.most >> 20;
            let message = format!("out of memory: the statements of this node keep rows of {most} MiB");
            let hint = "Set memory_mib in the table [sql] of cluster.toml, or a lower work_mem.";
            return Err(error!(OUT_OF_MEMORY, "{message}").with_hint(hint));
        }
        self.own.set(wanted);
        Ok(())
    }

    /// Gives all back.
    pub(crate) fn end_statement(&self) {
        self.node.used.fetch_sub(self.own.take(), Relaxed);
    }
}

impl Drop for StatementMemory {
    fn drop(&mut self) {
        self.end_statement();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_share_the_memory_and_give_it_back_at_their_end() {
        let node = NodeMemory::new(3 * PART);
        let [one, other] = [(); 2].map(|()| StatementMemory::new(node.clone()));
        one.hold(PART - 1).unwrap();
        one.hold(2 * PART + 5).unwrap();
        other.hold(PART).unwrap();
        assert_eq!(other.hold(2 * PART).unwrap_err().code, "53200");
        one.end_statement();
        other.hold(3 * PART).unwrap();
        drop(other);
        one.hold(3 * PART).unwrap();
    }
}
