//! A mesh of two nodes that carries nothing but a measurement.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_fabric::{RailKind, Window};
use plexus_interconnect::{
    RailReport,
    mesh::{self, Key, Mesh, MeshError},
};

use super::{AloneError, meet::VERSION};
use crate::perf::{Bare, Place, WINDOW, WINDOW_BYTES};

/// The listener's node and the client's: the higher one connects.
pub(super) const LISTENER: NodeId = NodeId(0);
pub(super) const CLIENT: NodeId = NodeId(1);

/// How long the two may take to connect everything, and how often who waits looks whether it is
/// still to.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a measurement survives a path that is silent, and how often that is asked.
const TIMEOUT: Duration = Duration::from_secs(1);
const PROBE: Duration = Duration::from_millis(20);

/// Other programs may take a free port before it is used.
const ATTEMPTS: usize = 8;

/// The parameters that both ends of a session agree on.
pub(super) struct Pair {
    pub(super) cluster: [u8; 16],
    pub(super) rail: RailKind,
    pub(super) waiting: Waiting,
    /// The key that both sides prove. Without one, each side that knows the random name of the
    /// cluster is let in.
    pub(super) key: Option<Key>,
    pub(super) encrypt: bool,
}

impl Pair {
    /// Without a key the random name is all that the two have in common. It was sealed on its way,
    /// so it keeps away strangers and those who listen, not who came between the two.
    fn key(&self) -> Key {
        if let Some(key) = &self.key {
            return key.clone();
        }
        let mut key = [0; mesh::KEY];
        key[..self.cluster.len()].copy_from_slice(&self.cluster);
        Key::new(key)
    }
}

/// One end of it. Ends everything when it is dropped.
pub(super) struct End {
    mesh: Arc<Mesh<Bare>>,
    pub(super) place: Place<Bare>,
    peer: NodeId,
}

impl End {
    /// The listener's end, somewhere on `ip`; where.
    pub(super) fn listen(pair: &Pair, ip: IpAddr) -> Result<(Self, u16), AloneError> {
        let mut refusal = None;
        for _ in 0..ATTEMPTS {
            let free = TcpListener::bind((ip, 0)).and_then(|listener| listener.local_addr());
            let address = free.map_err(|error| AloneError::Listen { address: ip.to_string(), error })?;
            // The client's address is not needed: it is the one that connects.
            match Self::start(pair, LISTENER, address, CLIENT, address) {
                Err(MeshError::Listen { address, error }) => {
                    refusal = Some(AloneError::Mesh(format!("cannot listen at {address}: {error}")));
                }
                started => return Ok((started.map_err(wrong)?, address.port())),
            }
        }
        Err(refusal.unwrap_or_else(|| AloneError::Mesh("no port is free".into())))
    }

    /// The client's end, towards the listener's.
    pub(super) fn connect(pair: &Pair, ip: IpAddr, listener: SocketAddr) -> Result<Self, AloneError> {
        Self::start(pair, CLIENT, SocketAddr::new(ip, 0), LISTENER, listener).map_err(wrong)
    }

    fn start(
        pair: &Pair,
        me: NodeId,
        listen: SocketAddr,
        peer: NodeId,
        address: SocketAddr,
    ) -> Result<Self, MeshError> {
        let window = Arc::new(Window::create(WINDOW, WINDOW_BYTES, 0)?);
        let config = mesh::Config {
            me,
            incarnation: Incarnation(1),
            cluster: pair.cluster,
            keys: Arc::new(vec![pair.key()]),
            admission: mesh::Admission::First,
            // Both or none encrypt.
            listen: vec![listen],
            peers: vec![mesh::Peer {
                id: peer,
                addresses: vec![address],
                rails: vec![pair.rail],
                encrypt: pair.encrypt,
                // Both or none encrypt.
                fingerprint: u64::from(VERSION) << 1 | u64::from(pair.encrypt),
            }],
            windows: vec![window.clone()],
            waiting: pair.waiting,
            timeout: TIMEOUT,
            probe: PROBE,
            ofi_provider: None,
        };
        let mesh = Mesh::start(config, vec![Bare::default()], |_| ())?;
        let worker = mesh.workers()[0].clone();
        Ok(Self { mesh, place: Place { worker, window }, peer })
    }

    /// The rails between the two.
    pub(super) fn rails(&self) -> Vec<RailReport> {
        self.mesh.rails()
    }

    /// Waits for the link, as long as it is `wanted`.
    pub(super) fn wait(&self, wanted: &mut dyn FnMut() -> bool) -> Result<(), AloneError> {
        let end = Instant::now() + CONNECTED_WITHIN;
        loop {
            let Err(missing) = self.mesh.wait_connected(LOOK_EVERY) else { return Ok(()) };
            if !wanted() || Instant::now() > end {
                let why = missing.get(&self.peer).cloned().unwrap_or_default();
                return Err(AloneError::Mesh(format!("the two sides did not connect: {why}")));
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.mesh.stop();
    }
}

fn wrong(error: MeshError) -> AloneError {
    AloneError::Mesh(error.to_string())
}
