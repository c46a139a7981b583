//! The stream of a sealed TCP rail, and what a peer with the key may seal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_fabric::tcp::decode_any_sealed(bytes);
});
