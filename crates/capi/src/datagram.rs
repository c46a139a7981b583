//! Reliable datagrams.

use std::ffi::c_int;

use plexus_client::{Client, DatagramPort};

use crate::{
    PlexusAddress, bytes,
    error::{OK, fail, of, pointer},
    fill,
    handle::{end, hand_out},
    limit, room,
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_bind(
    client: *const Client,
    number: u32,
    port: *mut *mut DatagramPort,
) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave.
    let Some(client) = unsafe { client.as_ref() }.filter(|_| !port.is_null()) else { return pointer() };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(port, client.bind(number)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_unbind(port: *mut DatagramPort) {
    end(port);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_port_address(
    port: *const DatagramPort,
    address: *mut PlexusAddress,
) -> c_int {
    // SAFETY: the header asks for what plexus_bind gave, and for a place.
    let (Some(port), Some(address)) = (unsafe { port.as_ref() }, unsafe { address.as_mut() }) else {
        return pointer();
    };
    *address = port.address().into();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_send(
    port: *const DatagramPort,
    to: PlexusAddress,
    message: *const u8,
    len: usize,
    limit_us: i64,
) -> c_int {
    // SAFETY: the header asks for what plexus_bind gave, and for that many bytes.
    let (Some(port), Some(message)) = (unsafe { port.as_ref() }, unsafe { bytes(message, len) }) else {
        return pointer();
    };
    of(port.send(to.address(), message, limit(limit_us)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_receive(
    port: *const DatagramPort,
    into: *mut u8,
    len: usize,
    from: *mut PlexusAddress,
    limit_us: i64,
) -> isize {
    // SAFETY: the header asks for what plexus_bind gave, and for that much room.
    let (Some(port), Some(into)) = (unsafe { port.as_ref() }, unsafe { room(into, len) }) else {
        return pointer() as isize;
    };
    match port.receive(limit(limit_us)) {
        Ok(datagram) => {
            fill(into, &datagram.bytes);
            // SAFETY: the header asks for a place or null.
            if let Some(from) = unsafe { from.as_mut() } {
                *from = datagram.from.into();
            }
            datagram.bytes.len() as isize
        }
        Err(error) => fail(&error) as isize,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_settle(port: *const DatagramPort, limit_us: i64) -> c_int {
    // SAFETY: the header asks for what plexus_bind gave.
    unsafe { port.as_ref() }.map_or_else(pointer, |port| of(port.settle(limit(limit_us))))
}
