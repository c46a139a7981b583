//! Messages over a rail between a program and its node, in one order each way.
//!
//! A message is its head and the bytes behind it, cut into frames; the first frame begins with the head, and the next
//! message begins a new frame. All go by the prompt lane, so a program's operations stay in the order in which it asked
//! for them. What finds no room in the ring waits in memory.
//!
//! Whatever the other side writes into the ring ends in messages or in an error, never in a panic.

use std::{collections::VecDeque, ops::Range};

use plexus_fabric::{Lane, Lost, MAX_FRAME, Rail, SendError};

use super::{HEAD, Head};

/// Frames taken in one look.
const FRAMES: usize = 32;

/// Bytes of a message in its first frame.
const FIRST: usize = MAX_FRAME - HEAD;

/// What has arrived, in one reused buffer: who handles a message may send on the pipe that it came from.
#[derive(Default)]
pub struct Letters {
    bytes: Vec<u8>,
    all: Vec<(Head, Range<usize>)>,
}

impl Letters {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The one in place `index`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn at(&self, index: usize) -> (Head, &[u8]) {
        let (head, range) = &self.all[index];
        (*head, &self.bytes[range.clone()])
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.all.clear();
        self.bytes.clear();
    }
}

/// One end of the way between a program and its node. See the [module](self).
pub struct Pipe {
    rail: Box<dyn Rail>,
    /// Frames that found no room.
    waiting: VecDeque<Box<[u8]>>,
    queued: usize,
    /// The message that is being put together: its head, its bytes so far, how many there will be.
    partial: Option<(Head, Vec<u8>, usize)>,
}

impl Pipe {
    /// A pipe over `rail`.
    #[must_use]
    pub fn new(rail: Box<dyn Rail>) -> Self {
        Self { rail, waiting: VecDeque::new(), queued: 0, partial: None }
    }

    /// Sends a message, or keeps it while there is no room.
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
                // That the rail is lost is said by the next poll.
                Err(SendError::Lost | SendError::TooLarge) => return,
                Err(SendError::Full) => {}
            }
        }
        self.queued += head.len() + body.len();
        self.waiting.push_back([head, body].concat().into());
    }

    /// Adds what has arrived to `letters`; how many frames that was.
    ///
    /// # Errors
    /// The other side is gone, or sends what it must not; everything before that was added.
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

    /// Sends what waits, and wakes the other side if it sleeps.
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

    /// See [`Rail::pending`].
    pub fn pending(&mut self) -> bool {
        self.rail.pending()
    }

    /// Bytes that wait for room.
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
            return Err(Lost::Corrupt("a piece that does not fit its message"));
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
        return Err(Lost::Corrupt("a message of another length than it announces"));
    }
    let mut bytes = Vec::with_capacity(len);
    bytes.resize(here, 0);
    frame.copy(HEAD, &mut bytes);
    *partial = Some((head, bytes, len));
    Ok(())
}

/// Frames, each with its length in two bytes before it, put together to messages.
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

    /// The frames that a message of `len` bytes is cut into.
    fn frames(head: Head, payload: &[u8]) -> Vec<Vec<u8>> {
        let (first, rest) = payload.split_at(payload.len().min(FIRST));
        let mut frames = vec![[&head.encode(payload.len())[..], first].concat()];
        frames.extend(rest.chunks(MAX_FRAME).map(<[u8]>::to_vec));
        frames
    }

    #[test]
    fn messages_of_every_length_arrive_whole() {
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
    fn whatever_frames_come_nothing_breaks() {
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
