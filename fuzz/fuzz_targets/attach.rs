//! What programs and nodes say to each other: the hello, the answer, heads, and messages put together from frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plexus_client::wire::any(bytes));
