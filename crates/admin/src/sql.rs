//! The table `[sql]` of `cluster.toml`, and where clients find the SQL server of a node.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use plexus_base::NodeId;
use serde::Deserialize;

use crate::config::Config;

/// The name of the table.
pub const SECTION: &str = "sql";

/// The port of the first node, if the table does not say.
pub const FIRST_PORT: u16 = 5433;

/// The last port that `init` chooses for a first node.
pub const LAST_PORT: u16 = 6432;

/// The table `[sql]` of `cluster.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SqlConfig {
    /// The port of the first node; each node has the next one.
    pub port: u16,
    /// The first user, who may do everything.
    pub user: String,
    /// The address for TCP; without it, a node whose own address is of the loopback network
    /// listens there, and each other one at 127.0.0.1. `0.0.0.0` is every address.
    pub listen: Option<IpAddr>,
    /// The most sessions of a node.
    pub sessions: usize,
    /// The threads that run statements; without it, as many as the node has workers.
    pub threads: Option<usize>,
    /// The transactions after which all rows are cleaned of them, so that the space of their ends
    /// is free again; without it, these take a sixty-fourth of the disk group.
    pub clean_after: Option<u64>,
    /// The milliseconds from which on a statement is noted in the log of its node.
    pub slow_ms: Option<u64>,
    /// The most statements whose runs a node counts, for `pg_stat_statements`; 0: none.
    pub counted_statements: usize,
    /// The memory for rows that the statements of a node keep, in MiB; without it, a quarter of the
    /// machine's.
    pub memory_mib: Option<usize>,
}

impl Default for SqlConfig {
    fn default() -> Self {
        Self {
            port: FIRST_PORT,
            user: "postgres".into(),
            listen: None,
            sessions: 1000,
            threads: None,
            clean_after: None,
            slow_ms: None,
            counted_statements: 0,
            memory_mib: None,
        }
    }
}

/// The address of a node's SQL server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlAddress {
    /// The directory with its socket.
    pub directory: PathBuf,
    /// Its port, which is a part of the name of the socket.
    pub port: u16,
    /// The address at which it listens for TCP.
    pub listen: IpAddr,
    /// The address at which clients reach it over TCP.
    pub reached: IpAddr,
    /// The first user.
    pub user: String,
}

impl SqlAddress {
    /// Returns the address of the server of a node; `None` if the cluster has none.
    ///
    /// # Errors
    /// The table is wrong; the text is one line for the user.
    pub fn of(config: &Config, node: NodeId) -> Result<Option<Self>, String> {
        if !config.sections.contains_key(SECTION) {
            return Ok(None);
        }
        let SqlConfig { port, user, listen, .. } = config.section(SECTION)?;
        let port = port.checked_add(node.0.into()).ok_or("[sql]: port is too high for all nodes")?;
        let socket = config.dir.attach(&config.name_of(node));
        let directory = std::path::absolute(socket.parent().unwrap_or(&socket))
            .map_err(|error| format!("{}: {error}", socket.display()))?;
        let node = config.nodes.iter().find(|other| other.number == node);
        let node_address = node.map_or(Ipv4Addr::LOCALHOST.into(), |node| node.address.ip());
        let own = if node_address.is_loopback() { node_address } else { Ipv4Addr::LOCALHOST.into() };
        let listen = listen.unwrap_or(own);
        let reached = if listen.is_unspecified() { node_address } else { listen };
        Ok(Some(Self { directory, port, listen, reached, user }))
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    /// Returns the address at which it listens for TCP, with the port.
    #[must_use]
    pub fn tcp(&self) -> SocketAddr {
        (self.listen, self.port).into()
    }

    /// Returns the address for TCP as a URI for clients of PostgreSQL, with a password.
    #[must_use]
    pub fn tcp_url(&self, password: &str) -> String {
        let Self { user, reached, port, .. } = self;
        let address = SocketAddr::from((*reached, *port));
        format!("postgresql://{user}:{password}@{address}/postgres")
    }

    /// Returns the address of the socket as a URI for clients of PostgreSQL.
    #[must_use]
    pub fn url(&self) -> String {
        let escaped = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => (byte as char).to_string(),
            other => format!("%{other:02X}"),
        };
        let directory: String = self.directory.display().to_string().bytes().map(escaped).collect();
        format!("postgresql://{}@{directory}:{}/postgres", self.user, self.port)
    }
}
