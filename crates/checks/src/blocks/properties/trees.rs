//! Checks a tree of the store over real bytes, at many moments: what would be there if all nodes
//! died now, or all but some. The tree is whole, and each key has its last acknowledged value or
//! one that was tried since.

use std::rc::Rc;

use plexus_base::BlockId;
use plexus_store::tree::check::check;

use crate::{
    blocks::{cluster::Cluster, contents, streams::crashed_now, trees::ROOT},
    failure::Broken,
};

fn judge(
    cluster: &Cluster,
    property: &'static str,
    read: impl Fn(BlockId) -> Result<Rc<[u8]>, Broken>,
) -> Result<(), Broken> {
    if !cluster.tree.is_made() {
        return Ok(());
    }
    let mut unreadable = None;
    let checked = check(ROOT, |block| match read(block) {
        Ok(page) => contents::parts(&page).1.to_vec(),
        Err(why) => {
            unreadable.get_or_insert(why);
            vec![0; 28]
        }
    });
    if let Some(why) = unreadable {
        return Err(why);
    }
    let checked = checked.and_then(|checked| cluster.tree.check(&checked.entries).map(|()| checked));
    let checked = checked.map_err(|why| Broken::general(property, why))?;
    cluster.tree.untold.set(cluster.tree.untold.get() + checked.untold);
    cluster.tree.pages.set(checked.pages.len() as u64);
    Ok(())
}

/// Checks the tree if all nodes died now but a subset that changes from call to call.
///
/// # Errors
/// It is damaged, or a key has a wrong value.
pub(crate) fn crash_now(cluster: &Cluster, moment: u64) -> Result<(), Broken> {
    for (survivors, durable_only) in [(0, true), (moment, moment.is_multiple_of(2))] {
        judge(cluster, "crash_now", |block| crashed_now(cluster, block, survivors, durable_only))?;
    }
    Ok(())
}

/// Checks the tree on the disk after hand-back.
///
/// # Errors
/// It is damaged, or a key has a wrong value.
pub(crate) fn on_disk(cluster: &Cluster) -> Result<(), Broken> {
    let contents = cluster.contents.borrow();
    judge(cluster, "sums", |block| Ok(contents.bytes(cluster.disk.page(block).value)))
}
