//! Hands views to the guest, and lines to the log, on a thread of its own and in order: the loop waits for neither, but for the guest's
//! last word. The thread is an ordinary one: the guest may wait here for whatever other threads hold.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
};

use super::{
    End, Guest, Transition,
    inbox::{Inbox, Input},
};
use crate::protocol::View;

pub(super) enum News {
    Decided(Arc<View>),
    Opened(Arc<View>, Transition),
    /// The node is no member any more; answered when nothing acts any more.
    Left(SyncSender<()>),
    /// For the log.
    Note(String),
    Warning(String),
}

pub(super) fn start(
    guest: Arc<dyn Guest>,
    inbox: Arc<Inbox>,
) -> io::Result<(mpsc::Sender<News>, JoinHandle<()>)> {
    let (send, news) = mpsc::channel();
    let thread = thread::Builder::new().name("plexus-views".into()).spawn(move || {
        for news in news {
            match news {
                News::Decided(view) => {
                    tracing::info!(epoch = view.epoch.0, members = ?view.members(), "a view is decided");
                    guest.decided(&view);
                }
                News::Opened(view, transition) => {
                    tracing::info!(epoch = view.epoch.0, members = ?view.members(), "a view is opened");
                    guest.opened(&view, &transition);
                    inbox.post(Input::Entered(view.epoch));
                }
                News::Left(stopped) => {
                    guest.end(End::Left);
                    // The loop waits for it.
                    let _ = stopped.send(());
                }
                News::Note(line) => tracing::info!("{line}"),
                News::Warning(line) => tracing::warn!("{line}"),
            }
        }
    })?;
    Ok((send, thread))
}
