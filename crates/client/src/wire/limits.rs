//! What a program may have at a time. A node gives no more than this, whatever programs ask for, so the memory that
//! it holds for them has a bound.

/// Programs attached to a node.
pub const MAX_CLIENTS: usize = 64;

/// Longest datagram, message of an endpoint, request or reply, and most bytes of one access to a window.
pub const MAX_MESSAGE: usize = 64 << 10;

/// Ports of a program on one worker of its node.
pub const MAX_PORTS: usize = 256;

/// Flows of a program on one worker: pairs of a port of its own and one that it sends to.
pub const MAX_FLOWS: usize = 1024;

/// Flows into one port; who comes later is refused until others have ended.
pub const MAX_SENDERS: usize = 1024;

/// Messages of a flow that were sent and not yet taken.
pub const FLOW_MESSAGES: usize = 64;

/// Bytes of them. One message is always let through, so this must hold the longest.
pub const FLOW_BYTES: usize = 256 << 10;

/// Calls of a program under way on one worker.
pub const MAX_CALLS: usize = 256;

/// Calls that wait at one port for their answer.
pub const MAX_WAITING: usize = 1024;

/// Windows of a program on one worker, created and opened.
pub const MAX_WINDOWS: usize = 64;

/// Accesses to windows of a program under way on one worker.
pub const MAX_ACCESSES: usize = 256;

/// Longest name of a window.
pub const MAX_NAME: usize = 64;

/// What a node keeps for a program that does not read: above it the program is cut off. Twice what a program that keeps
/// to the rules can make others send to one port of it in the common case of a few dozen senders.
pub const MAX_QUEUED: usize = 32 << 20;

const _: () = assert!(MAX_MESSAGE <= FLOW_BYTES && FLOW_MESSAGES > 1);
