//! A message of mirrored disks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_disks::mirror::mirror_message_any(bytes);
});
