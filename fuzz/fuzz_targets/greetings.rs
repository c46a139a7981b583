//! The first messages of a handshake.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_interconnect::mesh::any::greetings(bytes);
});
