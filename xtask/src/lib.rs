//! The project's own commands: the gate, the house rules, simulations, comparisons, mutations.

pub mod command;
mod compare;
pub mod compat;
pub mod disks;
pub mod executive;
pub mod interconnect;
pub mod mutate;
pub mod package;
pub mod redo;
pub mod sql;
pub mod tidy;
pub mod verify;

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}
