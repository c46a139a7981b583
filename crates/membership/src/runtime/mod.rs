//! The driver of [`Member`]: sockets, voting files, clock and threads around one node's part in the membership.
//!
//! **Contract.** Make one [`Membership`] for each incarnation of a node, in a process that no other incarnation of that node outlives (lives of one node must not
//! take turns at voting files at one time), with lives numbered upwards. Act only while [`Lease::is_held`], in the view that [`Guest::opened`] was
//! handed last. End the process in [`Guest::end`].
//!
//! **Threads.** One loop owns the protocol, the sockets and the order of things; it never waits for a disk, a lock that is held
//! long or a guest, but for one that is to stop because the node has left. Beside it: one for each voting file that this node opens, and where I/O is direct one more, which makes durable what no turn waits for; one that
//! hands out views, one that asks for the cluster's keys, one for each fence, and one that ends the process when the lease is over though the
//! loop is stuck. The loop, the lease and the files are as urgent as the system allows; the others are ordinary, but for what a thread starts that is only nice.
//!
//! **What a node vouches for.** Before each report and each turn the guest is asked whether it is well. If not, neither goes out: the others stop
//! hearing the node and its lease ends. A report names a view as opened only when the guest has returned from [`Guest::opened`].

pub mod clock;
mod courier;
mod driver;
mod fate;
mod files;
mod history;
mod inbox;
mod lease;
mod post;
mod priority;
mod served;
mod snapshot;
mod status;
mod turning;
mod watchdog;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{SocketAddr, UdpSocket},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId};
use plexus_interconnect::mesh::{Key, KeySource};
use serde::{Deserialize, Serialize};

pub use lease::Lease;
pub use post::datagram::SEAL;
pub use priority::Priority;
pub use status::{Fencing, FencingState, FileStatus, MemberStatus, Phases, Quorum, Status, Transition};

use self::{
    driver::Driver,
    driver::Wires,
    inbox::{Inbox, Input},
    watchdog::{Ending, Watchdog},
};
#[cfg(doc)]
use crate::protocol::Member;
use crate::protocol::{Clean, ConfigChange, FileId, Profile, ProfileError, Reason, Refused, View};

/// How often the cluster's keys are asked for.
const KEYS: Duration = Duration::from_secs(1);

/// What a node knows when it starts.
#[derive(Debug)]
pub struct Settings {
    /// Which node this is.
    pub me: NodeId,
    /// Higher than any incarnation that it had before.
    pub incarnation: Incarnation,
    /// Lives, of any node, that are known to have been clean when they ended.
    pub clean: Vec<(NodeId, Clean)>,
    /// The times of the cluster.
    pub profile: Profile,
    /// Epoch 0: the cluster's nodes, and its voting files as configured; or any later view.
    pub first: View,
    /// The cluster's random name.
    pub cluster: [u8; 16],
    /// The cluster's keys; asked for time and again.
    pub keys: Arc<dyn KeySource>,
    /// This node's addresses. Address `i` is joined with address `i` of each peer.
    pub listen: Vec<SocketAddr>,
    /// The addresses of the others.
    pub peers: Vec<(NodeId, Vec<SocketAddr>)>,
    /// Where this node opens a voting file: shared ones, and those that it serves.
    pub files: BTreeMap<FileId, PathBuf>,
    /// The host's watchdog, to be fed while this node is well: `/dev/watchdog`.
    pub watchdog: Option<PathBuf>,
}

/// Why a membership does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its times do not fit.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Such a node cannot be.
    #[error("{node} in incarnation {} cannot be: nodes are numbered below {MAX_NODES}, lives from 1", incarnation.0)]
    Node {
        /// As set.
        node: NodeId,
        /// As set.
        incarnation: Incarnation,
    },
    /// Nobody is let in without.
    #[error("the cluster's keys: {0}")]
    Keys(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} (UDP): {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// No random numbers, descriptors or threads, or no watchdog where one is configured.
    #[error("cannot start {what}: {source}")]
    System {
        /// What was to be started.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// How an incarnation was proved to be over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// Its process was killed and is gone, with all that it had begun.
    Killed,
    /// Its host was switched off or reset.
    Off,
    /// What it could do harm to refuses it from now on.
    Refused,
}

/// Why a node is no member any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It must stop at once: others go on without it.
    Died(Reason),
    /// As wanted.
    Left,
}

/// Who uses the membership. [`Guest::is_well`], and [`Guest::end`] of who must die, run on threads that the membership lives on and that ordinary
/// threads may not get past: they must wait for nobody.
pub trait Guest: Send + Sync + 'static {
    /// A view is decided; the node does not act in it yet. Called in order with [`Guest::opened`], each view decided before it is opened,
    /// on a thread of their own. Views that are decided before one was opened are not opened.
    fn decided(&self, view: &Arc<View>);

    /// The node acts in this view, and in none before it, when this returns. The others that wait for that wait for this.
    fn opened(&self, view: &Arc<View>, transition: &Transition);

    /// Proves that an incarnation that was put out, and did not say that it leaves, does nothing any more. May take long; on a thread of its own. `None`: nothing is proved, and its
    /// lease is waited for.
    fn fence(&self, node: NodeId, incarnation: Incarnation) -> Option<Proof>;

    /// Whether what this node is a member for makes progress. Asked before each report and turn; must not wait.
    fn is_well(&self) -> bool;

    /// [`End::Died`]: end the process at once, do not return; on the loop's thread or the lease's. [`End::Left`]: return when nothing acts any more;
    /// the others go on without waiting for the lease after that; after all views, on the thread that hands them out, and the loop waits for it:
    /// it must not ask the membership anything. Called at most once.
    fn end(&self, why: End);
}

/// Why a config change was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigChangeError {
    /// The membership says no.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Nobody is left to grant it.
    #[error("this node is no member any more")]
    Ended,
}

/// One incarnation of a node in its cluster. Dropped, it [stops](Membership::stop).
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
    /// Starts to join the cluster, or to found it.
    ///
    /// # Errors
    /// What the settings or the system do not allow.
    pub fn start(settings: Settings, guest: Arc<dyn Guest>) -> Result<Self, StartError> {
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
        let inbox = Arc::new(Inbox::create().map_err(system("a bell"))?);
        let lease = Arc::new(Lease::default());
        let ending = Arc::new(Ending::new(Arc::clone(&guest), Arc::clone(&lease)));
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
            courier::start(Arc::clone(&guest), Arc::clone(&inbox)).map_err(system("a thread"))?;
        started.keep(thread);
        let (stop, stopped) = mpsc::channel();
        started.keep(watch_keys(&settings, keys.clone(), &inbox, stopped).map_err(system("a thread"))?);
        let device = settings.watchdog.clone();
        let wires = Wires { guest, inbox, ending, watchdog: watchdog.clone(), views, _keys: stop };
        let driver = Driver::new(settings, keys, sockets, wires).map_err(system("the sockets"))?;
        // Last: whatever fails before it leaves the host alone.
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

    /// Stops and says nothing: a crash, as the others see it. From now on no lease is held. Waits for what is under way on its threads, but neither for
    /// disks that hang nor for fences.
    pub fn stop(&self) {
        self.ending.stop();
        self.inbox.post(Input::Stop);
        self.watchdog.stop(false);
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads.into_iter().rev() {
            // A guest may stop it from a thread of its own; a panic was reported when it happened.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// What to ask before each thing that only a member may do.
    #[must_use]
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    /// Changes the cluster, or leaves it; waits until that is decided. One at a time.
    ///
    /// # Errors
    /// It is refused, or this node ends before.
    pub fn config_change(&self, config_change: ConfigChange) -> Result<(), ConfigChangeError> {
        let (answer, answered) = sync_channel(1);
        self.inbox.post(Input::ConfigChange(config_change, answer));
        answered.recv().unwrap_or(Err(ConfigChangeError::Ended))
    }

    /// Leaves the cluster, and returns when the others know it: [`Guest::end`] was called with [`End::Left`] then.
    ///
    /// # Errors
    /// The node is no member, so there is nothing to leave; or it ends otherwise.
    pub fn leave(&self) -> Result<(), ConfigChangeError> {
        self.config_change(ConfigChange::Leave)
    }

    /// The links with an incarnation are lost: what it says over the network counts no more, so that only one of the two goes on. What it writes into voting
    /// files does.
    pub fn lost(&self, node: NodeId, incarnation: Incarnation) {
        self.inbox.post(Input::Lost(node, incarnation));
    }

    /// An incarnation, and all that it had begun, is proved to be over.
    pub fn dead(&self, node: NodeId, incarnation: Incarnation) {
        self.inbox.post(Input::Dead(node, incarnation));
    }

    /// An incarnation is clean: when it leaves, nothing is lost with it.
    pub fn clean(&self, node: NodeId, clean: Clean) {
        self.inbox.post(Input::Clean(node, clean));
    }

    /// What the node does in views is whole again in this one.
    pub fn rebuilt(&self, epoch: Epoch) {
        self.inbox.post(Input::Rebuilt(epoch));
    }

    /// The registry has this generation; every report says so from now on.
    pub fn registry(&self, generation: u64) {
        self.inbox.post(Input::Registry(generation, None));
    }

    /// The same, and waits until a majority of the voting files has it. The greatest generation that they know of: at least what
    /// everybody was told before this was called.
    ///
    /// # Errors
    /// This node ends before.
    pub fn remember(&self, generation: u64) -> Result<u64, ConfigChangeError> {
        let (answer, answered) = sync_channel(1);
        self.inbox.post(Input::Registry(generation, Some(answer)));
        answered.recv().map_err(|_| ConfigChangeError::Ended)
    }

    /// Where this node opens a voting file that it was not told of when it started. A path that is known stays.
    pub fn place_file(&self, file: FileId, path: PathBuf) {
        self.inbox.post(Input::File(file, path));
    }

    /// Where a node is that it was not told of when it started, or that has moved.
    pub fn place_peer(&self, node: NodeId, addresses: Vec<SocketAddr>) {
        self.inbox.post(Input::Peer(node, addresses));
    }

    /// What there is to say; `None` where nobody answers: the membership is over, or stuck.
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

/// Reads what other nodes send from any bytes, as a fuzz target would. How many were taken for something.
#[doc(hidden)]
#[must_use]
pub fn datagram_any(bytes: &[u8]) -> usize {
    let packed = crate::voting::packed::unpacked(bytes).is_ok();
    [post::datagram::head_any(bytes), served::piece_any(bytes), packed].into_iter().filter(|is| *is).count()
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// Looks for other keys on a thread of its own: they may be in files.
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
