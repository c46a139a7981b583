//! Arrivals over libfabric, and the offer that starts such a rail.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    plexus_ofi::decode_any(bytes);
    let _ = plexus_ofi::Offer::decode(bytes);
});
