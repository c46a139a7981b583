//! The check of a put before its frame is delivered: data that came in the message are written,
//! data that the adapter wrote are compared. A frame whose data do not match is not delivered.

use plexus_base::{crc32c, crc32c_append};
use plexus_fabric::{PutTarget, Window, Windows};

use crate::{
    endpoint::{Arrival, Endpoint},
    wire::Kind,
};

/// Writes the data that came with a message, or compares those written before it.
pub(crate) fn settle(endpoint: &Endpoint, arrival: &Arrival, windows: &Windows) -> Result<(), &'static str> {
    const LATE: &str = "a put with a wrong generation";
    let Some(target) = &arrival.message.target else { return Ok(()) };
    let window = windows.find(target.window).ok_or("a put into a window that does not exist")?;
    let PutTarget { offset, len, generation, crc, .. } = *target;
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
        // A peer that writes without a frame may write there again at any time.
        _ if arrival.message.silent => crc,
        _ => checksum(window, offset as usize, len as usize),
    };
    match (expected, sum == crc) {
        (true, true) => Ok(()),
        (false, _) => Err(LATE),
        (true, false) => Err("the checksum of the data of a put does not match"),
    }
}

/// The checksum of bytes of a window, copied out piece by piece.
fn checksum(window: &Window, offset: usize, len: usize) -> u32 {
    let mut piece = [0; 4096];
    (0..len).step_by(piece.len()).fold(0, |crc, at| {
        let piece = &mut piece[..(len - at).min(4096)];
        window.read(offset + at, piece);
        crc32c_append(crc, piece)
    })
}
