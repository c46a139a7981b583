//! SQL over the store: PostgreSQL's protocol and a part of its language.
//!
//! | module | content |
//! |---|---|
//! | [`server`] | sockets and sessions |
//! | `wire` | messages of the protocol |
//! | `activity` | what a session does, for other threads |
//! | `any` | decoders over any bytes, for fuzz targets |
//! | `session` | the statements of a client, and its transaction |
//! | `parse` | text to statements |
//! | `bind` | names to columns and types, and the way to the rows |
//! | `expr`, `functions` | expressions and their values |
//! | `answers` | the rows of subqueries, for expressions |
//! | `exec`, `dml`, `ddl`, `copy` | what statements do |
//! | `catalog` | tables and indexes |
//! | `notifications` | LISTEN and NOTIFY |
//! | `peers` | the sessions and counts of all nodes |
//! | `roles` | roles and databases |
//! | `statements` | how often statements ran, and for how long |
//! | `system` | the catalogs that clients of PostgreSQL read |
//! | `types` | values as text, in rows and in keys |

mod activity;
mod answers;
#[doc(hidden)]
pub mod any;
mod bind;
mod catalog;
pub mod check;
mod copy;
mod ddl;
mod dml;
mod error;
mod exec;
mod expr;
mod functions;
mod memory;
mod notifications;
mod parse;
mod peers;
mod roles;
mod sequences;
pub mod server;
mod session;
mod shape;
mod spool;
mod statements;
mod system;
mod types;
mod wire;

pub use self::{
    activity::SessionInfo, error::SqlError, peers::Peers, statements::StatementInfo, wire::connection::Socket,
};
