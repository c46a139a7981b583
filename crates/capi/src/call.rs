//! Calls between programs.

use std::ffi::c_int;

use plexus_client::{Client, Request, Server};

use crate::{
    PlexusAddress, bytes,
    error::{OK, argument, fail, of, pointer},
    fill,
    handle::{end, hand_out, take_back},
    limit, room,
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_serve(client: *const Client, number: u32, server: *mut *mut Server) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    let Some(client) = unsafe { client.as_ref() }.filter(|_| !server.is_null()) else { return pointer() };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(server, client.serve(number)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_stop_serving(server: *mut Server) {
    end(server);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_server_address(server: *const Server, address: *mut PlexusAddress) -> c_int {
    // SAFETY: the header asks for what plexus_serve gave, and for a place.
    let (Some(server), Some(address)) = (unsafe { server.as_ref() }, unsafe { address.as_mut() }) else {
        return pointer();
    };
    *address = server.address().into();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_next_request(
    server: *const Server,
    request: *mut *mut Request,
    limit_us: i64,
) -> c_int {
    // SAFETY: the header asks for what plexus_serve gave.
    let Some(server) = unsafe { server.as_ref() }.filter(|_| !request.is_null()) else { return pointer() };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(request, server.next(limit(limit_us))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_request_bytes(request: *const Request, len: *mut usize) -> *const u8 {
    // SAFETY: the header asks for what plexus_next_request gave, and for a place.
    let (Some(request), Some(len)) = (unsafe { request.as_ref() }, unsafe { len.as_mut() }) else {
        pointer();
        return std::ptr::null();
    };
    *len = request.bytes().len();
    request.bytes().as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_request_node(request: *const Request) -> c_int {
    // SAFETY: the header asks for what plexus_next_request gave.
    unsafe { request.as_ref() }.map_or_else(pointer, |request| c_int::from(request.from().0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_reply(request: *mut Request, answer: *const u8, len: usize) -> c_int {
    let Some(request) = take_back(request) else {
        return argument("the request handle was ended before or is not a request");
    };
    // SAFETY: the header asks for that many bytes.
    let Some(answer) = (unsafe { bytes(answer, len) }) else { return pointer() };
    of(request.reply(answer))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_refuse(request: *mut Request) {
    end(request);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_call(
    client: *const Client,
    to: PlexusAddress,
    request: *const u8,
    request_len: usize,
    answer: *mut u8,
    answer_len: usize,
    limit_us: i64,
) -> isize {
    // SAFETY: the header asks for what plexus_attach gave, for so many bytes and so much room.
    let (client, request, answer) =
        unsafe { (client.as_ref(), bytes(request, request_len), room(answer, answer_len)) };
    let (Some(client), Some(request), Some(answer)) = (client, request, answer) else {
        return pointer() as isize;
    };
    match client.call(to.address(), request, limit(limit_us)) {
        Ok(bytes) => {
            fill(answer, &bytes);
            bytes.len() as isize
        }
        Err(error) => fail(&error) as isize,
    }
}
