//! Hands views to the guest, on a thread of its own and in order, so that the loop never waits for it.

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
}

pub(super) fn start(
    guest: Arc<dyn Guest>,
    inbox: Arc<Inbox>,
) -> io::Result<(mpsc::Sender<News>, JoinHandle<()>)> {
    let (send, news) = mpsc::channel();
    let thread = thread::Builder::new().name("plexus-views".into()).spawn(move || {
        for news in news {
            match news {
                News::Decided(view) => guest.decided(&view),
                News::Opened(view, transition) => {
                    guest.opened(&view, &transition);
                    inbox.post(Input::Told(view.epoch));
                }
            }
        }
    })?;
    Ok((send, thread))
}
