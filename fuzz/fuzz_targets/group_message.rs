//! Messages about groups of processes: whatever is taken for one has only this encoding, and a member that is sent it does not panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_membership::groups::protocol::group_message_any(bytes);
});
