//! `libplexus`: the client library in the shape of C. What each function does stands in `include/plexus.h`, and only there.
//!
//! Every function takes what the header says or answers `PLEXUS_E_ARGUMENT`; none keeps a pointer that it was
//! given, except the handles that it made ([`handle`]).
#![allow(unsafe_code, reason = "speaks C: pointers come from outside")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the header says it")]
#![allow(unreachable_pub, reason = "C is who reaches it")]

mod attach;
mod call;
mod datagram;
mod error;
mod handle;
mod locks;
mod queue;
mod window;

use std::{ffi::CStr, ffi::c_char, time::Duration};

use plexus_client::{Address, NodeId};

/// The version of the binary interface: raised when a program built against an older header would not work.
const ABI: u32 = 1;

/// A port of a node, as C sees it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PlexusAddress {
    pub node: u32,
    pub port: u32,
}

impl From<Address> for PlexusAddress {
    fn from(address: Address) -> Self {
        Self { node: u32::from(address.node.0), port: address.port }
    }
}

impl PlexusAddress {
    fn address(self) -> Address {
        Address::new(node(self.node), self.port)
    }
}

/// A number that no node can have stands for a node that is not there.
fn node(number: u32) -> NodeId {
    NodeId(u8::try_from(number).unwrap_or(u8::MAX))
}

/// A limit in microseconds; below zero: none.
fn limit(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// More bytes than any memory has: a length below zero that was made a `size_t`.
const TOO_MANY: usize = isize::MAX as usize + 1;

/// The bytes that a program passes; none where it passes no pointer and no length.
///
/// # Safety
/// `bytes` leads to `len` readable bytes, or is null.
unsafe fn bytes<'a>(bytes: *const u8, len: usize) -> Option<&'a [u8]> {
    match (bytes.is_null(), len) {
        (_, 0) => Some(&[]),
        (true, _) | (_, TOO_MANY..) => None,
        // SAFETY: as the caller says, it is not null, and no longer than a slice may be.
        (false, _) => Some(unsafe { std::slice::from_raw_parts(bytes, len) }),
    }
}

/// Room that a program offers.
///
/// # Safety
/// `room` leads to `len` bytes that nobody else uses meanwhile, or is null.
unsafe fn room<'a>(room: *mut u8, len: usize) -> Option<&'a mut [u8]> {
    match (room.is_null(), len) {
        (_, 0) => Some(&mut []),
        (true, _) | (_, TOO_MANY..) => None,
        // SAFETY: as the caller says, it is not null, and no longer than a slice may be.
        (false, _) => Some(unsafe { std::slice::from_raw_parts_mut(room, len) }),
    }
}

/// Text that a program passes.
///
/// # Safety
/// `text` ends with a zero byte, or is null.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says, and it is not null.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Fills as much of `room` as there is of `bytes`.
fn fill(room: &mut [u8], bytes: &[u8]) {
    let len = room.len().min(bytes.len());
    room[..len].copy_from_slice(&bytes[..len]);
}

#[unsafe(no_mangle)]
pub extern "C" fn plexus_abi_version() -> u32 {
    ABI
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_below_zero_is_no_length() {
        let mut place = [7_u8; 4];
        // SAFETY: where a length is not that of the place, nothing is made of it.
        unsafe {
            assert_eq!(bytes(place.as_ptr(), 4), Some(&[7; 4][..]));
            for len in [TOO_MANY, -1_isize as usize] {
                assert_eq!((bytes(place.as_ptr(), len), room(place.as_mut_ptr(), len)), (None, None));
            }
            assert_eq!(bytes(std::ptr::null(), 1), None);
            assert_eq!(room(std::ptr::null_mut(), 0), Some(&mut [][..]));
        }
    }
}
