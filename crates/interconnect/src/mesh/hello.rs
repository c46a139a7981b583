//! What each end of a new connection says about itself, 80 bytes, little endian, sealed in the first message of its handshake:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `PLEXUS\r\n` |
//! | 8 | 2 | version of everything that follows |
//! | 10 | 1 | rail: shm 0, tcp 1, ofi 2 |
//! | 11 | 1 | lane (tcp) |
//! | 12 | 1 | worker (tcp, ofi) |
//! | 13 | 1 | workers of the sender |
//! | 14 | 1 | sender's node |
//! | 15 | 1 | node that it means to talk to |
//! | 16 | 16 | cluster |
//! | 32 | 8 | sender's incarnation |
//! | 40 | 8 | fingerprint of the settings that must be alike on the two |
//! | 48 | 4 | generation of the slot's rail: 1, 2, ... |
//! | 52 | 1 | slot |
//! | 53 | 1 | refusal: 0, or why the receiver closes (see [`Refusal`]) |
//! | 54 | 2 | largest segment that the path takes; 0: not known |
//! | 56 | 20 | zero |
//! | 76 | 4 | CRC-32C of the 76 bytes before |
//!
//! It is read only after its sender has proved that it has the cluster key (`noise.rs`).

use plexus_base::{Incarnation, NodeId, crc32c};
use plexus_fabric::{Lane, RailKind};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

const MAGIC: [u8; 8] = *b"PLEXUS\r\n";
const VERSION: u16 = 4;

/// Length of a hello in bytes.
pub(super) const HELLO: usize = size_of::<Wire>();

/// What a hello says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) rail: RailKind,
    pub(super) lane: Lane,
    pub(super) worker: u8,
    pub(super) workers: u8,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) cluster: [u8; 16],
    pub(super) incarnation: Incarnation,
    pub(super) fingerprint: u64,
    pub(super) slot: u8,
    pub(super) generation: u32,
    pub(super) clamp: u16,
    pub(super) refusal: Option<Refusal>,
}

/// Why a node does not take a connection of another node of its cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The two read different configurations.
    #[error(
        "its configuration differs (workers, block size, disk group or nodes): give every node the same cluster.toml"
    )]
    Settings = 1,
    /// The slot has this rail already, or a newer one.
    #[error("it has that connection already")]
    Connected = 2,
    /// This incarnation of the caller is no member of the view, or the link to it is gone.
    #[error(
        "the cluster has not taken this node in, or has lost it: start it again if it does not come in by itself"
    )]
    NoMember = 3,
    /// For another node.
    #[error("another node answers there: compare the addresses in cluster.toml")]
    NotMe = 4,
}

/// Why a hello is not one. A stranger learns nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BadHello {
    #[error("it does not speak this protocol")]
    Magic,
    #[error("it speaks version {0}, this node {VERSION}")]
    Version(u16),
    #[error("its checksum does not match")]
    Checksum,
    #[error("it names what does not exist")]
    Field,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Wire {
    magic: [u8; 8],
    version: U16,
    rail: u8,
    lane: u8,
    worker: u8,
    workers: u8,
    from: u8,
    to: u8,
    cluster: [u8; 16],
    incarnation: U64,
    fingerprint: U64,
    generation: U32,
    slot: u8,
    refusal: u8,
    clamp: U16,
    zero: [u8; 20],
    crc: U32,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO] {
        let mut wire = Wire {
            magic: MAGIC,
            version: VERSION.into(),
            rail: self.rail.number(),
            lane: self.lane as u8,
            worker: self.worker,
            workers: self.workers,
            from: self.from.0,
            to: self.to.0,
            cluster: self.cluster,
            incarnation: self.incarnation.0.into(),
            fingerprint: self.fingerprint.into(),
            generation: self.generation.into(),
            slot: self.slot,
            refusal: self.refusal.map_or(0, |refusal| refusal as u8),
            clamp: self.clamp.into(),
            zero: [0; 20],
            crc: 0.into(),
        };
        wire.crc = crc32c(&wire.as_bytes()[..HELLO - 4]).into();
        let mut bytes = [0; HELLO];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO]) -> Result<Self, BadHello> {
        let wire = Wire::ref_from_bytes(bytes).map_err(|_| BadHello::Field)?;
        if wire.magic != MAGIC {
            return Err(BadHello::Magic);
        }
        if wire.version.get() != VERSION {
            return Err(BadHello::Version(wire.version.get()));
        }
        if wire.crc.get() != crc32c(&bytes[..HELLO - 4]) {
            return Err(BadHello::Checksum);
        }
        Ok(Self {
            rail: RailKind::from_number(wire.rail).ok_or(BadHello::Field)?,
            lane: *Lane::ALL.get(usize::from(wire.lane)).ok_or(BadHello::Field)?,
            worker: wire.worker,
            workers: wire.workers,
            from: NodeId(wire.from),
            to: NodeId(wire.to),
            cluster: wire.cluster,
            incarnation: Incarnation(wire.incarnation.get()),
            fingerprint: wire.fingerprint.get(),
            slot: wire.slot,
            generation: wire.generation.get(),
            clamp: wire.clamp.get(),
            refusal: match wire.refusal {
                0 => None,
                1 => Some(Refusal::Settings),
                2 => Some(Refusal::Connected),
                3 => Some(Refusal::NoMember),
                4 => Some(Refusal::NotMe),
                _ => return Err(BadHello::Field),
            },
        })
    }
}

#[cfg(test)]
impl Hello {
    /// One with something in every field.
    pub(super) fn example() -> Self {
        Self {
            rail: RailKind::Tcp,
            lane: Lane::Bulk,
            worker: 1,
            workers: 2,
            from: NodeId(2),
            to: NodeId(0),
            cluster: [7; 16],
            incarnation: Incarnation(99),
            fingerprint: 5,
            slot: 3,
            generation: 77,
            clamp: 1400,
            refusal: Some(Refusal::Settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_comes_back_as_it_was() {
        assert_eq!(HELLO, 80);
        assert_eq!(Hello::decode(&Hello::example().encode()), Ok(Hello::example()));
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        let bytes = Hello::example().encode();
        for bit in 0..HELLO * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
