//! Tasks that move amounts between accounts, and change pages anyhow: every second block is an
//! account, see [`accounts`].

use plexus_base::BlockId;
use plexus_cache::{BlockChange, BlockRead, Blocks, CacheError, protocol::Mode};
use plexus_disks::Version;
use plexus_sim::Random;

use super::{
    properties::accounts::{self, BALANCE},
    tasks::{CREATED, SimBlocks, SimChange, within},
};

/// The first byte of a page that tasks write anything to. The balance of an account and the value
/// of a session are before it.
const SCRIBBLE_AT: usize = 16;

/// The most blocks that a task changes at once, with so many frames in a set. While one task of a
/// node waits, the others must find a frame.
fn most_blocks(ways: u32) -> u64 {
    u64::from(ways - 1).clamp(1, 3)
}

/// The work of a task until the run is over, or its node ends.
pub(super) async fn work(blocks: SimBlocks, mut random: Random, ways: u32, hold_ns: u64) {
    let blocks = &blocks;
    while !blocks.is_over() {
        blocks.begin();
        let timeout_ns = random.percent(30).then(|| random.below(20_000));
        let operation = operation(blocks, &mut random, ways, hold_ns);
        let result = match timeout_ns {
            Some(ns) => within(blocks, ns, operation).await,
            None => Some(operation.await),
        };
        if let Some(Err(CacheError::ShuttingDown)) = result {
            return;
        }
        blocks.rest(random.below(2_000)).await;
    }
}

/// Writes anything into a block: bytes in some ranges, which may overlap.
fn scribble(change: &mut SimChange<'_>, random: &mut Random) {
    for _ in 0..random.between(1, 3) {
        let start = random.between(SCRIBBLE_AT as u64, change.len() as u64 - 1) as usize;
        let length = random.between(1, 24).min((change.len() - start) as u64);
        change.bytes_mut(start..start + length as usize).fill_with(|| random.bits() as u8);
    }
}

/// Moves an amount from the first of these accounts to the last; the others stay.
fn transfer(changes: &mut [SimChange<'_>], random: &mut Random) {
    let mut accounts = changes.iter_mut().filter(|change| accounts::is_account(change.lent.0));
    let (Some(from), Some(to)) = (accounts.next(), accounts.next_back()) else { return };
    let amount = random.bits() as i64;
    for (account, amount) in [(from, amount.wrapping_neg()), (to, amount)] {
        let balance = accounts::balance(account).wrapping_add(amount);
        account.write(BALANCE.start, &balance.to_le_bytes());
    }
}

async fn operation(
    blocks: &SimBlocks,
    random: &mut Random,
    ways: u32,
    hold_ns: u64,
) -> Result<(), CacheError> {
    let first = random.below(blocks.blocks());
    let block = |place: u64| BlockId((first + place) % blocks.blocks());
    match random.below(8) {
        0 => drop(blocks.read(block(0)).await?),
        1 => drop(blocks.read_consistent(block(0)).await?),
        2 => blocks.prefetch(&[block(0), block(1)], *random.pick(&[Mode::S, Mode::X])),
        3 => {
            let mut one = match random.percent(50) || accounts::is_account(block(0)) {
                true => blocks.change(block(0)).await?,
                false => {
                    let new = blocks.create(block(0), CREATED, Version(0)).await?;
                    assert_eq!(new.page_type(), Some(CREATED));
                    assert!(new.iter().all(|byte| *byte == 0), "a new page is not empty");
                    new
                }
            };
            let mut changes = Vec::new();
            if ways > 2 && blocks.blocks() > 1 {
                changes.extend(blocks.try_change(block(1)).await?);
            }
            scribble(&mut one, random);
            changes.iter_mut().for_each(|two| scribble(two, random));
            changes.push(one);
            transfer(&mut changes, random);
            if random.percent(80) {
                blocks.commit(changes);
            }
        }
        _ => {
            let count = 1 + random.below(most_blocks(ways).min(blocks.blocks()));
            let mut wanted: Vec<_> = (0..count).map(block).collect();
            if random.percent(50) {
                wanted.reverse();
            }
            let mut changes = blocks.change_all(&wanted).await?;
            blocks.rest(random.below(hold_ns)).await;
            for change in &mut changes {
                if random.percent(90) {
                    scribble(change, random);
                }
            }
            if random.percent(90) {
                transfer(&mut changes, random);
            }
            let committed = blocks.commit(changes);
            if random.percent(50) {
                blocks.durable(committed).await?;
            }
        }
    }
    Ok(())
}
