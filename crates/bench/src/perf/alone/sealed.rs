//! The connection over which a client and a listener speak: JSON over a [`SealedStream`], so
//! nothing of it is read that was not sealed with the key.
//!
//! Without a key both take a key of zeros: then neither end is proved to be anybody, and who only
//! listens on the way still learns nothing.

use std::{io, net::TcpStream, time::Duration};

use plexus_interconnect::mesh::{KEY, Key, SealedStream};
use serde::{Serialize, de::DeserializeOwned};

/// The purpose of the handshake.
const PURPOSE: [u8; 16] = *b"plexus perf     ";

/// A connection whose other end has the same key.
pub(super) struct Sealed(SealedStream);

impl Sealed {
    /// Makes the end that calls.
    ///
    /// # Errors
    /// The other end has another key or is too slow, or the system's.
    pub(super) fn call(stream: TcpStream, key: Option<&Key>, within: Duration) -> io::Result<Self> {
        SealedStream::call(stream, &or_everybodys(key), PURPOSE, within).map(Self).map_err(|error| {
            // An end that is called and hears no proof hangs up without a word.
            match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "it hangs up without a word: name the same file with --key on both sides, or on none",
                ),
                _ => error,
            }
        })
    }

    /// Makes the end that is called.
    ///
    /// # Errors
    /// As of [`call`](Self::call).
    pub(super) fn answer(stream: TcpStream, key: Option<&Key>, within: Duration) -> io::Result<Self> {
        SealedStream::answer(stream, &or_everybodys(key), PURPOSE, within).map(Self)
    }

    /// Gives the connection itself, to look at.
    pub(super) fn stream(&self) -> &TcpStream {
        self.0.stream()
    }

    /// Sends `words` as JSON.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn say(&mut self, words: &impl Serialize) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(words)?)
    }

    /// Waits for what the other end says.
    ///
    /// # Errors
    /// It says nothing in time, or what makes no sense.
    pub(super) fn hear<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.0.receive(within)?)?)
    }
}

fn or_everybodys(key: Option<&Key>) -> Key {
    key.cloned().unwrap_or_else(|| Key::new([0; KEY]))
}
