//! Messages of the cache protocol: each decoded message has only this encoding.
#![no_main]

use plexus_cache::protocol::Message;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode()[..], *bytes);
    }
});
