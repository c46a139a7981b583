//! The stream of a TCP rail in clear.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_fabric::tcp::decode_any(bytes);
});
