//! A header of a redo stream, and a batch with its footer and records.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_redo::stream::protocol::header_any(bytes);
    let _ = plexus_redo::stream::protocol::batch_any(bytes);
});
