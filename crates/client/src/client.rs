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

/// The attachment of a program to its local node. It is cheap to clone. It ends when the last clone
/// and everything made from it is dropped, or when the process ends.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    waiting: Arc<AtomicU8>,
}

impl Client {
    /// Attaches to the node whose socket is `path` (`run/NAME.attach` in a cluster's directory). If
    /// `path` is a cluster's directory, attaches to the first of its nodes that runs on this
    /// machine.
    ///
    /// # Errors
    /// [`Error::Attach`]: no node accepted the program.
    pub fn attach(path: impl AsRef<Path>) -> Result<Self, Error> {
        let shared = Shared::new(attach::attach(path.as_ref())?)?;
        Ok(Self { shared: Arc::new(shared), waiting: Arc::new(AtomicU8::new(code(Waiting::default()))) })
    }

    /// Returns the node that the program is attached to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.welcome.node
    }

    /// Returns the number that follows the highest one of a node in the configuration when this
    /// program attached. Nodes that were added since can be reached as well.
    #[must_use]
    pub fn nodes(&self) -> u8 {
        self.shared.welcome.nodes
    }

    /// Sets how threads wait in calls of this client and of what is made from it. The default is
    /// adaptive. A completion queue may have its own setting.
    pub fn set_waiting(&self, waiting: Waiting) {
        self.waiting.store(code(waiting), Ordering::Relaxed);
    }

    /// Returns how threads wait.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let code = usize::from(self.waiting.load(Ordering::Relaxed));
        Waiting::ALL.get(code).copied().unwrap_or_default()
    }

    /// Returns a descriptor for `poll` and `epoll`. After [`Client::arm`] returned true, it becomes
    /// readable when something may have arrived. One thread at a time may wait for it; others may
    /// wait in calls.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Asks the node to make [`Client::fd`] readable when something arrives; call it before
    /// waiting. Returns false if something is there already. Then read all ports and queues without
    /// waiting until they are empty, and arm again. All ports and queues of the program count, also
    /// those that other threads read.
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

    /// Waits for the result of the pending operation `id`.
    pub(crate) fn result(&self, id: u64, limit: Option<Duration>) -> Result<crate::core::Finished, Error> {
        let result = self.shared.wait(self.waiting(), limit, |core| core.take_finished(id));
        if result.is_err() {
            self.shared.act(|core| core.abandon(id));
        }
        result
    }
}

/// Checks that a cluster can have such a node. Only the program's node knows the current members.
pub(crate) fn verify_node(node: NodeId) -> Result<(), Error> {
    if node.index() < MAX_NODES { Ok(()) } else { Err(Error::NodeGone(node)) }
}

fn code(waiting: Waiting) -> u8 {
    Waiting::ALL.iter().position(|mode| *mode == waiting).unwrap_or_default() as u8
}
