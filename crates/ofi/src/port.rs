//! An endpoint of libfabric with the data of its calls: contexts to which completions lead back,
//! and the peer.
//!
//! Results of calls are libfabric's errors, positive; 0 is success.
#![allow(unsafe_code, reason = "calls a C library through its tables")]

use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
};

use plexus_fabric::Lane;

use crate::{
    buffer::Buffer,
    device::{Object, Region},
    sys,
};

/// The context of a call: room for the provider, then the owner of the call.
#[repr(C)]
struct Context {
    provider: sys::Context2,
    lane: u32,
    index: u32,
}

/// A completed call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completed {
    /// The lane, by [`Lane::index`].
    pub(crate) lane: usize,
    /// The index given with the call.
    pub(crate) index: usize,
}

impl Completed {
    /// The call of a completion of any port.
    ///
    /// # Safety
    /// `context` was given to the provider by a [`EndpointPort`] that still lives.
    pub(crate) unsafe fn of(context: *mut c_void) -> Self {
        let context = context.cast::<Context>();
        // SAFETY: the caller's promise; the provider writes to its own part only.
        let (lane, index) = unsafe { ((*context).lane, (*context).index) };
        Self { lane: lane as usize, index: index as usize }
    }
}

/// The bytes that a call reads or fills.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) region: Option<&'a Region>,
}

impl Piece<'_> {
    fn descriptor(&self) -> *mut c_void {
        self.region.map_or(ptr::null_mut(), Region::descriptor)
    }

    fn pointer(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

/// An endpoint with its contexts, see the [module documentation](self).
pub(crate) struct EndpointPort {
    endpoint: Object<sys::Ep>,
    contexts: Buffer,
    /// The peer's entry in the address vector.
    pub(crate) peer: u64,
}

impl EndpointPort {
    /// Builds a port with contexts for indices below `count`.
    pub(crate) fn new(endpoint: Object<sys::Ep>, lane: Lane, count: usize) -> Self {
        let mut contexts = Buffer::new(count * size_of::<Context>());
        for index in 0..count {
            let at = index * size_of::<Context>() + std::mem::offset_of!(Context, lane);
            contexts.write(at, &(lane.index() as u32).to_ne_bytes());
            contexts.write(at + 4, &(index as u32).to_ne_bytes());
        }
        Self { endpoint, contexts, peer: sys::FI_ADDR_UNSPEC }
    }

    pub(crate) fn object(&self) -> &Object<sys::Ep> {
        &self.endpoint
    }

    fn context(&self, index: usize) -> *mut c_void {
        self.contexts.at(index * size_of::<Context>()).as_ptr().cast()
    }

    fn messages(&self) -> &sys::MsgOps {
        // SAFETY: open; an endpoint that was asked for messages has the table.
        unsafe { &*(*self.endpoint.as_ptr()).msg }
    }

    /// Posts the buffer `into` for a message.
    ///
    /// # Safety
    /// Nothing touches the bytes before the completion, and they live until then or until the port
    /// is closed.
    pub(crate) unsafe fn receive(&self, into: Piece<'_>, index: usize) -> c_int {
        // SAFETY: an enabled endpoint; the caller vouches for the bytes, the context is this call's
        // alone.
        let code = unsafe {
            let (endpoint, context) = (self.endpoint.as_ptr(), self.context(index));
            let any = sys::FI_ADDR_UNSPEC;
            (self.messages().recv)(endpoint, into.pointer(), into.len, into.descriptor(), any, context)
        };
        -code as c_int
    }

    /// Sends a message whose memory is free when the call returns; there is no completion.
    pub(crate) fn inject(&self, message: Piece<'_>) -> c_int {
        // SAFETY: an enabled endpoint; the bytes are read before the call returns.
        let code = unsafe {
            let endpoint = self.endpoint.as_ptr();
            (self.messages().inject)(endpoint, message.pointer(), message.len, self.peer)
        };
        -code as c_int
    }

    /// Sends a message.
    ///
    /// # Safety
    /// As [`EndpointPort::receive`], but that the bytes may be read.
    pub(crate) unsafe fn send(&self, message: Piece<'_>, index: usize) -> c_int {
        // SAFETY: as above.
        let code = unsafe {
            let (endpoint, context) = (self.endpoint.as_ptr(), self.context(index));
            let (bytes, descriptor) = (message.pointer(), message.descriptor());
            (self.messages().send)(endpoint, bytes, message.len, descriptor, self.peer, context)
        };
        -code as c_int
    }

    /// Writes to an address of the peer. It completes when the source may be used again, or when
    /// the data are `delivered`.
    ///
    /// # Safety
    /// As [`EndpointPort::send`].
    pub(crate) unsafe fn write(
        &self,
        data: Piece<'_>,
        (addr, key): (u64, u64),
        delivered: bool,
        index: usize,
    ) -> c_int {
        let local = sys::IoVec { iov_base: data.pointer(), iov_len: data.len };
        let remote = sys::RmaIov { addr, len: data.len, key };
        let mut descriptor = data.descriptor();
        let message = sys::MsgRma {
            msg_iov: &raw const local,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: self.peer,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: self.context(index),
            data: 0,
        };
        let flags = sys::FI_COMPLETION | if delivered { sys::FI_DELIVERY_COMPLETE } else { 0 };
        let endpoint = self.endpoint.as_ptr();
        // SAFETY: an enabled endpoint, which has this table because it was asked for writes; the
        // vectors live through the call; the caller vouches for the bytes.
        let code = unsafe { ((*(*endpoint).rma).writemsg)(endpoint, &raw const message, flags) };
        -code as c_int
    }

    /// Closes the endpoint now; returns true if the provider did, and so uses no memory any more.
    pub(crate) fn close(&mut self) -> bool {
        let closed = self.endpoint.close();
        if !closed {
            self.contexts.keep();
        }
        closed
    }
}
