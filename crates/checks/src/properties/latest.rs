//! What was written last is read: a session that holds S or X sees the last committed change, a consistent read one
//! that was the last at some moment between its begin and its end. Nobody sees a change half done.

use plexus_base::BlockId;

use crate::{failure::Broken, page::Page};

/// What was committed, as an observer of everything knows it.
pub struct Truth(Vec<Page>);

impl Truth {
    /// Nothing was changed yet.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Self((0..blocks).map(|block| Page::first(BlockId(block))).collect())
    }

    /// The last committed content.
    #[must_use]
    pub fn last(&self, block: BlockId) -> Page {
        self.0[block.0 as usize]
    }

    /// A change is committed.
    pub fn commit(&mut self, page: Page) {
        self.0[page.block.0 as usize] = page;
    }

    /// A session looks at a block that it holds.
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

    /// A consistent read that began at version `floor` is over.
    ///
    /// # Errors
    /// The content was never the last between then and now.
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
