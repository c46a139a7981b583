//! Small numbers in few bytes: seven bits in each, the lowest first, the highest bit set where more follow.

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Why there is no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// The bytes end before it does.
    Short,
    /// More bytes would make it no better.
    Bad,
}

/// Takes a number of at most 64 bits off the front.
pub(super) fn take(from: &mut &[u8]) -> Result<u64, Wrong> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or(Wrong::Short)?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(Wrong::Bad);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Wrong::Bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_too_long_ones_do_not() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert!((0..bytes.len()).all(|cut| take(&mut &bytes[..cut]) == Err(Wrong::Short)));
            let mut rest = &*bytes;
            assert_eq!((take(&mut rest), rest.len()), (Ok(value), 0));
        }
        assert_eq!(take(&mut &[0xff; 20][..]), Err(Wrong::Bad));
        assert_eq!(
            take(&mut &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02][..]),
            Err(Wrong::Bad)
        );
    }
}
