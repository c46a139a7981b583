//! A link to a hostile peer that has the key, called by fuzz targets and tests. It is not part of
//! the crate's interface.
//!
//! Any bytes are read as frames of the peer. Each frame is one byte of flags ([`BULK`], [`SECOND`],
//! [`TURN`]), a length of two bytes (little endian), and that many bytes.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, channel},
    },
};

use plexus_base::{Incarnation, NodeId, WorkerId};
use plexus_fabric::{
    Frame, Health, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError, Window, WindowId, Windows,
};

use crate::{
    LinkInfo, LinkSettings, MAX_MESSAGE,
    inbox::Inbox,
    link::{Link, NewRail},
};

/// The flag of a frame on the bulk lane.
const BULK: u8 = 1;
/// The flag of a frame on the second rail.
const SECOND: u8 = 2;
/// The flag that gives the link a turn after the frame.
const TURN: u8 = 0x80;

/// The turns at the end. The link looks at an unused rail only once in this many turns.
const LAST_TURNS: usize = 64;

/// A rail that accepts everything and delivers the frames that the test queued for it.
struct QueuedRail(Receiver<(Lane, Vec<u8>)>);

impl Rail for QueuedRail {
    fn kind(&self) -> RailKind {
        RailKind::Tcp
    }

    fn send(&mut self, _: Lane, _: &[u8], _: &[u8]) -> Result<(), SendError> {
        Ok(())
    }

    fn put(&mut self, _: Lane, _: Put<'_>, _: &[u8], _: &[u8]) -> Result<(), SendError> {
        Ok(())
    }

    fn write(&mut self, _: Lane, _: Put<'_>) -> Result<(), SendError> {
        Ok(())
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        Ok(self.0.try_iter().take(limit).map(|(lane, frame)| deliver(lane, Frame::of(&frame))).count())
    }

    fn flush(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    fn pending(&mut self) -> bool {
        false
    }

    fn register(&self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the one window that the peer may access.
fn windows() -> Arc<Windows> {
    static WINDOWS: OnceLock<Arc<Windows>> = OnceLock::new();
    let made = || Window::create(WindowId(1), 4096, 0).expect("memory for a window");
    WINDOWS.get_or_init(|| Arc::new(Windows::new([Arc::new(made())]))).clone()
}

/// Handles any bytes as frames of a peer with two rails, until the link is lost. Returns the number
/// of messages delivered.
#[must_use]
pub fn link_any(mut bytes: &[u8]) -> usize {
    let mut link =
        Link::new(LinkInfo::new(NodeId(1), Incarnation(1), WorkerId(0)), LinkSettings::default(), windows());
    let peer = [0, 1].map(|slot| {
        let (peer, told) = channel();
        let (rail, health, path) = (Box::new(QueuedRail(told)), Health::default(), String::new());
        link.attach(NewRail { slot, generation: 1, rail, health, path });
        peer
    });
    let (mut inbox, mut messages) = (Inbox::default(), 0);
    while let [how, a, b, behind @ ..] = bytes {
        let len = usize::from(u16::from_le_bytes([*a, *b]));
        let (frame, behind) = behind.split_at(behind.len().min(len).min(MAX_FRAME));
        bytes = behind;
        let lane = if how & BULK == 0 { Lane::Prompt } else { Lane::Bulk };
        // The link has dropped the receiver of a rail that it gave up.
        let _ = peer[usize::from(how & SECOND != 0)].send((lane, frame.to_vec()));
        if how & TURN != 0 {
            messages += turn(&mut link, &mut inbox);
        }
    }
    messages + (0..LAST_TURNS).map(|_| turn(&mut link, &mut inbox)).sum::<usize>()
}

/// Runs one turn: handles arrivals and sends what is due. Returns the number of messages.
fn turn(link: &mut Link, inbox: &mut Inbox) -> usize {
    if link.lost().is_some() {
        return 0;
    }
    link.poll(inbox);
    for index in 0..inbox.len() {
        assert!(inbox.message(index).payload.len() <= MAX_MESSAGE);
        link.handled(inbox.head(index).1.kind);
    }
    let taken = inbox.len();
    inbox.clear();
    link.flush();
    taken
}

#[cfg(test)]
mod tests {
    use plexus_base::Epoch;
    use plexus_sim::hostile;

    use super::*;
    use crate::{
        Channel, Kind,
        link::{Request, protocol::Stamp},
        message::{FrameContent, Head, Header},
    };

    fn frame(how: u8, header: Header, body: &[u8]) -> Vec<u8> {
        let frame = [&header.encode()[..], body].concat();
        [&[how][..], &(frame.len() as u16).to_le_bytes(), &frame].concat()
    }

    fn head(what: FrameContent, sequence: u32) -> Header {
        let (kind, channel) = (Kind::Request, Channel::CacheRequests);
        let head = Head { what, kind, channel, epoch: Epoch(1), tag: 9 };
        Header::of(&head).stamped(Stamp { credits: [0; 3], sequence })
    }

    /// Returns one frame of every form, and a message after them.
    fn everything() -> Vec<u8> {
        let counts = |counts: [u64; 2]| counts.map(u64::to_le_bytes).concat();
        // A rail that this end never had: slot, the peer's state, generation, and counts of
        // arrivals.
        let closed = [&[3, 1, 0, 0, 1, 0, 0, 0][..], &counts([0, 0])].concat();
        let asked = Request::FetchAdd { window: WindowId(1), offset: 8, add: 1 };
        [
            frame(0, head(FrameContent::Part, 0), &[1; 300]),
            // A frame that overtakes on the other rail.
            frame(SECOND | TURN, head(FrameContent::Written, 2), &[]),
            frame(TURN, head(FrameContent::Message, 1), &[2; 300]),
            frame(TURN, head(FrameContent::Access, 3), &asked.encode()),
            frame(TURN, Header::note(), &counts([0, 0])),
            frame(SECOND | TURN, Header::closed(), &closed),
            frame(TURN, head(FrameContent::Message, 4), b"the last"),
            frame(TURN, Header::goodbye(), &[]),
        ]
        .concat()
    }

    #[test]
    fn a_hostile_peer_does_no_harm() {
        let good = everything();
        assert_eq!(link_any(&good), 2);
        // A message needs a header, which bounds their number.
        hostile(&[good], |bytes| assert!(link_any(bytes) <= bytes.len() / 16));
    }

    #[test]
    fn bodies_of_the_wrong_length_end_the_link() {
        let last = frame(TURN, head(FrameContent::Message, 0), b"not heard any more");
        for (header, len) in [(Header::note(), 16), (Header::closed(), 24), (Header::goodbye(), 0)] {
            for (wrong, heard) in [(len, 1), (len + 1, 0), (len + 8, 0)] {
                let bytes = [frame(TURN, header, &vec![0; wrong]), last.clone()].concat();
                assert_eq!(link_any(&bytes), heard, "{:?} with {wrong} bytes", header.form());
            }
        }
    }
}
