//! Lines of the control socket, both ways.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_admin::control::line_any(bytes);
});
