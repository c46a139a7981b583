//! The server: sockets at which clients connect, and their sessions.

use std::{
    collections::HashMap,
    io,
    os::unix::net::UnixListener,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use plexus_cache::Cache;
use plexus_interconnect::executor::{self, Descriptor, TaskThread};
use plexus_locks::LockManager;
use plexus_store::Store;

use crate::{
    error::{Result, SqlError, code},
    functions::Context,
    sequences::{Drawn, Ranges},
    session::Session,
    types::time,
    wire::{
        Start,
        connection::{Cancel, Connection, Socket},
    },
};

/// The time in which a client must have said who it is.
const START_TIME: Duration = Duration::from_secs(30);

/// The settings of a server.
pub struct ServerSettings {
    /// The user that may connect, which is also the name of a database.
    pub user: String,
    /// The most sessions at a time.
    pub sessions: usize,
    /// The lock manager of the node.
    pub locks: LockManager,
}

/// The SQL server of a node.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<TaskThread>,
}

struct Shared {
    settings: ServerSettings,
    sessions: Mutex<HashMap<i32, (i32, Arc<Cancel>)>>,
    next_process: AtomicI32,
    next_thread: AtomicUsize,
    ranges: Arc<Ranges>,
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, HashMap<i32, (i32, Arc<Cancel>)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the entry of a session when it is dropped.
struct Entry<'a> {
    shared: &'a Shared,
    process: i32,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.shared.sessions().remove(&self.process);
    }
}

impl Server {
    /// Starts threads that run sessions.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(settings: ServerSettings, threads: usize) -> io::Result<Self> {
        let threads = (0..threads.max(1)).map(|thread| TaskThread::start(&format!("sql-{thread}")));
        let shared = Shared {
            settings,
            sessions: Mutex::default(),
            next_process: AtomicI32::new(1),
            next_thread: AtomicUsize::new(0),
            ranges: Arc::default(),
        };
        Ok(Self { shared: Arc::new(shared), threads: threads.collect::<io::Result<_>>()? })
    }

    /// Serves a client that has connected, on one of the threads.
    pub fn serve(&self, store: Store<Cache>, socket: Socket) {
        let at = self.shared.next_thread.fetch_add(1, Relaxed) % self.threads.len();
        let shared = self.shared.clone();
        let session = move || async move {
            if let Err(why) = connected(&shared, store, socket).await {
                tracing::debug!("a session has ended: {why}");
            }
        };
        drop(self.threads[at].spawn(session));
    }

    /// Returns the number of sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.shared.sessions().len()
    }
}

/// Accepts clients of this machine until the task is dropped. `serve` gets the socket of each.
///
/// # Errors
/// The socket is broken.
pub async fn accept(
    listener: Descriptor<UnixListener>,
    mut serve: impl FnMut(std::os::unix::net::UnixStream),
) -> io::Result<()> {
    loop {
        let (stream, _) = listener.read(|listener| listener.accept()).await?;
        stream.set_nonblocking(true)?;
        serve(stream);
    }
}

/// Serves a connection from its first message on.
async fn connected(shared: &Shared, store: Store<Cache>, socket: Socket) -> Result<()> {
    let mut connection = Connection::new(socket);
    let start = executor::timeout(START_TIME, first(&mut connection)).await;
    let start = match start {
        Some(Ok(Some(Start::Session(start)))) => start,
        Some(Ok(Some(Start::Cancel { process, secret }))) => {
            let sessions = shared.sessions();
            if let Some((own, cancel)) = sessions.get(&process)
                && *own == secret
            {
                cancel.request();
            }
            return Ok(());
        }
        Some(Err(error)) => {
            connection.out.error(&error, "FATAL");
            return connection.flush().await;
        }
        Some(Ok(_)) | None => return Ok(()),
    };
    match session(shared, store, &mut connection, &start).await {
        Err(error) if !error.code.starts_with("08") || error.code == code::PROTOCOL_VIOLATION => {
            connection.out.error(&error, "FATAL");
            connection.flush().await
        }
        other => other,
    }
}

/// Waits for the first message that does not ask for encryption, which there is not.
async fn first(connection: &mut Connection) -> Result<Option<Start>> {
    loop {
        match connection.start().await? {
            Some(Start::Encryption) => connection.send_byte(b'N').await?,
            other => return Ok(other),
        }
    }
}

async fn session(
    shared: &Shared,
    store: Store<Cache>,
    connection: &mut Connection,
    start: &[(String, String)],
) -> Result<()> {
    let find = |name: &str| start.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let settings = &shared.settings;
    let user = find("user").unwrap_or_default();
    if user != settings.user {
        let message = format!("role \"{user}\" does not exist");
        return Err(SqlError::new(code::INVALID_AUTHORIZATION, message));
    }
    let database = find("database").unwrap_or(user);
    if database != "postgres" && database != settings.user {
        let message = format!("database \"{database}\" does not exist");
        return Err(SqlError::new(code::INVALID_CATALOG_NAME, message));
    }
    if shared.sessions().len() >= settings.sessions {
        return Err(SqlError::new(code::TOO_MANY_CONNECTIONS, "sorry, too many clients already"));
    }
    let process = shared.next_process.fetch_add(1, Relaxed);
    let secret = secret();
    let cancel = Arc::new(Cancel::default());
    shared.sessions().insert(process, (secret, cancel.clone()));
    let _entry = Entry { shared, process };
    connection.is_authenticated = true;
    connection.out.authentication(0, &[]);
    connection.out.cancel_key(process, secret);
    let context = Context {
        begun: time::now(),
        user: user.to_owned(),
        database: database.to_owned(),
        process,
        sequences: Drawn::default(),
    };
    let (locks, ranges) = (settings.locks.clone(), shared.ranges.clone());
    Session::new(store, locks, ranges, connection, &cancel, context, start)?.serve().await
}

/// Returns a number that others cannot guess.
fn secret() -> i32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as i32
}
