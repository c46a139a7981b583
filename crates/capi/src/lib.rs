//! `libplexus`: the client library in the shape of C. What each function does stands in `include/plexus.h`, and only there.
//!
//! Every function takes what the header says or answers `PLEXUS_E_ARGUMENT`; none keeps a pointer that it was
//! given, except the handles that it made. A handle is a box of the Rust object of the same name; it is used by reference
//! until the function that ends it takes the box back.
#![allow(unsafe_code, reason = "speaks C: pointers come from outside")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the header says it")]
#![allow(unreachable_pub, reason = "C is who reaches it")]

mod attach;
mod call;
mod datagram;
mod error;
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

/// The bytes that a program passes; none where it passes no pointer and no length.
///
/// # Safety
/// `bytes` leads to `len` readable bytes, or is null.
unsafe fn bytes<'a>(bytes: *const u8, len: usize) -> Option<&'a [u8]> {
    match (bytes.is_null(), len) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: as the caller says, and it is not null.
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
        (true, _) => None,
        // SAFETY: as the caller says, and it is not null.
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

/// Hands a new object out.
///
/// # Safety
/// `place` can be written, or is null.
unsafe fn hand_out<T>(place: *mut *mut T, object: T) {
    // SAFETY: as the caller says; the caller of this has checked that it is not null.
    unsafe { place.write(Box::into_raw(Box::new(object))) }
}

/// Ends an object that was handed out.
///
/// # Safety
/// `object` was handed out and not ended before, or is null.
unsafe fn end<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(object) });
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn plexus_abi_version() -> u32 {
    ABI
}
