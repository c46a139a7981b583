//! The reader and writer of all wire and disk formats, and the error of every decoder.
//!
//! A format consists of [`Fixed`] layouts and of bytes whose lengths stand in them.
//! [`layout!`](crate::layout) declares a layout: it reads and writes all fields in one copy of
//! fixed length (`zerocopy`), little endian, without padding, and checks the value of each field. A
//! decoder is a closure for [`decode`], which names what is decoded and refuses bytes behind the
//! end. Hostile bytes give a [`DecodeError`], never a panic, and no count is believed before its
//! elements were read.

use std::array;

pub use zerocopy;
use zerocopy::{FromBytes, Immutable, IntoBytes, little_endian};

use crate::{
    BlockId, Epoch, Incarnation, MAX_NODES, MAX_WORKERS, Nanos, NodeId, NodeSet, WorkerId, crc32c,
    crc32c_without,
};
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

/// A value whose encoding always has the same length.
pub trait Fixed: Sized {
    /// The layout in memory: little endian, without padding.
    type Raw: FromBytes + IntoBytes + Immutable;

    /// The number of encoded bytes.
    const LEN: usize = size_of::<Self::Raw>();

    /// Encodes the value.
    fn to_raw(&self) -> Self::Raw;

    /// Decodes a value.
    ///
    /// # Errors
    /// Returns a fault if a field has an invalid value.
    fn from_raw(raw: Self::Raw) -> Result<Self, Fault>;
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

/// Reserved bytes, which are written as zeros and refused if they are not zero.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Zeros<const LEN: usize>;

impl<const LEN: usize> Fixed for Zeros<LEN> {
    type Raw = [u8; LEN];

    #[inline]
    fn to_raw(&self) -> Self::Raw {
        [0; LEN]
    }

    #[inline]
    fn from_raw(raw: Self::Raw) -> Result<Self, Fault> {
        require(raw == [0; LEN], "unused field").map(|()| Self)
    }
}

crate::newtypes!(Epoch(u32), Incarnation(u64), BlockId(u64), Nanos(u64), NodeSet(u16));
crate::newtypes!(NodeId(u8) below MAX_NODES as "node", WorkerId(u8) below MAX_WORKERS as "worker");

macro_rules! integers {
    ($($int:ty as $raw:ty),*) => { $(
        impl Fixed for $int {
            type Raw = $raw;

            #[inline]
            fn to_raw(&self) -> $raw {
                (*self).into()
            }

            #[inline]
            fn from_raw(raw: $raw) -> Result<Self, Fault> {
                Ok(raw.into())
            }
        }
    )* };
}

integers!(
    u8 as u8,
    u16 as little_endian::U16,
    u32 as little_endian::U32,
    u64 as little_endian::U64,
    u128 as little_endian::U128
);

impl Fixed for bool {
    type Raw = u8;

    #[inline]
    fn to_raw(&self) -> u8 {
        u8::from(*self)
    }

    #[inline]
    fn from_raw(raw: u8) -> Result<Self, Fault> {
        require(raw <= 1, "yes or no").map(|()| raw == 1)
    }
}

/// The byte that means no node.
const NO_NODE: u8 = 255;

impl Fixed for Option<NodeId> {
    type Raw = u8;

    fn to_raw(&self) -> u8 {
        self.map_or(NO_NODE, |node| node.0)
    }

    fn from_raw(raw: u8) -> Result<Self, Fault> {
        if raw == NO_NODE { Ok(None) } else { NodeId::from_raw(raw).map(Some) }
    }
}

impl<T: Fixed + Copy + Default, const COUNT: usize> Fixed for [T; COUNT] {
    type Raw = [T::Raw; COUNT];

    #[inline]
    fn to_raw(&self) -> Self::Raw {
        array::from_fn(|at| self[at].to_raw())
    }

    #[inline]
    fn from_raw(raw: Self::Raw) -> Result<Self, Fault> {
        let mut values = [T::default(); COUNT];
        for (value, raw) in values.iter_mut().zip(raw) {
            *value = T::from_raw(raw)?;
        }
        Ok(values)
    }
}

/// Declares layouts: the length of each in bytes, which is checked, and its fields in order.
///
/// `struct` declares a type with these fields. `impl` gives the layout to an existing type. A
/// number after a `;` at the end is the number of zeros after the fields.
///
/// ```
/// use plexus_base::{NodeId, wire};
///
/// wire::layout! {
/// The header of a message.
///     struct Head: 16 { version: u8, from: NodeId, is_last: bool, zero: wire::Zeros<5>, number: u64 }
/// }
/// let head = Head { version: 1, from: NodeId(3), is_last: true, zero: wire::Zeros, number: 7 };
/// let mut bytes: [u8; 16] = wire::encode(&head);
/// assert_eq!(wire::decode("message", &bytes, |reader| reader.take()), Ok(head));
/// bytes[4] = 1;
/// let error = wire::decode("message", &bytes, |reader| reader.take::<Head>()).unwrap_err();
/// assert_eq!(error.to_string(), "malformed message: impossible unused field");
/// ```
#[macro_export]
macro_rules! layout {
    () => {};
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident: $len:literal { $($field:ident: $type:ty),* $(,)? }
        $($rest:tt)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis struct $name { $($vis $field: $type),* }
        $crate::layout! { impl $name: $len { $($field: $type),* } $($rest)* }
    };
    (impl $name:ident: $len:literal { $($field:ident: $type:ty),* $(; $zeros:literal)? } $($rest:tt)*) => {
        const _: () = {
            use $crate::wire::{Fault, Fixed, zerocopy};

            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
            #[zerocopy(crate = "plexus_base::wire::zerocopy")]
            #[repr(C)]
            #[allow(unreachable_pub)]
            pub struct Raw {
                $($field: <$type as Fixed>::Raw,)*
                $(zeros_behind: [u8; $zeros],)?
            }

            const _: () = assert!(size_of::<Raw>() == $len);

            impl Fixed for $name {
                type Raw = Raw;

                #[inline]
                fn to_raw(&self) -> Raw {
                    Raw { $($field: Fixed::to_raw(&self.$field),)* $(zeros_behind: [0; $zeros],)? }
                }

                #[inline]
                fn from_raw(raw: Raw) -> Result<Self, Fault> {
                    $($crate::wire::require(raw.zeros_behind == [0; $zeros], "unused field")?;)?
                    Ok(Self { $($field: Fixed::from_raw(raw.$field)?),* })
                }
            }
        };
        $crate::layout! { $($rest)* }
    };
}

/// Declares that newtypes are encoded as the number they hold; `below` adds an upper limit.
#[macro_export]
macro_rules! newtypes {
    ($($name:ident($inner:ty) $(below $limit:ident as $what:literal)?),*) => { $(
        impl $crate::wire::Fixed for $name {
            type Raw = <$inner as $crate::wire::Fixed>::Raw;

            #[inline]
            fn to_raw(&self) -> Self::Raw {
                $crate::wire::Fixed::to_raw(&self.0)
            }

            #[inline]
            fn from_raw(raw: Self::Raw) -> Result<Self, $crate::wire::Fault> {
                let inner = <$inner as $crate::wire::Fixed>::from_raw(raw)?;
                $($crate::wire::require(usize::from(inner) < $limit, $what)?;)?
                Ok(Self(inner))
            }
        }
    )* };
}

/// Declares the one-byte numbers of enum variants in formats, which are those of the declaration
/// (`repr(u8)`).
///
/// `enum` declares the type. `impl` takes an existing type and the variants that formats have. The
/// text names a field of the type in errors.
#[macro_export]
macro_rules! numbered {
    () => {};
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident as $what:literal { $($(#[$doc:meta])* $variant:ident = $number:literal,)* }
        $($rest:tt)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        $vis enum $name { $($(#[$doc])* $variant = $number,)* }
        $crate::numbered! { impl $name as $what { $($variant),* } $($rest)* }
    };
    (impl $name:ident as $what:literal { $($variant:ident),* } $($rest:tt)*) => {
        impl $crate::wire::Fixed for $name {
            type Raw = u8;

            #[inline]
            fn to_raw(&self) -> u8 {
                *self as u8
            }

            #[inline]
            fn from_raw(raw: u8) -> Result<Self, $crate::wire::Fault> {
                match raw {
                    $(raw if raw == Self::$variant as u8 => Ok(Self::$variant),)*
                    _ => Err($crate::wire::Fault::Field($what)),
                }
            }
        }
        $crate::numbered! { $($rest)* }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    numbered! {
        enum Color as "color" { Red = 1, Blue = 7, }
    }

    layout! {
        struct Head: 12 { magic: [u8; 2], zero: Zeros<1>, color: Color, node: NodeId, worker: WorkerId, host: Option<NodeId>, is_last: bool, epoch: Epoch }
        #[derive(Default)]
        struct Pair: 8 { a: u32, b: u16, zero: Zeros<2> }
    }

    struct Point {
        x: u64,
        y: [u16; 2],
    }

    layout! { impl Point: 16 { x: u64, y: [u16; 2]; 4 } }

    const HEAD: Head = Head {
        magic: *b"PL",
        zero: Zeros,
        color: Color::Blue,
        node: NodeId(15),
        worker: WorkerId(7),
        host: None,
        is_last: true,
        epoch: Epoch(0x0102_0304),
    };

    fn head(bytes: &[u8]) -> Result<Head, Fault> {
        decode("head", bytes, |reader| reader.take()).map_err(|error| error.fault)
    }

    #[test]
    fn a_layout_has_its_fields_in_order_and_each_is_checked() {
        let good: [u8; 12] = encode(&HEAD);
        assert_eq!(good, [b'P', b'L', 0, 7, 15, 7, 255, 1, 4, 3, 2, 1]);
        assert_eq!(head(&good), Ok(HEAD));
        let cases = [
            (2, 1, "unused field"),
            (3, 2, "color"),
            (4, 16, "node"),
            (5, 8, "worker"),
            (6, 16, "node"),
            (7, 2, "yes or no"),
        ];
        for (at, value, field) in cases {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(head(&bad), Err(Fault::Field(field)), "byte {at}");
        }
        assert_eq!(head(&good[1..]), Err(Fault::CutOff));
        assert_eq!(head(&[&good[..], &[0]].concat()), Err(Fault::Trailing));
    }

    #[test]
    fn a_reader_takes_what_a_writer_put() {
        let pairs = [Pair { a: 1, ..Pair::default() }, Pair { b: 2, ..Pair::default() }];
        let mut writer = Writer::with(&Point { x: 9, y: [3, 4] }, 16);
        pairs.iter().for_each(|pair| _ = writer.put(pair));
        writer.bytes(b"name").fill(40);
        let bytes = writer.finish();
        assert_eq!((bytes.len(), bytes[12]), (40, 0));
        let read = |bytes: &[u8]| {
            decode("point", bytes, |reader| {
                let Point { x, y } = reader.take()?;
                assert_eq!((x, y), (9, [3, 4]));
                let taken: Vec<Pair> = reader.list(2u8, Reader::take)?;
                assert_eq!(taken, pairs);
                assert_eq!(reader.bytes(4usize)?, b"name");
                Ok(reader.rest().len())
            })
        };
        assert_eq!(read(&bytes), Ok(4));
        assert_eq!(read(&bytes[..30]).unwrap_err().to_string(), "malformed point: it is cut off");
        let mut bad = bytes;
        bad[15] = 1;
        assert_eq!(read(&bad), Err(Fault::Field("unused field").of("point")));
        let endless: Result<Vec<u8>, _> = Reader::new(&bad).list(u64::MAX, Reader::take);
        assert_eq!(endless, Err(Fault::CutOff));
    }

    #[test]
    fn changed_bytes_do_not_verify() {
        let mut inside: Vec<u8> = (0..40).collect();
        let mut behind = inside.clone();
        seal(&mut inside, 8);
        seal_behind(&mut behind);
        assert_eq!((verify(&inside, 8), verify_behind(&behind)), (Ok(()), Ok(())));
        for at in 0..40 {
            (inside[at], behind[at]) = (inside[at] ^ 1, behind[at] ^ 1);
            assert_eq!(
                (verify(&inside, 8), verify_behind(&behind)),
                (Err(Fault::Checksum), Err(Fault::Checksum))
            );
            (inside[at], behind[at]) = (inside[at] ^ 1, behind[at] ^ 1);
        }
        assert_eq!(
            (verify(&inside[..11], 8), verify_behind(&[0; 3])),
            (Err(Fault::CutOff), Err(Fault::CutOff))
        );
    }

    #[test]
    fn versions_and_bits_are_checked() {
        assert_eq!(require_version(2u8, 2u8), Ok(()));
        let newer = require_version(3u16, 2u16).unwrap_err().of("file").to_string();
        assert_eq!(newer, "malformed file: it has version 3, this program reads version 2");
        assert_eq!(bits([(true, 1), (false, 2), (true, 4)]), 5);
    }
}
