//! The SQL server in its node, if `cluster.toml` has a table `[sql]`.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::AsFd,
        unix::{fs::MetadataExt, net::UnixListener},
    },
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use plexus_admin::{
    control::{Forwarded, Request},
    keys,
    layout::ClusterDir,
    sql::{SECTION, SqlAddress, SqlConfig},
};
use plexus_base::NodeId;
use plexus_cache::Cache;
use plexus_fabric::shm::bind_for_owner;
use plexus_interconnect::executor::{CancelHandle, Descriptor, TaskThread};
use plexus_sql::{
    Peers, Socket,
    server::{Server, ServerSettings, Tls, accept, tls_settings},
};
use plexus_store::Store;
use serde_json::Value;

use crate::runtime::NodeRuntime;

/// A server that runs until it is dropped.
pub(super) struct RunningServer {
    path: PathBuf,
    tcp: SocketAddr,
    accepting: [CancelHandle; 2],
    server: Arc<Server>,
}

/// Returns a quarter of the memory of the machine, in bytes.
fn quarter_of_memory() -> usize {
    let found = rustix::system::sysinfo();
    (found.totalram as usize).saturating_mul(found.mem_unit as usize) / 4
}

impl RunningServer {
    /// Starts the server of a node. Its sockets are accepted on `thread`.
    pub(super) fn start(
        node: &Arc<NodeRuntime>,
        address: &SqlAddress,
        store: Store<Cache>,
        thread: &TaskThread,
    ) -> Result<Self, String> {
        let SqlConfig { user, sessions, threads, slow_ms, counted_statements, memory_mib, .. } =
            node.config().section(SECTION)?;
        let path = address.socket();
        let failed = |error: io::Error| format!("{}: the socket for SQL: {error}", path.display());
        let listener = bind_for_owner(&path, |path| UnixListener::bind(path)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let tcp = TcpListener::bind(address.tcp()).and_then(|tcp| tcp.set_nonblocking(true).map(|()| tcp));
        let tcp = tcp.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!(
                    "{}: another program has this port: set `port` of [sql] in cluster.toml",
                    address.tcp()
                )
            }
            _ => format!("{}: the port for SQL: {error}", address.tcp()),
        })?;
        let threads = threads.unwrap_or(node.config().workers.into()).max(1);
        let password = keys::password(&node.config().dir).map_err(|error| error.to_string())?;
        let tls = Certificate::new(node.config().dir.clone())?;
        if tls.current().is_none() && !address.listen.is_loopback() {
            return Err(format!(
                "[sql]: listen = \"{}\" needs keys/sql.crt and keys/sql.key, a certificate in PEM and its key",
                address.listen
            ));
        }
        let temporary = node.config().dir.root().to_owned();
        let (me, locks, groups) = (node.me(), node.locks().clone(), node.groups().clone());
        let peers = Box::new(NodePeers(Arc::downgrade(node)));
        let (tls, slow) = (Box::new(move || tls.current()), slow_ms.map(Duration::from_millis));
        let settings = ServerSettings {
            user,
            password,
            sessions,
            tls,
            slow,
            counted: counted_statements,
            memory: memory_mib.map_or_else(quarter_of_memory, |mib| mib << 20),
            me,
            locks,
            groups,
            peers,
            temporary,
        };
        let server =
            Server::start(settings, threads, || node.workers()[0].descriptor_set()).map_err(failed)?;
        let serving = (Arc::new(server), store);
        let local = accepting(node, thread, &serving, listener, |listener| {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok((stream, "local".into()))
        });
        let remote = accepting(node, thread, &serving, tcp, |listener| {
            let (stream, address) = listener.accept()?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            Ok((stream, address.to_string()))
        });
        let (accepting, server) = ([local, remote], serving.0);
        Ok(Self { path, tcp: address.tcp(), accepting, server })
    }

    /// Returns where clients find it.
    pub(super) fn addresses(&self) -> [String; 2] {
        [self.path.display().to_string(), self.tcp.to_string()]
    }

    /// Returns the server.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

/// The certificate of the node and its key. They are read again when one of the files has changed.
struct Certificate {
    dir: ClusterDir,
    known: Mutex<(FileStates, Option<Tls>)>,
}

/// The numbers of the files of a certificate, with the times of their last changes.
type FileStates = [Option<(u64, i64, i64)>; 2];

impl Certificate {
    fn new(dir: ClusterDir) -> Result<Self, String> {
        let (states, tls) = (Self::states(&dir), Self::read(&dir)?);
        Ok(Self { dir, known: Mutex::new((states, tls)) })
    }

    fn states(dir: &ClusterDir) -> FileStates {
        [dir.sql_certificate(), dir.sql_key()].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.ctime(), found.ctime_nsec()))
        })
    }

    fn read(dir: &ClusterDir) -> Result<Option<Tls>, String> {
        let found = keys::certificate(dir).map_err(|error| error.to_string())?;
        let tls = found.map(|(certificate, key)| tls_settings(certificate.as_bytes(), key.as_bytes()));
        tls.transpose().map_err(|error| format!("the certificate in keys/sql.crt: {error}"))
    }

    /// Returns the certificate. The one before stays while the files are no certificate with its
    /// key: one of them may still be the old one.
    fn current(&self) -> Option<Tls> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let states = Self::states(&self.dir);
        if known.0 != states {
            known.0 = states;
            match Self::read(&self.dir) {
                Ok(Some(new)) => known.1 = Some(new),
                Ok(None) => {}
                Err(error) => tracing::error!("{error}; the one before stays"),
            }
        }
        known.1.clone()
    }
}

/// The other nodes, as sessions ask them.
struct NodePeers(Weak<NodeRuntime>);

impl Peers for NodePeers {
    fn members(&self) -> Vec<NodeId> {
        let Some(node) = self.0.upgrade() else { return Vec::new() };
        let members = node.view().map(|view| view.members().iter().collect::<Vec<_>>());
        members.unwrap_or_default().into_iter().filter(|member| *member != node.me()).collect()
    }

    fn ask(
        &self,
        node: NodeId,
        command: &'static str,
        args: Value,
    ) -> Pin<Box<dyn Future<Output = Option<Value>> + Send>> {
        let request = serde_json::to_vec(&Request { command: command.to_owned(), args }).ok();
        let asked = self.0.upgrade().zip(request);
        let asked = asked.map(|(runtime, request)| runtime.handles().forward.ask(node, request));
        Box::pin(async move {
            match Forwarded::of(&asked?.await?.ok()?) {
                Forwarded::Ok(answer) => Some(answer),
                _ => None,
            }
        })
    }
}

/// Serves the clients of a socket, on a thread. `take` accepts one, and says where it is.
fn accepting<L: AsFd + Send + 'static, S: AsFd + 'static>(
    node: &NodeRuntime,
    thread: &TaskThread,
    (server, store): &(Arc<Server>, Store<Cache>),
    listener: L,
    take: fn(&L) -> io::Result<(S, String)>,
) -> CancelHandle
where
    Socket: From<Descriptor<S>>,
{
    let (worker, server, store) = (node.workers()[0].clone(), server.clone(), store.clone());
    let accepting = thread.spawn(move || async move {
        let listener = match worker.descriptor(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!("clients of SQL cannot be accepted: {error}"),
        };
        let serve = |(stream, address)| {
            if let Err(error) = server.serve(store.clone(), stream, address) {
                tracing::error!("a session cannot begin: {error}");
            }
        };
        accept(listener, take, serve).await;
    });
    accepting.cancel_handle()
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.accepting.iter().for_each(CancelHandle::cancel);
        self.server.end_all();
        // After a failure there is nothing left to do.
        let _ = std::fs::remove_file(&self.path);
    }
}
