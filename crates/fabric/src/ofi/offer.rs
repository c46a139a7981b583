//! What the two ends of a rail over libfabric must tell each other first, over a connection that is authenticated
//! already.
//!
//! Little endian; 592 bytes and 48 for each window:
//!
//! ```text
//! 0    [u8; 8]    magic, `PLXOFI\r\n`
//! 8    u16        version, 1
//! 10   u16        number of windows, at most 64
//! 12   u32        CRC-32C of everything with this field zero
//! 16   u64        session: the number that every message to this end must carry
//! 24   u32        format of the addresses, as libfabric numbers them
//! 28   u16        length of the address of the prompt lane's endpoint, at most 256
//! 30   u16        length of the address of the bulk lane's endpoint, at most 256
//! 32   [u8; 48]   name of the provider, then zeros
//! 80   [u8; 256]  address of the prompt lane's endpoint, then zeros
//! 336  [u8; 256]  address of the bulk lane's endpoint, then zeros
//!                 -- then for each window:
//! 0    u16        its name
//! 2    u16        flags: 1 = wordwise, it is written by messages and has no key
//! 4    u32        bytes in a granule, 0: not divided
//! 8    u64        length in bytes
//! 16   u64        what is added to an offset to address it
//! 24   u64        key for writes in the prompt lane
//! 32   u64        key for writes in the bulk lane
//! 40   u64        0
//! ```
//!
//! The session and the keys are what a stranger does not know: an offer is for the peer's eyes only. The decoder
//! takes any bytes.

use plexus_base::{crc32c, crc32c_append};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::device::MAX_ADDRESS;
use crate::{LANES, WindowId, WindowSpan};

const MAGIC: [u8; 8] = *b"PLXOFI\r\n";
const VERSION: u16 = 1;
const MAX_PROVIDER: usize = 48;
const FLAG_WORDWISE: u16 = 1;
/// Windows that fit in an offer.
pub(super) const MAX_WINDOWS: usize = 64;

/// A window, and how to write into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RemoteWindow {
    pub(super) span: WindowSpan,
    /// Added to an offset.
    pub(super) base: u64,
    /// By lane.
    pub(super) keys: [u64; LANES],
}

/// What one end offers the other. See the [module documentation](self) for the layout.
#[derive(Clone, PartialEq, Eq)]
pub struct Offer {
    pub(super) session: u64,
    pub(super) provider: String,
    pub(super) address_format: u32,
    /// By lane.
    pub(super) addresses: [Vec<u8>; LANES],
    pub(super) windows: Vec<RemoteWindow>,
}

impl std::fmt::Debug for Offer {
    /// Without the session and the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let windows: Vec<_> = self.windows.iter().map(|window| window.span).collect();
        f.debug_struct("Offer").field("provider", &self.provider).field("windows", &windows).finish()
    }
}

/// Why bytes are no offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadOffer {
    /// Too few or too many bytes.
    #[error("the offer of the peer is not as long as it says")]
    Length,
    /// Not an offer.
    #[error("the peer sent something else than an offer")]
    Magic,
    /// Of another version.
    #[error(
        "the offer of the peer has version {0}, this node {VERSION}: run the same version of Plexus on both"
    )]
    Version(u16),
    /// Damaged.
    #[error("the checksum of the peer's offer does not match")]
    Checksum,
    /// Something in it that cannot be.
    #[error("the offer of the peer names what does not exist")]
    Field,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
    windows: U16,
    crc: U32,
    session: U64,
    address_format: U32,
    address_lens: [U16; LANES],
    provider: [u8; MAX_PROVIDER],
    addresses: [[u8; MAX_ADDRESS]; LANES],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireWindow {
    id: U16,
    flags: U16,
    granule: U32,
    len: U64,
    base: U64,
    keys: [U64; LANES],
    zeros: U64,
}

const HEAD: usize = size_of::<Head>();
const WINDOW: usize = size_of::<WireWindow>();

const _: () = assert!(HEAD == 592 && WINDOW == 48 && LANES == 2);

/// The checksum of an offer, whatever stands where it is kept.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..12]), &[0; 4]), &bytes[16..])
}

impl Offer {
    /// Longest offer in bytes.
    pub const MAX_LEN: usize = HEAD + MAX_WINDOWS * WINDOW;

    /// The bytes for the peer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            windows: (self.windows.len() as u16).into(),
            crc: 0.into(),
            session: self.session.into(),
            address_format: self.address_format.into(),
            address_lens: self.addresses.each_ref().map(|address| (address.len() as u16).into()),
            provider: [0; MAX_PROVIDER],
            addresses: [[0; MAX_ADDRESS]; LANES],
        };
        head.provider[..self.provider.len()].copy_from_slice(self.provider.as_bytes());
        for (place, address) in head.addresses.iter_mut().zip(&self.addresses) {
            place[..address.len()].copy_from_slice(address);
        }
        let mut bytes = head.as_bytes().to_vec();
        for window in &self.windows {
            let wire = WireWindow {
                id: window.span.id.0.into(),
                flags: if window.span.wordwise { FLAG_WORDWISE } else { 0 }.into(),
                granule: window.span.granule.into(),
                len: window.span.len.into(),
                base: window.base.into(),
                keys: window.keys.map(U64::new),
                zeros: 0.into(),
            };
            bytes.extend_from_slice(wire.as_bytes());
        }
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// It is no offer.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadOffer> {
        let (head, rest) = Head::ref_from_prefix(bytes).map_err(|_| BadOffer::Length)?;
        if head.magic != MAGIC {
            return Err(BadOffer::Magic);
        }
        if head.version.get() != VERSION {
            return Err(BadOffer::Version(head.version.get()));
        }
        let count = usize::from(head.windows.get());
        if count > MAX_WINDOWS || rest.len() != count * WINDOW {
            return Err(BadOffer::Length);
        }
        if head.crc.get() != checksum(bytes) {
            return Err(BadOffer::Checksum);
        }
        let wire = <[WireWindow]>::ref_from_bytes(rest).map_err(|_| BadOffer::Length)?;
        let provider_len = head.provider.iter().position(|byte| *byte == 0).unwrap_or(MAX_PROVIDER);
        let provider = str::from_utf8(&head.provider[..provider_len]).map_err(|_| BadOffer::Field)?;
        let mut addresses = [const { Vec::new() }; LANES];
        for (lane, address) in addresses.iter_mut().enumerate() {
            let len = usize::from(head.address_lens[lane].get());
            *address = head.addresses[lane].get(..len).ok_or(BadOffer::Field)?.to_vec();
        }
        let mut windows: Vec<RemoteWindow> = Vec::with_capacity(count);
        for window in wire {
            let span = WindowSpan {
                id: WindowId(window.id.get()),
                len: window.len.get(),
                granule: window.granule.get(),
                wordwise: window.flags.get() == FLAG_WORDWISE,
            };
            if window.flags.get() & !FLAG_WORDWISE != 0 {
                return Err(BadOffer::Field);
            }
            let base = window.base.get();
            // So that no offset that the span holds leads past the end of all addresses.
            if base.checked_add(span.len).is_none() || windows.iter().any(|other| other.span.id == span.id) {
                return Err(BadOffer::Field);
            }
            windows.push(RemoteWindow { span, base, keys: window.keys.map(U64::get) });
        }
        Ok(Self {
            session: head.session.get(),
            provider: provider.to_owned(),
            address_format: head.address_format.get(),
            addresses,
            windows,
        })
    }

    /// Whether the name of a provider fits in an offer.
    pub(super) fn names(provider: &str) -> bool {
        provider.len() <= MAX_PROVIDER && !provider.contains('\0')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(windows: usize) -> Offer {
        let window = |id: usize| RemoteWindow {
            span: WindowSpan { id: WindowId(id as u16), len: 1 << 20, granule: 4096, wordwise: id % 2 == 1 },
            base: 0x7f00_0000_0000,
            keys: [id as u64, u64::MAX - id as u64],
        };
        Offer {
            session: 0xfeed,
            provider: "tcp;ofi_rxm".into(),
            address_format: 2,
            addresses: [vec![1; 16], vec![2; MAX_ADDRESS]],
            windows: (0..windows).map(window).collect(),
        }
    }

    /// With the checksum made right again.
    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for windows in [0, 1, 3, MAX_WINDOWS] {
            let bytes = offer(windows).encode();
            assert!(bytes.len() <= Offer::MAX_LEN);
            assert_eq!(Offer::decode(&bytes), Ok(offer(windows)));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_refused() {
        let bytes = offer(2).encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Offer::decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Offer::decode(&bytes[..len]), Err(BadOffer::Length));
        }
        assert_eq!(Offer::decode(&[&bytes[..], &[0]].concat()), Err(BadOffer::Length));
    }

    #[test]
    fn what_cannot_be_is_refused_though_its_checksum_is_right() {
        let change = |at: usize, with: &[u8]| {
            let mut bytes = offer(2).encode();
            bytes[at..at + with.len()].copy_from_slice(with);
            Offer::decode(&resealed(bytes))
        };
        assert_eq!(change(0, b"X"), Err(BadOffer::Magic));
        assert_eq!(change(8, &[2]), Err(BadOffer::Version(2)));
        assert_eq!(change(10, &[1]), Err(BadOffer::Length));
        assert_eq!(change(10, &[255, 255]), Err(BadOffer::Length));
        assert_eq!(change(28, &[1, 1]), Err(BadOffer::Field), "an address of 257 bytes");
        assert_eq!(change(32, &[0xff]), Err(BadOffer::Field), "a name that is no text");
        assert_eq!(change(HEAD + 16, &[0xff; 8]), Err(BadOffer::Field), "a window past the end of memory");
        assert_eq!(change(HEAD + 2, &[2]), Err(BadOffer::Field), "a flag that there is not");
        assert_eq!(change(HEAD + WINDOW, &[0, 0]), Err(BadOffer::Field), "two windows of one name");
    }

    #[test]
    fn nothing_secret_is_printed() {
        let shown = format!("{:?}", offer(1));
        assert!(shown.contains("tcp;ofi_rxm") && !shown.contains("65261") && !shown.contains("keys"));
    }
}
