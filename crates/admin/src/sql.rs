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
    /// listens there, and each other one at 127.0.0.1. There is no TLS yet, so only addresses of
    /// the loopback network are allowed.
    pub listen: Option<IpAddr>,
    /// The most sessions of a node.
    pub sessions: usize,
}

impl Default for SqlConfig {
    fn default() -> Self {
        Self { port: FIRST_PORT, user: "postgres".into(), listen: None, sessions: 1000 }
    }
}

/// The address of a node's SQL server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlAddress {
    /// The directory with its socket.
    pub directory: PathBuf,
    /// Its port, which is a part of the name of the socket.
    pub port: u16,
    /// Its address for TCP.
    pub listen: IpAddr,
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
        let own = config.nodes.iter().find(|other| other.number == node).map(|node| node.address.ip());
        let own = own.filter(IpAddr::is_loopback).unwrap_or(Ipv4Addr::LOCALHOST.into());
        let listen = listen.unwrap_or(own);
        if !listen.is_loopback() {
            return Err(format!(
                "[sql]: listen = \"{listen}\" is not of the loopback network, and there is no TLS yet: use 127.0.0.1, and a tunnel from other machines"
            ));
        }
        Ok(Some(Self { directory, port, listen, user }))
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    /// Returns its socket address for TCP.
    #[must_use]
    pub fn tcp(&self) -> SocketAddr {
        (self.listen, self.port).into()
    }

    /// Returns the address for TCP as a URI for clients of PostgreSQL, with a password.
    #[must_use]
    pub fn tcp_url(&self, password: &str) -> String {
        format!("postgresql://{}:{password}@{}/postgres", self.user, self.tcp())
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
