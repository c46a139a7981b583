//! The table `[sql]` of `cluster.toml`, and where clients find the SQL server of a node.

use std::path::PathBuf;

use plexus_base::NodeId;
use serde::Deserialize;

use crate::config::Config;

/// The name of the table.
pub const SECTION: &str = "sql";

/// The port of the first node, if the table does not say.
pub const FIRST_PORT: u16 = 5433;

/// The table `[sql]` of `cluster.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SqlConfig {
    /// The port of the first node; each node has the next one.
    pub port: u16,
    /// The user that may connect.
    pub user: String,
    /// The most sessions of a node.
    pub sessions: usize,
}

impl Default for SqlConfig {
    fn default() -> Self {
        Self { port: FIRST_PORT, user: "postgres".into(), sessions: 1000 }
    }
}

/// The address of a node's SQL server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlAddress {
    /// The directory with its socket.
    pub directory: PathBuf,
    /// Its port, which is a part of the name of the socket.
    pub port: u16,
    /// The user that may connect.
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
        let SqlConfig { port, user, .. } = config.section(SECTION)?;
        let port = port.checked_add(node.0.into()).ok_or("[sql]: port is too high for all nodes")?;
        let socket = config.dir.attach(&config.name_of(node));
        let directory = std::path::absolute(socket.parent().unwrap_or(&socket))
            .map_err(|error| format!("{}: {error}", socket.display()))?;
        Ok(Some(Self { directory, port, user }))
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    /// Returns the address as a URI for clients of PostgreSQL.
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
