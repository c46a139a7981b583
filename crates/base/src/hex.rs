//! Bytes and numbers as hexadecimal digits.
//!
//! Parsing accepts digits of either case in exactly the required number, without sign, prefix or
//! spaces.

/// Returns two digits for each byte.
#[must_use]
pub fn digits(bytes: &[u8]) -> String {
    let digit = |four: u8| char::from_digit(u32::from(four), 16).expect("four bits");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses pairs of digits; returns `None` for any other text.
#[must_use]
pub fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

/// Parses exactly `len` digits, at most 32, as a number; returns `None` for any other text.
#[must_use]
pub fn number(digits: &str, len: usize) -> Option<u128> {
    let fits = digits.len() == len && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_their_digits() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(digits(&[0, 0x9a, 0xff]), "009aff");
        assert_eq!(bytes(&digits(&all)), Some(all));
        assert_eq!(bytes("fF"), Some(vec![255]));
        for bad in ["f", "fg", "+1", " 1", "0x", "\u{e9}"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_has_exactly_the_required_digits() {
        assert_eq!(number("00ff", 4), Some(255));
        assert_eq!(number(&"f".repeat(32), 32), Some(u128::MAX));
        for bad in ["", "fff", "fffff", "+fff", "ff f", "\u{e9}\u{e9}"] {
            assert_eq!(number(bad, 4), None, "{bad}");
        }
        assert_eq!(number(&"f".repeat(33), 33), None);
    }
}
