//! Packets with descriptors over a local socket.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use plexus_fabric::shm;
pub use plexus_fabric::shm::{ShortPath, bind_for_owner, send_packet};

/// The maximum length of a packet.
const PACKET: usize = 128;

// One packet carries the arena, the wake-up event, the lease, and the rings and bell of every
// worker.
const _: () = assert!(3 + 3 * plexus_base::MAX_WORKERS <= shm::MAX_DESCRIPTORS);

/// Receives one packet and its descriptors. No bytes mean that the other side has closed.
///
/// # Errors
/// The system call failed, or the packet is too long.
pub fn receive_packet(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PACKET];
    let (len, descriptors) = shm::receive_packet(socket, &mut bytes)?;
    bytes.truncate(len);
    Ok((bytes, descriptors))
}
