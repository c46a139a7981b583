//! Datagrams between the memberships of nodes: headers, pieces of messages, packed blocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_membership::runtime::datagram_any(bytes);
});
