//! The files that a node finds when it starts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_admin::files_any(bytes);
});
