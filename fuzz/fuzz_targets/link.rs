//! All frames that a peer with the key may send over the rails of a link: messages and their parts,
//! accesses, notes, changes of rails.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_interconnect::link_any(bytes);
});
