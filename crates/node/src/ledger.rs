//! The entries of the disk group in the registry, for redo and disks.
//!
//! The threads that ask are those of redo and of commands, never a worker: the registry runs on
//! worker 0. The registry needs no block and no redo, so it answers while these wait for it.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use plexus_disks::GroupId;
use plexus_redo::recovery::{Ledger, LedgerEntries};
use plexus_registry::{
    Files, PendingCommand, Registry, RegistryError,
    protocol::{self, Change, ClusterName, Command, Contents, DISKS, Key, Refused},
};

use plexus_admin::config::{Config, this_host};

/// The longest wait for an answer, after which the reason is shown and the question is asked again,
/// and the interval at which a wait checks that it has a purpose.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The entries of one group.
pub(crate) struct RegistryLedger {
    registry: Arc<OnceLock<Registry>>,
    prefix: String,
}

impl RegistryLedger {
    /// Names the entries of a group; `registry` is set when the subsystems of the node are made.
    pub(crate) fn new(registry: Arc<OnceLock<Registry>>, group: GroupId) -> Self {
        Self { registry, prefix: prefix(group) }
    }

    fn ask(&self, command: Command, is_void: &dyn Fn() -> bool) -> Result<(), Option<RegistryError>> {
        let begin = Instant::now();
        let mut asked: Option<PendingCommand> = None;
        while !is_void() && begin.elapsed() < ANSWER_WITHIN {
            let Some(registry) = self.registry.get() else {
                std::thread::sleep(LOOK_EVERY);
                continue;
            };
            let asked = asked.get_or_insert_with(|| registry.ask(command.clone()));
            if let Some(answer) = asked.wait(LOOK_EVERY) {
                return answer.map(drop).map_err(Some);
            }
        }
        Err(None)
    }
}

fn reason(why: Option<RegistryError>) -> String {
    match why {
        Some(why) => format!("the registry: {why}"),
        None => "the registry does not answer: `plexus registry status` shows what it waits for".into(),
    }
}

impl Ledger for RegistryLedger {
    fn read(&self, is_void: &dyn Fn() -> bool) -> Result<LedgerEntries, String> {
        self.ask(Command::Look, is_void).map_err(reason)?;
        let contents = self.registry.get().and_then(Registry::contents).ok_or_else(|| reason(None))?;
        Ok(entries(&contents, &self.prefix))
    }

    fn set(&self, key: &str, version: u64, value: &str, is_void: &dyn Fn() -> bool) -> Result<bool, String> {
        let key = Key::new(&format!("{}{key}", self.prefix)).map_err(|why| why.to_string())?;
        let change = Change::compare_and_set(key, version, value.as_bytes());
        match self.ask(Command::Change(change), is_void) {
            Ok(()) => Ok(true),
            Err(Some(RegistryError::Refused(Refused::Version { .. }))) => Ok(false),
            Err(why) => Err(reason(why)),
        }
    }
}

/// Returns what the copies of the registry on this host know of the group: those of the newest
/// generation, whether nodes run or not.
#[must_use]
pub fn known_entries(config: &Config) -> LedgerEntries {
    let here = this_host();
    let local = config.nodes.iter().filter(|node| node.host == here);
    let copies = local.filter_map(|node| {
        let found = Files::new(config.dir.registry(&node.name)).ok()?.found();
        Some(protocol::open(ClusterName(config.id.0), &found).ok()?.contents)
    });
    let newest = copies.max_by_key(Contents::generation);
    newest.map_or_else(LedgerEntries::new, |contents| entries(&contents, &prefix(config.shape().id)))
}

pub(crate) fn prefix(group: GroupId) -> String {
    format!("{DISKS}{group}/")
}

fn entries(contents: &Contents, prefix: &str) -> LedgerEntries {
    let entries = contents.under(prefix).map(|(key, entry)| {
        let text = String::from_utf8_lossy(&entry.value).into_owned();
        (key.as_str()[prefix.len()..].to_owned(), (entry.version, text))
    });
    entries.collect()
}
