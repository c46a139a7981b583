//! The result of a thread's request, and how the thread waits for it.

use std::{cell::RefCell, sync::Arc};

use plexus_base::{WorkerId, locks::Grant};
use plexus_interconnect::ReplySlot;

use crate::{
    notice::LockNotices,
    protocol::{LockRefusal, LockRequest},
    service::{LockTask, Port},
};

/// The reason why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// The lock manager refused the request for this reason.
    #[error(transparent)]
    Refused(#[from] LockRefusal),
    /// This node is not a member of the cluster, or is no longer one.
    #[error("this node has stopped: it grants no locks, and the locks held on it protect nothing")]
    Stopped,
}

/// The result of a request.
pub(crate) type LockResult = Result<Grant, LockError>;

thread_local! {
    static SLOT: RefCell<Option<Arc<ReplySlot<LockResult>>>> = const { RefCell::new(None) };
}

/// Requests a lock or a conversion. If the result is not there at once, waits for it in the calling
/// thread's slot.
pub(crate) fn ask_and_wait(
    port: &Port,
    worker: WorkerId,
    request: LockRequest,
    notices: Option<Arc<LockNotices>>,
) -> LockResult {
    let own = || SLOT.take().unwrap_or_else(ReplySlot::new);
    let (mut asked, mut result, mut slot) = (Some((request, notices)), None, None);
    port.visit(worker, &mut |service, net| {
        let Some((request, notices)) = asked.take() else { return };
        let lock = request.lock;
        result = service.ask(net, request, notices);
        if result.is_none() {
            service.answer_to(lock, slot.insert(own()).reply());
        }
    });
    if let Some(result) = result {
        return result;
    }
    let slot = slot.unwrap_or_else(own);
    let task = asked.map(|(request, notices)| LockTask::Ask(request, notices, slot.reply()));
    port.wait(worker, &mut task.into_iter(), slot.signal());
    let result = slot.take();
    SLOT.set(Some(slot));
    result.unwrap_or(Err(LockError::Stopped))
}
