//! A block as it comes from a disk, and a patch of one.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_disks::page_any(bytes);
    let _ = plexus_disks::patch_any(bytes);
});
