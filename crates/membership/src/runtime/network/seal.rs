//! The keys of datagrams. Each incarnation of a node seals under its own session keys, one for each
//! key of the cluster.
//!
//! A session key is derived by HKDF-SHA-256 from the cluster's key. The salt is the sender's random
//! session; cluster, node and incarnation are the context. Two sessions have the same key only if
//! they have chosen the same 16 random bytes. So a nonce, which counts within a session, is never
//! used twice under a key.

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::mesh::Key;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
};

use super::datagram::{Head, SessionId};

/// Returns the public name of the cluster's key in datagrams, which does not reveal the key.
pub(super) fn name(cluster: [u8; 16], key: &Key) -> u64 {
    let drawn = Salt::new(HKDF_SHA256, &cluster).extract(key.bytes());
    let mut name = [0; 32];
    let filled =
        drawn.expand(&[b"plexus membership key name"], HKDF_SHA256).and_then(|okm| okm.fill(&mut name));
    filled.expect("a name is as long as a hash");
    u64::from_le_bytes(*name.first_chunk().expect("it is longer"))
}

/// The key of one sender's session.
pub(super) struct SessionKey(LessSafeKey);

impl SessionKey {
    pub(super) fn draw(
        cluster: [u8; 16],
        key: &Key,
        node: NodeId,
        incarnation: Incarnation,
        session: SessionId,
    ) -> Self {
        let drawn = Salt::new(HKDF_SHA256, &session).extract(key.bytes());
        let incarnation = incarnation.0.to_le_bytes();
        let what: [&[u8]; 4] = [b"plexus membership datagrams", &cluster, &[node.0], &incarnation];
        let key = drawn.expand(&what, &AES_256_GCM).expect("a key is as long as a hash");
        Self(LessSafeKey::new(UnboundKey::from(key)))
    }

    /// Returns the whole datagram.
    pub(super) fn seal(&self, head: &Head, body: &[u8]) -> Vec<u8> {
        let clear = head.encode();
        let mut bytes = [&clear[..], body].concat();
        let sealed = &mut bytes[clear.len()..];
        let tag = self.0.seal_in_place_separate_tag(nonce(head), Aad::from(clear), sealed);
        bytes.extend_from_slice(tag.expect("it is short").as_ref());
        bytes
    }

    /// Returns the body if head and body were sealed under this key.
    pub(super) fn open(&self, head: &Head, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = sealed.to_vec();
        let length = self.0.open_in_place(nonce(head), Aad::from(head.encode()), &mut bytes).ok()?.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

fn nonce(head: &Head) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[0] = head.to.0;
    nonce[4..].copy_from_slice(&head.counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::network::datagram::{HEAD, Kind};

    fn head() -> Head {
        Head {
            kind: Kind::Report,
            from: NodeId(1),
            to: NodeId(2),
            key: 4,
            session: [3; 16],
            echo: [4; 16],
            incarnation: Incarnation(5),
            counter: 6,
        }
    }

    fn key(secret: u8, cluster: u8, session: u8) -> SessionKey {
        SessionKey::draw([cluster; 16], &Key::new([secret; 32]), NodeId(1), Incarnation(5), [session; 16])
    }

    #[test]
    fn a_sealed_body_opens_and_a_changed_one_does_not() {
        let sealed = key(1, 2, 3).seal(&head(), b"what it says");
        let opened = |bytes: &[u8], key: &SessionKey| {
            let (head, sealed) = Head::decode(bytes).ok()?;
            key.open(&head, sealed)
        };
        assert_eq!(opened(&sealed, &key(1, 2, 3)).as_deref(), Some(&b"what it says"[..]));
        for other in [key(2, 2, 3), key(1, 1, 3), key(1, 2, 4)] {
            assert_eq!(opened(&sealed, &other), None);
        }
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(opened(&bad, &key(1, 2, 3)), None, "byte {at}");
        }
        assert!(!sealed[HEAD..].windows(4).any(|four| four == b"what"));
    }

    #[test]
    fn different_keys_have_different_names() {
        let of = |secret: u8, cluster: u8| name([cluster; 16], &Key::new([secret; 32]));
        assert_eq!(of(1, 1), of(1, 1));
        assert!(of(1, 1) != of(2, 1) && of(1, 1) != of(1, 2));
    }
}
