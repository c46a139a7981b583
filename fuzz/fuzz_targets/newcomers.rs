//! What nodes say to each other of voting files and nodes that are about to be added: whatever is taken has only this encoding.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_node::newcomers_any(bytes);
});
