//! Memory that direct I/O takes, without unsafe code.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::format::BLOCK;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Aligned([u8; BLOCK]);

const _: () = assert!(align_of::<Aligned>() == BLOCK && size_of::<Aligned>() == BLOCK);

/// Zeroed blocks that begin where a block of memory does.
pub(super) struct Blocks(Vec<Aligned>);

impl Blocks {
    pub(super) fn zeroed(blocks: usize) -> Self {
        Self(vec![Aligned::new_zeroed(); blocks])
    }
}

impl Deref for Blocks {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }
}
