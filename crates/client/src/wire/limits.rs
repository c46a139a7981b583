//! What a program may have at a time. A node gives no more than this, whatever programs ask for, so the memory that
//! it holds for them has a bound. What may wait for a program that keeps to the rules is less than what it is cut off for,
//! however slowly it reads and whatever others send it: the last lines say so.

use super::HEAD;

/// Programs attached to a node.
pub const MAX_CLIENTS: usize = 64;

/// Longest datagram, message of an endpoint, request or reply, and most bytes of one access to a window.
pub const MAX_MESSAGE: usize = 64 << 10;

/// Ports of a program on one worker of its node.
pub const MAX_PORTS: usize = 256;

/// Flows of a program on one worker: pairs of a port of its own and one that it sends to.
pub const MAX_FLOWS: usize = 1024;

/// Flows into the ports of a program on one worker; who comes later is refused until others have ended and what came of them
/// was taken.
pub const MAX_SENDERS: usize = 256;

/// Messages of a flow that were sent and not yet taken.
pub const FLOW_MESSAGES: usize = 64;

/// Bytes of them. One message is always let through, so this must hold the longest.
pub const FLOW_BYTES: usize = 256 << 10;

/// Calls of a program under way on one worker.
pub const MAX_CALLS: usize = 256;

/// Calls that a program has not answered, on one worker; those that nobody waits for any more are counted too.
pub const MAX_WAITING: usize = 1024;

/// Bytes of their requests.
pub const WAITING_BYTES: usize = 16 << 20;

/// Windows of a program on one worker, created and opened.
pub const MAX_WINDOWS: usize = 64;

/// Accesses to windows of a program under way on one worker.
pub const MAX_ACCESSES: usize = 256;

/// Longest name of a window.
pub const MAX_NAME: usize = 64;

/// Locks of a program on one worker, those that it waits for included.
pub const MAX_LOCKS: usize = 65_536;

/// What a node keeps on one worker for a program that does not read: above it the program is cut off.
pub const MAX_QUEUED: usize = 128 << 20;

/// Frames that wait for one node on one worker; while there are more, nothing new is begun with that node: 32 MiB at most, sixteen
/// times what the credits of one kind let be under way.
pub const MAX_BACKLOG: usize = 2048;

const _: () = {
    assert!(MAX_MESSAGE <= FLOW_BYTES && FLOW_MESSAGES > 1 && MAX_MESSAGE <= WAITING_BYTES);
    let received = MAX_SENDERS * (FLOW_BYTES + FLOW_MESSAGES * HEAD);
    let requests = WAITING_BYTES + MAX_WAITING * HEAD;
    let results = (MAX_CALLS + MAX_ACCESSES) * (MAX_MESSAGE + HEAD);
    // That messages were taken, flows refused, calls given up, ports given, windows changed and gone.
    let news = (MAX_FLOWS * FLOW_MESSAGES + MAX_WAITING + MAX_PORTS + 3 * MAX_WINDOWS) * HEAD;
    // Of each lock an answer, that it is wanted, and that what was asked was given up.
    let locks = MAX_LOCKS * (4 * HEAD + 64);
    assert!(received + requests + results + news + locks <= MAX_QUEUED);
};
