//! Varints (LEB128): seven bits in each byte, the lowest first; the highest bit is set if more
//! follow.

use plexus_base::wire::{Fault, Reader, require};

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number of at most 64 bits.
pub(super) fn take(reader: &mut Reader<'_>) -> Result<u64, Fault> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte: u8 = reader.take()?;
        let bits = u64::from(byte & 0x7f);
        require(bits << shift >> shift == bits, NUMBER)?;
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Fault::Field(NUMBER))
}

const NUMBER: &str = "number of more than 64 bits";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_too_long_ones_do_not() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert!((0..bytes.len()).all(|cut| take(&mut Reader::new(&bytes[..cut])) == Err(Fault::CutOff)));
            let mut reader = Reader::new(&bytes);
            assert_eq!((take(&mut reader), reader.is_empty()), (Ok(value), true));
        }
        for bad in [[0xff; 10], [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02]] {
            assert_eq!(take(&mut Reader::new(&bad)), Err(Fault::Field(NUMBER)));
        }
    }
}
