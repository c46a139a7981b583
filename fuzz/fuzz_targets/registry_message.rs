//! Messages of the registry, and their frames: each decoded message has only this encoding.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_registry::protocol::message_any(bytes);
});
