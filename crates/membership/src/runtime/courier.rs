//! Hands views to the guest, and lines to the log, on a thread of its own and in order: the loop never waits for either.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use super::{
    Guest, Transition,
    inbox::{Inbox, Input},
};
use crate::protocol::View;

pub(super) enum News {
    Decided(Arc<View>),
    Opened(Arc<View>, Transition),
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
                News::Note(line) => tracing::info!("{line}"),
                News::Warning(line) => tracing::warn!("{line}"),
            }
        }
    })?;
    Ok((send, thread))
}
