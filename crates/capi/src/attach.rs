//! Attaching, and how threads wait.

use std::{
    ffi::{c_char, c_int},
    os::fd::AsRawFd,
};

use plexus_client::{Client, Waiting};

use crate::{
    end,
    error::{OK, argument, fail},
    hand_out, text,
};

/// A waiting mode by its number in the header.
pub(crate) fn waiting(mode: c_int) -> Option<Waiting> {
    match mode {
        0 => Some(Waiting::Adaptive),
        1 => Some(Waiting::Polling),
        2 => Some(Waiting::Event),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_attach(path: *const c_char, client: *mut *mut Client) -> c_int {
    // SAFETY: the header asks for a text.
    let Some(path) = unsafe { text(path) }.filter(|_| !client.is_null()) else { return argument() };
    match Client::attach(path) {
        // SAFETY: not null, and the header asks for a place.
        Ok(attached) => unsafe { hand_out(client, attached) },
        Err(error) => return fail(&error),
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_detach(client: *mut Client) {
    // SAFETY: the header asks for what plexus_attach gave, once.
    unsafe { end(client) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_node(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(argument, |client| c_int::from(client.node().0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_nodes(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(argument, |client| c_int::from(client.nodes()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_set_waiting(client: *const Client, mode: c_int) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    let (Some(client), Some(mode)) = (unsafe { client.as_ref() }, waiting(mode)) else { return argument() };
    client.set_waiting(mode);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_fd(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(argument, |client| client.fd().as_raw_fd())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_arm(client: *const Client) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    unsafe { client.as_ref() }.map_or_else(argument, |client| c_int::from(client.arm()))
}
