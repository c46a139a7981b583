//! `libplexus`: the C interface of the client library. `include/plexus.h` documents each function.
//!
//! A function returns `PLEXUS_E_ARGUMENT` for arguments that the header does not allow. The library
//! keeps no pointer of a caller except its own handles ([`handle`]) and, until the end of a lock
//! request, its status block.
#![allow(unsafe_code, reason = "a C interface takes pointers from its callers")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the header documents the functions")]
#![allow(unreachable_pub, reason = "C programs call these functions")]

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

/// The version of the binary interface; it is raised when programs built with an older header would
/// fail.
const ABI: u32 = 1;

/// The C layout of a port of a node.
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

/// Converts a node number; one that is too large becomes a node that does not exist.
fn node(number: u32) -> NodeId {
    NodeId(u8::try_from(number).unwrap_or(u8::MAX))
}

/// Converts a time limit in microseconds; a negative one means no limit.
fn limit(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// The first length that is too large: a negative length converted to `size_t` is at least this.
const TOO_MANY: usize = isize::MAX as usize + 1;

/// Returns the bytes that a program passes, or `None` for an invalid pointer or length.
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

/// Returns the buffer that a program passes, or `None` for an invalid pointer or length.
///
/// # Safety
/// `room` leads to `len` bytes that no other code uses meanwhile, or is null.
unsafe fn room<'a>(room: *mut u8, len: usize) -> Option<&'a mut [u8]> {
    match (room.is_null(), len) {
        (_, 0) => Some(&mut []),
        (true, _) | (_, TOO_MANY..) => None,
        // SAFETY: as the caller says, it is not null, and no longer than a slice may be.
        (false, _) => Some(unsafe { std::slice::from_raw_parts_mut(room, len) }),
    }
}

/// Returns the text that a program passes, or `None` if it is null or not UTF-8.
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

/// Copies as many of `bytes` as fit into `room`.
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
    fn negative_lengths_are_refused() {
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
