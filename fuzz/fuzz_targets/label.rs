//! The label of a disk.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_disks::label_any(bytes);
});
