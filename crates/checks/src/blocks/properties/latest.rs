//! Checks that reads return the last committed change. A change that is not durable may vanish with
//! its node: the next session that gets the block shows which change is the last. Without redo,
//! only a write to disk makes a change durable.
//!
//! A session that holds S or X sees the last committed change. A consistent read sees a change that
//! was the last at some moment between its start and its end. No session sees a change half done.

use plexus_base::BlockId;

use crate::{blocks::page::Page, failure::Broken};

/// The committed pages, as a global observer knows them.
#[derive(Clone, Hash)]
pub struct Truth {
    known: Vec<Known>,
    /// The groups of several blocks that are not durable, with the versions of their blocks.
    groups: Vec<Vec<(BlockId, u64)>>,
}

/// The committed pages of one block.
#[derive(Clone, Hash)]
struct Known {
    last: Page,
    /// All versions that the block had, with their values.
    history: Vec<(u64, u64)>,
    /// The last version that no death of nodes can undo.
    durable: u64,
    /// True if the death of a node may have undone changes above `durable`.
    uncertain: bool,
}

impl Truth {
    /// Creates blocks without changes.
    pub fn new(blocks: u64) -> Self {
        let known = |last: Page| Known {
            last,
            history: vec![(last.version, last.value)],
            durable: last.version,
            uncertain: false,
        };
        let known = (0..blocks).map(|block| known(Page::first(BlockId(block)))).collect();
        Self { known, groups: Vec::new() }
    }

    /// Returns the last committed content.
    pub fn last(&self, block: BlockId) -> Page {
        self.known[block.0 as usize].last
    }

    fn known(&mut self, block: BlockId) -> &mut Known {
        &mut self.known[block.0 as usize]
    }

    /// Returns the last version that no death of nodes can undo.
    pub fn durable(&self, block: BlockId) -> u64 {
        self.known[block.0 as usize].durable
    }

    /// Notes that no death of nodes can undo a version.
    pub fn is_durable(&mut self, block: BlockId, version: u64) {
        let known = self.known(block);
        known.durable = known.durable.max(version);
    }

    /// Returns true if the block had this content.
    pub fn had(&self, block: BlockId, version: u64, value: u64) -> bool {
        self.known[block.0 as usize].history.contains(&(version, value))
    }

    /// Notes that the last changes may be gone with a node.
    pub fn doubt(&mut self, block: BlockId) {
        self.known(block).uncertain = true;
        self.groups.retain(|group| group.iter().all(|(other, _)| *other != block));
    }

    /// Notes that the last changes of these blocks are one group.
    pub fn is_group(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        let group = blocks.into_iter().map(|block| (block, self.last(block).version)).collect();
        self.groups.push(group);
    }

    /// Checks that of each group all changes are durable, or none.
    ///
    /// # Errors
    /// Some are.
    pub fn check_groups(&mut self) -> Result<(), Broken> {
        for group in std::mem::take(&mut self.groups) {
            let is_durable = |(block, version): &&(BlockId, u64)| self.durable(*block) >= *version;
            let durable = group.iter().filter(is_durable).count();
            if durable == 0 {
                self.groups.push(group);
            } else if durable < group.len() {
                return Err(Broken::new(
                    "recoverable",
                    group[0].0,
                    format!("a part of {group:?} is durable"),
                ));
            }
        }
        Ok(())
    }

    /// Returns true if it is not known which change is the last.
    pub fn is_uncertain(&self, block: BlockId) -> bool {
        self.known[block.0 as usize].uncertain
    }

    /// Takes what a session finds as the last change, if that is not known. Returns true if changes
    /// were undone.
    pub fn found(&mut self, page: Page) -> bool {
        let known = self.known(page.block);
        let is_possible = page.version >= known.durable && !page.torn && page.version <= known.last.version;
        if !known.uncertain || !is_possible || !known.history.contains(&(page.version, page.value)) {
            return false;
        }
        known.uncertain = false;
        let undone = known.last != page;
        known.last = page;
        undone
    }

    /// Records a committed change.
    pub fn commit(&mut self, page: Page) {
        let known = self.known(page.block);
        known.last = page;
        known.history.push((page.version, page.value));
    }

    /// Checks that a shared copy which leaves a node is durable: it may vanish without a trace.
    ///
    /// # Errors
    /// The death of its writer would undo what others have read.
    pub fn shared(&self, page: Page) -> Result<(), Broken> {
        let durable = self.durable(page.block);
        if page.version <= durable {
            return Ok(());
        }
        Err(Broken::new(
            "latest",
            page.block,
            format!("{page:?} is shared, only version {durable} is durable"),
        ))
    }

    /// Checks what a session reads in a block that it holds.
    ///
    /// # Errors
    /// It is not the last committed content.
    pub fn read(&self, block: BlockId, page: Page) -> Result<(), Broken> {
        let last = self.last(block);
        let is_possible = || page.version >= self.durable(block) && self.had(block, page.version, page.value);
        if page == last || self.is_uncertain(block) && !page.torn && is_possible() {
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
        let had = || self.had(block, page.version, page.value);
        if page.block == block && !page.torn && page.version >= floor && had() {
            return Ok(());
        }
        Err(Broken::new(
            "latest",
            block,
            format!("consistent read of {page:?}, current were {floor}..={last}"),
        ))
    }
}
