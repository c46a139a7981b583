//! The connection between a client and a listener: JSON over a [`SealedStream`], which delivers
//! only messages that were sealed with the key.
//!
//! Without a key both ends use a key of zeros. Then neither end is authenticated, but eavesdroppers
//! still learn nothing.

use std::{io, net::TcpStream, time::Duration};

use plexus_interconnect::mesh::{KEY, Key, SealedStream};
use serde::{Serialize, de::DeserializeOwned};

/// The purpose of the handshake.
const PURPOSE: [u8; 16] = *b"plexus perf     ";

/// A connection whose other end has the same key.
pub(super) struct Sealed(SealedStream);

impl Sealed {
    /// Makes the calling end.
    ///
    /// # Errors
    /// The other end has another key or is too slow, or a system call fails.
    pub(super) fn call(stream: TcpStream, key: Option<&Key>, within: Duration) -> io::Result<Self> {
        SealedStream::call(stream, &or_zeros(key), PURPOSE, within).map(Self).map_err(|error| {
            // A listener closes connections without a valid key without a reply.
            match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the other end closed the connection without a reply: use the same --key file on both sides, or none",
                ),
                _ => error,
            }
        })
    }

    /// Makes the accepting end.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    pub(super) fn answer(stream: TcpStream, key: Option<&Key>, within: Duration) -> io::Result<Self> {
        SealedStream::answer(stream, &or_zeros(key), PURPOSE, within).map(Self)
    }

    /// Returns the connection itself, to inspect.
    pub(super) fn stream(&self) -> &TcpStream {
        self.0.stream()
    }

    /// Sends a message as JSON.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(message)?)
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// No message arrives in time, or it is malformed.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.0.receive(within)?)?)
    }
}

fn or_zeros(key: Option<&Key>) -> Key {
    key.cloned().unwrap_or_else(|| Key::new([0; KEY]))
}
