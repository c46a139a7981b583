//! Sealing: AES-256-GCM over the records of one stream, with a key for each direction.
//!
//! Guarantees: no key meets a nonce twice. A record's nonce is its number in its direction of the
//! stream, with the lane in front, and the number only grows. An endpoint that gets one key for
//! both directions is refused. If records are changed, dropped, repeated or swapped on the way, a
//! tag does not match. After [`RECORDS_PER_KEY`] records both ends go on to the next key (Noise
//! Protocol Framework, revision 34, section 4.2: the rekey function). So no key covers more than
//! some 64 GiB, and an attacker that takes a process's memory cannot decrypt its older traffic.
//! Every holder of a key here overwrites it when the key is no longer used.
//!
//! Some copies cannot be overwritten: those that the compiler leaves on a stack where a value was
//! moved, and those in registers. An attacker that controls the running process has the key in use.
//!
//! This module does not know what a record holds, nor where the keys come from.
#![allow(unsafe_code, reason = "overwrites keys that are no longer used")]

use std::mem::ManuallyDrop;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::Lane;

/// The bytes in a key.
pub const KEY_LEN: usize = 32;

/// The bytes in a tag.
pub(super) const TAG_LEN: usize = 16;

/// The records under one key, a power of two. With 64 KiB in each record that is 2^32 blocks of the
/// cipher. An observer of all of them distinguishes them from random bytes with a probability below
/// 2^-64.
const RECORDS_PER_KEY: u64 = 1 << 20;

/// The nonce of the rekey function, which no record has.
const REKEY: [u8; NONCE_LEN] = [0xff; NONCE_LEN];

const _: () = assert!(!std::mem::needs_drop::<LessSafeKey>() && RECORDS_PER_KEY.is_power_of_two());

/// The keys of one stream of a rail, one for each direction.
pub struct Seal {
    send: Zeroizing<[u8; KEY_LEN]>,
    receive: Zeroizing<[u8; KEY_LEN]>,
}

impl Seal {
    /// Builds a seal from a fresh secret for each direction, never used for another stream or
    /// another connection. Callers whose memory is wiped pass it by value; plain bytes would stay
    /// behind.
    ///
    /// # Panics
    /// Both secrets are the same: the two ends would seal different records under one nonce.
    #[must_use]
    pub fn new(
        send_key: impl Into<Zeroizing<[u8; KEY_LEN]>>,
        receive_key: impl Into<Zeroizing<[u8; KEY_LEN]>>,
    ) -> Self {
        let (send, receive) = (send_key.into(), receive_key.into());
        assert!(*send != *receive, "one key for both directions");
        Self { send, receive }
    }

    /// The two directions of the stream of `lane`.
    pub(super) fn split(&self, lane: Lane) -> (Sealer, Opener) {
        let records = |key: &[u8; KEY_LEN]| Records { key: Key::of(key), lane, number: 0 };
        (Sealer(records(&self.send)), Opener(records(&self.receive)))
    }
}

/// Seals the records that go out on one stream.
pub(super) struct Sealer(Records);

impl Sealer {
    /// Encrypts `bytes` in place and returns the tag, which also covers `clear`, sent as it is.
    pub(super) fn seal(&mut self, clear: &[u8], bytes: &mut [u8]) -> [u8; TAG_LEN] {
        let nonce = self.0.next();
        let tag = self.0.key.key().seal_in_place_separate_tag(nonce, Aad::from(clear), bytes);
        tag.expect("a record is far shorter than the cipher's limit").as_ref().try_into().expect("16 bytes")
    }
}

/// Opens the records that come in on one stream.
pub(super) struct Opener(Records);

impl Opener {
    /// Decrypts the next record in place. Returns false, with useless bytes, if the peer did not
    /// seal it.
    #[must_use]
    pub(super) fn open(&mut self, clear: &[u8], bytes: &mut [u8], tag: [u8; TAG_LEN]) -> bool {
        let nonce = self.0.next();
        self.0.key.key().open_in_place_separate_tag(nonce, Aad::from(clear), tag.into(), bytes, 0..).is_ok()
    }
}

/// The records of one direction of a stream.
struct Records {
    key: Key,
    lane: Lane,
    /// The number of the next record.
    number: u64,
}

impl Records {
    fn next(&mut self) -> Nonce {
        if self.number > 0 && self.number.is_multiple_of(RECORDS_PER_KEY) {
            self.key = self.key.next();
        }
        let mut nonce = [0; NONCE_LEN];
        nonce[0] = self.lane.index() as u8;
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// An expanded key, overwritten when it is dropped.
struct Key(Box<ManuallyDrop<LessSafeKey>>);

impl Key {
    fn of(bytes: &[u8; KEY_LEN]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("a key of the cipher's length");
        Self(Box::new(ManuallyDrop::new(LessSafeKey::new(key))))
    }

    fn key(&self) -> &LessSafeKey {
        &self.0
    }

    fn next(&self) -> Self {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        let nonce = Nonce::assume_unique_for_key(REKEY);
        let sealed = self.key().seal_in_place_separate_tag(nonce, Aad::empty(), bytes.as_mut());
        let _tag = sealed.expect("a key is far shorter than the cipher's limit");
        Self::of(&bytes)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: it holds nothing that needs dropping (asserted above), and it is not used any
        // more: the box only gives its memory back.
        unsafe { zeroize::zeroize_flat_type(&raw mut *self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(lane: Lane) -> ((Sealer, Opener), (Sealer, Opener)) {
        let (one, other) = ([1; KEY_LEN], [2; KEY_LEN]);
        (Seal::new(one, other).split(lane), Seal::new(other, one).split(lane))
    }

    #[test]
    fn only_the_other_end_opens_a_sealed_record() {
        let ((mut seal, mut own), (_, mut open)) = pair(Lane::Prompt);
        let mut bytes = *b"sixteen and more";
        let tag = seal.seal(b"clear", &mut bytes);
        assert_ne!(&bytes, b"sixteen and more");
        let (mut at_home, mut in_clear, mut cut) = (bytes, bytes, bytes);
        assert!(!own.open(b"clear", &mut at_home, tag), "a reflected record is refused");
        assert!(
            !pair(Lane::Bulk).1.1.open(b"clear", &mut bytes.clone(), tag),
            "a record of the other lane is refused"
        );
        assert!(!pair(Lane::Prompt).1.1.open(b"cleaR", &mut in_clear, tag));
        assert!(!pair(Lane::Prompt).1.1.open(b"clear", &mut cut[..15], tag));
        assert!(open.open(b"clear", &mut bytes, tag));
        assert_eq!(&bytes, b"sixteen and more");
    }

    #[test]
    fn equal_records_have_different_ciphertexts() {
        let ((mut seal, _), (mut back, _)) = pair(Lane::Prompt);
        let mut seen = std::collections::BTreeSet::new();
        for sealer in [&mut seal, &mut back] {
            sealer.0.number = RECORDS_PER_KEY - 500;
            for _ in 0..1000 {
                let mut bytes = [0; 16];
                sealer.seal(&[], &mut bytes);
                assert!(seen.insert(bytes));
            }
        }
    }

    #[test]
    fn both_ends_change_the_key_after_the_same_record() {
        let ((mut seal, _), (_, mut open)) = pair(Lane::Bulk);
        (seal.0.number, open.0.number) = (RECORDS_PER_KEY - 3, RECORDS_PER_KEY - 3);
        for record in 0..6 {
            let mut bytes = [record; 100];
            let tag = seal.seal(&[record], &mut bytes);
            // A sealer that stays with the first key.
            let number = RECORDS_PER_KEY - 3 + u64::from(record);
            let mut stays = pair(Lane::Bulk).1.1;
            stays.0.number = number;
            if number != RECORDS_PER_KEY {
                assert_eq!(stays.open(&[record], &mut bytes.clone(), tag), number < RECORDS_PER_KEY);
            }
            assert!(open.open(&[record], &mut bytes, tag), "{record}");
            assert_eq!(bytes, [record; 100]);
        }
    }

    #[test]
    #[should_panic(expected = "one key for both directions")]
    fn one_key_for_both_directions_is_refused() {
        let _ = Seal::new([7; KEY_LEN], [7; KEY_LEN]);
    }
}
