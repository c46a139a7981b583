//! The store: trees of rows over the blocks that all nodes read and change, with transactions.
//!
//! A [`Tree`](tree::Tree) maps keys to values, both bytes. Every node uses it through its own
//! [`Blocks`](plexus_cache::Blocks); the cache moves the blocks. A change of a tree is one group of
//! redo, so after any death of nodes a tree is whole. A [`Transaction`] of a [`Store`] reads and
//! changes rows, whose versions are the values of a tree.

mod check;
mod cleaning;
mod layout;
mod long;
pub mod space;
mod store;
mod transaction;
pub mod transactions;
pub mod tree;

use plexus_base::BlockId;
use plexus_cache::CacheError;

pub use self::{
    check::CheckedStore,
    store::{Store, StoreSettings},
    transaction::{Isolation, Savepoint, Transaction, TransactionWatch},
    transactions::{
        TransactionId,
        rows::{RowChange, RowLock},
    },
};

/// The reason why the store does not do what its client wants.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A block cannot be had.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An entry does not fit into a block.
    #[error("an entry of {bytes} bytes is too long: at most {most} fit")]
    TooLong {
        /// The bytes of key and value.
        bytes: usize,
        /// The most that fit.
        most: usize,
    },
    /// The disk group has something else than a store.
    #[error("the disk group is no store ({0}); blocks 0 to 5 must be empty or of a store")]
    NotAStore(String),
    /// A transaction has no steps left for another savepoint.
    #[error("a transaction has at most 65535 savepoints with changes between them; commit more often")]
    TooManySavepoints,
    /// Another transaction has changed the row since the snapshot.
    #[error("another transaction has changed the row")]
    Serialization,
    /// Transactions wait for each other, this one among them.
    #[error("transactions wait for each other")]
    Deadlock,
    /// Another transaction was waited for as long as the caller allows.
    #[error("canceling statement due to lock timeout")]
    LockTimeout,
    /// The node is no member, or ends.
    #[error("the node is no member of the cluster now")]
    NoMember,
    /// There is no block left.
    #[error("the disk group is full: make a larger one, or delete rows")]
    Full,
    /// A block has contents that no correct node writes.
    #[error("{block} is damaged: {what}; run `plexus store check`")]
    Damaged {
        /// The block.
        block: BlockId,
        /// The fault.
        what: &'static str,
    },
}
