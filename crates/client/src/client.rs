//! The attachment of a program to a node.

use std::{
    os::fd::BorrowedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use plexus_base::{MAX_NODES, NodeId, Waiting};

use crate::{Error, attach, shared::Shared};

/// A program's attachment to its local node. Cheap to clone; it ends when the last clone and everything made from it is
/// dropped, and with the process.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    waiting: Arc<AtomicU8>,
}

impl Client {
    /// Attaches to the node whose socket is `path` (`run/NAME.attach` in a cluster's directory), or, if `path` is a
    /// cluster's directory, to the first node of the cluster that runs on this machine.
    ///
    /// # Errors
    /// [`Error::Attach`].
    pub fn attach(path: impl AsRef<Path>) -> Result<Self, Error> {
        let shared = Shared::new(attach::attach(path.as_ref())?)?;
        Ok(Self { shared: Arc::new(shared), waiting: Arc::new(AtomicU8::new(code(Waiting::default()))) })
    }

    /// The node that it is attached to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.welcome.node
    }

    /// The nodes that the cluster's configuration listed when this program attached, whether they live or not: from 0 to one less than this. Those that
    /// were added since are reached as well.
    #[must_use]
    pub fn nodes(&self) -> u8 {
        self.shared.welcome.nodes
    }

    /// How threads wait in the calls of this client and what is made from it, except where a completion queue says it for itself.
    /// At first adaptive.
    pub fn set_waiting(&self, waiting: Waiting) {
        self.waiting.store(code(waiting), Ordering::Relaxed);
    }

    /// How threads wait.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let code = usize::from(self.waiting.load(Ordering::Relaxed));
        Waiting::ALL.get(code).copied().unwrap_or_default()
    }

    /// A descriptor for `poll` and `epoll` that becomes readable when something may have come, if [`Client::arm`] said so.
    /// One thread at a time waits for it; others may wait in calls meanwhile.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Before waiting for [`Client::fd`]: asks the node to make it readable when something comes. False when something is
    /// there already: look at ports and queues (with a limit of no time) until they have nothing, then arm again. All ports and queues
    /// of the program count, those too that other threads look after: what they leave there keeps this from sleeping.
    ///
    /// ```no_run
    /// # fn wait_for_descriptors(_: std::os::fd::BorrowedFd<'_>) {}
    /// # let client = plexus_client::Client::attach("c1")?;
    /// # let port = client.bind(7)?;
    /// loop {
    ///     while let Some(datagram) = port.try_receive()? {
    ///         println!("{} bytes from {}", datagram.bytes.len(), datagram.from);
    ///     }
    ///     if client.arm() {
    ///         wait_for_descriptors(client.fd());
    ///     }
    /// }
    /// # #[allow(unreachable_code)]
    /// # Ok::<(), plexus_client::Error>(())
    /// ```
    #[must_use]
    pub fn arm(&self) -> bool {
        self.shared.arm()
    }

    /// Waits for the result of an operation, which is under way under `id`.
    pub(crate) fn result(&self, id: u64, limit: Option<Duration>) -> Result<crate::core::Finished, Error> {
        let result = self.shared.wait(self.waiting(), limit, |core| core.take_finished(id));
        if result.is_err() {
            self.shared.act(|core| core.abandon(id));
        }
        result
    }
}

/// Whether a cluster can have such a node. Which ones this cluster has by now, this program's node knows.
pub(crate) fn verify_node(node: NodeId) -> Result<(), Error> {
    if node.index() < MAX_NODES { Ok(()) } else { Err(Error::NodeGone(node)) }
}

fn code(waiting: Waiting) -> u8 {
    Waiting::ALL.iter().position(|mode| *mode == waiting).unwrap_or_default() as u8
}
