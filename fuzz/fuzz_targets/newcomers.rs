//! Messages between nodes about new voting files and nodes: each decoded message has only this
//! encoding.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_node::newcomers_any(bytes);
});
