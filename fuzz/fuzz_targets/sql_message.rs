//! A message of a client of the database.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_sql::any::message_any(bytes);
});
