//! The list of all subsystems of a node.
//!
//! To add a subsystem, write a file in this folder and add a line to the list below. The file has
//! its [`Subsystem`], which runs on workers, its [`Install`], which creates it, and its [`Handle`],
//! with what it does when the node starts, is asked, and ends. `echo.rs` is an example that uses
//! every part.

mod benchmark;
mod cache;
#[cfg(test)]
#[path = "../../tests/cluster/mod.rs"]
mod cluster;
pub mod disks;
#[cfg(test)]
mod echo;
mod executive;
mod programs;
mod shards;
mod sql;
mod store;

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use plexus_admin::{config::Config, control::Commands};
use plexus_attach::Programs;
use plexus_base::NodeId;
use plexus_cache::CacheService;
use plexus_disks::mirror::MirrorService;
use plexus_fabric::{Event, Window};
use plexus_interconnect::{Channel, Message, Net};
use plexus_locks::LockService;
use plexus_membership::{
    groups::GroupService,
    partitions::Members,
    runtime::Membership,
    subsystem::{Neighbours, Subsystem, WorkerPort, assert_disjoint, set_of},
};
use plexus_registry::{Apply, RegistryService};
use plexus_store::transactions::service::TransactionService;
use serde_json::Value;

pub use self::benchmark::{BenchmarkPort, ChannelPort};
#[cfg(test)]
use self::echo::EchoService;
use crate::{
    commands::{NodeCommand, forward::ForwardService},
    ledger::RegistryLedger,
    runtime::{NodeRuntime, Parts},
    service::Workers,
};

/// The constructor of a subsystem in a node.
pub(crate) trait Install: Subsystem {
    /// The interface of the subsystem to threads of the node.
    type Handle: Handle;

    /// The name of its table in `cluster.toml`, if it has one; see [`Config::section`].
    const SECTION: Option<&'static str> = None;

    /// The commands that the control socket answers for it.
    const COMMANDS: &'static [NodeCommand] = &[];

    /// Creates the subsystem. `port` leads to the workers, which start later.
    ///
    /// # Errors
    /// The subsystem cannot be created; the text is one line for the user.
    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String>;
}

/// Ends the I/O of a subsystem; see [`Handle::drain`].
pub(crate) type Drain = Box<dyn Fn() -> bool + Send + Sync>;

/// The interface of a subsystem to threads of its node. The node calls these methods in their
/// order; those of subsystems that are later in the list end first.
pub(crate) trait Handle: Send + Sync {
    /// Returns what applies the contents of the registry for it, if it needs that; see
    /// [`Registry::apply_before_report`](plexus_registry::Registry::apply_before_report).
    fn applies(&self) -> Option<Apply> {
        None
    }

    /// Starts what runs beside the workers, which have just started. No view is open yet.
    ///
    /// # Errors
    /// The node cannot start; the text is one line for the user.
    fn start(&self) -> Result<(), String> {
        Ok(())
    }

    /// Begins to serve programs and users: the node is a member and reaches its peers. `commands`
    /// are those of the control socket.
    ///
    /// # Errors
    /// The node cannot serve; the text is one line for the user.
    fn serve(&self, node: &Arc<NodeRuntime>, commands: &Commands) -> Result<(), String> {
        let _ = (node, commands);
        Ok(())
    }

    /// Refuses new work and lets the present work end, because the node leaves. May be called more
    /// than once.
    fn quiesce(&self) {}

    /// Returns a function that ends its I/O when the node has left. It returns false if that takes
    /// too long: then the leave is not announced.
    fn drain(&self) -> Option<Drain> {
        None
    }

    /// Ends what [`Handle::start`] and [`Handle::serve`] began. The workers still run.
    fn end(&self) {}

    /// Ends what the parts on the workers needed; these have ended.
    fn ended(&self) {}

    /// Returns its part of the node's status, if it has one.
    fn status(&self) -> Option<Value> {
        None
    }

    /// Returns a line for each of its problems that an operator must know.
    fn trouble(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns its counts by name, for metrics: they only grow. Returns none if workers do not
    /// answer in this time.
    fn counts(&self, within: Duration) -> Vec<(&'static str, u64)> {
        let _ = within;
        Vec::new()
    }
}

/// The inputs of [`Install::install`].
pub(crate) struct Making<'a> {
    pub(crate) parts: &'a Parts,
    /// The membership, set once it has started.
    pub(crate) membership: Arc<OnceLock<Weak<Membership>>>,
    /// The registry, set once all subsystems are made.
    pub(crate) registry: Arc<OnceLock<plexus_registry::Registry>>,
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
    /// The events that wake the workers from 0 on.
    pub(crate) events: Vec<Event>,
}

impl<S: Install> Installed<S> {
    /// Has no windows and no events.
    pub(crate) fn new(parts: Vec<S>, handle: S::Handle) -> Self {
        Self { parts, handle, windows: Vec::new(), events: Vec::new() }
    }
}

/// All subsystems, made and not yet running.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) workers: Vec<Subsystems>,
    pub(crate) windows: Vec<Arc<Window>>,
    /// The events that wake each worker.
    pub(crate) events: Vec<Vec<Event>>,
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
        const _: () = assert_disjoint(&[$($(#[$when])* set_of(<$type>::CHANNELS),)*]);

        /// The tables of `cluster.toml` that have a subsystem.
        const SECTIONS: &[Option<&str>] = &[$($(#[$when])* <$type as Install>::SECTION,)*];

        /// The commands of all subsystems.
        pub(crate) const COMMANDS: &[&[NodeCommand]] = &[$($(#[$when])* <$type as Install>::COMMANDS,)*];

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
            $($(#[$when])* pub(crate) $name: Option<Box<$type>>,)*
        }

        /// The interfaces of all subsystems to threads of the node.
        pub(crate) struct Handles {
            $($(#[$when])* pub(crate) $name: <$type as Install>::Handle,)*
        }

        $($(#[$when])* impl Runs<$type> for Subsystems {
            #[inline]
            fn part(&mut self) -> Option<&mut $type> {
                self.$name.as_deref_mut()
            }

            #[inline]
            fn wrap(task: <$type as Subsystem>::Task) -> NodeTask {
                NodeTask::$variant(task)
            }
        })*

        impl Handles {
            /// Creates all subsystems.
            pub(crate) fn make(node: &Making<'_>, port: &Arc<Workers>) -> Result<(Self, Made), String> {
                check_sections(&node.parts.config)?;
                let workers = usize::from(node.parts.config.workers);
                let mut made = Made::default();
                made.workers.resize_with(workers, Subsystems::default);
                made.events.resize_with(workers, Vec::new);
                $($(#[$when])* let $name = {
                    let installed = <$type>::install(node, port.clone())?;
                    let parts = made.workers.iter_mut().zip(installed.parts);
                    parts.for_each(|(worker, part)| worker.$name = Some(Box::new(part)));
                    made.events.iter_mut().zip(installed.events).for_each(|(worker, event)| worker.push(event));
                    made.windows.extend(installed.windows);
                    installed.handle
                };)*
                Ok((Self { $($(#[$when])* $name,)* }, made))
            }

            /// Returns all handles with their names, in the order of the list.
            pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = (&'static str, &dyn Handle)> {
                [$($(#[$when])* (<$type as Subsystem>::NAME, &self.$name as &dyn Handle),)*].into_iter()
            }
        }

        impl Neighbours for Subsystems {
            #[inline]
            fn find(&mut self, of: TypeId) -> Option<&mut dyn Any> {
                $($(#[$when])* if of == TypeId::of::<$type>() {
                    return self.$name.as_deref_mut().map(|part| part as &mut dyn Any);
                })*
                None
            }
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

            /// Runs the turn of each subsystem; returns how much was done.
            #[inline]
            pub(crate) fn turn(&mut self, net: &mut Net) -> usize {
                let mut done = 0;
                // A part is taken out meanwhile, so that it may use the others.
                $($(#[$when])* if <$type as Subsystem>::HAS_TURN
                    && let Some(mut part) = self.$name.take()
                {
                    done += part.turn(net, self);
                    self.$name = Some(part);
                })*
                done
            }

            #[inline]
            pub(crate) fn pending(&mut self) -> bool {
                $($(#[$when])* if self.$name.as_mut().is_some_and(|part| part.pending()) {
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
    Disks(disks): MirrorService,
    Cache(cache): CacheService,
    Locks(locks): LockService,
    Groups(groups): GroupService,
    Registry(registry): RegistryService,
    Forward(forward): ForwardService,
    Programs(programs): Programs,
    Store(store): TransactionService,
    Benchmark(benchmarks): BenchmarkPort,
    #[cfg(test)]
    Echo(echo): EchoService,
}

/// Refuses tables of the configuration that no subsystem reads.
fn check_sections(config: &Config) -> Result<(), String> {
    let known = || SECTIONS.iter().flatten();
    match config.sections.keys().find(|name| known().all(|known| known != name)) {
        None => Ok(()),
        Some(unknown) => Err(format!("{}: there is no table [{unknown}]", config.dir.config().display())),
    }
}

/// Returns what each subsystem says of itself, without those that say nothing.
pub(crate) fn statuses(handles: &Handles) -> BTreeMap<String, Value> {
    handles.all().filter_map(|(name, handle)| Some((name.to_owned(), handle.status()?))).collect()
}
