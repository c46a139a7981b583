//! The reader and writer of all wire and disk formats, and the error of every decoder.
//!
//! A format consists of [`Fixed`] layouts and of bytes whose lengths stand in them.
//! [`layout!`](crate::layout) declares a layout: it reads and writes all fields in one copy of
//! fixed length (`zerocopy`), little endian, without padding, and checks the value of each field. A
//! decoder is a closure for [`decode`], which names what is decoded and refuses bytes behind the
//! end. Hostile bytes give a [`DecodeError`], never a panic, and no count is believed before its
//! elements were read.

mod fixed;

pub use zerocopy;
use zerocopy::{FromBytes, IntoBytes};

pub use self::fixed::{Fixed, Zeros};
use crate::{crc32c, crc32c_without};
pub use crate::{layout, newtypes, numbered};

/// An error of a decoder: the bytes are not a valid encoding of the expected content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed {what}: {fault}")]
pub struct DecodeError {
    /// The message, packet or block that was expected, in words for the user.
    pub what: &'static str,
    /// The reason why the bytes were refused.
    pub fault: Fault,
}

/// The reason why a decoder refuses bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The bytes end before the content does.
    #[error("it is cut off")]
    CutOff,
    /// Bytes follow the end of the content.
    #[error("it is longer than it says")]
    Trailing,
    /// The first bytes are not the magic of the format.
    #[error("it does not begin with the magic bytes of the format")]
    Magic,
    /// The bytes have another version of the format.
    #[error(
        "it has version {found}, this program reads version {known}; use the same version of plexus everywhere"
    )]
    Version {
        /// The version in the bytes.
        found: u32,
        /// The version that the decoder reads.
        known: u32,
    },
    /// The checksum does not match: the bytes were changed since they were written.
    #[error("its checksum does not match")]
    Checksum,
    /// A field has an invalid value.
    #[error("impossible {0}")]
    Field(&'static str),
}

impl Fault {
    /// Returns the error for `what`, a part of which has this fault.
    #[must_use]
    pub fn of(self, what: &'static str) -> DecodeError {
        DecodeError { what, fault: self }
    }
}

/// Refuses a value of `field` if a rule does not hold.
///
/// # Errors
/// Returns [`Fault::Field`] if `holds` is false.
#[inline]
pub fn require(holds: bool, field: &'static str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::Field(field)) }
}

/// Refuses bytes that do not begin with the `known` magic.
///
/// # Errors
/// Returns [`Fault::Magic`] if they differ.
#[inline]
pub fn require_magic<const LEN: usize>(found: [u8; LEN], known: [u8; LEN]) -> Result<(), Fault> {
    if found == known { Ok(()) } else { Err(Fault::Magic) }
}

/// Refuses a version other than the `known` one.
///
/// # Errors
/// Returns [`Fault::Version`] if they differ.
#[inline]
pub fn require_version(found: impl Into<u32>, known: impl Into<u32>) -> Result<(), Fault> {
    let (found, known) = (found.into(), known.into());
    if found == known { Ok(()) } else { Err(Fault::Version { found, known }) }
}

/// Decodes `what` from all of `bytes`.
///
/// # Errors
/// Returns an error if `read` refuses the bytes or leaves some unread.
#[inline]
pub fn decode<'a, T>(
    what: &'static str,
    bytes: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Fault>,
) -> Result<T, DecodeError> {
    let mut reader = Reader(bytes);
    match read(&mut reader) {
        Ok(value) if reader.0.is_empty() => Ok(value),
        Ok(_) => Err(Fault::Trailing.of(what)),
        Err(fault) => Err(fault.of(what)),
    }
}

/// Encodes a value of fixed length.
#[inline]
#[must_use]
pub fn encode<T: Fixed, const LEN: usize>(value: &T) -> [u8; LEN] {
    const { assert!(LEN == T::LEN) }
    let mut bytes = [0; LEN];
    bytes.copy_from_slice(value.to_raw().as_bytes());
    bytes
}

/// The bytes that a decoder has not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Creates a reader that may leave bytes unread. Use [`decode`] where all must be read.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes a value of fixed length.
    ///
    /// # Errors
    /// Returns a fault if the bytes end too early or a field has an invalid value.
    #[inline]
    pub fn take<T: Fixed>(&mut self) -> Result<T, Fault> {
        let (raw, rest) = T::Raw::read_from_prefix(self.0).map_err(|_| Fault::CutOff)?;
        self.0 = rest;
        T::from_raw(raw)
    }

    /// Takes `len` bytes.
    ///
    /// # Errors
    /// Returns [`Fault::CutOff`] if fewer bytes are left.
    #[inline]
    pub fn bytes(&mut self, len: impl Into<usize>) -> Result<&'a [u8], Fault> {
        let (bytes, rest) = self.0.split_at_checked(len.into()).ok_or(Fault::CutOff)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Returns true if all bytes were taken.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all remaining bytes.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Takes `count` elements, each with `one`. Memory is allocated as elements are read,
    /// regardless of `count`.
    ///
    /// # Errors
    /// Returns the first error of `one`.
    pub fn list<T, C: FromIterator<T>>(
        &mut self,
        count: impl Into<u64>,
        mut one: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<C, Fault> {
        (0..count.into()).map(|_| one(self)).collect()
    }
}

/// An encoder that appends to a growing buffer.
#[derive(Clone, Default, Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A writer without bytes.
    pub const EMPTY: Self = Self(Vec::new());

    /// Starts with a value of fixed length and reserves `more` bytes after it.
    #[inline]
    #[must_use]
    pub fn with<T: Fixed>(value: &T, more: usize) -> Self {
        let mut writer = Self(Vec::with_capacity(T::LEN + more));
        writer.put(value);
        writer
    }

    /// Appends a value of fixed length.
    #[inline]
    pub fn put<T: Fixed>(&mut self, value: &T) -> &mut Self {
        self.bytes(value.to_raw().as_bytes())
    }

    /// Appends bytes as they are.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends zeros until there are `len` bytes.
    pub fn fill(&mut self, len: usize) -> &mut Self {
        self.0.resize(len, 0);
        self
    }

    /// Returns the bytes so far.
    #[must_use]
    pub fn so_far(&self) -> &[u8] {
        &self.0
    }

    /// Forgets all bytes, and keeps their memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns all bytes.
    #[inline]
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Writes the CRC-32C of `bytes` at `at`, computed with zeros in its four bytes.
pub fn seal(bytes: &mut [u8], at: usize) {
    let crc = crc32c_without(bytes, at);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Verifies the checksum of [`seal`].
///
/// # Errors
/// Returns a fault if the bytes were changed since or end before the checksum does.
pub fn verify(bytes: &[u8], at: usize) -> Result<(), Fault> {
    let crc = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Fault::CutOff)?;
    if crc32c_without(bytes, at).to_le_bytes() == *crc { Ok(()) } else { Err(Fault::Checksum) }
}

/// Writes the CRC-32C of all bytes but the last four into the last four.
pub fn seal_behind(bytes: &mut [u8]) {
    let (content, place) = bytes.split_at_mut(bytes.len() - 4);
    place.copy_from_slice(&crc32c(content).to_le_bytes());
}

/// Verifies the checksum of [`seal_behind`].
///
/// # Errors
/// Returns a fault if the bytes were changed since or there are fewer than four.
pub fn verify_behind(bytes: &[u8]) -> Result<(), Fault> {
    let (content, crc) = bytes.split_last_chunk().ok_or(Fault::CutOff)?;
    if crc32c(content).to_le_bytes() == *crc { Ok(()) } else { Err(Fault::Checksum) }
}

/// Returns the sum of the bits whose flags are set.
#[inline]
#[must_use]
pub fn bits<const COUNT: usize>(flags: [(bool, u8); COUNT]) -> u8 {
    flags.into_iter().fold(0, |bits, (on, bit)| if on { bits | bit } else { bits })
}

#[cfg(test)]
mod tests;
