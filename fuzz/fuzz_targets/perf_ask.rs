//! What a client asks a listener of `plexus perf` for.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = plexus_bench::perf::alone::ask_any(bytes);
});
