//! The data of a COPY.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_sql::any::copied_any(bytes);
});
