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

use super::{
    End, Guest, Transition,
    inbox::{Inbox, Input},
};
use crate::protocol::View;

pub(super) enum News {
    Decided(Arc<View>),
    Opened(Arc<View>, Transition),
    /// The node has left. The receiver answers when the observer has stopped.
    Left(SyncSender<()>),
    /// A line for the log.
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
                    // The loop is waiting for this answer.
                    let _ = stopped.send(());
                }
                News::Note(line) => tracing::info!("{line}"),
                News::Warning(line) => tracing::warn!("{line}"),
            }
        }
    })?;
    Ok((send, thread))
}
