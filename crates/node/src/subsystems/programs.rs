//! The programs that are attached to a node: their memory, and the socket at which they attach.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use plexus_admin::{control::Commands, status::ProgramsStatus};
use plexus_attach::{ARENA, AttachOffer, AttachServer, ProgramUsage, Programs};
use plexus_client::wire::limits::MAX_CLIENTS;
use plexus_fabric::Window;
use plexus_membership::subsystem::WorkerPort;

use super::{Handle, Install, Installed, Making};
use crate::runtime::{NodeRuntime, Parts};

/// The programs of a node.
pub(crate) struct ProgramsHandle {
    port: Arc<dyn WorkerPort<Programs>>,
    /// The socket.
    path: PathBuf,
    arena: Arc<Window>,
    /// The counts of what programs have, by worker.
    usage: Vec<Arc<ProgramUsage>>,
    server: Mutex<Option<AttachServer>>,
}

impl Install for Programs {
    type Handle = ProgramsHandle;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, .. } = node.parts;
        let arena = Window::create(ARENA, (config.program_window_mib as usize) << 20, 0);
        let arena = Arc::new(arena.map_err(|error| error.to_string())?.wordwise());
        let usage: Vec<_> = (0..config.workers).map(|_| Arc::<ProgramUsage>::default()).collect();
        let part = |(worker, usage): (u8, &Arc<ProgramUsage>)| {
            Self::new(*me, worker, config.workers, arena.clone(), usage.clone())
        };
        let parts = (0..).zip(&usage).map(part).collect();
        let path = config.dir.attach(&config.name_of(*me));
        let windows = vec![arena.clone()];
        let handle = ProgramsHandle { port, path, arena, usage, server: Mutex::default() };
        Ok(Installed { windows, ..Installed::new(parts, handle) })
    }
}

impl Handle for ProgramsHandle {
    fn serve(&self, node: &Arc<NodeRuntime>, _: &Commands) -> Result<(), String> {
        let failed = |error| format!("{}: the socket for programs: {error}", self.path.display());
        let workers = node.workers().to_vec();
        let config = node.shared_config();
        let offer = AttachOffer {
            me: node.me(),
            nodes: Box::new(move || config.number_limit()),
            arena: self.arena.clone(),
            lease: node.membership().lease().fd().try_clone_to_owned().map_err(failed)?,
            bells: workers.iter().map(|worker| worker.bell().clone()).collect(),
            listen: Box::new(move |worker, event| workers[usize::from(worker)].listen(event)),
            port: self.port.clone(),
        };
        let server = AttachServer::open(&self.path, offer).map_err(failed)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    fn end(&self) {
        drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl ProgramsHandle {
    /// Returns the resources of programs. Does not wait for workers.
    pub(crate) fn used(&self) -> ProgramsStatus {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let used = self.usage.iter().map(|usage| usage.noted());
        let [ports, windows, window_bytes, locks] =
            used.fold([0; 4], |sum, one| std::array::from_fn(|figure| sum[figure] + one[figure]));
        ProgramsStatus {
            attached: server.as_ref().map_or(0, AttachServer::programs) as u64,
            attached_most: MAX_CLIENTS as u64,
            ports,
            windows,
            window_bytes,
            window_bytes_most: self.arena.len() as u64,
            locks,
        }
    }
}
