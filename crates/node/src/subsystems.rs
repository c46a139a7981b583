//! The list of all subsystems of a node.
//!
//! To add a subsystem, write a file with its [`Subsystem`], which runs on workers, and its
//! [`Install`], which creates it, and add a line to the list below. `echo.rs` is the smallest
//! example.

use std::sync::{Arc, OnceLock, Weak};

use plexus_admin::launch::EVICTED_CODE;
use plexus_attach::Programs;
use plexus_base::{MAX_NODES, NodeId};
use plexus_cache::{Cache, CacheParts, CacheRedo, CacheService, RedoAnswers};
use plexus_fabric::{Event, Window};
use plexus_interconnect::{Channel, Message, Net};
use plexus_locks::{LockManager, LockService};
use plexus_membership::{
    groups::{GroupService, Groups},
    partitions::Members,
    runtime::Membership,
    subsystem::{Subsystem, WorkerPort, assert_disjoint, set_of},
};
use plexus_redo::{
    NodeRedo, RedoSettings,
    recovery::{RedoFileError, RedoFiles},
};
use plexus_registry::{Files, Registry, RegistryService, protocol::ClusterName};

#[cfg(test)]
use crate::echo::EchoService;
use crate::{
    commands::forward::ForwardService, ledger::RegistryLedger, member::Die, runtime::Parts, service::Workers,
};

/// The number of threads of each worker that wait for the disks.
const IO_THREADS: usize = 2;

/// The constructor of a subsystem in a node.
pub(crate) trait Install: Subsystem {
    /// The interface of the subsystem to threads of the node.
    type Handle;

    /// Creates the subsystem. `port` leads to the workers, which start later.
    ///
    /// # Errors
    /// The subsystem cannot be created; the text is one line for the user.
    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String>;
}

/// The inputs of [`Install::install`].
pub(crate) struct Making<'a> {
    pub(crate) parts: &'a Parts,
    /// The membership, set once it has started.
    pub(crate) membership: Arc<OnceLock<Weak<Membership>>>,
    /// The registry's entries of the disk group, which are read when all subsystems are made.
    pub(crate) ledger: Arc<RegistryLedger>,
}

/// A created subsystem.
pub(crate) struct Installed<S: Install> {
    /// Its parts for the workers from 0 on; further workers do not run it.
    pub(crate) parts: Vec<S>,
    pub(crate) handle: S::Handle,
    /// The windows that peers write and read.
    pub(crate) windows: Vec<Arc<Window>>,
}

/// A worker that may run a part of `S`.
pub(crate) trait Runs<S: Subsystem> {
    /// Returns the part of this worker; `None` if it runs none, or no longer.
    fn part(&mut self) -> Option<&mut S>;

    /// Wraps a task of `S` as a task of the worker.
    fn wrap(task: S::Task) -> NodeTask;
}

/// Returns true if messages on `channel` are for `S`.
#[inline]
fn owns<S: Subsystem>(channel: Channel) -> bool {
    let owned = const { set_of(S::CHANNELS) };
    owned >> channel as u32 & 1 != 0
}

macro_rules! subsystems {
    ($($(#[$when:meta])* $variant:ident($name:ident): $type:ty,)*) => {
        const _: () = assert_disjoint(&[$($(#[$when])* set_of(<$type>::CHANNELS),)* set_of(Programs::CHANNELS)]);

        /// A task that threads of the node submit to a worker.
        #[allow(missing_docs, reason = "each is a task of the subsystem of that name")]
        pub enum NodeTask {
            $($(#[$when])* $variant(<$type as Subsystem>::Task),)*
            /// Shows that the worker handles its tasks.
            Pulse,
        }

        /// The parts of subsystems that one worker runs.
        #[derive(Default)]
        pub(crate) struct Subsystems {
            $($(#[$when])* pub(crate) $name: Option<$type>,)*
        }

        /// The interfaces of all subsystems to threads of the node.
        pub(crate) struct Handles {
            $($(#[$when])* pub(crate) $name: <$type as Install>::Handle,)*
        }

        $($(#[$when])* impl Runs<$type> for Subsystems {
            #[inline]
            fn part(&mut self) -> Option<&mut $type> {
                self.$name.as_mut()
            }

            #[inline]
            fn wrap(task: <$type as Subsystem>::Task) -> NodeTask {
                NodeTask::$variant(task)
            }
        })*

        /// Creates all subsystems. Returns their parts by worker, their handles, and their windows.
        pub(crate) fn install(node: &Making<'_>, port: &Arc<Workers>) -> Result<(Vec<Subsystems>, Handles, Vec<Arc<Window>>), String> {
            let mut workers: Vec<_> = (0..node.parts.config.workers).map(|_| Subsystems::default()).collect();
            let mut windows = Vec::new();
            $($(#[$when])* let $name = {
                let installed = <$type>::install(node, port.clone())?;
                workers.iter_mut().zip(installed.parts).for_each(|(worker, part)| worker.$name = Some(part));
                windows.extend(installed.windows);
                installed.handle
            };)*
            Ok((workers, Handles { $($(#[$when])* $name,)* }, windows))
        }

        impl Subsystems {
            pub(crate) fn view(&mut self, net: &mut Net, view: &Members) {
                $($(#[$when])* if let Some(part) = &mut self.$name { part.view(net, view); })*
            }

            /// Handles a message; returns false if its channel has no subsystem here.
            #[inline]
            pub(crate) fn message(&mut self, net: &mut Net, message: Message<'_>) -> bool {
                $($(#[$when])* if owns::<$type>(message.channel)
                    && let Some(part) = &mut self.$name
                {
                    part.message(net, message);
                    return true;
                })*
                false
            }

            /// Handles a task; returns false if it belongs to no subsystem.
            #[inline]
            pub(crate) fn task(&mut self, net: &mut Net, task: NodeTask) -> bool {
                match task {
                    $($(#[$when])* NodeTask::$variant(task) => {
                        if let Some(part) = &mut self.$name { part.task(net, task); }
                    })*
                    NodeTask::Pulse => return false,
                }
                true
            }

            /// Passes on the reply to a call on `channel`, or its failure (`None`). Returns false
            /// if no subsystem made the call.
            pub(crate) fn reply(&mut self, net: &mut Net, peer: NodeId, channel: Channel, token: u64, payload: Option<&[u8]>) -> bool {
                $($(#[$when])* if owns::<$type>(channel)
                    && let Some(part) = &mut self.$name
                {
                    match payload {
                        Some(payload) => part.reply(net, peer, token, payload),
                        None => part.call_failed(net, peer, token),
                    }
                    return true;
                })*
                false
            }

            pub(crate) fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
                $($(#[$when])* if let Some(part) = &mut self.$name { part.peer_up(net, peer); })*
            }

            pub(crate) fn peer_lost(&mut self, net: &mut Net, peer: NodeId) {
                $($(#[$when])* if let Some(part) = &mut self.$name { part.peer_lost(net, peer); })*
            }

            /// Returns true once all subsystems have taken up the last view; logs the first that
            /// has not.
            pub(crate) fn are_ready(&self) -> bool {
                $($(#[$when])* if self.$name.as_ref().is_some_and(|part| !part.is_ready()) {
                    tracing::trace!("{} is not ready", <$type>::NAME);
                    return false;
                })*
                true
            }

            pub(crate) fn stop(&mut self) {
                $($(#[$when])* if let Some(part) = &mut self.$name { part.stop(); })*
            }
        }
    };
}

subsystems! {
    Cache(cache): CacheService,
    Locks(locks): LockService,
    Groups(groups): GroupService,
    Registry(registry): RegistryService,
    Forward(forward): ForwardService,
    #[cfg(test)]
    Echo(echo): EchoService,
}

impl Install for CacheService {
    type Handle = CacheHandle;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, incarnation, group, die, .. } = node.parts;
        let settings = plexus_cache::CacheSettings {
            me: *me,
            incarnation: *incarnation,
            // The maximum, because nodes can be added while this one runs.
            nodes: MAX_NODES as u8,
            workers: config.workers,
            cache_bytes: u64::from(config.cache_mib) << 20,
            io_threads: IO_THREADS,
            disk_reads: config.disk_reads,
            carry_bytes: config.carry_bytes,
        };
        let mut redo = Ok(None);
        let make_redo = |answers| {
            redo = start_redo(node, answers, die.clone());
            redo.as_ref().ok()?.clone().map(CacheRedo::new)
        };
        let CacheParts { services, events, cache, windows, disk_reads } =
            plexus_cache::wire(settings, group, make_redo, port).map_err(|error| error.to_string())?;
        let events = events.into_iter().map(Event::from_peer).collect::<Result<_, _>>();
        let disk_events = events.map_err(|error| format!("the events of disks: {error}"))?;
        let handle = CacheHandle { cache, redo: redo?, disk_events, disk_reads };
        Ok(Installed { parts: services, windows, handle })
    }
}

/// The cache of a node, and its redo if changes are logged.
pub(crate) struct CacheHandle {
    pub(crate) cache: Cache,
    pub(crate) redo: Option<Arc<NodeRedo>>,
    /// The events that must wake the workers, by worker, until they are listened to.
    pub(crate) disk_events: Vec<Event>,
    /// The way in which blocks are read from disk.
    pub(crate) disk_reads: String,
}

/// Starts the redo of the node, if the cluster has redo.
fn start_redo(node: &Making<'_>, answers: RedoAnswers, die: Die) -> Result<Option<Arc<NodeRedo>>, String> {
    let Parts { config, me, incarnation, group, .. } = node.parts;
    let directory = config.redo();
    let files = RedoFiles::new(directory.clone(), config.id.0);
    let Some(geometry) = config.redo_geometry() else {
        // Without redo these changes would be lost silently.
        return match directory.exists().then(|| files.unfinished(&[])).transpose() {
            Ok(None) => Ok(None),
            Ok(Some(open)) if open.is_empty() => Ok(None),
            Ok(Some(open)) => Err(format!(
                "redo_mib = 0, but {} has changes that may not be on the disks; start with the redo_mib of \
                 before and end the cluster with `plexus down --all` first",
                open[0].file().path.display()
            )),
            Err(why) => Err(why.to_string()),
        };
    };
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let files = files.guarded({
        let group = group.clone();
        move || group.may_write()
    });
    let (me, name, incarnation) = (*me, config.name_of(*me), *incarnation);
    let stream = match files.prepare(me, &name, incarnation, geometry) {
        // A node that is a member recovers them.
        Err(RedoFileError::NoRoom { waiting: 1.., .. }) => None,
        stream => Some(stream.map_err(|error| error.to_string())?),
    };
    let settings = RedoSettings {
        workers: config.workers,
        geometry,
        stream,
        name,
        files,
        me: (me, incarnation),
        ledger: Some(node.ledger.clone()),
        target_bytes: config.recovery_target_bytes(),
        failed: Box::new(move |why| die(why, EVICTED_CODE)),
    };
    let redo = NodeRedo::start(settings, group.clone(), answers).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(redo)))
}

impl Install for LockService {
    type Handle = LockManager;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, incarnation, .. } = node.parts;
        let settings =
            plexus_locks::LockSettings { me: *me, incarnation: *incarnation, workers: config.workers };
        let state = Arc::default();
        let parts = plexus_locks::wire(settings, &Arc::downgrade(&port), &state);
        let handle = LockManager::new(port, config.workers, state);
        Ok(Installed { parts: parts.map_err(|error| error.to_string())?, windows: Vec::new(), handle })
    }
}

impl Install for GroupService {
    type Handle = Groups;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let parts = vec![Self::new(node.parts.me, node.parts.incarnation)];
        Ok(Installed { parts, windows: Vec::new(), handle: Groups::new(port) })
    }
}

impl Install for RegistryService {
    type Handle = Registry;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, incarnation, die, .. } = node.parts;
        let files = Files::new(config.dir.registry(&config.nodes[me.index()].name));
        let die = Arc::clone(die);
        let settings = plexus_registry::RegistrySettings {
            me: *me,
            incarnation: *incarnation,
            cluster: ClusterName(config.id.0),
            files: files.map_err(|error| error.to_string())?,
            memory: node.membership.clone(),
            end: Arc::new(move |why| die(why, EVICTED_CODE)),
        };
        let (service, handle) = plexus_registry::wire(settings, &port).map_err(|error| error.to_string())?;
        Ok(Installed { parts: vec![service], windows: Vec::new(), handle })
    }
}
