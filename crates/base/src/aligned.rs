//! Memory for direct I/O: whole sectors at sector-aligned addresses, without unsafe code.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The alignment in bytes of buffers and offsets in direct I/O: the largest logical sector size of
/// disks in use.
pub const ALIGN: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Sector([u8; ALIGN]);

const _: () = assert!(align_of::<Sector>() == ALIGN && size_of::<Sector>() == ALIGN);

/// A zeroed buffer of whole sectors, aligned to [`ALIGN`].
#[derive(Clone)]
pub struct Buffer(Vec<Sector>);

impl Buffer {
    /// Returns a buffer of at least `bytes`, rounded up to whole sectors.
    ///
    /// # Panics
    /// There is no memory.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self(Sector::new_vec_zeroed(bytes.div_ceil(ALIGN)).expect("memory for a buffer"))
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }
}

/// Returns true if direct I/O accepts this memory as it is.
#[must_use]
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN) && bytes.len().is_multiple_of(ALIGN)
}
