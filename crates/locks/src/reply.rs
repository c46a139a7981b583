//! Who is told what became of a request: a thread that goes on meanwhile, or one that drives the
//! worker until it is answered.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError, mpsc},
};

use plexus_base::{WorkerId, locks::Grant};
use plexus_interconnect::Signal;

use crate::{
    notice::LockNotices,
    port::Port,
    protocol::{LockRequest, Why},
    service::LockTask,
};

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// The lock manager refused it, for this reason.
    #[error(transparent)]
    Refused(#[from] Why),
    /// This node is no member of the cluster, or none any more.
    #[error("this node has stopped: it grants no lock, and none that is held here protects anything")]
    Stopped,
}

/// What a request comes to.
pub(crate) type LockResult = Result<Grant, LockError>;

/// Takes the result of one request, once. Dropped without a result, it reports that the node has
/// stopped.
pub struct LockReply(Option<Receiver>);

enum Receiver {
    /// A thread that does something else meanwhile.
    Channel(mpsc::Sender<LockResult>),
    /// A thread that drives the worker until it is answered.
    Seat(Arc<Seat>),
}

impl LockReply {
    /// A reply for a thread that does something else meanwhile.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<LockResult>) {
        let (sender, receiver) = mpsc::channel();
        (Self(Some(Receiver::Channel(sender))), receiver)
    }

    pub(crate) fn send(mut self, result: LockResult) {
        self.deliver(result);
    }

    fn deliver(&mut self, result: LockResult) {
        match self.0.take() {
            // A thread that waits no longer has given the lock up as well.
            Some(Receiver::Channel(sender)) => drop(sender.send(result)),
            Some(Receiver::Seat(seat)) => seat.deliver(result),
            None => {}
        }
    }
}

impl Drop for LockReply {
    fn drop(&mut self) {
        self.deliver(Err(LockError::Stopped));
    }
}

/// Where a thread waits that drives the worker itself; used again for each of its requests.
struct Seat {
    signal: Signal,
    result: Mutex<Option<LockResult>>,
}

thread_local! {
    static SEAT: RefCell<Option<Arc<Seat>>> = const { RefCell::new(None) };
}

impl Seat {
    fn deliver(&self, result: LockResult) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.signal.set(0);
    }

    /// The seat of the calling thread.
    fn own() -> Arc<Self> {
        let make = || Arc::new(Self { signal: Signal::new(), result: Mutex::default() });
        SEAT.take().unwrap_or_else(make)
    }

    fn reply(self: &Arc<Self>) -> LockReply {
        LockReply(Some(Receiver::Seat(self.clone())))
    }
}

/// Asks for a lock or a conversion, and waits for the result if it is not there at once.
pub(crate) fn ask_and_wait(
    port: &dyn Port,
    worker: WorkerId,
    request: LockRequest,
    notices: Option<Arc<LockNotices>>,
) -> LockResult {
    let (mut asked, mut result, mut seat) = (Some((request, notices)), None, None);
    port.visit(worker, &mut |service, net| {
        let Some((request, notices)) = asked.take() else { return };
        let lock = request.lock;
        result = service.ask(net, request, notices);
        if result.is_none() {
            service.answer_to(lock, seat.insert(Seat::own()).reply());
        }
    });
    if let Some(result) = result {
        return result;
    }
    let seat = seat.unwrap_or_else(Seat::own);
    if let Some((request, notices)) = asked {
        port.push(worker, LockTask::Ask(request, notices, seat.reply()));
    }
    port.wait(worker, &seat.signal);
    let result = seat.result.lock().unwrap_or_else(PoisonError::into_inner).take();
    SEAT.set(Some(seat));
    result.unwrap_or(Err(LockError::Stopped))
}
