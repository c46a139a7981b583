//! The disk that all nodes share: slow, finishing in any order, sometimes failing.

use plexus_base::BlockId;

use crate::{failure::Broken, page::Page, properties::debt};

/// The pages, and who is at them.
pub struct Disk {
    pages: Vec<Page>,
    writing: Vec<u32>,
    reading: Vec<u32>,
}

impl Disk {
    /// Pages as they are at the start.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let pages: Vec<Page> = (0..blocks).map(|block| Page::first(BlockId(block))).collect();
        Self { writing: vec![0; pages.len()], reading: vec![0; pages.len()], pages }
    }

    /// What stands there now.
    #[must_use]
    pub fn page(&self, block: BlockId) -> Page {
        self.pages[block.0 as usize]
    }

    /// A read begins.
    ///
    /// # Errors
    /// A write of the block is in flight: the reader might see half of it.
    pub fn read_begins(&mut self, block: BlockId) -> Result<(), Broken> {
        self.reading[block.0 as usize] += 1;
        self.alone(block)
    }

    /// A read ends with this page.
    pub fn read_ends(&mut self, block: BlockId) -> Page {
        self.reading[block.0 as usize] -= 1;
        self.page(block)
    }

    /// A write begins.
    ///
    /// # Errors
    /// A read or another write of the block is in flight.
    pub fn write_begins(&mut self, block: BlockId) -> Result<(), Broken> {
        self.writing[block.0 as usize] += 1;
        if self.writing[block.0 as usize] == 1 { self.alone(block) } else { Err(meets(block)) }
    }

    fn alone(&self, block: BlockId) -> Result<(), Broken> {
        let at = block.0 as usize;
        if self.writing[at] > 0 && self.reading[at] > 0 { Err(meets(block)) } else { Ok(()) }
    }

    /// The page is on the disk from now on.
    ///
    /// # Errors
    /// It is older than what stood there.
    pub fn write_lands(&mut self, page: Page) -> Result<(), Broken> {
        let old = &mut self.pages[page.block.0 as usize];
        debt::never_backwards(*old, page)?;
        *old = page;
        Ok(())
    }

    /// A write is over.
    pub fn write_ends(&mut self, block: BlockId) {
        self.writing[block.0 as usize] -= 1;
    }
}

fn meets(block: BlockId) -> Broken {
    Broken::new("debt", block, "a disk write meets another access to the same block".into())
}
