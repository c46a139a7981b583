//! Endpoints and completion queues.

use std::ffi::c_int;

use plexus_client::{Client, ClientWindow, CompletionQueue, Endpoint, Error, Operation};

use crate::{
    PlexusAddress,
    attach::waiting,
    bytes,
    error::{OK, code, fail, of, pointer},
    fill,
    handle::{end, hand_out},
    limit, room,
};

/// The C layout of a completion.
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
    let Some(client) = unsafe { client.as_ref() }.filter(|_| !queue.is_null()) else { return pointer() };
    let mode = match waiting(mode) {
        Ok(mode) => mode,
        Err(wrong) => return wrong,
    };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(queue, Ok(client.completion_queue(mode))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_cq_destroy(queue: *mut CompletionQueue) {
    end(queue);
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
    let (Some(queue), Some(completion), Some(into)) = (queue, completion, into) else { return pointer() };
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
        return pointer();
    };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(endpoint, client.endpoint(number, queue)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_endpoint_destroy(endpoint: *mut Endpoint) {
    end(endpoint);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_endpoint_address(
    endpoint: *const Endpoint,
    address: *mut PlexusAddress,
) -> c_int {
    // SAFETY: the header asks for an endpoint, and for a place.
    let (Some(endpoint), Some(address)) = (unsafe { endpoint.as_ref() }, unsafe { address.as_mut() }) else {
        return pointer();
    };
    *address = endpoint.address().into();
    OK
}

/// Calls `act` with an endpoint and returns its result code.
///
/// # Safety
/// `endpoint` is one, or null.
unsafe fn with(endpoint: *const Endpoint, act: impl FnOnce(&Endpoint) -> Result<(), Error>) -> c_int {
    // SAFETY: as the caller says.
    unsafe { endpoint.as_ref() }.map_or_else(pointer, |endpoint| of(act(endpoint)))
}

/// Calls `act` with an endpoint and bytes of the program.
///
/// # Safety
/// `endpoint` is one, or null; `data` leads to `len` readable bytes, or is null.
unsafe fn with_bytes(
    endpoint: *const Endpoint,
    (data, len): (*const u8, usize),
    act: impl FnOnce(&Endpoint, &[u8]) -> Result<(), Error>,
) -> c_int {
    // SAFETY: as the caller says.
    let Some(data) = (unsafe { bytes(data, len) }) else { return pointer() };
    // SAFETY: as the caller says.
    unsafe { with(endpoint, |endpoint| act(endpoint, data)) }
}

/// Calls `act` with an endpoint and a window.
///
/// # Safety
/// `endpoint` is an endpoint and `window` a window, or null.
unsafe fn with_window(
    endpoint: *const Endpoint,
    window: *const ClientWindow,
    act: impl FnOnce(&Endpoint, &ClientWindow) -> Result<(), Error>,
) -> c_int {
    // SAFETY: as the caller says.
    let Some(window) = (unsafe { window.as_ref() }) else { return pointer() };
    // SAFETY: as the caller says.
    unsafe { with(endpoint, |endpoint| act(endpoint, window)) }
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
    // SAFETY: the header asks for an endpoint, and for that many bytes.
    unsafe { with_bytes(endpoint, (message, len), |endpoint, message| endpoint.post_send(cookie, message)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_send_to(
    endpoint: *const Endpoint,
    cookie: u64,
    to: PlexusAddress,
    message: *const u8,
    len: usize,
) -> c_int {
    let post = |endpoint: &Endpoint, message: &[u8]| endpoint.post_send_to(cookie, to.address(), message);
    // SAFETY: the header asks for an endpoint, and for that many bytes.
    unsafe { with_bytes(endpoint, (message, len), post) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_put(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const ClientWindow,
    offset: u64,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for that many bytes.
    let Some(data) = (unsafe { bytes(data, len) }) else { return pointer() };
    // SAFETY: the header asks for an endpoint and a window.
    unsafe {
        with_window(endpoint, window, |endpoint, window| endpoint.post_put(cookie, window, offset, data))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_get(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const ClientWindow,
    offset: u64,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for an endpoint and a window.
    unsafe {
        with_window(endpoint, window, |endpoint, window| endpoint.post_get(cookie, window, offset, len))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_fetch_add(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const ClientWindow,
    offset: u64,
    add: u64,
) -> c_int {
    // SAFETY: the header asks for an endpoint and a window.
    unsafe {
        with_window(endpoint, window, |endpoint, window| endpoint.post_fetch_add(cookie, window, offset, add))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_post_compare_swap(
    endpoint: *const Endpoint,
    cookie: u64,
    window: *const ClientWindow,
    offset: u64,
    expected: u64,
    new: u64,
) -> c_int {
    // SAFETY: the header asks for an endpoint and a window.
    unsafe {
        with_window(endpoint, window, |endpoint, window| {
            endpoint.post_compare_swap(cookie, window, offset, expected, new)
        })
    }
}
