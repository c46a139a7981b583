//! The first packet of a program to its node, 32 bytes, and the node's answer, 64 bytes, little
//! endian.
//!
//! ```text
//! program:  0  8  magic PLEXUSP\n
//!           8  2  version of everything that follows
//!          10 18  zero
//!          28  4  CRC-32C of the 28 bytes before
//! node:     0  8  magic PLEXUSN\n
//!           8  2  version
//!          10  1  refusal: 0, or why the node closes (see Refusal)
//!          11  1  this node
//!          12  1  nodes of the cluster
//!          13  1  workers of a node: so many rails follow
//!          14  2  zero
//!          16  4  the program's number
//!          20  4  zero
//!          24  8  bytes of the arena for windows
//!          32 28  zero
//!          60  4  CRC-32C of the 60 bytes before
//! ```
//!
//! With its answer the node passes these descriptors:
//!
//! - its arena, read-only;
//! - an epoll set that is readable when the program is woken. The wake-up has mark 0 and is
//!   consumed by `epoll_wait`; the program may add descriptors with other marks;
//! - the page with the end of the node's lease (read-only): its first eight bytes, native endian,
//!   are a time of `CLOCK_BOOTTIME` in nanoseconds. A node whose lease is over can do nothing;
//! - for each worker: the rings that it reads, the page with its notice (read-only), and the
//!   eventfd by which only this program wakes it.
//!
//! The program then sends a packet of one byte ([`GO`]) with the descriptors of its own rings, one
//! per worker, and of the page with its own notice. The node answers with the same byte, or with a
//! refusal as above. After the byte both use the rings and send nothing over the socket. The end of
//! the socket is the end of the attachment.
//!
//! A notice is the first eight bytes of its page, native endian. It is odd while its owner sleeps
//! or is about to, with another odd number each time. After a publication for the owner, the
//! publisher fences and reads the notice. It rings if the number is odd and it has not rung for
//! that number yet.

use plexus_base::{
    MAX_NODES, MAX_WORKERS, NodeId,
    wire::{self, Fixed, require_magic},
};

use super::ClientId;

/// The version of the protocol between programs and nodes.
pub const VERSION: u16 = 4;

/// The length of the program's packet in bytes.
pub const HELLO: usize = Hello::LEN;

/// The length of the node's answer in bytes.
pub const WELCOME: usize = Layout::LEN;

/// The byte of the packet that carries the program's descriptors, and of the node's last packet.
pub const GO: u8 = 0x47;

const PROGRAM: [u8; 8] = *b"PLEXUSP\n";
const NODE: [u8; 8] = *b"PLEXUSN\n";

wire::layout! {
    struct Hello: 32 { magic: [u8; 8], version: u16, zero: [u8; 18], checksum: u32 }
    struct Layout: 64 {
        magic: [u8; 8], version: u16, refusal: u8, node: u8, nodes: u8, workers: u8, zero: [u8; 2], client: ClientId,
        zero_too: u32, arena: u64, rest: [u8; 28], checksum: u32
    }
}

/// Returns the program's packet.
#[must_use]
pub fn hello() -> [u8; HELLO] {
    let hello = Hello { magic: PROGRAM, version: VERSION, zero: [0; 18], checksum: 0 };
    let mut bytes = wire::encode(&hello);
    wire::seal_behind(&mut bytes);
    bytes
}

/// Checks that the bytes are the packet of a program with this version.
///
/// # Errors
/// The refusal to answer with.
pub fn verify_hello(bytes: &[u8]) -> Result<(), Refusal> {
    let hello = wire::decode("packet of a program", bytes, |reader| {
        let hello: Hello = reader.take()?;
        require_magic(hello.magic, PROGRAM)?;
        wire::verify_behind(bytes)?;
        Ok(hello)
    });
    match hello {
        Ok(Hello { version: VERSION, .. }) => Ok(()),
        Ok(_) => Err(Refusal::Version),
        Err(_) => Err(Refusal::NotUnderstood),
    }
}

/// The reason why a node refuses a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The first packet is malformed.
    #[error("the node does not understand this program; use the library of its version")]
    NotUnderstood = 1,
    /// The program has another version.
    #[error("the node has another version; use the library that came with it")]
    Version = 2,
    /// The node has its maximum of programs.
    #[error("the node has its maximum of attached programs; end one")]
    Full = 3,
    /// The node has no descriptors or memory for it.
    #[error(
        "it has no descriptors or memory left for a program; its log says which, and its limits can be raised"
    )]
    NoResources = 4,
}

/// The node's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The number of the node.
    pub node: NodeId,
    /// The number that follows the highest one of a node.
    pub nodes: u8,
    /// The number of workers of the node.
    pub workers: u8,
    /// The number of the program.
    pub client: ClientId,
    /// The bytes of the arena for windows.
    pub arena: u64,
}

impl Welcome {
    /// Returns the packet.
    #[must_use]
    pub fn encode(answer: &Result<Self, Refusal>) -> [u8; WELCOME] {
        let (refusal, welcome) = match answer {
            Ok(welcome) => (0, *welcome),
            Err(refusal) => {
                let nothing = Self { node: NodeId(0), nodes: 0, workers: 0, client: ClientId(0), arena: 0 };
                (*refusal as u8, nothing)
            }
        };
        let Self { node, nodes, workers, client, arena } = welcome;
        let mut bytes = wire::encode(&Layout {
            magic: NODE,
            version: VERSION,
            refusal,
            node: node.0,
            nodes,
            workers,
            zero: [0; 2],
            client,
            zero_too: 0,
            arena,
            rest: [0; 28],
            checksum: 0,
        });
        wire::seal_behind(&mut bytes);
        bytes
    }

    /// Decodes the answer of a node.
    ///
    /// # Errors
    /// The node refused, or the bytes are no answer of a node of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let layout = wire::decode("answer of a node", bytes, |reader| {
            let layout: Layout = reader.take()?;
            require_magic(layout.magic, NODE)?;
            wire::verify_behind(bytes)?;
            Ok(layout)
        });
        let Ok(Layout { version, refusal, node, nodes, workers, client, arena, .. }) = layout else {
            return Err(Refusal::NotUnderstood);
        };
        let fits = usize::from(nodes) <= MAX_NODES
            && (1..=MAX_WORKERS).contains(&usize::from(workers))
            && node < nodes;
        match refusal {
            _ if version != VERSION => Err(Refusal::Version),
            0 if fits => Ok(Self { node: NodeId(node), nodes, workers, client, arena }),
            2 => Err(Refusal::Version),
            3 => Err(Refusal::Full),
            4 => Err(Refusal::NoResources),
            _ => Err(Refusal::NotUnderstood),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_and_nothing_else_is() {
        assert_eq!((HELLO, WELCOME), (32, 64));
        assert_eq!(verify_hello(&hello()), Ok(()));
        let welcome = Welcome { node: NodeId(1), nodes: 3, workers: 2, client: ClientId(9), arena: 1 << 24 };
        let bytes = Welcome::encode(&Ok(welcome));
        assert_eq!(Welcome::decode(&bytes), Ok(welcome));
        for refusal in [Refusal::NotUnderstood, Refusal::Version, Refusal::Full, Refusal::NoResources] {
            assert_eq!(Welcome::decode(&Welcome::encode(&Err(refusal))), Err(refusal));
        }
        for bit in 0..8 * WELCOME {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Welcome::decode(&flipped), Err(Refusal::NotUnderstood), "bit {bit}");
        }
        for bit in 0..8 * HELLO {
            let mut flipped = hello();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify_hello(&flipped), Err(Refusal::NotUnderstood), "bit {bit}");
        }
        let mut older = hello();
        older[8] = 9;
        wire::seal_behind(&mut older);
        assert_eq!(verify_hello(&older), Err(Refusal::Version));
        assert_eq!(verify_hello(&[]), Err(Refusal::NotUnderstood));
        assert_eq!(Welcome::decode(&bytes[1..]), Err(Refusal::NotUnderstood));
    }
}
