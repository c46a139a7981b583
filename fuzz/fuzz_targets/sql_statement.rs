//! The text of statements.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_sql::any::statement_any(bytes);
});
