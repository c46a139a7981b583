//! Rings in memory that the peer writes to: control words, positions, headers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_fabric::shm::ring_any(bytes);
});
