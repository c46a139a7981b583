//! What happens to a put before its frame is delivered: data that came in the message are put in place, data that the adapter
//! wrote are compared. Nothing that does not match is delivered.

use plexus_base::{crc32c, crc32c_append};

use super::{
    endpoint::{Arrival, Endpoint},
    wire::Kind,
};
use crate::{Window, Windows, put_fields::Target};

/// Before a message is handed over: puts the data that came with it in place, or compares what was written before it.
pub(super) fn settle(endpoint: &Endpoint, arrival: &Arrival, windows: &Windows) -> Result<(), &'static str> {
    const LATE: &str = "a put that is not expected";
    let Some(target) = &arrival.message.target else { return Ok(()) };
    let window = windows.find(target.window).ok_or("a put into a window that does not exist")?;
    let Target { offset, len, generation, crc, .. } = *target;
    if !window.span().holds(offset, u64::from(len)) {
        return Err("a put outside its window");
    }
    let expected = window.accepts(offset, u64::from(len), generation);
    let sum = match arrival.message.kind {
        Kind::Inline => {
            let from = arrival.message.frame.end;
            let data = endpoint.bytes(arrival, from..from + len as usize);
            let sum = crc32c(data);
            if expected && sum == crc {
                window.write(offset, data);
            }
            sum
        }
        // Whoever writes without a frame may write there again at any time.
        _ if arrival.message.silent => crc,
        _ => checksum(window, offset as usize, len as usize),
    };
    match (expected, sum == crc) {
        (true, true) => Ok(()),
        (false, _) => Err(LATE),
        (true, false) => Err("data of a put whose checksum does not match"),
    }
}

/// Over bytes of a window, copied out piece by piece.
fn checksum(window: &Window, offset: usize, len: usize) -> u32 {
    let mut piece = [0; 4096];
    (0..len).step_by(piece.len()).fold(0, |crc, at| {
        let piece = &mut piece[..(len - at).min(4096)];
        window.read(offset + at, piece);
        crc32c_append(crc, piece)
    })
}
