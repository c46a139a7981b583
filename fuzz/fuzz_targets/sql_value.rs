//! A value in text and binary form, and a row of a page.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_sql::any::value_any(bytes);
});
