//! The executive in its node: locks, groups and the registry.

use std::{sync::Arc, time::Duration};

use plexus_admin::launch::EVICTED_CODE;
use plexus_locks::{LockManager, LockService};
use plexus_membership::{
    groups::{GroupService, Groups},
    subsystem::WorkerPort,
};
use plexus_registry::{Files, Registry, RegistryService, protocol::ClusterName};

use super::{Handle, Install, Installed, Making};
use crate::{
    commands::{NodeCommand, grouping, locking, registry},
    runtime::Parts,
};

impl Install for LockService {
    type Handle = LockManager;
    const COMMANDS: &'static [NodeCommand] = locking::COMMANDS;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { config, me, incarnation, .. } = node.parts;
        let settings =
            plexus_locks::LockSettings { me: *me, incarnation: *incarnation, workers: config.workers };
        let state = Arc::default();
        let parts = plexus_locks::wire(settings, &Arc::downgrade(&port), &state);
        let handle = LockManager::new(port, config.workers, state);
        Ok(Installed::new(parts.map_err(|error| error.to_string())?, handle))
    }
}

impl Handle for LockManager {
    fn counts(&self, within: Duration) -> Vec<(&'static str, u64)> {
        self.counts(within).map(|counts| counts.named().into_iter().collect()).unwrap_or_default()
    }
}

impl Install for GroupService {
    type Handle = Groups;
    const COMMANDS: &'static [NodeCommand] = grouping::COMMANDS;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let part = Self::new(node.parts.me, node.parts.incarnation);
        Ok(Installed::new(vec![part], Groups::new(port)))
    }
}

impl Handle for Groups {}

impl Install for RegistryService {
    type Handle = Registry;
    const COMMANDS: &'static [NodeCommand] = registry::COMMANDS;

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
        Ok(Installed::new(vec![service], handle))
    }
}

impl Handle for Registry {
    /// Waits until all writes have ended.
    fn ended(&self) {
        self.end();
    }

    fn trouble(&self) -> Vec<String> {
        self.status().trouble
    }
}
