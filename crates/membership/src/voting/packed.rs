//! Blocks of a voting file as sent between a node and the server of the file, without trailing
//! zeros and without empty blocks. Each block is encoded as:
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

/// Returns the most bytes that `blocks` blocks take.
pub(crate) const fn most(blocks: usize) -> usize {
    blocks * (HEAD + BLOCK)
}

/// Packs the blocks of a whole file.
pub(crate) fn packed(file: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (number, block) in file.chunks_exact(BLOCK).enumerate() {
        pack(&mut packed, number, block);
    }
    packed
}

/// Appends one block.
pub(crate) fn pack(packed: &mut Vec<u8>, number: usize, block: &[u8]) {
    let Some(last) = block.iter().rposition(|byte| *byte != 0) else { return };
    let head = Head { number: number as u8, zero: Zeros, length: last as u16 + 1 };
    packed.extend_from_slice(&wire::encode::<_, HEAD>(&head));
    packed.extend_from_slice(&block[..=last]);
}

/// Returns the blocks by number, with their trailing zeros.
///
/// # Errors
/// Returns an error if the bytes are not packed blocks.
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

/// Returns the whole file.
///
/// # Errors
/// Returns an error if the bytes are not packed blocks.
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
    fn packed_blocks_are_unpacked() {
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
    fn malformed_blocks_are_refused() {
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
