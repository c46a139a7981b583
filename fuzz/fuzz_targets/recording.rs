//! Recordings: each decoded recording can be shown.
#![no_main]

use plexus_observe::{recording::Recording, study::Study};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(recording) = Recording::of(bytes.to_vec())
        && let Ok(Some(study)) = Study::of(&recording, None)
    {
        let _ = (study.text(), study.files());
    }
});
