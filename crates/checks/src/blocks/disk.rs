//! The disk that all nodes share: slow, completing in any order, sometimes failing.

use plexus_base::BlockId;

use super::{page::Page, properties::debt};
use crate::failure::Broken;

/// The pages, and the accesses in flight.
#[derive(Clone, Hash)]
pub struct Disk {
    pages: Vec<Page>,
    writing: Vec<u32>,
    reading: Vec<u32>,
}

impl Disk {
    /// Creates the pages as they are at the start.
    pub fn new(blocks: u64) -> Self {
        let pages: Vec<Page> = (0..blocks).map(|block| Page::first(BlockId(block))).collect();
        Self { writing: vec![0; pages.len()], reading: vec![0; pages.len()], pages }
    }

    /// Returns the current page of a block.
    pub fn page(&self, block: BlockId) -> Page {
        self.pages[block.0 as usize]
    }

    /// Begins a read.
    ///
    /// # Errors
    /// A write of the block is in flight: the reader might see half of it.
    pub fn read_begins(&mut self, block: BlockId) -> Result<(), Broken> {
        self.reading[block.0 as usize] += 1;
        self.alone(block)
    }

    /// Ends a read and returns the page.
    pub fn read_ends(&mut self, block: BlockId) -> Page {
        self.reading[block.0 as usize] -= 1;
        self.page(block)
    }

    /// Begins a write.
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

    /// Puts the page on the disk.
    ///
    /// # Errors
    /// It is older than the page on the disk.
    pub fn write_lands(&mut self, page: Page) -> Result<(), Broken> {
        let old = &mut self.pages[page.block.0 as usize];
        debt::never_backwards(*old, page)?;
        *old = page;
        Ok(())
    }

    /// Returns true if a write of the block is in flight.
    pub fn is_writing(&self, block: BlockId) -> bool {
        self.writing[block.0 as usize] > 0
    }

    /// Ends a write.
    pub fn write_ends(&mut self, block: BlockId) {
        self.writing[block.0 as usize] -= 1;
    }
}

fn meets(block: BlockId) -> Broken {
    Broken::new("debt", block, "a disk write meets another access to the same block".into())
}
