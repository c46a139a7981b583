//! The hello of a new connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_interconnect::mesh::any::hello(bytes);
});
