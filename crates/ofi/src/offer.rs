//! The offer that the two ends of a rail over libfabric exchange first, over a connection that is
//! already authenticated.
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
//! 0    u16        its identifier
//! 2    u16        flags: 1 = wordwise, it is written by messages and has no key
//! 4    u32        bytes in a granule, 0: not divided
//! 8    u64        length in bytes
//! 16   u64        the number to add to an offset to address it
//! 24   u64        key for writes in the prompt lane
//! 32   u64        key for writes in the bulk lane
//! 40   u64        0
//! ```
//!
//! The session and the keys authenticate the peer, so an offer must not be shown to others. The
//! decoder takes any bytes.

use plexus_base::wire::{
    self, DecodeError, Fault, Fixed, Reader, Writer, require, require_magic, require_version,
};
use plexus_fabric::{LANES, WindowSpan};

use crate::device::MAX_ADDRESS;

const MAGIC: [u8; 8] = *b"PLXOFI\r\n";
const VERSION: u16 = 1;
const MAX_PROVIDER: usize = 48;
/// The offset of the checksum.
const CRC: usize = 12;
/// The maximum number of windows of an offer.
pub(crate) const MAX_WINDOWS: usize = 64;

/// A window of the peer, and how to write into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteWindow {
    pub(crate) span: WindowSpan,
    /// The number added to an offset.
    pub(crate) base: u64,
    /// The keys by lane.
    pub(crate) keys: [u64; LANES],
}

/// The offer of one end to the other. See the [module documentation](self) for the layout.
#[derive(Clone, PartialEq, Eq)]
pub struct Offer {
    pub(crate) session: u64,
    pub(crate) provider: String,
    pub(crate) address_format: u32,
    /// The addresses by lane.
    pub(crate) addresses: [Vec<u8>; LANES],
    pub(crate) windows: Vec<RemoteWindow>,
}

impl std::fmt::Debug for Offer {
    /// Prints the offer without the session and the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let windows: Vec<_> = self.windows.iter().map(|window| window.span).collect();
        f.debug_struct("Offer").field("provider", &self.provider).field("windows", &windows).finish()
    }
}

wire::layout! {
    struct Head: 592 {
        magic: [u8; 8], version: u16, windows: u16, crc: u32, session: u64, address_format: u32, address_lens: [u16; LANES],
        provider: [u8; MAX_PROVIDER], prompt: [u8; MAX_ADDRESS], bulk: [u8; MAX_ADDRESS]
    }
    impl RemoteWindow: 48 { span: WindowSpan, base: u64, keys: [u64; LANES]; 8 }
}

const HEAD: usize = Head::LEN;
const WINDOW: usize = RemoteWindow::LEN;

/// A field that begins with `bytes`, filled up with zeros.
fn padded<const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    let mut field = [0; LEN];
    field[..bytes.len()].copy_from_slice(bytes);
    field
}

impl Offer {
    /// The longest offer in bytes.
    pub const MAX_LEN: usize = HEAD + MAX_WINDOWS * WINDOW;

    /// Encodes the offer for the peer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let [prompt, bulk] = &self.addresses;
        let head = Head {
            magic: MAGIC,
            version: VERSION,
            windows: self.windows.len() as u16,
            crc: 0,
            session: self.session,
            address_format: self.address_format,
            address_lens: [prompt.len() as u16, bulk.len() as u16],
            provider: padded(self.provider.as_bytes()),
            prompt: padded(prompt),
            bulk: padded(bulk),
        };
        let mut writer = Writer::with(&head, self.windows.len() * WINDOW);
        self.windows.iter().for_each(|window| _ = writer.put(window));
        let mut bytes = writer.finish();
        wire::seal(&mut bytes, CRC);
        bytes
    }

    /// Decodes the bytes of a peer.
    ///
    /// # Errors
    /// They are not an offer.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("offer of a rail over libfabric", bytes, |reader| {
            let head: Head = reader.take()?;
            require_magic(head.magic, MAGIC)?;
            require_version(head.version, VERSION)?;
            wire::verify(bytes, CRC)?;
            require(usize::from(head.windows) <= MAX_WINDOWS, "number of windows")?;
            let provider = head.provider.split(|byte| *byte == 0).next().unwrap_or_default();
            let provider = str::from_utf8(provider).map_err(|_| Fault::Field("name of the provider"))?;
            let address = |address: &[u8], lane: usize| {
                let address = address.get(..usize::from(head.address_lens[lane]));
                address.map(<[u8]>::to_vec).ok_or(Fault::Field("length of an address"))
            };
            let windows: Vec<RemoteWindow> = reader.list(head.windows, Reader::take)?;
            for (number, RemoteWindow { span, base, .. }) in windows.iter().enumerate() {
                // No offset inside the span may lead past the end of all addresses.
                require(base.checked_add(span.len).is_some(), "end of a window")?;
                require(windows[..number].iter().all(|other| other.span.id != span.id), "name of a window")?;
            }
            Ok(Self {
                session: head.session,
                provider: provider.to_owned(),
                address_format: head.address_format,
                addresses: [address(&head.prompt, 0)?, address(&head.bulk, 1)?],
                windows,
            })
        })
    }

    /// Returns true if the name of a provider fits in an offer.
    pub(crate) fn names(provider: &str) -> bool {
        provider.len() <= MAX_PROVIDER && !provider.contains('\0')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_fabric::WindowId;

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

    /// The bytes with their checksum made right.
    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        wire::seal(&mut bytes, CRC);
        bytes
    }

    #[test]
    fn encoded_offers_are_decoded() {
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
            assert!(Offer::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Offer::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn impossible_values_with_a_right_checksum_are_refused() {
        let change = |at: usize, with: &[u8]| {
            let mut bytes = offer(2).encode();
            bytes[at..at + with.len()].copy_from_slice(with);
            Offer::decode(&resealed(bytes)).map_err(|error| error.fault)
        };
        assert_eq!(change(0, b"X"), Err(Fault::Magic));
        assert_eq!(change(8, &[2]), Err(Fault::Version { found: 2, known: 1 }));
        assert_eq!(change(10, &[1]), Err(Fault::Trailing));
        assert_eq!(change(10, &[255, 255]), Err(Fault::Field("number of windows")));
        assert_eq!(change(28, &[1, 1]), Err(Fault::Field("length of an address")));
        assert_eq!(change(32, &[0xff]), Err(Fault::Field("name of the provider")));
        assert_eq!(change(HEAD + 16, &[0xff; 8]), Err(Fault::Field("end of a window")));
        assert_eq!(change(HEAD + 2, &[2]), Err(Fault::Field("yes or no")));
        assert_eq!(change(HEAD + WINDOW, &[0, 0]), Err(Fault::Field("name of a window")));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let shown = format!("{:?}", offer(1));
        assert!(shown.contains("tcp;ofi_rxm") && !shown.contains("65261") && !shown.contains("keys"));
    }
}
