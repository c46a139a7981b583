//! Windows.

use std::ffi::{c_char, c_int};

use plexus_client::{Client, ClientWindow, Error};

use crate::{
    bytes,
    error::{OK, fail, of, pointer},
    handle::{end, hand_out},
    limit, node, room, text,
};

/// Gives the program the handle of a window that `get` returns.
///
/// # Safety
/// As the header says of them.
unsafe fn window(
    client: *const Client,
    name: *const c_char,
    place: *mut *mut ClientWindow,
    get: impl FnOnce(&Client, &str) -> Result<ClientWindow, Error>,
) -> c_int {
    // SAFETY: the header asks for what plexus_attach gave, and for a text.
    let (Some(client), Some(name), false) =
        (unsafe { client.as_ref() }, unsafe { text(name) }, place.is_null())
    else {
        return pointer();
    };
    // SAFETY: not null, and the header asks for a place.
    unsafe { hand_out(place, get(client, name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_create(
    client: *const Client,
    name: *const c_char,
    len: u64,
    place: *mut *mut ClientWindow,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { window(client, name, place, |client, name| client.create_window(name, len)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_open(
    client: *const Client,
    home: u32,
    name: *const c_char,
    place: *mut *mut ClientWindow,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { window(client, name, place, |client, name| client.open_window(node(home), name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_find(
    client: *const Client,
    name: *const c_char,
    place: *mut *mut ClientWindow,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { window(client, name, place, |client, name| client.find_window(name)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_close(window: *mut ClientWindow) {
    end(window);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_length(window: *const ClientWindow) -> u64 {
    // SAFETY: the header asks for a window.
    unsafe { window.as_ref() }.map_or(0, ClientWindow::len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_home(window: *const ClientWindow) -> c_int {
    // SAFETY: the header asks for a window.
    unsafe { window.as_ref() }.map_or_else(pointer, |window| c_int::from(window.home().0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_map(window: *const ClientWindow) -> c_int {
    // SAFETY: the header asks for a window.
    unsafe { window.as_ref() }.map_or_else(pointer, |window| of(window.map()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_read(
    window: *const ClientWindow,
    offset: u64,
    into: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for a window, and for that much room.
    unsafe { with_room(window, (into, len), |window, into| window.read(offset, into)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_get(
    window: *const ClientWindow,
    offset: u64,
    into: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for a window, and for that much room.
    unsafe { with_room(window, (into, len), |window, into| window.get(offset, into)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_put(
    window: *const ClientWindow,
    offset: u64,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the header asks for a window, and for that many bytes.
    let (Some(window), Some(data)) = (unsafe { window.as_ref() }, unsafe { bytes(data, len) }) else {
        return pointer();
    };
    of(window.put(offset, data))
}

/// Reads from a window into a buffer of the program.
///
/// # Safety
/// `window` is one, or null; `into` leads to that much room, or is null.
unsafe fn with_room(
    window: *const ClientWindow,
    (into, len): (*mut u8, usize),
    act: impl FnOnce(&ClientWindow, &mut [u8]) -> Result<(), Error>,
) -> c_int {
    // SAFETY: as the caller says.
    let (Some(window), Some(into)) = (unsafe { window.as_ref() }, unsafe { room(into, len) }) else {
        return pointer();
    };
    of(act(window, into))
}

/// Writes the word that an operation on a window returns to the program.
///
/// # Safety
/// As the header says of these operations.
unsafe fn word(
    window: *const ClientWindow,
    value: *mut u64,
    act: impl FnOnce(&ClientWindow) -> Result<u64, Error>,
) -> c_int {
    // SAFETY: the header asks for a window, and for a place.
    let (Some(window), Some(value)) = (unsafe { window.as_ref() }, unsafe { value.as_mut() }) else {
        return pointer();
    };
    match act(window) {
        Ok(word) => *value = word,
        Err(error) => return fail(&error),
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_load(
    window: *const ClientWindow,
    offset: u64,
    value: *mut u64,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { word(window, value, |window| window.load(offset)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_wait(
    window: *const ClientWindow,
    offset: u64,
    old: u64,
    value: *mut u64,
    limit_us: i64,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { word(window, value, |window| window.wait_word(offset, limit(limit_us), |word| word != old)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_fetch_add(
    window: *const ClientWindow,
    offset: u64,
    add: u64,
    value: *mut u64,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { word(window, value, |window| window.fetch_add(offset, add)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn plexus_window_compare_swap(
    window: *const ClientWindow,
    offset: u64,
    expected: u64,
    new: u64,
    value: *mut u64,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { word(window, value, |window| window.compare_swap(offset, expected, new)) }
}
