//! The thread that passes views to the observer and lines to the log, in order. The loop does not
//! wait for it except when the observer ends. The thread has ordinary priority, so the observer may
//! wait here for other threads.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
};

use plexus_base::NodeSet;

use super::{
    MembershipEnd, MembershipObserver, Transition,
    inbox::{Inbox, Input},
};
use crate::protocol::View;

pub(super) enum ObserverNotice {
    Decided(Arc<View>),
    Opened(Arc<View>, Transition),
    /// The node must leave together with these members.
    LeaveToo(NodeSet),
    /// The node has left. The receiver answers whether the observer has stopped.
    Left(SyncSender<bool>),
    /// A line for the log.
    Note(String),
    Warning(String),
}

pub(super) fn start(
    observer: Arc<dyn MembershipObserver>,
    inbox: Arc<Inbox>,
) -> io::Result<(mpsc::Sender<ObserverNotice>, JoinHandle<()>)> {
    let (send, notices) = mpsc::channel();
    let thread = thread::Builder::new().name("plexus-views".into()).spawn(move || {
        for notice in notices {
            match notice {
                ObserverNotice::Decided(view) => observer.decided(&view),
                ObserverNotice::Opened(view, transition) => {
                    observer.opened(&view, &transition);
                    inbox.post(Input::Entered(view.epoch));
                }
                ObserverNotice::LeaveToo(leavers) => observer.leave_too(leavers),
                ObserverNotice::Left(stopped) => {
                    observer.end(MembershipEnd::Left);
                    // The loop is waiting for this answer.
                    let _ = stopped.send(observer.has_stopped());
                }
                ObserverNotice::Note(line) => tracing::info!("{line}"),
                ObserverNotice::Warning(line) => tracing::warn!("{line}"),
            }
        }
    })?;
    Ok((send, thread))
}
