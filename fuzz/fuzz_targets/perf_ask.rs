//! The request of a client to a listener of `plexus perf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_bench::perf::alone::ask_any(bytes);
});
