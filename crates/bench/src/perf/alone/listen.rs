//! The listener: authenticates all incoming connections at once, then serves one client after
//! another.
//!
//! Each connection has a thread and little time. [`MAX_INCOMING`] connections are authenticated at
//! once, [`FROM_ONE`] of them from one address, so that a silent client does not delay others. A
//! request is executed only after it was sealed with the key.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use plexus_admin::acceptor::Acceptor;
use plexus_interconnect::mesh::Key;

use super::{
    AloneError, Ask,
    machine::{identity, pin},
    meet::{Answer, AskWire, choose},
    mesh::{End, Pair},
    sealed::Sealed,
};
use crate::perf::{PerfError, Serve, serve};

/// The time in which a client must prove the key, and that in which it must send its request.
const AUTHENTICATED_WITHIN: Duration = Duration::from_secs(2);

/// The maximum of connections that are being authenticated or wait to be served.
const MAX_INCOMING: usize = 64;

/// The maximum of these connections from one address.
const FROM_ONE: usize = 16;

/// The time limit of a session.
const TIMEOUT_MS: u64 = 24 * 3600 * 1000;

/// Waits for clients.
pub struct Listener {
    address: SocketAddr,
    core: Option<usize>,
    key: Option<Key>,
    incoming: Receiver<Incoming>,
    _acceptor: Acceptor,
}

/// An incoming connection.
#[allow(clippy::large_enum_variant, reason = "one for each connection, handed over once")]
enum Incoming {
    /// An authenticated client, with its request.
    Client { control: Box<Sealed>, client: SocketAddr, asked: AskWire },
    /// A connection without a valid key, and the reason.
    Unauthenticated { client: SocketAddr, why: String },
}

/// The result of one connection.
#[derive(Debug)]
pub enum Served {
    /// A session that its client ended.
    PerfSession {
        /// The client.
        client: SocketAddr,
        /// The rail.
        rail: String,
    },
    /// The listener refused the request.
    Refused {
        /// The address of the client.
        client: SocketAddr,
        /// The reason for the refusal.
        why: String,
    },
    /// A client without the key. While a client is served, only the first such client is reported.
    Unauthenticated {
        /// The address of the client.
        client: SocketAddr,
        /// The reason.
        why: String,
    },
}

impl Listener {
    /// Listens at `address`. Sessions stay on `core` unless the client names another. With a `key`,
    /// connections that do not prove it get no reply.
    ///
    /// # Errors
    /// The address is in use, or not an address of this machine.
    pub fn bind(address: SocketAddr, core: Option<usize>, key: Option<Key>) -> Result<Self, AloneError> {
        let failed = |error| AloneError::Listen { address: address.to_string(), error };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (tell, incoming) = sync_channel(1);
        let (theirs, from) = (key.clone(), Arc::new(Mutex::new(BTreeMap::new())));
        let serve = move |stream: TcpStream| {
            // The client has disconnected already.
            let Ok(client) = stream.peer_addr() else { return };
            let Some(_place) = AddressSlot::take(&from, client.ip()) else { return };
            authenticate(stream, client, theirs.as_ref(), &tell);
        };
        let acceptor = Acceptor::start("perf-listen", listener, MAX_INCOMING, serve, drop).map_err(failed)?;
        Ok(Self { address, core, key, incoming, _acceptor: acceptor })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a client and serves it to its end.
    ///
    /// # Errors
    /// No more connections are accepted. A failure of one client is no error.
    pub fn serve_one(&self) -> io::Result<Served> {
        let connection = self.incoming.recv().map_err(|_| io::Error::other("the listener has stopped"))?;
        let (mut control, client, asked) = match connection {
            Incoming::Client { control, client, asked } => (control, client, asked),
            Incoming::Unauthenticated { client, why } => return Ok(Served::Unauthenticated { client, why }),
        };
        let served = asked.ask().and_then(|ask| {
            // The pinning to a core ends with this thread.
            thread::scope(|scope| {
                let (core, key) = (ask.core.or(self.core), self.key.as_ref());
                let session = scope.spawn({
                    let (control, ask, machine) = (&mut control, &ask, &asked.machine);
                    move || session(control, ask, machine, core, key)
                });
                session.join().unwrap_or_else(|_| Err("the session panicked".into()))
            })
        });
        Ok(match served {
            Ok(rail) => Served::PerfSession { client, rail },
            Err(why) => {
                // Best effort: the client may be gone, or may have its answer already.
                let _ = control.send(&Err::<Answer, &str>(&why));
                Served::Refused { client, why }
            }
        })
    }
}

/// Serves a client to its end. Returns the name of the rail.
fn session(
    control: &mut Sealed,
    ask: &Ask,
    machine: &str,
    core: Option<usize>,
    key: Option<&Key>,
) -> Result<String, String> {
    let text = |error: AloneError| error.to_string();
    if let Some(core) = core {
        pin(core).map_err(text)?;
    }
    let (rail, why, encrypt) = choose(ask, &identity(), machine)?;
    let mut cluster = [0; 16];
    getrandom::fill(&mut cluster).map_err(|error| format!("no random numbers: {error}"))?;
    let pair = Pair { cluster, rail, waiting: ask.waiting, key: key.cloned(), encrypt };
    let ip = control.stream().local_addr().map_err(|error| error.to_string())?.ip();
    let (end, port) = End::listen(&pair, ip).map_err(text)?;
    let rail = rail.to_string();
    let answer = Answer { rail: rail.clone(), why, encrypt, cluster, port };
    control.send(&Ok::<_, String>(answer)).map_err(|error| error.to_string())?;
    let mut wanted = || still_there(control.stream());
    end.wait(&mut wanted).map_err(text)?;
    let order = Serve { driving: ask.driving, peer_timeout_ms: TIMEOUT_MS };
    while wanted() {
        match serve(&end.place, &order, &mut wanted) {
            // The plan is complete; another may follow.
            Ok(()) => {}
            Err(PerfError::PeerGone(_) | PerfError::Unwanted) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(rail)
}

/// Authenticates a connection, receives its request and passes both on.
fn authenticate(stream: TcpStream, client: SocketAddr, key: Option<&Key>, tell: &SyncSender<Incoming>) {
    let authenticated = Sealed::answer(stream, key, AUTHENTICATED_WITHIN).and_then(|mut control| {
        let asked = control.receive::<AskWire>(AUTHENTICATED_WITHIN)?;
        Ok((control, asked))
    });
    match authenticated {
        // The client waits here for its turn; the listener may have ended meanwhile.
        Ok((control, asked)) => {
            drop(tell.send(Incoming::Client { control: Box::new(control), client, asked }));
        }
        // This never waits, so an unauthenticated connection soon frees its slot.
        Err(error) => drop(tell.try_send(Incoming::Unauthenticated { client, why: error.to_string() })),
    }
}

type Counted = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

/// One of the connections that an address may have.
struct AddressSlot(Counted, IpAddr);

impl AddressSlot {
    fn take(counted: &Counted, from: IpAddr) -> Option<Self> {
        let mut count = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = count.entry(from).or_default();
        if *taken >= FROM_ONE {
            return None;
        }
        *taken += 1;
        Some(Self(Arc::clone(counted), from))
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = count.get_mut(&self.1) {
            *taken -= 1;
            if *taken == 0 {
                count.remove(&self.1);
            }
        }
    }
}

/// Returns true while the client keeps the connection open. It sends nothing more on it.
fn still_there(control: &TcpStream) -> bool {
    let looked = control.set_nonblocking(true).and_then(|()| control.peek(&mut [0]));
    matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
