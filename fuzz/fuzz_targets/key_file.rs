//! A file with a key of the cluster.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_admin::keys::key_any(bytes);
});
