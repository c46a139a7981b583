//! The lost blocks of the cluster, as this node has them on record, and their acceptance by an
//! operator while nodes run.
//!
//! The masters decide which blocks are lost. This module counts them, and repeats a request for
//! acceptance until it is done.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use plexus_base::BlockId;
use plexus_cache::{CacheTask, protocol::Lost};

use super::NodeRuntime;

/// How long the members may take to put on record that nothing is lost any more.
const ACCEPT_WITHIN: Duration = Duration::from_secs(30);

/// How often it is asked for: what a change of members breaks off must be begun again.
const AGAIN_EVERY: Duration = Duration::from_millis(20);

/// The number of lost blocks. It is counted again only after a change, because that reads every
/// block.
#[derive(Default)]
pub(super) struct Counted(Mutex<(Lost, u64)>);

impl Counted {
    fn count(&self, lost: Lost, blocks: u64) -> u64 {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.0 != lost {
            let number = (0..blocks).filter(|block| lost.contains(BlockId(*block))).count();
            *counted = (lost, number as u64);
        }
        counted.1
    }
}

impl NodeRuntime {
    /// Blocks that are refused because their latest version went down with a node.
    pub fn blocks_lost(&self) -> u64 {
        self.lost.count(self.recorder.known_lost(), self.config.blocks)
    }

    /// Makes all masters accept lost blocks as they are on the disks, and waits until that is on
    /// record here. Returns the number of these blocks.
    ///
    /// # Errors
    /// More blocks were lost meanwhile, a member did not answer, or the members kept changing. The
    /// text is one line for the user.
    pub fn accept_lost(&self) -> Result<u64, String> {
        let asked = Arc::new(self.recorder.known_lost());
        let lost = self.lost.count(Lost::clone(&asked), self.config.blocks);
        let end = Instant::now() + ACCEPT_WITHIN;
        loop {
            let now = self.recorder.known_lost();
            if now.is_empty() {
                return Ok(lost);
            }
            if !now.is_within(&asked) {
                return Err("more was lost meanwhile: look at `plexus status`, then accept again".into());
            }
            if Instant::now() >= end {
                return Err(format!(
                    "{} blocks are lost still: a member does not answer, or members change; see `plexus status`, then try again",
                    self.blocks_lost()
                ));
            }
            self.shards().tell(|| CacheTask::AcceptLost(Arc::clone(&asked)));
            thread::sleep(AGAIN_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_losses_are_counted_again() {
        let counted = Counted::default();
        let mut lost = Lost::default();
        assert_eq!(counted.count(lost.clone(), 100), 0);
        lost.insert_block(BlockId(7));
        lost.insert_block(BlockId(70));
        assert_eq!(counted.count(lost.clone(), 100), 2);
        lost.insert_block(BlockId(170));
        assert_eq!(counted.count(lost.clone(), 100), 2, "the group ends before it");
        lost.remove(BlockId(7));
        assert_eq!(counted.count(lost, 100), 1);
    }
}
