//! Values of fixed length: those that there are, and the macros that declare more.

use std::array;

use zerocopy::{FromBytes, Immutable, IntoBytes, little_endian};

use super::{Fault, require};
use crate::{BlockId, Epoch, Incarnation, MAX_NODES, MAX_WORKERS, Nanos, NodeId, NodeSet, WorkerId};

/// A value whose encoding always has the same length.
pub trait Fixed: Sized {
    /// The bytes in memory: little endian, without padding.
    type Raw: FromBytes + IntoBytes + Immutable;

    /// Bytes of the encoding.
    const LEN: usize = size_of::<Self::Raw>();

    /// Encodes the value.
    fn to_raw(&self) -> Self::Raw;

    /// Decodes a value.
    ///
    /// # Errors
    /// A field has a value that it cannot have.
    fn from_raw(raw: Self::Raw) -> Result<Self, Fault>;
}

/// Bytes that are zero, and are refused where they are not.
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

/// The byte that stands for no node.
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
/// `struct` declares a type with these fields; `impl` gives the layout to a type that has them
/// already. A number between `;` is a number of zeros.
///
/// ```
/// use plexus_base::{NodeId, wire};
///
/// wire::layout! {
///     /// The head of a message.
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
    (impl $name:ident: $len:literal { $($field:ident: $type:ty),* $(; $zeros:literal $(; $($more:ident: $also:ty),*)?)? } $($rest:tt)*) => {
        const _: () = {
            use $crate::wire::{Fault, Fixed, zerocopy};

            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
            #[zerocopy(crate = "plexus_base::wire::zerocopy")]
            #[repr(C)]
            #[allow(unreachable_pub)]
            pub struct Raw {
                $($field: <$type as Fixed>::Raw,)*
                $(zeros: [u8; $zeros], $($($more: <$also as Fixed>::Raw,)*)?)?
            }

            const _: () = assert!(size_of::<Raw>() == $len);

            impl Fixed for $name {
                type Raw = Raw;

                #[inline]
                fn to_raw(&self) -> Raw {
                    Raw {
                        $($field: Fixed::to_raw(&self.$field),)*
                        $(zeros: [0; $zeros], $($($more: Fixed::to_raw(&self.$more),)*)?)?
                    }
                }

                #[inline]
                fn from_raw(raw: Raw) -> Result<Self, Fault> {
                    $($crate::wire::require(raw.zeros == [0; $zeros], "unused field")?;)?
                    Ok(Self {
                        $($field: Fixed::from_raw(raw.$field)?,)*
                        $($($($more: Fixed::from_raw(raw.$more)?,)*)?)?
                    })
                }
            }
        };
        $crate::layout! { $($rest)* }
    };
}

/// Declares that newtypes are encoded as the number that they hold; with `below`, only a number
/// under that limit.
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

/// Declares that enum variants have one byte in formats: the number of their declaration
/// (`repr(u8)`).
///
/// `enum` declares the type; `impl` takes an existing one, with the variants that formats have. The
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
