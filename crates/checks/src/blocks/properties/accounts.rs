//! Checks what users of blocks rely on, over real bytes: transfers between accounts are there as a
//! whole or not at all, so all balances together are zero.
//!
//! Every second block is an account. It is checked at many moments what would be there if all nodes
//! died, or all but some: the crash-now oracle.

use std::ops::Range;

use plexus_base::BlockId;

use crate::{
    blocks::{cluster::Cluster, contents, streams::crashed_now},
    failure::Broken,
};

/// The place of the balance of an account.
pub(crate) const BALANCE: Range<usize> = 0..8;

/// Returns whether a block is an account.
pub(crate) fn is_account(block: BlockId) -> bool {
    block.0.is_multiple_of(2)
}

/// Returns the balance of an account from its user bytes.
pub(crate) fn balance(user: &[u8]) -> i64 {
    i64::from_le_bytes(user[BALANCE].try_into().expect("eight bytes"))
}

fn accounts(cluster: &Cluster) -> impl Iterator<Item = BlockId> {
    (0..cluster.params.blocks).map(BlockId).filter(|block| is_account(*block))
}

/// Checks the balances if all nodes died now but a subset that changes from call to call.
///
/// # Errors
/// A transfer is there in part.
pub(crate) fn crash_now(cluster: &Cluster, moment: u64) -> Result<(), Broken> {
    for (survivors, durable_only) in [(0, true), (0, false), (moment, true), (moment, false)] {
        let mut sum = 0i64;
        for block in accounts(cluster) {
            let page = crashed_now(cluster, block, survivors, durable_only)?;
            sum = sum.wrapping_add(balance(contents::parts(&page).1));
        }
        if sum != 0 {
            let what = format!("the balances are {sum} together (survivors {survivors:#b}, {durable_only})");
            return Err(Broken::general("crash_now", what));
        }
    }
    Ok(())
}

/// Checks the balances on the disk after hand-back.
///
/// # Errors
/// A transfer is there in part.
pub(crate) fn on_disk(cluster: &Cluster) -> Result<(), Broken> {
    let contents = cluster.contents.borrow();
    let balance = |block| balance(contents::parts(&contents.bytes(cluster.disk.page(block).value)).1);
    match accounts(cluster).map(balance).fold(0, i64::wrapping_add) {
        0 => Ok(()),
        sum => Err(Broken::general("sums", format!("the balances on the disk are {sum} together"))),
    }
}
