//! The driver of [`Member`]: sockets, voting files, clock and threads around one node's part in the
//! membership.
//!
//! # Contract
//!
//! - Create one [`Membership`] for each incarnation of a node, with growing incarnation numbers.
//! - The process must end before another incarnation of the node starts, because two incarnations
//!   must not take turns at voting files at the same time.
//! - Act only while [`Lease::is_held`], in the view last passed to [`MembershipObserver::opened`].
//! - End the process in [`MembershipObserver::end`].
//!
//! # Threads
//!
//! One loop owns the protocol and the sockets. It never waits for a disk, a lock held for long or
//! the observer. The one exception is a leave, when it waits for the observer to stop. Other
//! threads:
//!
//! - one for each voting file that this node opens, and, with direct I/O, one more for syncs that
//!   no turn waits for;
//! - one that passes views to the observer;
//! - one that reads the cluster's keys;
//! - one for each fence;
//! - one that ends the process when the lease ends while the loop is stuck.
//!
//! The loop, the lease and the files run with the highest priority the system allows. The other
//! threads are ordinary, except that they inherit a raised nice value.
//!
//! # Health
//!
//! Before each report and each turn the loop asks the observer whether the node is well. If
//! not, it does neither: the other nodes stop hearing this node, and its lease ends. A report names
//! a view as opened only after [`MembershipObserver::opened`] has returned.

pub mod clock;
mod driver;
mod fences;
mod file_health;
mod files;
mod history;
mod inbox;
mod lease;
mod network;
mod notifier;
mod priority;
mod served;
mod snapshot;
mod status;
mod turns;
mod watchdog;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::AtomicBool,
        mpsc::{self, RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId, NodeSet};
use plexus_interconnect::mesh::{Key, KeySource};
use serde::{Deserialize, Serialize};

pub use lease::{Lease, LeaseBasis};
pub use network::datagram::SEAL;
pub use priority::Priority;
pub use status::{
    AwaitedProof, Fencing, FencingState, FileStatus, MemberStatus, Phases, Quorum, Status, Transition,
};

use self::{
    driver::Driver,
    driver::DriverParts,
    inbox::{Inbox, Input},
    watchdog::{Ending, Watchdog},
};
#[cfg(doc)]
use crate::protocol::Member;
use crate::protocol::{ConfigChange, ConfigChangeRefusal, FileId, Profile, ProfileError, StopReason, View};

/// The interval at which the cluster's keys are read.
const KEYS: Duration = Duration::from_secs(1);

/// The settings of a node's membership.
#[derive(Debug)]
pub struct Settings {
    /// The number of this node.
    pub me: NodeId,
    /// The incarnation, higher than any earlier one of this node.
    pub incarnation: Incarnation,
    /// The times of the cluster.
    pub profile: Profile,
    /// The initial view (epoch 0) with the configured nodes and voting files, or any later view.
    pub first: View,
    /// The nodes whose end must be proved; for the others the end of their lease is enough. It
    /// suffices that one node of the cluster says so.
    pub must_prove: NodeSet,
    /// The random identifier of the cluster.
    pub cluster: [u8; 16],
    /// The source of the cluster's keys, which is read regularly.
    pub keys: Arc<dyn KeySource>,
    /// The addresses of this node. Address `i` communicates with address `i` of each peer.
    pub listen: Vec<SocketAddr>,
    /// The addresses of the other nodes.
    pub peers: Vec<(NodeId, Vec<SocketAddr>)>,
    /// The paths of the voting files that this node opens: the shared ones and those it serves.
    pub files: BTreeMap<FileId, PathBuf>,
    /// The host's watchdog device, such as `/dev/watchdog`, which is fed while this node is well.
    pub watchdog: Option<PathBuf>,
}

/// The reason why a membership does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The times of the profile do not fit each other.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The node or incarnation number is out of range.
    #[error("{node} in incarnation {} is invalid: nodes are numbered below {MAX_NODES}, incarnations from 1", incarnation.0)]
    Node {
        /// The configured node.
        node: NodeId,
        /// The configured incarnation.
        incarnation: Incarnation,
    },
    /// The cluster's keys cannot be read, and no node is accepted without a key.
    #[error("cannot read the cluster's keys: {0}")]
    Keys(String),
    /// The node cannot listen on an address.
    #[error("cannot listen on {address} (UDP): {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// The system provides no random numbers, descriptors or threads, or no configured watchdog
    /// device.
    #[error("cannot start {what}: {source}")]
    System {
        /// The part that did not start.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// The way in which an incarnation was proved dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FencingProof {
    /// The process was killed and has ended, with all its I/O.
    Killed,
    /// The host was switched off or reset.
    Off,
    /// The disks and other resources refuse its access from now on.
    Refused,
}

/// The reason why a node is no longer a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MembershipEnd {
    /// The node must stop at once, because the other members go on without it.
    Died {
        /// The reason.
        reason: StopReason,
        /// What kept its lease alive until then.
        basis: LeaseBasis,
    },
    /// The node has left as requested.
    Left,
}

/// The user of a membership, which it informs of views and asks for actions.
/// [`MembershipObserver::is_well`] and [`MembershipObserver::end`] with [`MembershipEnd::Died`] run
/// on threads of the membership. These may have real-time priority, so both functions must not wait
/// for other threads.
pub trait MembershipObserver: Send + Sync + 'static {
    /// Informs of a decided view, in which the node does not act yet. Calls of this function and
    /// [`MembershipObserver::opened`] come in order on one thread, and each view is decided before
    /// it is opened. A view is never opened if a later one was decided before.
    fn decided(&self, view: &Arc<View>);

    /// Enters an opened view. On return the node acts in this view and in no earlier one; other
    /// nodes wait for that.
    fn opened(&self, view: &Arc<View>, transition: &Transition);

    /// Proves that an evicted incarnation, which did not announce a leave, has stopped. It may take
    /// long and runs on its own thread. It must return soon after `is_over` is set, because the
    /// proof is not needed any more: the node may start again.
    ///
    /// # Errors
    /// There is no proof, for this reason. Then the lease is waited for; if a proof is required,
    /// this function is called again.
    fn fence(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        is_over: &AtomicBool,
    ) -> Result<FencingProof, String>;

    /// Returns true if the node's subsystems make progress. It is called before each report and
    /// turn and must not wait.
    fn is_well(&self) -> bool;

    /// Returns the name of a node for messages.
    fn name(&self, node: NodeId) -> String {
        node.to_string()
    }

    /// Begins the ordered end of the node, because these members leave and the others have no
    /// majority of the voting files without them. They wait until this node leaves too.
    fn leave_too(&self, leavers: NodeSet);

    /// Ends the node; called at most once.
    ///
    /// - [`MembershipEnd::Died`]: end the process at once and do not return. The call comes on the
    ///   loop's or the lease's thread.
    /// - [`MembershipEnd::Left`]: return when all actions have stopped; the other nodes then go on
    ///   without waiting for the lease. The call comes after all views and on their thread. The
    ///   loop waits for it, so it must not call the membership.
    fn end(&self, why: MembershipEnd);

    /// Returns true if nothing of the node acts any more. It is called behind
    /// [`MembershipEnd::Left`] and may wait as [`end`](Self::end). If it returns false, the leave
    /// is not announced: the other nodes need the proof that they need after a death.
    fn has_stopped(&self) -> bool {
        true
    }
}

/// The reason why a config change failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigChangeError {
    /// The membership refused it.
    #[error(transparent)]
    Refused(#[from] ConfigChangeRefusal),
    /// The membership has ended.
    #[error("this node is no longer a member")]
    Ended,
}

/// One incarnation of a node in its cluster. Dropping it [stops](Membership::stop) it.
pub struct Membership {
    inbox: Arc<Inbox>,
    lease: Arc<Lease>,
    ending: Arc<Ending>,
    watchdog: Watchdog,
    status_within: Duration,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Membership {
    /// Starts to join the cluster, or to form it.
    ///
    /// # Errors
    /// Returns which setting is invalid, or which system resource is missing.
    pub fn start(settings: Settings, observer: Arc<dyn MembershipObserver>) -> Result<Self, StartError> {
        settings.profile.check()?;
        let (me, incarnation) = (settings.me, settings.incarnation);
        if me.index() >= MAX_NODES || incarnation.0 == 0 {
            return Err(StartError::Node { node: me, incarnation });
        }
        let keys = settings.keys.keys().map_err(StartError::Keys)?;
        let sockets = settings.listen.iter().map(|address| {
            UdpSocket::bind(address).map_err(|source| StartError::Listen { address: *address, source })
        });
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        let inbox = Arc::new(Inbox::create().map_err(system("an event"))?);
        let lease = Lease::create().map_err(|error| system("the lease")(io::Error::other(error)))?;
        let lease = Arc::new(lease);
        let ending = Arc::new(Ending::new(Arc::clone(&observer), Arc::clone(&lease)));
        let watchdog = Watchdog::start(Arc::clone(&ending), Arc::clone(&inbox));
        let (watchdog, lease_thread) = watchdog.map_err(system("the watchdog"))?;
        let started = Self {
            inbox: Arc::clone(&inbox),
            lease,
            ending: Arc::clone(&ending),
            watchdog: watchdog.clone(),
            status_within: settings.profile.lease.into(),
            threads: Mutex::new(vec![lease_thread]),
        };
        let (views, thread) =
            notifier::start(Arc::clone(&observer), Arc::clone(&inbox)).map_err(system("a thread"))?;
        started.keep(thread);
        let (stop, stopped) = mpsc::channel();
        started.keep(watch_keys(&settings, keys.clone(), &inbox, stopped).map_err(system("a thread"))?);
        let device = settings.watchdog.clone();
        let parts = DriverParts { observer, inbox, ending, watchdog: watchdog.clone(), views, _keys: stop };
        let driver = Driver::new(settings, keys, sockets, parts).map_err(system("the sockets"))?;
        // This comes last, so that a failed start leaves the host's watchdog alone.
        if let Some(path) = &device {
            watchdog.guard(path).map_err(system("the watchdog"))?;
        }
        let thread = thread::Builder::new().name("plexus-member".into());
        let thread = thread.spawn(move || driver.run()).map_err(system("a thread"))?;
        started.keep(thread);
        Ok(started)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, thread: JoinHandle<()>) {
        self.threads().push(thread);
    }

    /// Stops without notice, like a crash. The lease ends at once. The call waits for work under
    /// way on the membership's threads, but not for hanging disks or fences.
    pub fn stop(&self) {
        self.ending.stop();
        self.inbox.post(Input::Stop);
        self.watchdog.stop(false);
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads.into_iter().rev() {
            // The observer may stop it from one of these threads. A panic was reported when it
            // happened.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// Returns the lease to check before each action that only a member may take.
    #[must_use]
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    /// Requests a config change and waits for the decision. One at a time is allowed.
    ///
    /// # Errors
    /// Returns an error if the change is refused or this node ends first.
    pub fn config_change(&self, config_change: ConfigChange) -> Result<(), ConfigChangeError> {
        let (answer, answered) = sync_channel(1);
        self.inbox.post(Input::ConfigChange(config_change, answer));
        answered.recv().unwrap_or(Err(ConfigChangeError::Ended))
    }

    /// Leaves the cluster, and returns when the other nodes know it, or `None` when `limit` has
    /// passed. [`MembershipObserver::end`] was called with [`MembershipEnd::Left`] before.
    ///
    /// # Errors
    /// Returns an error if the node is not a member or ends in another way.
    pub fn leave(&self, limit: Duration) -> Option<Result<(), ConfigChangeError>> {
        let (answer, answered) = sync_channel(1);
        self.inbox.post(Input::ConfigChange(ConfigChange::Leave, answer));
        match answered.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => None,
            answer => Some(answer.unwrap_or(Err(ConfigChangeError::Ended))),
        }
    }

    /// Reports that the links with an incarnation are lost. Its messages are ignored from now on,
    /// so that only one of the two nodes stays a member. Its blocks in voting files still count.
    pub fn lost(&self, node: NodeId, incarnation: Incarnation) {
        self.inbox.post(Input::Lost(node, incarnation));
    }

    /// Reports that an incarnation is proved dead, with all its I/O.
    pub fn dead(&self, node: NodeId, incarnation: Incarnation) {
        self.inbox.post(Input::Dead(node, incarnation));
    }

    /// Reports that all subsystems have been rebuilt in this view.
    pub fn rebuilt(&self, epoch: Epoch) {
        self.inbox.post(Input::Rebuilt(epoch));
    }

    /// Sets the registry generation that every later report contains.
    pub fn registry(&self, generation: u64) {
        self.inbox.post(Input::Registry(generation, None));
    }

    /// Sets the registry generation and waits until a majority of the voting files has it. Returns
    /// the greatest generation they have, which is at least that of any earlier answer.
    ///
    /// # Errors
    /// Returns an error if this node ends first.
    pub fn remember(&self, generation: u64) -> Result<u64, ConfigChangeError> {
        let (answer, answered) = sync_channel(1);
        self.inbox.post(Input::Registry(generation, Some(answer)));
        answered.recv().map_err(|_| ConfigChangeError::Ended)
    }

    /// Adds the path of a voting file that is not in the settings. A known path stays.
    pub fn set_file_path(&self, file: FileId, path: PathBuf) {
        self.inbox.post(Input::File(file, path));
    }

    /// Sets the addresses of a node that is not in the settings or has moved.
    pub fn set_peer_addresses(&self, node: NodeId, addresses: Vec<SocketAddr>) {
        self.inbox.post(Input::Peer(node, addresses));
    }

    /// Returns the status, or `None` if the membership has ended or its loop is stuck.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let (answer, answered) = sync_channel(1);
        self.inbox.post(Input::Status(answer));
        answered.recv_timeout(self.status_within).ok()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Decodes hostile bytes as messages of other nodes, for fuzz tests. Returns how many decoders
/// accepted them.
#[doc(hidden)]
#[must_use]
pub fn datagram_any(bytes: &[u8]) -> usize {
    let packed = crate::voting::packed::unpacked(bytes).is_ok();
    [network::datagram::head_any(bytes), served::piece_any(bytes), packed]
        .into_iter()
        .filter(|is| *is)
        .count()
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// Starts the thread that reads the keys again and again; they may be in files.
fn watch_keys(
    settings: &Settings,
    mut known: Vec<Key>,
    inbox: &Arc<Inbox>,
    stopped: mpsc::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let (source, inbox) = (Arc::clone(&settings.keys), Arc::clone(inbox));
    thread::Builder::new().name("plexus-keys".into()).spawn(move || {
        let mut trouble = None;
        while stopped.recv_timeout(KEYS) == Err(RecvTimeoutError::Timeout) {
            let read = source.keys();
            if let Err(error) = &read
                && trouble.as_ref() != Some(error)
            {
                tracing::warn!(%error, "the cluster's keys cannot be read; the last ones stay valid");
            }
            match read {
                Ok(keys) => {
                    trouble = None;
                    if keys != known {
                        inbox.post(Input::Keys(keys.clone()));
                        known = keys;
                    }
                }
                Err(error) => trouble = Some(error),
            }
        }
    })
}
