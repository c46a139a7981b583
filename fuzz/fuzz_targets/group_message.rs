//! Messages about groups of processes: each decoded message has only this encoding, and a member
//! that receives it does not panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_membership::groups::protocol::group_message_any(bytes);
});
