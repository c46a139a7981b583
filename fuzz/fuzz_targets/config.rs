//! `cluster.toml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_admin::config::config_any(bytes);
});
