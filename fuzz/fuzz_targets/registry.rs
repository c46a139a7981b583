//! A copy or a backup of the registry.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_registry::protocol::image_any(bytes);
});
