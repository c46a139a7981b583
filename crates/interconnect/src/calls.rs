//! The calls of a worker that wait for their replies, and the tags by which replies find them.

use plexus_base::NodeId;

use crate::{CallError, Channel, Kind, message::Head};

/// The match of a message with the calls of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyMatch {
    /// The reply to the call with this token.
    Call(u64),
    /// The reply to a call that is answered, has failed or never was.
    Late,
    /// A message for the service, which answers no call.
    None,
}

/// The bit that is set in the tags of calls, and clear in those of the services' own replies.
pub(crate) const CALL: u32 = 1 << 31;

/// The generations of a place in the table of calls: as many as fit into a tag above the place.
const GENERATIONS: u16 = 1 << 15;

/// The most calls that may wait for their replies.
pub(crate) const MOST_CALLS: usize = u16::MAX as usize;

/// Returns whether a tag is its sender's own, and no call's.
#[inline]
pub(crate) fn is_own(kind: Kind, tag: u32) -> bool {
    kind != Kind::Reply || tag & CALL == 0
}

/// The calls that wait for their replies. A tag is a place in the table and its generation, so a
/// late or repeated reply matches no call.
#[derive(Default)]
pub(crate) struct Calls {
    open: Vec<Call>,
    free: Vec<u16>,
}

#[derive(Clone, Copy)]
struct Call {
    generation: u16,
    waiting: Option<(NodeId, Channel, u64)>,
    /// True if the call is an access to a window.
    access: bool,
}

impl Call {
    fn tag(&self, place: u16) -> u32 {
        CALL | u32::from(self.generation) << 16 | u32::from(place)
    }
}

impl Calls {
    pub(crate) fn open(
        &mut self,
        to: NodeId,
        channel: Channel,
        token: u64,
        access: bool,
    ) -> Result<u32, CallError> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.open.len() == MOST_CALLS => return Err(CallError::Full),
            None => {
                self.open.push(Call { generation: 0, waiting: None, access });
                (self.open.len() - 1) as u16
            }
        };
        let call = &mut self.open[usize::from(place)];
        call.generation = (call.generation + 1) % GENERATIONS;
        (call.waiting, call.access) = (Some((to, channel, token)), access);
        Ok(call.tag(place))
    }

    pub(crate) fn close(&mut self, from: NodeId, reply: &Head) -> Option<(u64, bool)> {
        let place = (reply.tag & 0xffff) as u16;
        let call = self.open.get_mut(usize::from(place))?;
        let (to, channel, token) = call.waiting?;
        if call.tag(place) != reply.tag || to != from || channel != reply.channel {
            return None;
        }
        call.waiting = None;
        self.free.push(place);
        Some((token, call.access))
    }

    pub(crate) fn fail(&mut self, peer: NodeId) -> Vec<(Channel, u64)> {
        let mut failed = Vec::new();
        for (place, call) in self.open.iter_mut().enumerate() {
            if let Some((to, channel, token)) = call.waiting
                && to == peer
            {
                call.waiting = None;
                self.free.push(place as u16);
                failed.push((channel, token));
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::Epoch;

    use super::*;
    use crate::message::FrameContent;

    fn reply(tag: u32) -> Head {
        Head {
            what: FrameContent::Message,
            channel: Channel::Services,
            kind: Kind::Reply,
            epoch: Epoch(1),
            tag,
        }
    }

    #[test]
    fn a_reply_is_taken_once_and_only_from_the_called_peer() {
        let mut calls = Calls::default();
        let tag = calls.open(NodeId(1), Channel::Services, 77, true).unwrap();
        assert_eq!(calls.close(NodeId(2), &reply(tag)), None);
        assert_eq!(calls.close(NodeId(1), &reply(tag)), Some((77, true)));
        assert_eq!(calls.close(NodeId(1), &reply(tag)), None);
        let again = calls.open(NodeId(1), Channel::Services, 78, false).unwrap();
        assert_ne!(tag, again, "the same place, another generation");
        assert_eq!(calls.close(NodeId(1), &reply(tag)), None);
        assert_eq!(calls.fail(NodeId(1)), [(Channel::Services, 78)]);
    }

    #[test]
    fn more_calls_than_tags_are_refused() {
        let mut calls = Calls::default();
        let open = |calls: &mut Calls| calls.open(NodeId(1), Channel::Services, 0, false);
        let first = open(&mut calls).unwrap();
        assert!((1..MOST_CALLS).all(|_| open(&mut calls).is_ok()));
        assert_eq!(open(&mut calls), Err(CallError::Full));
        assert!(calls.close(NodeId(1), &reply(first)).is_some());
        assert!(open(&mut calls).is_ok());
    }
}
