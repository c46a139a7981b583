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
