//! The SQL server in its node, if `cluster.toml` has a table `[sql]`.

use std::{
    io,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::Arc,
};

use plexus_admin::config::Config;
use plexus_base::NodeId;
use plexus_cache::Cache;
use plexus_fabric::shm::bind_for_owner;
use plexus_interconnect::executor::{CancelHandle, TaskThread};
use plexus_sql::{
    Socket,
    server::{Server, ServerSettings, accept},
};
use plexus_store::Store;
use serde::Deserialize;

use crate::runtime::NodeRuntime;

/// The name of the table.
pub(super) const SECTION: &str = "sql";

/// The port of the first node, if the table does not say.
const FIRST_PORT: u16 = 5433;

/// The most sessions, if the table does not say.
const SESSIONS: usize = 1000;

/// The table `[sql]` of `cluster.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SqlConfig {
    /// The port of the first node; each node has the next one.
    port: u16,
    /// The user that may connect.
    user: String,
    /// The most sessions of a node.
    sessions: usize,
}

impl Default for SqlConfig {
    fn default() -> Self {
        Self { port: FIRST_PORT, user: "postgres".into(), sessions: SESSIONS }
    }
}

/// The address of a node's server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SqlAddress {
    /// The directory with its socket.
    pub(crate) directory: PathBuf,
    pub(crate) port: u16,
    pub(crate) user: String,
}

impl SqlAddress {
    /// Returns the address as clients of PostgreSQL take it.
    pub(crate) fn url(&self) -> String {
        let directory = self.directory.display().to_string().replace('%', "%25").replace('/', "%2F");
        format!("postgresql://{}@{directory}:{}/postgres", self.user, self.port)
    }
}

/// Returns the address of the server of a node; `None` if the cluster has none.
///
/// # Errors
/// The table is wrong; the text is one line for the user.
pub(crate) fn address(config: &Config, node: NodeId) -> Result<Option<SqlAddress>, String> {
    if !config.sections.contains_key(SECTION) {
        return Ok(None);
    }
    let SqlConfig { port, user, .. } = config.section(SECTION)?;
    let port = port.checked_add(node.0.into()).ok_or("[sql]: port is too high for all nodes")?;
    let socket = config.dir.attach(&config.name_of(node));
    let directory = socket.parent().unwrap_or(Path::new(".")).to_owned();
    let directory =
        std::path::absolute(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(Some(SqlAddress { directory, port, user }))
}

/// A server that runs until it is dropped.
pub(super) struct RunningServer {
    path: PathBuf,
    accepting: CancelHandle,
    server: Arc<Server>,
}

impl RunningServer {
    /// Starts the server of a node. Its sockets are accepted on `thread`.
    pub(super) fn start(
        node: &NodeRuntime,
        address: &SqlAddress,
        store: Store<Cache>,
        thread: &TaskThread,
    ) -> Result<Self, String> {
        let SqlConfig { user, sessions, .. } = node.config().section(SECTION)?;
        let path = address.directory.join(format!(".s.PGSQL.{}", address.port));
        let failed = |error: io::Error| format!("{}: the socket for SQL: {error}", path.display());
        let listener = bind_for_owner(&path, |path| UnixListener::bind(path)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let threads = usize::from(node.config().workers);
        let server = Server::start(ServerSettings { user, sessions }, threads).map_err(failed)?;
        let server = Arc::new(server);
        let worker = node.workers()[0].clone();
        let serving = server.clone();
        let accepting = thread.spawn(move || async move {
            let listener = match worker.descriptor(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!("the socket for SQL: {error}"),
            };
            let serve = |stream| match worker.descriptor(stream) {
                Ok(stream) => serving.serve(store.clone(), Socket::Unix(stream)),
                Err(error) => tracing::error!("a session cannot begin: {error}"),
            };
            if let Err(error) = accept(listener, serve).await {
                tracing::error!("the socket for SQL: {error}");
            }
        });
        Ok(Self { path, accepting: accepting.cancel_handle(), server })
    }

    /// Returns the number of sessions.
    pub(super) fn sessions(&self) -> usize {
        self.server.sessions()
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.accepting.cancel();
        // After a failure there is nothing left to do.
        let _ = std::fs::remove_file(&self.path);
    }
}
