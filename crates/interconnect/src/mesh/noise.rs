//! The proof that two nodes have a key of the cluster, before anything else is read.
//!
//! The pattern is Noise `NNpsk0`. The cluster key is mixed in first: without it no node can make
//! the first message, nor read or make its answer. Fresh Diffie-Hellman keys of both sides give
//! every connection a secret of its own, even if the cluster key leaks later. Every message has one
//! fixed length.
//!
//! | message | bytes | from | content |
//! |---|---|---|---|
//! | 1 | 128 | caller | its ephemeral key (32), its hello sealed (80 + 16) |
//! | 2 | 128 | accepter | its ephemeral key (32), its hello sealed (80 + 16) |
//! | 3 | 273 | caller | its windows, sealed (257 + 16) |
//! | 4 | 273 | accepter | its windows, sealed (257 + 16) |
//! | 5 | 17 | caller | go, sealed (1 + 16): only now may the connection be used |
//!
//! An unauthenticated peer cannot make message 1 and gets no answer. A peer that replays one gets a
//! message 2 that it cannot read, and cannot make message 3. The accepter acts on a hello only
//! after message 3.
//!
//! **Keys of a connection.** Noise ends with two independent keys, one for each direction, derived
//! by HKDF from a chaining key that only the two ends know (the `Split` of the specification).
//! Neither key seals anything. Each is the pseudorandom key of HKDF-Expand, and labels derive
//! separate keys for the rest of the handshake (messages 3 to 5) and for the rail. So no two
//! ciphers ever share a key, and both may count their nonces from zero.

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Prk},
};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::{
    hello::HELLO,
    keys::{KEY, Key},
};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// The purpose, mixed in with the cluster's identifier: both ends must have the same.
const PROLOGUE: &[u8; 16] = b"plexus handshake";

/// The bytes that sealing adds.
pub(super) const TAG: usize = 16;

/// The bytes of the first message of each side.
pub(super) const GREETING: usize = 32 + HELLO + TAG;

/// The other side has no valid key, belongs to another cluster, or the bytes were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer does not prove that it has a key of this cluster")]
pub(super) struct Unproven;

/// A caller that waits for the answer.
pub(super) struct CallerHandshake(HandshakeState);

/// An accepter that has not answered yet.
pub(super) struct AccepterHandshake(HandshakeState);

/// Begins a handshake; returns the message to send.
pub(super) fn call(key: &Key, cluster: [u8; 16], hello: &[u8; HELLO]) -> (CallerHandshake, [u8; GREETING]) {
    let mut state = state(key, cluster, true);
    let message = write(&mut state, hello);
    (CallerHandshake(state), message)
}

/// Reads the first message of a caller; returns its hello if the caller has one of `keys`.
pub(super) fn called(
    keys: &[Key],
    cluster: [u8; 16],
    message: &[u8; GREETING],
) -> Result<(AccepterHandshake, [u8; HELLO]), Unproven> {
    keys.iter()
        .find_map(|key| {
            let mut state = state(key, cluster, false);
            read(&mut state, message).ok().map(|hello| (AccepterHandshake(state), hello))
        })
        .ok_or(Unproven)
}

impl CallerHandshake {
    /// Reads the answer.
    pub(super) fn answered(
        mut self,
        message: &[u8; GREETING],
    ) -> Result<([u8; HELLO], NoiseSession), Unproven> {
        let hello = read(&mut self.0, message)?;
        Ok((hello, NoiseSession::new(self.0)))
    }
}

impl AccepterHandshake {
    /// Makes the answer to send.
    pub(super) fn answer(mut self, hello: &[u8; HELLO]) -> ([u8; GREETING], NoiseSession) {
        let message = write(&mut self.0, hello);
        (message, NoiseSession::new(self.0))
    }
}

fn state(key: &Key, cluster: [u8; 16], caller: bool) -> HandshakeState {
    let pattern = PATTERN.parse().expect("a pattern of the specification");
    let prologue = [*PROLOGUE, cluster].concat();
    let made = Builder::new(pattern)
        .prologue(&prologue)
        .and_then(|builder| builder.psk(0, key.bytes()))
        .and_then(|builder| if caller { builder.build_initiator() } else { builder.build_responder() });
    made.expect("the pattern needs no other key")
}

fn write(state: &mut HandshakeState, hello: &[u8; HELLO]) -> [u8; GREETING] {
    let mut message = [0; GREETING];
    let length = state.write_message(hello, &mut message).expect("it is this side's turn, and there is room");
    assert_eq!(length, GREETING, "the message has the length of the table");
    message
}

fn read(state: &mut HandshakeState, message: &[u8; GREETING]) -> Result<[u8; HELLO], Unproven> {
    let mut payload = [0; GREETING];
    match state.read_message(message, &mut payload) {
        Ok(HELLO) => Ok(*payload.first_chunk().expect("a hello is shorter")),
        _ => Err(Unproven),
    }
}

/// The keys of a rail for sending and for receiving, wiped when they are dropped.
pub(super) type RailKeys = (Zeroizing<[u8; KEY]>, Zeroizing<[u8; KEY]>);

/// The secrets of two ends, once each knows that the other has the key.
pub(super) struct NoiseSession {
    send: DirectionKeys,
    receive: DirectionKeys,
}

impl NoiseSession {
    fn new(mut state: HandshakeState) -> Self {
        let caller = state.is_initiator();
        let (forth, back) = state.dangerously_get_raw_split();
        let [forth, back] = [forth, back].map(|key| DirectionKeys::new(&Zeroizing::new(key)));
        if caller { Self { send: forth, receive: back } } else { Self { send: back, receive: forth } }
    }

    /// Seals the next message of the handshake.
    pub(super) fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(plain.len() + TAG);
        bytes.extend_from_slice(plain);
        let nonce = self.send.nonce();
        let sealed = self.send.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes);
        sealed.expect("a message of the handshake is short");
        bytes
    }

    /// Opens the next message of the other side.
    pub(super) fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<&'a [u8], Unproven> {
        let nonce = self.receive.nonce();
        let opened = self.receive.key.open_in_place(nonce, Aad::empty(), sealed);
        opened.map(|plain| &*plain).map_err(|_| Unproven)
    }

    /// The keys for sending and receiving over the connection after the handshake.
    pub(super) fn into_rail_keys(self) -> RailKeys {
        (self.send.rail, self.receive.rail)
    }
}

/// The keys of one direction.
struct DirectionKeys {
    key: LessSafeKey,
    sealed: u32,
    rail: Zeroizing<[u8; KEY]>,
}

impl DirectionKeys {
    fn new(secret: &[u8; KEY]) -> Self {
        let drawn = Prk::new_less_safe(HKDF_SHA256, secret);
        let draw = |label: &[u8]| {
            let mut key = Zeroizing::new([0; KEY]);
            let label = [label];
            let drawn = drawn.expand(&label, HKDF_SHA256).and_then(|okm| okm.fill(&mut *key));
            drawn.expect("a key is as long as a hash");
            key
        };
        let key = UnboundKey::new(&AES_256_GCM, &*draw(b"plexus handshake"));
        Self {
            key: LessSafeKey::new(key.expect("it has the length of a key")),
            sealed: 0,
            rail: draw(b"plexus rail"),
        }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&self.sealed.to_le_bytes());
        self.sealed += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: [u8; 16] = [7; 16];

    fn key(byte: u8) -> Key {
        Key::new([byte; KEY])
    }

    fn joined() -> (NoiseSession, NoiseSession) {
        let (calling, first) = call(&key(1), CLUSTER, &[3; HELLO]);
        let (called, hello) = called(&[key(1)], CLUSTER, &first).unwrap();
        assert_eq!(hello, [3; HELLO]);
        let (second, there) = called.answer(&[4; HELLO]);
        let (hello, here) = calling.answered(&second).unwrap();
        assert_eq!(hello, [4; HELLO]);
        (here, there)
    }

    #[test]
    fn both_ends_of_one_connection_derive_the_same_keys() {
        let (mut here, mut there) = joined();
        let mut sealed = here.seal(b"windows");
        assert_eq!(there.open(&mut sealed), Ok(&b"windows"[..]));
        let mut sealed = there.seal(b"their windows");
        assert_eq!(here.open(&mut sealed), Ok(&b"their windows"[..]));
        let ((send, receive), (theirs, ours)) = (here.into_rail_keys(), there.into_rail_keys());
        assert_eq!((&send, &receive), (&ours, &theirs));
        let (again, _) = joined();
        let all = [send, receive, again.send.rail];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    }

    #[test]
    fn any_valid_key_is_accepted_and_no_other() {
        let (_, first) = call(&key(1), CLUSTER, &[3; HELLO]);
        assert!(called(&[key(2), key(1)], CLUSTER, &first).is_ok());
        assert_eq!(called(&[key(2), key(3)], CLUSTER, &first).err(), Some(Unproven));
        assert_eq!(called(&[key(1)], [8; 16], &first).err(), Some(Unproven), "another cluster");
    }

    #[test]
    fn any_flipped_bit_is_refused_on_both_sides() {
        let (calling, first) = call(&key(1), CLUSTER, &[3; HELLO]);
        let (answerer, _) = called(&[key(1)], CLUSTER, &first).unwrap();
        let (second, _) = answerer.answer(&[4; HELLO]);
        for bit in 0..GREETING * 8 {
            let mut flipped = first;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(called(&[key(1)], CLUSTER, &flipped).err(), Some(Unproven), "bit {bit}");
        }
        let mut flipped = second;
        flipped[GREETING - 1] ^= 1;
        assert_eq!(calling.answered(&flipped).err(), Some(Unproven));
    }

    #[test]
    fn a_message_is_opened_once_and_in_its_order() {
        let (mut here, mut there) = joined();
        let (first, second) = (here.seal(b"one"), here.seal(b"two"));
        assert!(there.open(&mut second.clone()).is_err(), "before its time");
        assert!(there.open(&mut first.clone()).is_err(), "the order is lost for good");
        let (mut here, mut there) = joined();
        let first = here.seal(b"one");
        assert!(there.open(&mut first.clone()).is_ok());
        assert!(there.open(&mut first.clone()).is_err(), "replayed");
    }

    #[test]
    fn a_replayed_first_message_gets_a_useless_answer() {
        let (_, first) = call(&key(1), CLUSTER, &[3; HELLO]);
        let (_, mut one) = called(&[key(1)], CLUSTER, &first).unwrap().0.answer(&[4; HELLO]);
        let (_, mut two) = called(&[key(1)], CLUSTER, &first).unwrap().0.answer(&[4; HELLO]);
        assert!(two.open(&mut one.seal(b"windows")).is_err(), "each answer has a secret of its own");
    }
}
