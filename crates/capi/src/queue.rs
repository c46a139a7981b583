//! Endpoints and completion queues.

use std::ffi::c_int;

use plexus_client::{Client, CompletionQueue, Endpoint, Error, Operation, Window};

use crate::{
    PlexusAddress,
    attach::waiting,
    bytes, end,
    error::{OK, argument, code, fail, of},
    fill, hand_out, limit, room,
};

/// A completion, as C sees it.
#[repr(C)]
pub struct PlexusCompletion {
    pub cookie: u64,
    pub value: u64,
    pub length: u64,
    pub from: PlexusAddress,
    pub endpoint: u32,
    pub operation: u32,
    pub status: i32,
    pub reserved: u32,
}

fn operation(operation: Operation) -> u32 {
    match operation {
        Operation::Send => 1,
        Operation::Receive => 2,
        Operation::Put => 3,
        Operation::Get => 4,
        Operation::FetchAdd => 5,
        Operation::CompareSwap => 6,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_cq_create(
    client: *const Client,
    mode: c_int,
    queue: *mut *mut CompletionQueue,
) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    let (Some(client), Some(mode), false) = (unsafe { client.as_ref() }, waiting(mode), queue.is_null())
    else {
        return argument();
    };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(queue, client.completion_queue(mode)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_cq_destroy(queue: *mut CompletionQueue) {
    // SAFETY: the header asks for what plexus_cq_create gave, once.
    unsafe { end(queue) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_cq_wait(
    queue: *const CompletionQueue,
    completion: *mut PlexusCompletion,
    into: *mut u8,
    len: usize,
    limit_us: i64,
) -> c_int {
    // SAFETY: the header asks for what plexus_cq_create gave, for a place and so much room.
    let (queue, completion, into) = unsafe { (queue.as_ref(), completion.as_mut(), room(into, len)) };
    let (Some(queue), Some(completion), Some(into)) = (queue, completion, into) else { return argument() };
    match queue.wait(limit(limit_us)) {
        Ok(done) => {
            fill(into, &done.bytes);
            *completion = PlexusCompletion {
                cookie: done.cookie,
                value: done.value,
                length: done.bytes.len() as u64,
                from: done.from.map_or(PlexusAddress { node: 0, port: 0 }, Into::into),
                endpoint: done.endpoint,
                operation: operation(done.operation),
                status: done.result.as_ref().err().map_or(OK, code),
                reserved: 0,
            };
            OK
        }
        Err(error) => fail(&error),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_endpoint_create(
    client: *const Client,
    number: u32,
    queue: *const CompletionQueue,
    endpoint: *mut *mut Endpoint,
) -> c_int {
    // SAFETY: the header asks for what plexus_attach and plexus_cq_create gave.
    let (Some(client), Some(queue), false) =
        (unsafe { client.as_ref() }, unsafe { queue.as_ref() }, endpoint.is_null())
    else {
        return argument();
    };
    match client.endpoint(number, queue) {
        // SAFETY: not null, and the header asks for a place.
        Ok(made) => unsafe { hand_out(endpoint, made) },
        Err(error) => return fail(&error),
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_endpoint_destroy(endpoint: *mut Endpoint) {
    // SAFETY: the header asks for what plexus_endpoint_create gave, once.
    unsafe { end(endpoint) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_endpoint_address(
    endpoint: *const Endpoint,
    address: *mut PlexusAddress,
) -> c_int {
    // SAFETY: the header asks for an endpoint, and for a place.
    let (Some(endpoint), Some(address)) = (unsafe { endpoint.as_ref() }, unsafe { address.as_mut() }) else {
        return argument();
    };
    *address = endpoint.address().into();
    OK
}

/// Does something with an endpoint.
///
/// # Safety
/// `endpoint` is one, or null.
unsafe fn with(endpoint: *const Endpoint, act: impl FnOnce(&Endpoint) -> Result<(), Error>) -> c_int {
    // SAFETY: as the caller says.
    unsafe { endpoint.as_ref() }.map_or_else(argument, |endpoint| of(act(endpoint)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_endpoint_connect(endpoint: *const Endpoint, peer: PlexusAddress) -> c_int {
    let connect = |endpoint: &Endpoint| {
        endpoint.connect(peer.address());
        Ok(())
    };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, connect) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_receive(endpoint: *const Endpoint, cookie: u64, len: usize) -> c_int {
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_receive(cookie, len)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_send(
    endpoint: *const Endpoint,
    cookie: u64,
    message: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for that many bytes.
    let Some(message) = (unsafe { bytes(message, len) }) else { return argument() };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_send(cookie, message)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_send_to(
    endpoint: *const Endpoint,
    cookie: u64,
    to: PlexusAddress,
    message: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for that many bytes.
    let Some(message) = (unsafe { bytes(message, len) }) else { return argument() };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_send_to(cookie, to.address(), message)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_put(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const Window,
    offset: u64,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for a window, and for that many bytes.
    let (Some(window), Some(data)) = (unsafe { window.as_ref() }, unsafe { bytes(data, len) }) else {
        return argument();
    };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_put(cookie, window, offset, data)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_get(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const Window,
    offset: u64,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for a window.
    let Some(window) = (unsafe { window.as_ref() }) else { return argument() };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_get(cookie, window, offset, len)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_fetch_add(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const Window,
    offset: u64,
    add: u64,
) -> c_int {
    // SAFETY: the header asks for a window.
    let Some(window) = (unsafe { window.as_ref() }) else { return argument() };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_fetch_add(cookie, window, offset, add)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_compare_swap(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const Window,
    offset: u64,
    expected: u64,
    new: u64,
) -> c_int {
    // SAFETY: the header asks for a window.
    let Some(window) = (unsafe { window.as_ref() }) else { return argument() };
    // SAFETY: the header asks for an endpoint.
    unsafe { with(endpoint, |endpoint| endpoint.post_compare_swap(cookie, window, offset, expected, new)) }
}
