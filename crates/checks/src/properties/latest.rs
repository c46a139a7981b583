//! Checks that reads return the last committed change.
//!
//! A session that holds S or X sees the last committed change. A consistent read sees a change that
//! was the last at some moment between its start and its end. No session sees a change half done.

use plexus_base::BlockId;

use crate::{failure::Broken, page::Page};

/// The committed pages, as a global observer knows them.
pub struct Truth(Vec<Page>);

impl Truth {
    /// Creates blocks without changes.
    pub fn new(blocks: u64) -> Self {
        Self((0..blocks).map(|block| Page::first(BlockId(block))).collect())
    }

    /// Returns the last committed content.
    pub fn last(&self, block: BlockId) -> Page {
        self.0[block.0 as usize]
    }

    /// Records a committed change.
    pub fn commit(&mut self, page: Page) {
        self.0[page.block.0 as usize] = page;
    }

    /// Checks what a session reads in a block that it holds.
    ///
    /// # Errors
    /// It is not the last committed content.
    pub fn read(&self, block: BlockId, page: Page) -> Result<(), Broken> {
        let last = self.last(block);
        if page == last {
            return Ok(());
        }
        Err(Broken::new("latest", block, format!("read {page:?}, the last committed is {last:?}")))
    }

    /// Checks the result of a consistent read that began at version `floor`.
    ///
    /// # Errors
    /// The content was not the last at any moment since the read began.
    pub fn consistent(&self, block: BlockId, floor: u64, page: Page) -> Result<(), Broken> {
        let last = self.last(block).version;
        if page.block == block && !page.torn && (floor..=last).contains(&page.version) {
            return Ok(());
        }
        Err(Broken::new(
            "latest",
            block,
            format!("consistent read of {page:?}, current were {floor}..={last}"),
        ))
    }
}
