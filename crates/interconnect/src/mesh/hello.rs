//! The hello of each end of a new connection: 80 bytes, little endian, sealed in the first message
//! of its handshake:
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
//! | 15 | 1 | receiver's node |
//! | 16 | 16 | cluster |
//! | 32 | 8 | sender's incarnation |
//! | 40 | 8 | fingerprint of the settings that must be equal on both nodes |
//! | 48 | 4 | generation of the slot's rail: 1, 2, ... |
//! | 52 | 1 | slot |
//! | 53 | 1 | refusal: 0, or the reason why the sender closes the connection (see [`Refusal`]) |
//! | 54 | 2 | largest segment that the path takes; 0: not known |
//! | 56 | 8 | number of the sender's PID namespace (shm); 0: not known |
//! | 64 | 12 | zero |
//! | 76 | 4 | CRC-32C of the 76 bytes before |
//!
//! It is read only after its sender has proved that it has the cluster key (`noise.rs`).

use plexus_base::{
    Incarnation, NodeId,
    wire::{self, DecodeError, Fault, Fixed, require_magic, require_version},
};
use plexus_fabric::{Lane, RailKind};

const MAGIC: [u8; 8] = *b"PLEXUS\r\n";
const VERSION: u16 = 7;

/// The length of a hello in bytes.
pub(super) const HELLO: usize = Wire::LEN;

/// The content of a hello.
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
    pub(super) namespace: u64,
    pub(super) refusal: Option<Refusal>,
}

/// The reason why a node refuses a connection of another node of its cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The two nodes read different configurations.
    #[error(
        "its configuration differs (workers, block size, disk group or nodes): give every node the same cluster.toml"
    )]
    Settings = 1,
    /// The slot has this rail already, or a newer one.
    #[error("it has that connection already")]
    Connected = 2,
    /// This incarnation of the caller is not a member of the view, or the link to it is gone.
    #[error(
        "the cluster has not taken this node in, or has lost it: start it again if it does not come in by itself"
    )]
    NoMember = 3,
    /// The hello is for another node.
    #[error("another node answers there: compare the addresses in cluster.toml")]
    NotMe = 4,
    /// The nodes run in different PID namespaces, so neither can kill the other before it uses the
    /// memory again.
    #[error(
        "it runs in another PID namespace of this host, where this node cannot kill it: the two use TCP instead of shared memory"
    )]
    Apart = 5,
}

wire::numbered! { impl Refusal as "refusal" { Settings, Connected, NoMember, NotMe, Apart } }

wire::layout! {
    struct Wire: 80 {
        magic: [u8; 8], version: u16, rail: u8, lane: u8, worker: u8, workers: u8, from: u8, to: u8, cluster: [u8; 16],
        incarnation: Incarnation, fingerprint: u64, generation: u32, slot: u8, refusal: u8, clamp: u16, namespace: u64, zero: [u8; 12], crc: u32
    }
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO] {
        let mut bytes = wire::encode(&Wire {
            magic: MAGIC,
            version: VERSION,
            rail: self.rail.number(),
            lane: self.lane as u8,
            worker: self.worker,
            workers: self.workers,
            from: self.from.0,
            to: self.to.0,
            cluster: self.cluster,
            incarnation: self.incarnation,
            fingerprint: self.fingerprint,
            generation: self.generation,
            slot: self.slot,
            refusal: self.refusal.map_or(0, |refusal| refusal as u8),
            clamp: self.clamp,
            namespace: self.namespace,
            zero: [0; 12],
            crc: 0,
        });
        wire::seal_behind(&mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO]) -> Result<Self, DecodeError> {
        wire::decode("hello", bytes, |reader| {
            let wire: Wire = reader.take()?;
            require_magic(wire.magic, MAGIC)?;
            require_version(wire.version, VERSION)?;
            wire::verify_behind(bytes)?;
            Ok(Self {
                rail: RailKind::from_number(wire.rail).ok_or(Fault::Field("rail"))?,
                lane: *Lane::ALL.get(usize::from(wire.lane)).ok_or(Fault::Field("lane"))?,
                worker: wire.worker,
                workers: wire.workers,
                from: NodeId(wire.from),
                to: NodeId(wire.to),
                cluster: wire.cluster,
                incarnation: wire.incarnation,
                fingerprint: wire.fingerprint,
                slot: wire.slot,
                generation: wire.generation,
                clamp: wire.clamp,
                namespace: wire.namespace,
                refusal: if wire.refusal == 0 { None } else { Some(Refusal::from_raw(wire.refusal)?) },
            })
        })
    }
}

#[cfg(test)]
impl Hello {
    /// A hello with a value in every field.
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
            namespace: 4_026_531_836,
            refusal: Some(Refusal::Settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_decoded_as_encoded() {
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
