//! The announcement of a peer's windows.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_interconnect::mesh::any::spans(bytes);
});
