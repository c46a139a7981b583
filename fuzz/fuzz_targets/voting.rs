//! The blocks of a voting file, and reports as messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_membership::voting::format::voting_any(bytes);
});
