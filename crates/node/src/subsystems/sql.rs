//! The SQL server in its node, if `cluster.toml` has a table `[sql]`.

use std::{io, os::unix::net::UnixListener, path::PathBuf, sync::Arc};

use plexus_admin::sql::{SECTION, SqlAddress, SqlConfig};
use plexus_cache::Cache;
use plexus_fabric::shm::bind_for_owner;
use plexus_interconnect::executor::{CancelHandle, TaskThread};
use plexus_sql::{
    Socket,
    server::{Server, ServerSettings, accept},
};
use plexus_store::Store;

use crate::runtime::NodeRuntime;

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
        let path = address.socket();
        let failed = |error: io::Error| format!("{}: the socket for SQL: {error}", path.display());
        let listener = bind_for_owner(&path, |path| UnixListener::bind(path)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let threads = usize::from(node.config().workers);
        let server = Server::start(ServerSettings { user, sessions, locks: node.locks().clone() }, threads)
            .map_err(failed)?;
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
