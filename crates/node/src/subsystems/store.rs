//! The store in its node: transactions over the blocks of the cache.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use plexus_admin::{
    control::{Commands, Progress},
    sql::{SECTION, SqlAddress, SqlConfig},
};
use plexus_base::Incarnation;
use plexus_cache::Cache;
use plexus_disks::Group;
use plexus_interconnect::executor::TaskThread;
use plexus_membership::subsystem::WorkerPort;
use plexus_sql::server::Server;
use plexus_store::{
    Store, StoreSettings,
    transactions::service::{Board, TransactionService},
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Handle, Install, Installed, Making, sql::RunningServer};
use crate::{
    commands::{CommandContext, NodeCommand, args, json_of},
    runtime::{NodeRuntime, Parts},
};

impl Install for TransactionService {
    type Handle = StoreHandle;
    const SECTION: Option<&'static str> = Some(SECTION);
    const COMMANDS: &'static [NodeCommand] = &[
        NodeCommand::prompt("sessions", sessions),
        NodeCommand::prompt("statements", statements),
        NodeCommand::prompt("session", session),
        NodeCommand::waiting("store.check", check),
        NodeCommand::waiting("sessions.drain", drain),
    ];

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let Parts { me, incarnation, group, .. } = node.parts;
        let board = Board::new(*me, *incarnation, Some(port));
        let part = Self::new(board.clone());
        let handle = StoreHandle {
            board,
            incarnation: *incarnation,
            group: group.clone(),
            opened: Mutex::default(),
            server: Mutex::default(),
        };
        Ok(Installed::new(vec![part], handle))
    }
}

/// The store of a node.
pub(crate) struct StoreHandle {
    board: Arc<Board>,
    incarnation: Incarnation,
    group: Arc<Group>,
    opened: Mutex<Option<Opened>>,
    server: Mutex<Option<RunningServer>>,
}

struct Opened {
    store: Store<Cache>,
    /// The thread that follows views.
    thread: Arc<TaskThread>,
}

impl StoreHandle {
    /// Returns the store; the first call opens it.
    ///
    /// # Errors
    /// The store cannot be opened; the text is one line for the user.
    pub(crate) fn open(&self, node: &NodeRuntime) -> Result<Store<Cache>, String> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Opened { store, .. }) = &*opened {
            return Ok(store.clone());
        }
        let cache = node.cache().clone();
        if !cache.logs_changes() {
            return Err("the store needs redo: set redo_mib in cluster.toml".to_owned());
        }
        let thread = TaskThread::start("store").map_err(|error| format!("a thread of the store: {error}"))?;
        let thread = Arc::new(thread);
        let group = self.group.clone();
        let SqlConfig { clean_after, .. } = node.config().section(SECTION).unwrap_or_default();
        let settings = StoreSettings {
            me: node.me(),
            incarnation: self.incarnation,
            is_member: Arc::new(move || group.may_write()),
            clean_after,
        };
        let follow = {
            let thread = Arc::downgrade(&thread);
            move |store: Store<Cache>| {
                if let Some(thread) = thread.upgrade() {
                    drop(thread.spawn(move || async move { store.follow_view().await }));
                }
            }
        };
        let board = self.board.clone();
        let open = thread.spawn(move || Store::open(cache, board, settings, follow));
        let store = open.wait().ok_or("the node ends")?.map_err(|why| why.to_string())?;
        let (cleans, answers) = (store.clone(), store.clone());
        drop(thread.spawn(move || async move { cleans.clean_when_due().await }));
        drop(thread.spawn(move || async move { answers.answer_rounds().await }));
        *opened = Some(Opened { store: store.clone(), thread });
        Ok(store)
    }
}

/// The arguments of `session`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionArgs {
    id: i32,
    /// Ends the session, rather than its statement.
    ends: bool,
}

impl StoreHandle {
    /// Uses the server, if there is one.
    fn with_server<T>(&self, act: impl FnOnce(&Server) -> T) -> Result<T, String> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let server = server.as_ref().ok_or("the node serves no SQL: cluster.toml has no table [sql]")?;
        Ok(act(server.server()))
    }

    /// Returns the server, if there is one.
    fn server(&self) -> Option<Arc<Server>> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.as_ref().map(|running| running.server().clone())
    }

    fn thread(&self) -> Option<Arc<TaskThread>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map(|opened| opened.thread.clone())
    }
}

fn sessions(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    json_of(&on.runtime().handles().store.with_server(Server::sessions)?)
}

fn statements(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    json_of(&on.runtime().handles().store.with_server(Server::statements)?)
}

/// Checks the store and the tables.
fn check(on: &CommandContext, _: Value, progress: Progress<'_>) -> Result<Value, String> {
    let handle = &on.runtime().handles().store;
    if SqlAddress::of(on.runtime().config(), on.runtime().me())?.is_none() {
        return Err("the node has no tables: cluster.toml has no table [sql]".to_owned());
    }
    let store = handle.open(on.runtime())?;
    let thread = handle.thread().ok_or("the node ends")?;
    let (tell, told) = std::sync::mpsc::channel();
    let work = move || async move {
        plexus_sql::check::check(&store, &mut |what, count| {
            // The client may have gone.
            let _ = tell.send((what, count));
        })
        .await
    };
    let checks = thread.spawn(work);
    while let Ok((what, count)) = told.recv() {
        progress(json!({ "what": what, "count": count }));
    }
    let checked = checks.wait().ok_or("the node ends")??;
    let plexus_sql::check::CheckedTables { tables, rows, store } = checked;
    let plexus_store::CheckedStore { trees, pages, entries, examined, untold, faults, .. } = store;
    Ok(json!({
        "tables": tables, "rows": rows, "trees": trees, "pages": pages, "entries": entries,
        "status_blocks": store.status_blocks,
        "freed_status_blocks": store.freed_status_blocks, "examined": examined, "untold": untold, "faults": faults,
    }))
}

/// The arguments of `sessions.drain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainArgs {
    /// The longest wait, in seconds.
    seconds: u64,
}

/// Lets the transactions of all sessions end.
fn drain(on: &CommandContext, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let DrainArgs { seconds } = args(asked)?;
    let server = on.runtime().handles().store.server();
    let left = server.map_or(0, |server| server.drain(Duration::from_secs(seconds)));
    Ok(json!({ "left": left }))
}

/// Cancels the statement of a session, or ends it.
fn session(on: &CommandContext, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let SessionArgs { id, ends } = args(asked)?;
    match on.runtime().handles().store.with_server(|server| server.signal(id, ends))? {
        true => Ok(json!({})),
        false => Err(format!("there is no session {id}: `plexus sessions` lists them")),
    }
}

impl Handle for StoreHandle {
    /// Opens the store and starts the SQL server, if the cluster has SQL.
    fn serve(&self, node: &Arc<NodeRuntime>, _: &Commands) -> Result<(), String> {
        let Some(address) = SqlAddress::of(node.config(), node.me())? else { return Ok(()) };
        let store = self.open(node)?;
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Opened { thread, .. }) = &*opened else { return Ok(()) };
        let server = RunningServer::start(node, &address, store, thread)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    fn status(&self) -> Option<Value> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let server = server.as_ref()?;
        let sessions = server.server().sessions();
        let mut status = json!({ "sessions": sessions.len() });
        let oldest = sessions
            .iter()
            .filter_map(|session| Some((session.snapshot?, session)))
            .min_by_key(|(at, _)| *at);
        if let Some((snapshot, session)) = oldest {
            status["oldest_snapshot"] = json!({
                "session": session.id, "snapshot": snapshot, "seconds": session.snapshot_seconds,
            });
        }
        status["addresses"] = json!(server.addresses());
        Some(status)
    }

    fn quiesce(&self) {
        drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn end(&self) {
        self.quiesce();
        drop(self.opened.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::BlockId;
    use plexus_fabric::RailKind;
    use plexus_interconnect::executor;
    use plexus_store::{Isolation, RowChange, StoreError};

    use super::{super::cluster::Cluster, *};

    const ACCOUNTS: u8 = 4;

    fn number(contents: Option<&[u8]>) -> i64 {
        contents.map_or(0, |contents| i64::from_le_bytes(contents.try_into().unwrap()))
    }

    /// Moves an amount from one account to another.
    async fn transfer(store: &Store<Cache>, table: BlockId, seed: u64) -> Result<(), StoreError> {
        let mut transaction = store.begin(Isolation::ReadCommitted);
        let (from, to) = ((seed % 4) as u8, (seed / 4 % 4) as u8);
        // In their order, so that two transfers never wait for each other.
        for account in [from.min(to), from.max(to)] {
            let by = i64::from(account == to) - i64::from(account == from);
            let mut add = |old: Option<&[u8]>| RowChange::Set((number(old) + by).to_le_bytes().to_vec());
            transaction.change(table, &[account], &mut add).await?;
        }
        transaction.commit().await
    }

    async fn sum(store: &Store<Cache>, table: BlockId) -> Result<i64, StoreError> {
        let mut transaction = store.begin(Isolation::RepeatableRead);
        let mut sum = 0;
        for account in 0..ACCOUNTS {
            sum += number(transaction.get(table, &[account]).await?.as_deref());
        }
        Ok(sum)
    }

    #[test]
    fn transfers_on_two_nodes_keep_the_sum() {
        let cluster = Cluster::start_with(2, RailKind::Shm, |config| {
            (config.redo_mib, config.blocks, config.cache_mib) = (16, 16 << 10, 4);
        });
        let stores = [0, 1].map(|node| {
            let runtime = cluster.runtime(node);
            runtime.handles().store.open(runtime).unwrap()
        });
        let table = executor::block_on(async {
            let mut transaction = stores[0].begin(Isolation::ReadCommitted);
            let table = transaction.create_tree().await.unwrap();
            for account in 0..ACCOUNTS {
                let mut set = |_: Option<&[u8]>| RowChange::Set(100i64.to_le_bytes().to_vec());
                transaction.change(table, &[account], &mut set).await.unwrap();
            }
            transaction.commit().await.unwrap();
            table
        });
        std::thread::scope(|scope| {
            for (node, store) in stores.iter().enumerate() {
                scope.spawn(move || {
                    executor::run((0..4u64).map(|client| async move {
                        for round in 0..50 {
                            let seed = round * 7919 + client * 104_729 + node as u64 * 31;
                            transfer(store, table, seed).await.unwrap();
                            assert_eq!(sum(store, table).await.unwrap(), 400);
                        }
                    }));
                });
            }
        });
        for store in &stores {
            assert_eq!(executor::block_on(sum(store, table)).unwrap(), 400);
        }
    }
}
