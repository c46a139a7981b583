//! A mesh of two nodes for a measurement only.

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
use crate::perf::{Bare, MeasuredPath, WINDOW, WINDOW_BYTES};

/// The nodes of the listener and the client. The higher number connects.
pub(super) const LISTENER: NodeId = NodeId(0);
pub(super) const CLIENT: NodeId = NodeId(1);

/// The time in which both sides must connect, and the interval at which a waiting side checks for
/// cancellation.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The timeout of a silent path, and the interval of its probes.
const TIMEOUT: Duration = Duration::from_secs(1);
const PROBE: Duration = Duration::from_millis(20);

/// The attempts to listen: another program may take a free port before it is used.
const ATTEMPTS: usize = 8;

/// The parameters that both ends of a session agree on.
pub(super) struct Pair {
    pub(super) cluster: [u8; 16],
    pub(super) rail: RailKind,
    pub(super) waiting: Waiting,
    /// The key that both sides prove. Without a key, knowledge of the random name of the cluster
    /// admits a connection.
    pub(super) key: Option<Key>,
    pub(super) encrypt: bool,
}

impl Pair {
    /// Returns the key of the mesh. Without a configured key it is the random name of the cluster,
    /// which was sent sealed: that excludes other connections and eavesdroppers, but not an
    /// attacker in the middle.
    fn key(&self) -> Key {
        if let Some(key) = &self.key {
            return key.clone();
        }
        let mut key = [0; mesh::KEY];
        key[..self.cluster.len()].copy_from_slice(&self.cluster);
        Key::new(key)
    }
}

/// One end of the mesh. Dropping it stops the mesh.
pub(super) struct End {
    mesh: Arc<Mesh<Bare>>,
    pub(super) place: MeasuredPath<Bare>,
    peer: NodeId,
}

impl End {
    /// Starts the listener's end at a free port of `ip`; returns the port.
    pub(super) fn listen(pair: &Pair, ip: IpAddr) -> Result<(Self, u16), AloneError> {
        let mut refusal = None;
        for _ in 0..ATTEMPTS {
            let free = TcpListener::bind((ip, 0)).and_then(|listener| listener.local_addr());
            let address = free.map_err(|error| AloneError::Listen { address: ip.to_string(), error })?;
            // The client's address is not needed, because the client connects.
            match Self::start(pair, LISTENER, address, CLIENT, address) {
                Err(MeshError::Listen { address, error }) => {
                    refusal = Some(AloneError::Mesh(format!("cannot listen at {address}: {error}")));
                }
                started => return Ok((started.map_err(wrong)?, address.port())),
            }
        }
        Err(refusal.unwrap_or_else(|| AloneError::Mesh("no port is free".into())))
    }

    /// Starts the client's end, which connects to the listener's.
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
            listen: vec![listen],
            local: None,
            peers: vec![mesh::Peer {
                id: peer,
                addresses: vec![address],
                rails: vec![pair.rail],
                encrypt: pair.encrypt,
                // Either both sides encrypt or neither.
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
        Ok(Self { mesh, place: MeasuredPath { worker, window }, peer })
    }

    /// Returns the rails between the two nodes.
    pub(super) fn rails(&self) -> Vec<RailReport> {
        self.mesh.rails()
    }

    /// Waits for the link until `wanted` returns false.
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
