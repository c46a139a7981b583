//! The decoders of a handshake over any bytes, for fuzz targets and tests. Not part of the crate's
//! interface.

use plexus_base::crc32c;

use super::{
    hello::{HELLO, Hello},
    keys::{KEY, Key},
    noise::{self, GREETING},
    spans::{self, SPANS},
};

/// The first `N` bytes, filled up with zeros.
fn whole<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    whole.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    whole
}

/// Decodes a hello as it is and with its checksum made right; returns how often it was accepted.
#[must_use]
pub fn hello(bytes: &[u8]) -> usize {
    let as_it_is: [u8; HELLO] = whole(bytes);
    let mut mended = as_it_is;
    let crc = crc32c(&mended[..HELLO - 4]);
    mended[HELLO - 4..].copy_from_slice(&crc.to_le_bytes());
    let taken = |bytes: &[u8; HELLO]| {
        let read = Hello::decode(bytes);
        read.inspect(|read| assert_eq!(Hello::decode(&read.encode()), Ok(*read))).is_ok()
    };
    [as_it_is, mended].iter().filter(|bytes| taken(bytes)).count()
}

/// Decodes the windows that a peer announces, and does with them all that is done later; returns
/// their number.
#[must_use]
pub fn spans(bytes: &[u8]) -> usize {
    let spans = spans::decode(&whole::<SPANS>(bytes)).unwrap_or_default();
    for span in &spans {
        for offset in [0, 1, span.len / 2, span.len.wrapping_sub(8), span.len, u64::MAX] {
            for len in [0, 1, 8, span.len, u64::MAX] {
                let inside = span.contains(offset, len);
                let has = span.holds(offset, len) || len == 8 && span.has_word(offset);
                assert!(inside || !has);
            }
        }
    }
    spans.len()
}

/// Reads the first messages of both sides from a peer without the key; returns true if either was
/// accepted.
#[must_use]
pub fn greetings(bytes: &[u8]) -> bool {
    let (message, cluster) = (whole::<GREETING>(bytes), [7; 16]);
    let key = Key::new([1; KEY]);
    let (calling, _) = noise::call(&key, cluster, &[0; HELLO]);
    noise::called(&[key], cluster, &message).is_ok() || calling.answered(&message).is_ok()
}

#[cfg(test)]
mod tests {
    use plexus_fabric::{WindowId, WindowSpan};
    use plexus_sim::hostile;

    use super::*;

    #[test]
    fn hostile_hellos_do_no_harm() {
        let good = Hello::example();
        let good = good.encode().to_vec();
        assert_eq!(hello(&good), 2);
        hostile(&[good], |bytes| assert!(hello(bytes) <= 2));
    }

    #[test]
    fn hostile_windows_do_no_harm() {
        let span =
            |id, granule| WindowSpan { id: WindowId(id), len: 1 << 20, granule, wordwise: granule == 0 };
        let good = spans::encode([span(1, 0), span(2, 4096)].into_iter());
        assert_eq!(spans(&good), 2);
        hostile(&[good], |bytes| assert!(spans(bytes) <= spans::WINDOWS));
    }

    #[test]
    fn hostile_greetings_do_no_harm_and_prove_nothing() {
        let others = noise::call(&Key::new([2; KEY]), [7; 16], &[0; HELLO]).1.to_vec();
        hostile(&[others], |bytes| assert!(!greetings(bytes)));
    }
}
