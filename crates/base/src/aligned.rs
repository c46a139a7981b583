//! Memory that direct I/O takes: whole sectors at sector-aligned addresses, without unsafe code.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment in bytes of buffers and offsets in direct I/O: the largest logical sector of disks in use.
pub const ALIGN: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Sector([u8; ALIGN]);

const _: () = assert!(align_of::<Sector>() == ALIGN && size_of::<Sector>() == ALIGN);

/// A zeroed buffer aligned to [`ALIGN`], a whole number of sectors long.
#[derive(Clone)]
pub struct Buffer(Vec<Sector>);

impl Buffer {
    /// A buffer of at least `bytes`, rounded up to whole sectors.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self(vec![Sector::new_zeroed(); bytes.div_ceil(ALIGN)])
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }
}

/// Whether direct I/O takes this memory as it is.
#[must_use]
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN) && bytes.len().is_multiple_of(ALIGN)
}
