//! Where two programs meet: their namespaces, addresses and devices, by the path between them.

use std::process::Command;

use super::{
    veth::{self, ADDRESSES, ENDS, Veth},
    work::Path,
};

/// Where two programs meet.
pub(super) struct Place<'a> {
    /// The path between them.
    pub path: Path,
    veth: Option<&'a Veth>,
}

impl<'a> Place<'a> {
    /// The place of `path`.
    ///
    /// # Errors
    /// Why there is no veth pair, where one is needed.
    pub(super) fn of<E>(path: Path, veth: Result<&'a Veth, E>) -> Result<Self, E> {
        match path {
            Path::Veth => veth.map(|veth| Self { path, veth: Some(veth) }),
            _ => Ok(Self { path, veth: None }),
        }
    }

    /// The network namespaces of the two sides; "-": that of this process.
    pub(super) fn namespaces(&self) -> [String; 2] {
        [0, 1].map(|side| self.veth.map_or("-".into(), |veth| veth.namespace(side)))
    }

    /// The addresses of the two sides; "-" where none is needed.
    pub(super) fn addresses(&self) -> [&'static str; 2] {
        match self.path {
            Path::Shm => ["-"; 2],
            Path::Loopback => ["127.0.0.1"; 2],
            Path::Veth => ADDRESSES,
        }
    }

    /// The same, for programs that meet over TCP whatever they then use.
    pub(super) fn hosts(&self) -> [&'static str; 2] {
        if self.path == Path::Veth { ADDRESSES } else { ["127.0.0.1"; 2] }
    }

    /// The network devices of the two sides.
    pub(super) fn devices(&self) -> [&'static str; 2] {
        if self.path == Path::Veth { ENDS } else { ["lo"; 2] }
    }

    /// A program to be started on one side.
    pub(super) fn command(&self, side: usize, program: &str) -> Command {
        match self.veth {
            Some(veth) => veth::inside(&veth.namespace(side), program),
            None => Command::new(program),
        }
    }
}
