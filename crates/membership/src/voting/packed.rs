//! Blocks of a voting file on their way between a node and the one that serves it: without the zeros behind them, and without those that
//! are nothing but zeros. One after the other:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | number of the block |
//! | 1 | 1 | zero |
//! | 2 | 2 | length, 1 to 4096 |
//! | 4 | length | the block up to its last byte that is not zero |

use plexus_base::wire::{self, DecodeError, Fixed, Zeros, require};

use super::format::{BLOCK, BLOCKS, FILE};

wire::layout! {
    struct Head: 4 { number: u8, zero: Zeros<1>, length: u16 }
}

const HEAD: usize = Head::LEN;

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
    let head = Head { number: number as u8, zero: Zeros, length: last as u16 + 1 };
    packed.extend_from_slice(&wire::encode::<_, HEAD>(&head));
    packed.extend_from_slice(&block[..=last]);
}

/// The blocks by number, each whole again.
///
/// # Errors
/// They were not packed so.
pub(crate) fn unpacked(bytes: &[u8]) -> Result<Vec<(usize, Vec<u8>)>, DecodeError> {
    wire::decode("blocks of a voting file", bytes, |reader| {
        let mut blocks: Vec<(usize, Vec<u8>)> = Vec::new();
        while !reader.is_empty() {
            let Head { number, length, .. } = reader.take()?;
            let (number, length) = (usize::from(number), usize::from(length));
            let is_next = blocks.last().is_none_or(|(last, _)| *last < number);
            require(number < BLOCKS && is_next, "number of a block")?;
            require((1..=BLOCK).contains(&length), "length of a block")?;
            let mut whole = reader.bytes(length)?.to_vec();
            whole.resize(BLOCK, 0);
            blocks.push((number, whole));
        }
        Ok(blocks)
    })
}

/// The whole file.
///
/// # Errors
/// Its blocks were not packed so.
pub(crate) fn unpacked_file(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut file = vec![0; FILE];
    for (number, block) in unpacked(bytes)? {
        file[number * BLOCK..(number + 1) * BLOCK].copy_from_slice(&block);
    }
    Ok(file)
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
        assert_eq!(unpacked_file(&packed), Ok(file));
    }

    #[test]
    fn what_was_not_packed_is_refused() {
        for bad in [&[0, 0, 1][..], &[0, 0, 0, 0], &[49, 0, 1, 0, 7], &[1, 0, 2, 0, 7], &[1, 1, 1, 0, 7]] {
            assert!(unpacked(bad).is_err(), "{bad:?}");
        }
        assert!(unpacked(&[2, 0, 1, 0, 7, 1, 0, 1, 0, 7]).is_err());
        hostile(&[packed(&[5; FILE])], |bytes| {
            if let Ok(file) = unpacked_file(bytes) {
                assert_eq!(unpacked_file(&super::packed(&file)), Ok(file));
            }
        });
    }
}
