//! Checks a tree as a whole: its pages are linked, its keys in order.

use std::collections::BTreeSet;

use plexus_base::BlockId;

use super::{
    OwnedEntry,
    page::{Malformed, Node},
};

/// A tree that was checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckedTree {
    /// Its entries, in the order of their keys.
    pub entries: Vec<OwnedEntry>,
    /// Its pages.
    pub pages: BTreeSet<BlockId>,
    /// The pages that only their left siblings know: a node has died before it told the parent.
    pub untold: u64,
}

/// Checks the tree with this root. `read` returns the user bytes of a block.
///
/// # Errors
/// The first fault: the page, and what is wrong.
pub fn check(root: BlockId, mut read: impl FnMut(BlockId) -> Vec<u8>) -> Result<CheckedTree, String> {
    let mut checked = CheckedTree::default();
    let mut first = Some(root);
    let (mut level, mut number) = (None, None);
    // The children that the level above knows, in their order, with their lowest keys.
    let mut known: Vec<(Vec<u8>, BlockId)> = vec![(Vec::new(), root)];
    while let Some(mut block) = first.take() {
        let mut children = Vec::new();
        let mut known_here = std::mem::take(&mut known).into_iter().peekable();
        let mut low: Vec<u8> = Vec::new();
        loop {
            let of = |Malformed(what): Malformed| format!("{block}: {what}");
            if !checked.pages.insert(block) {
                return Err(format!("{block}: it is in the tree twice"));
            }
            let user = read(block);
            let node = Node::of(&user).map_err(of)?;
            match level {
                None => level = Some(node.level()),
                Some(level) if level != node.level() => {
                    return Err(format!("{block}: its level is {}, not {level}", node.level()));
                }
                Some(_) => {}
            }
            match known_here.next_if(|(_, child)| *child == block) {
                Some((key, _)) if key != low => {
                    return Err(format!("{block}: its parent has another lowest key"));
                }
                Some(_) => {}
                None => checked.untold += 1,
            }
            if *number.get_or_insert(node.tree()) != node.tree() {
                return Err(format!("{block}: it is a page of another tree"));
            }
            if node.low().map_err(of)? != low {
                return Err(format!("{block}: its lowest key is not the one of its left sibling"));
            }
            let high = node.high().map_err(of)?.map(<[u8]>::to_vec);
            let mut last: Option<Vec<u8>> = None;
            for index in 0..node.count() {
                let (key, value) = node.entry(index).map_err(of)?;
                let is_low = key < &low[..] || high.as_ref().is_some_and(|high| key >= &high[..]);
                if is_low || last.as_ref().is_some_and(|last| key <= &last[..]) {
                    return Err(format!("{block}: entry {index} is not in order"));
                }
                last = Some(key.to_vec());
                match node.level() {
                    0 => checked.entries.push((key.to_vec(), value.to_vec())),
                    _ => children.push((key.to_vec(), node.child(index).map_err(of)?)),
                }
            }
            if node.level() > 0 && (node.count() == 0 || node.entry(0).map_err(of)?.0 != &low[..]) {
                return Err(format!("{block}: no child is for its lowest keys"));
            }
            match (node.right(), high) {
                (Some(right), Some(high)) => (block, low) = (right, high),
                (None, None) => break,
                _ => return Err(format!("{block}: a sibling and a high key belong together")),
            }
        }
        if let Some((_, child)) = known_here.next() {
            return Err(format!("{child}: it is a child, but no sibling leads to it"));
        }
        level = level.and_then(|level| level.checked_sub(1));
        first = children.first().map(|(_, child)| *child);
        known = children;
    }
    Ok(checked)
}
