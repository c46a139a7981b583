//! Messages over a rail between a program and its node, in one order each way.
//!
//! A message is its head and payload, cut into frames. The first frame begins with the head, and
//! the next message begins a new frame. All go by the prompt lane, so a program's operations stay
//! in order. Frames that find no room in the ring wait in memory.
//!
//! Arbitrary bytes in the ring lead to messages or to an error, never to a panic.

use std::{collections::VecDeque, ops::Range};

use plexus_fabric::{Lane, Lost, MAX_FRAME, Rail, SendError};

use super::{HEAD, Head};

/// The maximum of frames received at once.
const FRAMES: usize = 32;

/// The bytes of a message in its first frame.
const FIRST: usize = MAX_FRAME - HEAD;

/// The received messages, in one reused buffer. While handling one, its receiver may send on the
/// same pipe.
#[derive(Default)]
pub struct Letters {
    bytes: Vec<u8>,
    all: Vec<(Head, Range<usize>)>,
}

impl Letters {
    /// Returns the number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the message at `index`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn at(&self, index: usize) -> (Head, &[u8]) {
        let (head, range) = &self.all[index];
        (*head, &self.bytes[range.clone()])
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.all.clear();
        self.bytes.clear();
    }
}

/// One end of the connection between a program and its node. See the [module](self).
pub struct Pipe {
    rail: Box<dyn Rail>,
    /// Frames that wait for room in the ring.
    waiting: VecDeque<Box<[u8]>>,
    queued: usize,
    /// The message that is being assembled: its head, the bytes so far, and its length.
    partial: Option<(Head, Vec<u8>, usize)>,
}

impl Pipe {
    /// Creates a pipe over `rail`.
    #[must_use]
    pub fn new(rail: Box<dyn Rail>) -> Self {
        Self { rail, waiting: VecDeque::new(), queued: 0, partial: None }
    }

    /// Sends a message, or queues it while there is no room.
    #[inline]
    pub fn send(&mut self, head: Head, payload: &[u8]) {
        let head = head.encode(payload.len());
        let (first, mut rest) = payload.split_at(payload.len().min(FIRST));
        self.frame(&head, first);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(MAX_FRAME));
            self.frame(&[], piece);
            rest = behind;
        }
    }

    #[inline]
    fn frame(&mut self, head: &[u8], body: &[u8]) {
        if self.waiting.is_empty() {
            match self.rail.send(Lane::Prompt, head, body) {
                Ok(()) => return,
                // The next poll reports a lost rail.
                Err(SendError::Lost | SendError::TooLarge) => return,
                Err(SendError::Full) => {}
            }
        }
        self.queued += head.len() + body.len();
        self.waiting.push_back([head, body].concat().into());
    }

    /// Adds the received messages to `letters`. Returns the number of frames.
    ///
    /// # Errors
    /// The other side is gone or violates the protocol. All earlier messages were added.
    #[inline]
    pub fn poll(&mut self, letters: &mut Letters) -> Result<usize, Lost> {
        let mut wrong = None;
        let partial = &mut self.partial;
        let polled = self.rail.poll(FRAMES, &mut |lane, frame| {
            if wrong.is_some() {
                return;
            }
            wrong = match lane {
                Lane::Prompt => arrive(partial, letters, &frame).err(),
                Lane::Bulk => Some(Lost::Corrupt("a frame on the wrong lane")),
            };
        });
        match wrong {
            Some(lost) => Err(lost),
            None => polled,
        }
    }

    /// Sends queued frames, and wakes the other side if it sleeps.
    ///
    /// # Errors
    /// The other side is gone.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Lost> {
        while let Some(frame) = self.waiting.front() {
            if self.rail.send(Lane::Prompt, frame, &[]) == Err(SendError::Full) {
                break;
            }
            self.queued -= frame.len();
            self.waiting.pop_front();
        }
        self.rail.flush()
    }

    /// Returns true if frames wait in the rail, see [`Rail::pending`].
    pub fn pending(&mut self) -> bool {
        self.rail.pending()
    }

    /// Returns the number of bytes that wait for room.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }
}

fn arrive(
    partial: &mut Option<(Head, Vec<u8>, usize)>,
    letters: &mut Letters,
    frame: &plexus_fabric::Frame<'_>,
) -> Result<(), Lost> {
    if let Some((head, mut bytes, len)) = partial.take() {
        let start = bytes.len();
        if frame.is_empty() || start + frame.len() > len {
            return Err(Lost::Corrupt("a frame that does not fit its message"));
        }
        bytes.resize(start + frame.len(), 0);
        frame.copy(0, &mut bytes[start..]);
        if bytes.len() < len {
            *partial = Some((head, bytes, len));
        } else {
            let at = letters.bytes.len();
            letters.bytes.extend_from_slice(&bytes);
            letters.all.push((head, at..at + len));
        }
        return Ok(());
    }
    if frame.len() < HEAD {
        return Err(Lost::Corrupt("a message shorter than its head"));
    }
    let mut head = [0; HEAD];
    frame.copy(0, &mut head);
    let (head, len) = Head::decode(&head)?;
    let here = frame.len() - HEAD;
    if here == len {
        let at = letters.bytes.len();
        letters.bytes.resize(at + len, 0);
        frame.copy(HEAD, &mut letters.bytes[at..]);
        letters.all.push((head, at..at + len));
        return Ok(());
    }
    if here > len || here != FIRST {
        return Err(Lost::Corrupt("a message whose length differs from its head"));
    }
    let mut bytes = Vec::with_capacity(len);
    bytes.resize(here, 0);
    frame.copy(HEAD, &mut bytes);
    *partial = Some((head, bytes, len));
    Ok(())
}

/// Assembles messages from frames. Each frame has its length in two bytes before it.
pub(super) fn any(mut bytes: &[u8]) {
    let (mut partial, mut letters) = (None, Letters::default());
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (frame, behind) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*len))));
        bytes = behind;
        if arrive(&mut partial, &mut letters, &plexus_fabric::Frame::of(frame)).is_err() {
            break;
        }
    }
    for index in 0..letters.len() {
        let (head, payload) = letters.at(index);
        assert!(payload.len() <= super::MAX_PAYLOAD, "{head:?}");
    }
}

#[cfg(test)]
mod tests {
    use plexus_fabric::Frame;
    use plexus_sim::Random;

    use super::*;
    use crate::wire::{MAX_PAYLOAD, Use, Verb};

    /// Returns the frames that a message of `len` bytes is cut into.
    fn frames(head: Head, payload: &[u8]) -> Vec<Vec<u8>> {
        let (first, rest) = payload.split_at(payload.len().min(FIRST));
        let mut frames = vec![[&head.encode(payload.len())[..], first].concat()];
        frames.extend(rest.chunks(MAX_FRAME).map(<[u8]>::to_vec));
        frames
    }

    #[test]
    fn messages_of_every_length_are_assembled() {
        let (mut partial, mut letters) = (None, Letters::default());
        let lengths = [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + MAX_FRAME, MAX_PAYLOAD];
        let payload = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + len) as u8).collect() };
        for (id, len) in lengths.into_iter().enumerate() {
            let head = Head { id: id as u64, ..Head::new(Verb::Send, Use::Datagrams) };
            for frame in frames(head, &payload(len)) {
                arrive(&mut partial, &mut letters, &Frame::of(&frame)).unwrap();
            }
        }
        assert!(partial.is_none() && letters.len() == lengths.len());
        for (id, len) in lengths.into_iter().enumerate() {
            let (head, bytes) = letters.at(id);
            assert!(head.id == id as u64 && bytes == payload(len), "{len}");
        }
    }

    #[test]
    fn arbitrary_frames_lead_to_messages_or_errors() {
        let mut random = Random::new(1);
        let (mut refused, mut taken) = (0, 0);
        for _ in 0..20_000 {
            let (mut partial, mut letters) = (None, Letters::default());
            let head = Head::new(Verb::Put, Use::Windows);
            for mut frame in frames(head, &vec![1; random.below(3 * MAX_FRAME as u64) as usize]) {
                match random.below(8) {
                    0 => frame.truncate(random.bits() as usize % (frame.len() + 1)),
                    1 => {
                        let at = random.bits() as usize % HEAD.min(frame.len());
                        frame[at] = random.bits() as u8;
                    }
                    2 => frame.push(0),
                    _ => {}
                }
                match arrive(&mut partial, &mut letters, &Frame::of(&frame)) {
                    Ok(()) => taken += 1,
                    Err(_) => {
                        refused += 1;
                        break;
                    }
                }
            }
        }
        assert!(refused > 1000 && taken > 1000, "{refused} {taken}");
    }
}
