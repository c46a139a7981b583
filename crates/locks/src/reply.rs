//! The result of a request, and how a task or a thread waits for it.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use plexus_base::{WorkerId, locks::Grant};
use plexus_interconnect::{Answer, Reply, executor};

use crate::{
    notice::LockNotices,
    protocol::{LockRefusal, LockRequest},
    service::{LockPort, LockTask},
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

/// A request on its way to its result.
pub(crate) enum AskState {
    /// The worker has it.
    Waits(Answer<LockResult>),
    /// It was answered at once.
    Over(LockResult),
}

impl Future for AskState {
    type Output = LockResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LockResult> {
        match &mut *self {
            Self::Waits(answer) => {
                Pin::new(answer).poll(context).map(|result| result.unwrap_or(Err(LockError::Stopped)))
            }
            Self::Over(result) => Poll::Ready(*result),
        }
    }
}

/// A request that the worker may not have yet.
pub(crate) enum BegunAsk {
    /// It is on its way, or was answered.
    Asked(AskState),
    /// Another thread drives the worker.
    Unasked(LockRequest, Option<Arc<LockNotices>>),
}

/// Requests a lock or a conversion of a worker that no other thread drives. Often it answers at
/// once, in the calling thread.
pub(crate) fn begin(
    port: &LockPort,
    worker: WorkerId,
    request: LockRequest,
    notices: Option<Arc<LockNotices>>,
) -> BegunAsk {
    let (mut unasked, mut state) = (Some((request, notices)), None);
    port.visit(worker, &mut |service, net| {
        let Some((request, notices)) = unasked.take() else { return };
        let lock = request.lock;
        state = Some(service.ask(net, request, notices).map_or_else(
            || {
                let (reply, answer) = Reply::new();
                service.answer_to(lock, reply);
                AskState::Waits(answer)
            },
            AskState::Over,
        ));
    });
    match unasked {
        Some((request, notices)) => BegunAsk::Unasked(request, notices),
        None => BegunAsk::Asked(state.expect("the visit asked")),
    }
}

/// Ensures that the worker has the request, and drives it if a task waits.
pub(crate) fn follow(port: &LockPort, worker: WorkerId, begun: BegunAsk) -> AskState {
    match begun {
        BegunAsk::Asked(state) => {
            if matches!(state, AskState::Waits(_)) {
                port.expect_answer(worker);
            }
            state
        }
        BegunAsk::Unasked(request, notices) => {
            let (reply, answer) = Reply::new();
            port.request(worker, LockTask::Ask(request, notices, reply));
            AskState::Waits(answer)
        }
    }
}

/// Requests a lock or a conversion, and waits for the result in a thread.
pub(crate) fn ask_and_wait(
    port: &LockPort,
    worker: WorkerId,
    request: LockRequest,
    notices: Option<Arc<LockNotices>>,
) -> LockResult {
    match begin(port, worker, request, notices) {
        // Without the executor, which costs more than the lock.
        BegunAsk::Asked(AskState::Over(result)) => result,
        begun => executor::block_on(async { follow(port, worker, begun).await }),
    }
}
