//! What arrives over libfabric, and the offer that a rail over it begins with.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    plexus_fabric::ofi::decode_any(bytes);
    let _ = plexus_fabric::ofi::Offer::decode(bytes);
});
