//! The server: sockets at which clients connect, and their sessions.

use std::{
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plexus_base::NodeId;
use plexus_cache::Cache;
use plexus_interconnect::executor::{self, Descriptor, DescriptorSet, TaskThread};
use plexus_locks::{LockManager, NodeLock, protocol::Mode};
use plexus_membership::groups::Groups;
use plexus_store::Store;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{
    activity::{Activity, SessionInfo},
    answers::Answers,
    catalog::{Catalog, SessionPlace},
    dml::foreign::Constraints,
    error::{Result, SqlError, code, error, fail},
    functions::{self, Advisory, Context, OtherSessions},
    memory::{NodeMemory, StatementMemory},
    notifications::{Notifications, SessionNotifications},
    peers::{ClusterSessions, Peers},
    roles::FirstRole,
    sequences::{Drawn, Ranges},
    session::{
        Session, SessionParts,
        locks::{self, lock_database},
        settings::Settings,
    },
    statements::{StatementCounts, StatementInfo},
    system::Definitions,
    types::{time, zone},
    wire::{
        Received, Start,
        connection::{Connection, Socket},
        scram::{Exchange, MECHANISM, Verifier, random},
    },
};

/// The time in which a client must have said who it is.
const START_TIME: Duration = Duration::from_secs(30);

/// The connections beyond the most sessions that may be about to begin.
const STARTING: usize = 100;

/// The time in which sessions must end when the node stops.
const END_TIME: Duration = Duration::from_secs(1);

/// The settings of a server.
pub struct ServerSettings {
    /// The first role, a superuser, whose name is also the name of a database.
    pub user: String,
    /// The password of the first role, until a statement gives it another one.
    pub password: Option<String>,
    /// The most sessions at a time.
    pub sessions: usize,
    /// Returns the certificate for TLS, with its key, for each client that wants it; without one
    /// only clients of this machine connect.
    pub tls: Box<dyn Fn() -> Option<Tls> + Send + Sync>,
    /// The time from which on a statement is noted in the log.
    pub slow: Option<Duration>,
    /// The most statements whose runs are counted; 0: none.
    pub counted: usize,
    /// The most bytes of rows that all statements keep in memory together.
    pub memory: usize,
    /// The node.
    pub me: NodeId,
    /// The lock manager of the node.
    pub locks: LockManager,
    /// The groups of the node.
    pub groups: Groups,
    /// The other nodes.
    pub peers: Box<dyn Peers>,
    /// The directory for temporary files, which have no names.
    pub temporary: PathBuf,
}

/// The settings of TLS.
pub type Tls = Arc<ServerConfig>;

/// Makes the settings of TLS from a certificate and its key, both in PEM.
///
/// # Errors
/// They are malformed, or do not belong together.
pub fn tls_settings(certificate: &[u8], key: &[u8]) -> io::Result<Tls> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(certificate)
        .collect::<std::result::Result<_, _>>()
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let settings = settings.map_err(io::Error::other)?.with_no_client_auth();
    settings.with_single_cert(certificates, key).map(Arc::new).map_err(io::Error::other)
}

/// The SQL server of a node.
pub struct Server {
    shared: Arc<Shared>,
    /// Each with the sockets of its clients.
    threads: Vec<(TaskThread, Arc<DescriptorSet>)>,
}

struct Shared {
    first: FirstRole,
    most_sessions: usize,
    tls: Box<dyn Fn() -> Option<Tls> + Send + Sync>,
    slow: Option<Duration>,
    counts: Option<Arc<StatementCounts>>,
    memory: Arc<NodeMemory>,
    locks: LockManager,
    notifications: Arc<Notifications>,
    temporary: Arc<Path>,
    sessions: Arc<ClusterSessions>,
    /// The clients that are connected, with and without a session.
    connections: AtomicUsize,
    /// No session begins any more.
    is_ending: AtomicBool,
    next_process: AtomicI32,
    next_thread: AtomicUsize,
    ranges: Arc<Ranges>,
    /// Makes the answers to unknown roles the same each time.
    secret: [u8; 32],
}

/// Ends the entry of a session when it is dropped.
struct Entry<'a> {
    shared: &'a Shared,
    process: i32,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.shared.sessions.own().remove(&self.process);
    }
}

/// Counts a connection until it is dropped.
struct Connected(Arc<Shared>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Server {
    /// Starts threads that run sessions. `sockets` makes a set for the sockets of each.
    ///
    /// # Errors
    /// The system cannot start a thread, or gives no random numbers.
    pub fn start(
        settings: ServerSettings,
        threads: usize,
        mut sockets: impl FnMut() -> io::Result<DescriptorSet>,
    ) -> io::Result<Self> {
        let threads = (0..threads.max(1)).map(|number| {
            let thread = TaskThread::start(&format!("sql-{number}"))?;
            let sockets = Arc::new(sockets()?);
            let served = sockets.clone();
            let serving = move || async move {
                if let Err(error) = served.serve().await {
                    tracing::error!("clients of SQL cannot be heard: {error}");
                }
            };
            drop(thread.spawn(serving));
            Ok((thread, sockets))
        });
        let counts = (settings.counted > 0).then(|| Arc::new(StatementCounts::new(settings.counted)));
        let verifier = settings.password.map(|password| Verifier::of(&password)).transpose();
        let verifier = verifier.map_err(io::Error::other)?.map(|verifier| verifier.text());
        functions::start_time();
        let shared = Shared {
            first: FirstRole { role: settings.user, verifier },
            most_sessions: settings.sessions,
            tls: settings.tls,
            slow: settings.slow,
            counts: counts.clone(),
            memory: NodeMemory::new(settings.memory),
            locks: settings.locks,
            notifications: Arc::new(
                Notifications::start(&settings.groups, settings.me).map_err(io::Error::other)?,
            ),
            temporary: settings.temporary.into(),
            sessions: Arc::new(ClusterSessions::new(settings.me, settings.peers, counts)),
            connections: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            next_process: AtomicI32::new(1),
            next_thread: AtomicUsize::new(0),
            ranges: Arc::default(),
            secret: random().map_err(io::Error::other)?,
        };
        Ok(Self { shared: Arc::new(shared), threads: threads.collect::<io::Result<_>>()? })
    }

    /// Serves a client that has connected, on one of the threads. `address` is where it is, for
    /// people.
    ///
    /// # Errors
    /// The system cannot watch the socket.
    pub fn serve<S: AsFd>(&self, store: Store<Cache>, stream: S, address: String) -> io::Result<()>
    where
        Socket: From<Descriptor<S>>,
    {
        let at = self.shared.next_thread.fetch_add(1, Relaxed) % self.threads.len();
        let (thread, sockets) = &self.threads[at];
        self.serve_socket(thread, store, Socket::from(sockets.descriptor(stream)?), address);
        Ok(())
    }

    /// Serves a client on a thread. This and all that it calls is compiled once, in this crate.
    fn serve_socket(&self, thread: &TaskThread, store: Store<Cache>, socket: Socket, address: String) {
        let shared = self.shared.clone();
        let before = shared.connections.fetch_add(1, Relaxed);
        let counted = Connected(shared.clone());
        if before >= shared.most_sessions + STARTING {
            // Not even a message: those that flood a port get no work done.
            return drop((socket, counted));
        }
        let session = move || async move {
            let shared = &counted.0;
            // In a box, so that what hands the task on has no room for it twice.
            if let Err(why) = Box::pin(connected(shared, store, socket, address)).await {
                tracing::debug!("a session has ended: {why}");
            }
        };
        drop(thread.spawn(session));
    }

    /// Returns the sessions.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.sessions.own_infos()
    }

    /// Returns the counts of statements of this node.
    #[must_use]
    pub fn statements(&self) -> Vec<StatementInfo> {
        self.shared.sessions.own_statements()
    }

    /// Cancels the statement of a session, or ends the session. Returns whether there is such a
    /// session.
    #[must_use]
    pub fn signal(&self, id: i32, ends: bool) -> bool {
        self.shared.sessions.signal_own(id, ends)
    }

    /// Lets transactions end, for at most `longest`. Sessions without one are ended, and none
    /// begins any more. Returns how many sessions are left.
    #[must_use]
    pub fn drain(&self, longest: Duration) -> usize {
        let begin = Instant::now();
        self.shared.is_ending.store(true, Relaxed);
        loop {
            let sessions = self.shared.sessions.own();
            sessions.values().filter(|activity| activity.is_idle()).for_each(|activity| activity.end());
            let left = sessions.len();
            drop(sessions);
            if left == 0 || begin.elapsed() >= longest {
                return left;
            }
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Ends all sessions, with a message to their clients.
    pub fn end_all(&self) {
        let begin = Instant::now();
        self.shared.sessions.own().values().for_each(|activity| activity.end());
        while begin.elapsed() < END_TIME && !self.shared.sessions.own().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The time between two looks whether transactions are at their end.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The wait before connections are accepted again when the process has no descriptor left.
const RETRY: Duration = Duration::from_millis(100);

/// Accepts clients until the task is dropped. `take` accepts one that waits; `serve` gets it.
pub async fn accept<L: AsFd, S>(
    listener: Descriptor<L>,
    take: impl Fn(&L) -> io::Result<S>,
    mut serve: impl FnMut(S),
) {
    loop {
        match listener.read(&take).await {
            Ok(client) => serve(client),
            Err(error) => {
                tracing::warn!("a client of SQL cannot be accepted: {error}");
                executor::sleep(RETRY).await;
            }
        }
    }
}

/// Serves a connection from its first message on.
async fn connected(shared: &Shared, store: Store<Cache>, socket: Socket, address: String) -> Result<()> {
    let mut connection = Connection::new(socket);
    let start = async {
        let Some(Start::Session(start)) = first(shared, &mut connection).await? else { return Ok(None) };
        if shared.is_ending.load(Relaxed) {
            return Err(SqlError::new(code::CANNOT_CONNECT_NOW, "the node is shutting down"));
        }
        let (place, most) = authenticated(shared, &store, &mut connection, &start).await?;
        let lock = shared_database(shared, &store, &start, &place).await?;
        Ok(Some((start, place, most, lock)))
    };
    let (start, place, most, _lock) = match executor::timeout(START_TIME, Box::pin(start)).await {
        Some(Ok(Some(found))) => found,
        Some(Err(error)) => return refused(&mut connection, error).await,
        Some(Ok(None)) | None => return Ok(()),
    };
    match zone::of_session(session(shared, store, &mut connection, &start, (place, most), address)).await {
        Err(error) => refused(&mut connection, error).await,
        ended => ended,
    }
}

/// Tells a client why its session ends, unless it is gone.
async fn refused(connection: &mut Connection, error: SqlError) -> Result<()> {
    if error.code.starts_with("08") && error.code != code::PROTOCOL_VIOLATION {
        return Err(error);
    }
    connection.out.error(&error, "FATAL");
    // A client that reads nothing is not waited for.
    executor::timeout(END_TIME, connection.flush()).await.unwrap_or(Ok(()))
}

/// Waits for the first message that does not ask for encryption.
async fn first(shared: &Shared, connection: &mut Connection) -> Result<Option<Start>> {
    loop {
        match connection.start().await? {
            Some(Start::Encryption { is_tls }) => match (shared.tls)() {
                Some(tls) if is_tls && connection.is_remote() && !connection.is_encrypted() => {
                    connection.send_byte(b'S').await?;
                    connection.encrypt(tls)?;
                }
                _ => connection.send_byte(b'N').await?,
            },
            Some(Start::Cancel { process, secret }) => {
                let sessions = shared.sessions.own();
                if let Some(activity) = sessions.get(&process).filter(|activity| activity.secret == secret) {
                    activity.cancel();
                }
                return Ok(None);
            }
            other => return Ok(other),
        }
    }
}

/// Returns the value of a start-up setting.
fn find<'a>(start: &'a [(String, String)], name: &str) -> Option<&'a str> {
    start.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Returns the name of the database that a client asks for.
fn database_of(start: &[(String, String)]) -> &str {
    find(start, "database").or_else(|| find(start, "user")).unwrap_or_default()
}

fn no_database(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CATALOG_NAME, format!("database \"{name}\" does not exist"))
}

/// Takes the lock that keeps a database while it has sessions. Those of the beginning always stay.
async fn shared_database(
    shared: &Shared,
    store: &Store<Cache>,
    start: &[(String, String)],
    place: &SessionPlace,
) -> Result<Option<NodeLock>> {
    if place.database < 2 {
        return Ok(None);
    }
    let lock =
        lock_database(&shared.locks, place.database, Mode::CR, START_TIME).await.map_err(locks::failed)?;
    // It may have gone before the lock was there.
    let name = database_of(start);
    let mut transaction = store.begin(plexus_store::Isolation::default());
    let number = shared.first.database(&mut transaction, name).await?;
    transaction.rollback();
    if number == Some(place.database) { Ok(Some(lock)) } else { Err(no_database(name)) }
}

/// Finds the role and the database of a client, which proves its password unless it is a program
/// of this machine's owner, and the most sessions of the role.
async fn authenticated(
    shared: &Shared,
    store: &Store<Cache>,
    connection: &mut Connection,
    start: &[(String, String)],
) -> Result<(SessionPlace, Option<u32>)> {
    let name = find(start, "user").unwrap_or_default();
    let database = database_of(start);
    let mut transaction = store.begin(plexus_store::Isolation::default());
    let role = shared.first.role(&mut transaction, name).await?;
    let number = shared.first.database(&mut transaction, database).await?;
    transaction.rollback();
    if connection.is_elsewhere() && !connection.is_encrypted() {
        fail!(INVALID_AUTHORIZATION, "clients of other machines must encrypt: use sslmode=require");
    }
    if connection.is_remote() {
        let verifier = role.as_ref().and_then(|role| role.verifier.as_deref()).and_then(Verifier::parse);
        let verifier = verifier.unwrap_or_else(|| Verifier::of_none(&shared.secret, name));
        prove(connection, verifier, name).await?;
    }
    let role = role.ok_or_else(|| error!(INVALID_AUTHORIZATION, "role \"{name}\" does not exist"))?;
    if !role.can_login {
        fail!(INVALID_AUTHORIZATION, "role \"{name}\" is not permitted to log in");
    }
    let database = number.ok_or_else(|| no_database(database))?;
    let most = role.most_sessions.filter(|_| !role.is_superuser);
    Ok((SessionPlace { database, role: name.to_owned(), is_superuser: role.is_superuser }, most))
}

/// Lets a client prove that it knows a password.
async fn prove(connection: &mut Connection, verifier: Verifier, name: &str) -> Result<()> {
    const WANTED: u32 = 10;
    const GOES_ON: u32 = 11;
    const LAST: u32 = 12;
    let violation = || SqlError::new(code::PROTOCOL_VIOLATION, "expected a SASL response");
    connection.out.authentication(WANTED, format!("{MECHANISM}\0\0").as_bytes());
    let Some(Received::Password(message)) = connection.receive().await? else { return Err(violation()) };
    let at = message.iter().position(|byte| *byte == 0).ok_or_else(violation)?;
    let (mechanism, rest) = message.split_at(at);
    if mechanism != MECHANISM.as_bytes() {
        fail!(PROTOCOL_VIOLATION, "client selected an invalid SASL authentication mechanism");
    }
    // Behind the end of the name is the length.
    let exchange = Exchange::begin(verifier, rest.get(5..).ok_or_else(violation)?)?;
    connection.out.authentication(GOES_ON, exchange.first().as_bytes());
    let Some(Received::Password(message)) = connection.receive().await? else { return Err(violation()) };
    let Some(end) = exchange.end(&message)? else {
        fail!(INVALID_PASSWORD, "password authentication failed for user \"{name}\"");
    };
    connection.out.authentication(LAST, end.as_bytes());
    Ok(())
}

async fn session(
    shared: &Shared,
    store: Store<Cache>,
    connection: &mut Connection,
    start: &[(String, String)],
    (place, most): (SessionPlace, Option<u32>),
    address: String,
) -> Result<()> {
    let user = place.role.clone();
    let database = database_of(start).to_owned();
    let secret = i32::from_le_bytes(random()?);
    let activity =
        Activity::new(secret, user.clone(), database.clone(), address, shared.slow, shared.counts.clone());
    let activity = Arc::new(activity);
    let process = {
        let mut sessions = shared.sessions.own();
        if sessions.len() >= shared.most_sessions {
            return Err(SqlError::new(code::TOO_MANY_CONNECTIONS, "sorry, too many clients already"));
        }
        let of_role = || sessions.values().filter(|activity| activity.user() == user).count();
        if most.is_some_and(|most| of_role() >= most as usize) {
            fail!(TOO_MANY_CONNECTIONS, "too many connections for role \"{user}\"");
        }
        let next = || shared.sessions.process(shared.next_process.fetch_add(1, Relaxed));
        let process = std::iter::repeat_with(next).find(|next| !sessions.contains_key(next));
        let process = process.unwrap_or_default();
        sessions.insert(process, activity.clone());
        process
    };
    let _entry = Entry { shared, process };
    connection.is_authenticated = true;
    connection.out.authentication(0, &[]);
    connection.out.cancel_key(process, secret);
    let context = Context {
        begun: time::now(),
        statement_begun: 0,
        settings: Settings::new(place.is_superuser).into(),
        user,
        database,
        process,
        sequences: Drawn::default(),
        constraints: Constraints::default(),
        place: place.clone(),
        definitions: Definitions::new(shared.first.role.clone()),
        answers: Answers::default(),
        memory: StatementMemory::new(shared.memory.clone()),
        advisory: Advisory::new(Some(shared.locks.clone()), activity.clone(), place.database),
        sessions: OtherSessions::new(Some(shared.sessions.clone())),
        notifications: SessionNotifications::new(
            Some(shared.notifications.clone()),
            activity.clone(),
            place.database,
            process,
        ),
        temporary: Default::default(),
    };
    let parts = SessionParts {
        store,
        locks: shared.locks.clone(),
        ranges: shared.ranges.clone(),
        first: shared.first.clone(),
        temporary: shared.temporary.clone(),
    };
    let session = Session::new(parts, Catalog::new(place), connection, &activity, context, start)?;
    match session.serve().await {
        // Before the entry ends, for which a node that stops waits.
        Err(error) => refused(connection, error).await,
        ended => ended,
    }
}
