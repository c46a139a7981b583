//! Attachments and waiting modes.

use std::{
    ffi::{c_char, c_int},
    os::fd::AsRawFd,
};

use plexus_client::{Client, Waiting};

use crate::{
    error::{OK, argument, pointer},
    handle::{end, hand_out},
    text,
};

/// Returns the waiting mode with this number in the header, or the error to return.
pub(crate) fn waiting(mode: c_int) -> Result<Waiting, c_int> {
    match mode {
        0 => Ok(Waiting::Adaptive),
        1 => Ok(Waiting::Polling),
        2 => Ok(Waiting::Event),
        _ => Err(argument("unknown waiting mode: use PLEXUS_ADAPTIVE, PLEXUS_POLLING or PLEXUS_EVENT")),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_attach(path: *const c_char, client: *mut *mut Client) -> c_int {
    // SAFETY: the header asks for a text.
    let Some(path) = unsafe { text(path) }.filter(|_| !client.is_null()) else { return pointer() };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(client, Client::attach(path)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_detach(client: *mut Client) {
    end(client);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_node(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(pointer, |client| c_int::from(client.node().0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_nodes(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(pointer, |client| c_int::from(client.nodes()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_set_waiting(client: *const Client, mode: c_int) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    let Some(client) = (unsafe { client.as_ref() }) else { return pointer() };
    waiting(mode).map_or_else(
        |wrong| wrong,
        |mode| {
            client.set_waiting(mode);
            OK
        },
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_fd(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(pointer, |client| client.fd().as_raw_fd())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_arm(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(pointer, |client| c_int::from(client.arm()))
}
