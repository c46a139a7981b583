//! The limits of a program. A node grants no more than this, so the memory that it holds for
//! programs is bounded. A correct program is never detached for its backlog, however slowly it
//! reads: the assertion at the end compares the two.

use super::HEAD;

/// The maximum of programs attached to a node.
pub const MAX_CLIENTS: usize = 64;

/// The maximum length of a datagram, message of an endpoint, request or reply, and of one window
/// access.
pub const MAX_MESSAGE: usize = 64 << 10;

/// The maximum of ports of a program on one worker of its node.
pub const MAX_PORTS: usize = 256;

/// The maximum of flows of a program on one worker: pairs of an own port and a port that it sends
/// to.
pub const MAX_FLOWS: usize = 1024;

/// The maximum of flows into the ports of a program on one worker. Further ones are refused until
/// others have ended and their messages were taken.
pub const MAX_SENDERS: usize = 256;

/// The maximum of messages of a flow that were sent and not yet taken.
pub const FLOW_MESSAGES: usize = 64;

/// The maximum of their bytes. One message is always sent, so this must hold the longest.
pub const FLOW_BYTES: usize = 256 << 10;

/// The maximum of pending calls of a program on one worker.
pub const MAX_CALLS: usize = 256;

/// The maximum of calls that a program has not answered, on one worker. Calls whose caller stopped
/// waiting count as well.
pub const MAX_WAITING: usize = 1024;

/// The maximum of bytes in the requests of these calls.
pub const WAITING_BYTES: usize = 16 << 20;

/// The maximum of windows of a program on one worker, created and opened.
pub const MAX_WINDOWS: usize = 64;

/// The maximum of pending window accesses of a program on one worker.
pub const MAX_ACCESSES: usize = 256;

/// The maximum length of a window's name.
pub const MAX_NAME: usize = 64;

/// The maximum of locks of a program on one worker, including those that it waits for.
pub const MAX_LOCKS: usize = 65_536;

/// The maximum of bytes that a node keeps on one worker for a program that does not read. Beyond it
/// the program is detached.
pub const MAX_QUEUED: usize = 128 << 20;

/// The maximum of frames that wait for one node on one worker; above it no new work with that node
/// begins. The frames have 32 MiB at most, sixteen times the credits of one kind.
pub const MAX_BACKLOG: usize = 2048;

const _: () = {
    assert!(MAX_MESSAGE <= FLOW_BYTES && FLOW_MESSAGES > 1 && MAX_MESSAGE <= WAITING_BYTES);
    let received = MAX_SENDERS * (FLOW_BYTES + FLOW_MESSAGES * HEAD);
    let requests = WAITING_BYTES + MAX_WAITING * HEAD;
    let results = (MAX_CALLS + MAX_ACCESSES) * (MAX_MESSAGE + HEAD);
    // Messages taken, flows refused, calls cancelled, ports granted, windows changed and gone.
    let messages = (MAX_FLOWS * FLOW_MESSAGES + MAX_WAITING + MAX_PORTS + 3 * MAX_WINDOWS) * HEAD;
    // Each lock can have an answer, a blocking notice and a cancelled request.
    let locks = MAX_LOCKS * (4 * HEAD + 64);
    assert!(received + requests + results + messages + locks <= MAX_QUEUED);
};
