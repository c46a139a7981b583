//! The messages of transactions between nodes.

use plexus_base::{
    Epoch, NodeId,
    wire::{self, DecodeError, Fault, Fixed},
};

use super::{Number, Status, TransactionId};

wire::layout! {
    struct Wire: 90 {
        kind: u8, node: NodeId, clock: u64, lows: [u64; LOWS], subject: u64, detail: u64
    }
}

/// The number of snapshots in a message.
pub(crate) const LOWS: usize = 8;

/// A message, with the clock and the lowest snapshots of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) clock: Number,
    /// The lowest snapshots, in their order; the last one is a bound of all others.
    pub(crate) lows: [Number; LOWS],
    pub(crate) body: MessageBody,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MessageBody {
    /// Asks for the clock of the receiver.
    Ask { round: u64 },
    /// Answers with the clock of the sender.
    Told { round: u64 },
    /// The sender has entered this view.
    Entered { epoch: Epoch },
    /// The sender has raised its clock above all numbers of nodes that are no members in this view.
    Raised { epoch: Epoch },
    /// Asks for the state of a transaction of the receiver. [`Number::MAX`] waits for its end.
    Question { id: TransactionId, snapshot: Number },
    /// The state of a transaction of the sender.
    Answer { id: TransactionId, status: Status },
    /// Asks whether the waits of a transaction of the receiver, `target`, lead to `waiter`. That
    /// is a transaction of `node` and waits for them.
    Probe { waiter: TransactionId, node: NodeId, target: TransactionId },
    /// The transaction of the receiver waits for itself.
    Deadlock { id: TransactionId },
    /// The transaction of the sender is at its end; its slot tells how it ended.
    Ended { id: TransactionId },
}

impl Message {
    pub(crate) fn encode(self) -> [u8; Wire::LEN] {
        let (kind, subject, detail) = match self.body {
            MessageBody::Ask { round } => (1, round, 0),
            MessageBody::Told { round } => (2, round, 0),
            MessageBody::Raised { epoch } => (3, epoch.0.into(), 0),
            MessageBody::Question { id, snapshot } => (4, id.0, snapshot),
            MessageBody::Answer { id, status: Status::Committed(number) } => (5, id.0, number),
            MessageBody::Answer { id, status: Status::Aborted } => (6, id.0, 0),
            MessageBody::Answer { id, status: Status::After(moment) } => (7, id.0, moment),
            MessageBody::Ended { id } => (8, id.0, 0),
            MessageBody::Entered { epoch } => (9, epoch.0.into(), 0),
            MessageBody::Probe { waiter, target, .. } => (10, waiter.0, target.0),
            MessageBody::Deadlock { id } => (11, id.0, 0),
        };
        let node = match self.body {
            MessageBody::Probe { node, .. } => node,
            _ => NodeId(0),
        };
        wire::encode(&Wire { kind, node, clock: self.clock, lows: self.lows, subject, detail })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("message of transactions", bytes, |reader| {
            let Wire { kind, node, clock, lows, subject, detail } = reader.take()?;
            let id = TransactionId(subject);
            let epoch = || subject.try_into().map(Epoch).map_err(|_| Fault::Field("epoch"));
            let body = match kind {
                1 => MessageBody::Ask { round: subject },
                2 => MessageBody::Told { round: subject },
                3 => MessageBody::Raised { epoch: epoch()? },
                4 => MessageBody::Question { id, snapshot: detail },
                5 => MessageBody::Answer { id, status: Status::Committed(detail) },
                6 => MessageBody::Answer { id, status: Status::Aborted },
                7 => MessageBody::Answer { id, status: Status::After(detail) },
                8 => MessageBody::Ended { id },
                9 => MessageBody::Entered { epoch: epoch()? },
                10 => MessageBody::Probe { waiter: id, node, target: TransactionId(detail) },
                11 => MessageBody::Deadlock { id },
                _ => return Err(Fault::Field("kind")),
            };
            Ok(Self { clock, lows, body })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_hostile_ones_are_refused() {
        let (id, target) = (TransactionId(7), TransactionId(9));
        let all = [
            MessageBody::Ask { round: 3 },
            MessageBody::Told { round: 4 },
            MessageBody::Raised { epoch: Epoch(5) },
            MessageBody::Question { id, snapshot: Number::MAX },
            MessageBody::Answer { id, status: Status::Committed(8) },
            MessageBody::Answer { id, status: Status::Aborted },
            MessageBody::Answer { id, status: Status::After(6) },
            MessageBody::Ended { id },
            MessageBody::Entered { epoch: Epoch(5) },
            MessageBody::Probe { waiter: id, node: NodeId(2), target },
            MessageBody::Deadlock { id },
        ];
        for body in all {
            let message = Message { clock: 11, lows: [3, 4, 4, 4, 5, 6, 7, 10], body };
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        let mut bytes = Message { clock: 11, lows: [10; LOWS], body: all[2] }.encode();
        assert!(Message::decode(&bytes[1..]).is_err());
        bytes[78] = 1;
        assert!(Message::decode(&bytes).is_err(), "an epoch of more than 32 bits");
        bytes[0] = 12;
        assert!(Message::decode(&bytes).is_err());
    }
}
