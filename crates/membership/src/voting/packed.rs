//! Blocks of a voting file on their way between a node and the one that serves it: without the zeros behind them, and without those that
//! are nothing but zeros. One after the other:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | number of the block |
//! | 1 | 1 | zero |
//! | 2 | 2 | length, 1 to 4096 |
//! | 4 | length | the block up to its last byte that is not zero |

use super::format::{BLOCK, BLOCKS, FILE};

const HEAD: usize = 4;

/// Most bytes that `blocks` blocks take.
pub(crate) const fn most(blocks: usize) -> usize {
    blocks * (HEAD + BLOCK)
}

/// The blocks of a whole file.
pub(crate) fn packed(file: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (number, block) in file.chunks_exact(BLOCK).enumerate() {
        pack(&mut packed, number, block);
    }
    packed
}

/// Adds one block.
pub(crate) fn pack(packed: &mut Vec<u8>, number: usize, block: &[u8]) {
    let Some(last) = block.iter().rposition(|byte| *byte != 0) else { return };
    packed.extend_from_slice(&[number as u8, 0]);
    packed.extend_from_slice(&(last as u16 + 1).to_le_bytes());
    packed.extend_from_slice(&block[..=last]);
}

/// The blocks by number, each whole again; `None` where it cannot be.
pub(crate) fn unpacked(mut bytes: &[u8]) -> Option<Vec<(usize, Vec<u8>)>> {
    let mut blocks: Vec<(usize, Vec<u8>)> = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let (number, length) = (usize::from(head[0]), usize::from(u16::from_le_bytes([head[2], head[3]])));
        let sound = number < BLOCKS && head[1] == 0 && (1..=BLOCK).contains(&length);
        if !sound || blocks.last().is_some_and(|(last, _)| *last >= number) {
            return None;
        }
        let (block, rest) = rest.split_at_checked(length)?;
        let mut whole = block.to_vec();
        whole.resize(BLOCK, 0);
        blocks.push((number, whole));
        bytes = rest;
    }
    bytes.is_empty().then_some(blocks)
}

/// The whole file.
pub(crate) fn unpacked_file(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut file = vec![0; FILE];
    for (number, block) in unpacked(bytes)? {
        file[number * BLOCK..(number + 1) * BLOCK].copy_from_slice(&block);
    }
    Some(file)
}

#[cfg(test)]
mod tests {
    use plexus_sim::hostile;

    use super::*;

    #[test]
    fn what_was_packed_comes_back() {
        let mut file = vec![0; FILE];
        assert_eq!(packed(&file), []);
        for at in [0, 3 * BLOCK + 7, 5 * BLOCK - 1, FILE - 1] {
            file[at] = 9;
        }
        let packed = packed(&file);
        assert_eq!(packed.len(), (HEAD + 1) + (HEAD + 8) + (HEAD + BLOCK) + (HEAD + BLOCK));
        assert_eq!(unpacked_file(&packed), Some(file));
    }

    #[test]
    fn what_was_not_packed_is_refused() {
        for bad in [&[0, 0, 1][..], &[0, 0, 0, 0], &[49, 0, 1, 0, 7], &[1, 0, 2, 0, 7], &[1, 1, 1, 0, 7]] {
            assert_eq!(unpacked(bad), None, "{bad:?}");
        }
        assert_eq!(unpacked(&[2, 0, 1, 0, 7, 1, 0, 1, 0, 7]), None);
        hostile(&[packed(&[5; FILE])], |bytes| {
            if let Some(file) = unpacked_file(bytes) {
                assert_eq!(unpacked_file(&super::packed(&file)), Some(file));
            }
        });
    }
}
