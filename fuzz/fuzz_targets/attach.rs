//! Messages between clients and nodes: the hello, the answer, headers, and messages assembled from
//! frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plexus_client::wire::any(bytes));
