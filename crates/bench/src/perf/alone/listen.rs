//! The listener: serves one client after another.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use plexus_fabric::RailKind;
use plexus_interconnect::mesh::Key;

use super::{
    AloneError, Ask,
    machine::{identity, pin},
    meet::{Answer, AskWire, choose, hear, keys_agree, say},
    mesh::{End, Pair},
};
use crate::perf::{PerfError, Serve, serve};

/// How long a client may take to say what it wants.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// A session lasts as long as its client wants; no measurement takes longer than this.
const PATIENCE_MS: u64 = 24 * 3600 * 1000;

/// Waits for clients.
pub struct Listener {
    listener: TcpListener,
    core: Option<usize>,
    key: Option<Key>,
}

/// What became of one connection.
#[derive(Debug)]
pub enum Served {
    /// A session, ended by its client: who it was and over what.
    Session {
        /// The client.
        client: SocketAddr,
        /// The rail.
        rail: String,
    },
    /// None, and why.
    Refused {
        /// Who it was.
        client: SocketAddr,
        /// Why not.
        why: String,
    },
}

impl Listener {
    /// Listens at `address`. Sessions stay on `core` unless the client names another. With a `key`, who does not prove it is
    /// refused.
    ///
    /// # Errors
    /// The address is taken or none of this machine's.
    pub fn bind(address: SocketAddr, core: Option<usize>, key: Option<Key>) -> Result<Self, AloneError> {
        let listener = TcpListener::bind(address)
            .map_err(|error| AloneError::Listen { address: address.to_string(), error })?;
        Ok(Self { listener, core, key })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for a client and serves it to its end.
    ///
    /// # Errors
    /// No more connections can be accepted. What is wrong with one client is no error.
    pub fn serve_one(&self) -> io::Result<Served> {
        let (mut control, client) = self.listener.accept()?;
        let refused = |why: String| Served::Refused { client, why };
        let asked = hear::<AskWire>(&mut control, ASKED_WITHIN).map_err(|error| error.to_string());
        let asked = asked.and_then(|wire| {
            let ask = wire.ask()?;
            keys_agree(self.key.is_some(), wire.keyed)?;
            Ok((ask, wire.machine))
        });
        let served = asked.and_then(|(ask, machine)| {
            // A thread of its own: what it is pinned to ends with it.
            thread::scope(|scope| {
                let session = scope.spawn(|| self.session(&mut control, &ask, &machine));
                session.join().unwrap_or_else(|_| Err("the session panicked".into()))
            })
        });
        Ok(match served {
            Ok(rail) => Served::Session { client, rail },
            Err(why) => {
                // Best effort: it may be gone, or hear this after it heard its answer, and then it does not listen.
                let _ = say(&mut control, &Err::<Answer, &str>(&why));
                refused(why)
            }
        })
    }

    fn session(&self, control: &mut TcpStream, ask: &Ask, machine: &str) -> Result<String, String> {
        let text = |error: AloneError| error.to_string();
        if let Some(core) = ask.core.or(self.core) {
            pin(core).map_err(text)?;
        }
        let (rail, why) = choose(ask.rail, &identity(), machine)?;
        if ask.encrypt && rail == RailKind::Ofi {
            return Err("libfabric encrypts nothing: use --rail tcp, or leave --encrypt out".into());
        }
        let mut cluster = [0; 16];
        getrandom::fill(&mut cluster).map_err(|error| format!("no random numbers: {error}"))?;
        let pair = Pair { cluster, rail, waiting: ask.waiting, key: self.key.clone(), encrypt: ask.encrypt };
        let ip = control.local_addr().map_err(|error| error.to_string())?.ip();
        let (end, port) = End::listen(&pair, ip).map_err(text)?;
        let rail = rail.to_string();
        let answer = Answer { rail: rail.clone(), why, cluster, port };
        say(control, &Ok::<_, String>(answer)).map_err(|error| error.to_string())?;
        end.wait().map_err(text)?;
        let order = Serve { driving: ask.driving, patience_ms: PATIENCE_MS };
        while still_there(control) {
            match serve(&end.place, &order, &mut || still_there(control)) {
                // A plan was carried out: there may be another.
                Ok(()) => {}
                Err(PerfError::PeerGone(_) | PerfError::Unwanted) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(rail)
    }
}

/// Whether the client holds the connection; it has nothing more to say on it.
fn still_there(control: &TcpStream) -> bool {
    let looked = control.set_nonblocking(true).and_then(|()| control.peek(&mut [0]));
    matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
