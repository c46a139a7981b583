//! Scans: the entries of a tree in the order of their keys.

use plexus_base::BlockId;
use plexus_cache::{Blocks, protocol::Mode};

use super::{Entries, MOST_RESTARTS, Sought, Step, Tree, damaged, page::Node};
use crate::{StoreError, space::Space};

/// The most pages for which a scan asks before it needs them. A disk reads several at a time faster
/// than one after the other.
const MOST_AHEAD: u8 = 16;

/// A part of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScannedEntries {
    /// The entries, in their order.
    pub entries: Entries,
    /// The place where the next part begins; `None` at the end.
    pub next: Option<ScanPlace>,
}

/// A place between two parts of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanPlace {
    pub(super) key: Vec<u8>,
    /// The page that has had the key, or one on the left of it.
    page: Option<BlockId>,
    /// The number of the tree, with a page.
    number: u64,
    ahead: Ahead,
}

/// The pages that a scan has asked for. It asks for more at a time the further it comes: most scans
/// are short.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Ahead {
    /// The most pages for which it asks the next time.
    most: u8,
    /// The pages behind its place for which it had asked when it last did.
    asked: u8,
    /// Those that it passes before it asks again.
    left: u8,
}

impl ScanPlace {
    /// A scan from this key on.
    #[must_use]
    pub fn from(key: &[u8]) -> Self {
        Self { key: key.to_vec(), page: None, number: 0, ahead: Ahead::default() }
    }

    /// A scan that goes on with a page, which has this key.
    pub(super) fn at(key: &[u8], page: Option<BlockId>, number: u64) -> Self {
        Self { page, number, ..Self::from(key) }
    }

    /// Returns the key at which the next part begins.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

impl<B: Blocks, S: Space> Tree<'_, B, S> {
    /// Returns entries from a place on: at most so many, from one page. The pages behind are asked
    /// for, so that they come while the caller works.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn scan(&self, from: &ScanPlace, most: usize) -> Result<ScannedEntries, StoreError> {
        let mut entries = Entries::default();
        let next = self.scan_below(from, None, most, &mut |key, value| entries.push(key, value)).await?;
        Ok(ScannedEntries { entries, next })
    }

    /// As [`scan`](Self::scan), and only those below a key. Calls `take` with each entry, while the
    /// page is held; returns the place where the next part begins.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub async fn scan_below(
        &self,
        from: &ScanPlace,
        to: Option<&[u8]>,
        most: usize,
        take: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Option<ScanPlace>, StoreError> {
        let (mut block, mut restarts) = (self.begin(from).await?, 0);
        for _ in 0..self.most_steps() {
            let page = self.blocks.read_once(block).await?;
            let mut step = || {
                let node = Node::of(&page)?;
                let step = self.step(node, Some(0), Sought::At(&from.key), 0)?;
                if !matches!(step, Step::Here) {
                    return Ok(Err(step));
                }
                let first = node.below(&from.key, false)?;
                let end = to.map_or(Ok(node.count()), |to| node.below(to, false))?.max(first);
                let last = end.min(first + most);
                for index in first..last {
                    let (key, value) = node.entry(index)?;
                    take(key, value);
                }
                let (number, ahead) = (self.number.get(), from.ahead);
                let next = if last == end && end < node.count() {
                    None
                } else if last < node.count() {
                    Some(ScanPlace { key: node.entry(last)?.0.to_vec(), page: Some(block), number, ahead })
                } else {
                    let is_wanted = |high: &&[u8]| to.is_none_or(|to| *high < to);
                    node.high()?.filter(is_wanted).map(|high| ScanPlace {
                        key: high.to_vec(),
                        page: node.right(),
                        number,
                        ahead,
                    })
                };
                Ok(Ok(next))
            };
            match step().map_err(damaged(block))? {
                Ok(mut next) => {
                    drop(page);
                    if let Some(next) = next.as_mut().filter(|next| next.page != Some(block)) {
                        self.ask_ahead(next, to).await?;
                    }
                    return Ok(next);
                }
                Err(step) => {
                    drop(page);
                    block = self.follow(step, block, &from.key, &mut restarts).await?;
                }
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    /// Asks for pages behind a place at the begin of a page, so that they come while the caller
    /// works.
    async fn ask_ahead(&self, next: &mut ScanPlace, to: Option<&[u8]>) -> Result<(), StoreError> {
        let Ahead { most, asked, left } = next.ahead;
        if left > 0 {
            next.ahead.left -= 1;
            return Ok(());
        }
        if most == 0 {
            next.ahead = Ahead { most: 2, asked: 1, left: 0 };
            self.blocks.prefetch(next.page.as_slice(), Mode::S);
            return Ok(());
        }
        let (block, parent) = self.page_for(Sought::At(&next.key), 1).await?;
        let children = || {
            let node = Node::of(&parent)?;
            let first = node.below(&next.key, true)?.saturating_sub(1);
            let mut children = Vec::new();
            for index in (first..node.count()).take(usize::from(most)).take_while(|_| node.level() == 1) {
                // Those behind the end of the scan are not needed.
                if index > first && to.is_some_and(|to| node.entry(index).is_ok_and(|(low, _)| low >= to)) {
                    break;
                }
                children.push(node.child(index)?);
            }
            Ok(children)
        };
        let children = children().map_err(damaged(block))?;
        let asked_before = usize::from(asked.saturating_sub(1) / 2).min(children.len());
        let asked = children.len() as u8;
        next.ahead = Ahead { most: (most * 2).min(MOST_AHEAD), asked, left: asked / 2 };
        self.blocks.prefetch(&children[asked_before..], Mode::S);
        Ok(())
    }

    /// Returns the page at which a scan begins.
    pub(super) async fn begin(&self, from: &ScanPlace) -> Result<BlockId, StoreError> {
        match from.page {
            Some(page) => {
                self.number.set(from.number);
                Ok(page)
            }
            None => self.page_at(0, &from.key).await,
        }
    }

    /// Goes on with a search for a leaf.
    pub(super) async fn follow(
        &self,
        step: Step,
        block: BlockId,
        key: &[u8],
        restarts: &mut u32,
    ) -> Result<BlockId, StoreError> {
        match step {
            Step::Here => Ok(block),
            Step::To(next, _) => Ok(next),
            Step::Again => {
                *restarts += 1;
                if *restarts > MOST_RESTARTS {
                    return Err(StoreError::Damaged { block, what: "it is a page of another tree" });
                }
                self.page_at(0, key).await
            }
        }
    }

    /// Calls `take` with each entry below a key, or the last ones, while their page is held: at
    /// most so many, from one page, the last first. Returns the key below which the next are;
    /// `None` means that there are no others.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn scan_back(
        &self,
        below: Option<&[u8]>,
        most: usize,
        take: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut below = below.map(<[u8]>::to_vec);
        loop {
            let (block, page) = self.page_for(Sought::Below(below.as_deref()), 0).await?;
            let mut step = || {
                let node = Node::of(&page)?;
                let last = match &below {
                    Some(key) => node.below(key, false)?,
                    None => node.count(),
                };
                let first = last.saturating_sub(most);
                for index in (first..last).rev() {
                    let (key, value) = node.entry(index)?;
                    take(key, value);
                }
                let more = if first > 0 { Some(node.entry(first)?.0.to_vec()) } else { None };
                Ok((first == last, more, node.low()?.to_vec()))
            };
            let (is_empty, more, low) = step().map_err(damaged(block))?;
            // A page whose lowest possible key is empty is the first one.
            let next = more.or_else(|| (!low.is_empty()).then_some(low));
            let is_lower = |next: &Vec<u8>| below.as_ref().is_none_or(|below| next < below);
            if next.as_ref().is_some_and(|next| !is_lower(next)) {
                return Err(StoreError::Damaged { block, what: "its keys are not in order" });
            }
            if !is_empty || next.is_none() {
                return Ok(next);
            }
            below = next;
        }
    }
}
