//! The endpoints of a measurement: namespaces, addresses and devices, by transport.

use std::process::Command;

use super::{
    veth::{self, ADDRESSES, ENDS, Veth},
    work::Transport,
};

/// The endpoints of two programs and the transport between them.
pub(super) struct Endpoints<'a> {
    /// The transport between the two sides.
    pub transport: Transport,
    veth: Option<&'a Veth>,
}

impl<'a> Endpoints<'a> {
    /// Returns the endpoints for `transport`.
    ///
    /// # Errors
    /// The transport needs a veth pair and there is none; the error is that of `veth`.
    pub(super) fn of<E>(transport: Transport, veth: Result<&'a Veth, E>) -> Result<Self, E> {
        match transport {
            Transport::Veth => veth.map(|veth| Self { transport, veth: Some(veth) }),
            _ => Ok(Self { transport, veth: None }),
        }
    }

    /// Returns the network namespaces of both sides; "-" is that of this process.
    pub(super) fn namespaces(&self) -> [String; 2] {
        [0, 1].map(|side| self.veth.map_or("-".into(), |veth| veth.namespace(side)))
    }

    /// Returns the addresses of both sides; "-" if none is needed.
    pub(super) fn addresses(&self) -> [&'static str; 2] {
        match self.transport {
            Transport::Shm => ["-"; 2],
            Transport::Loopback => ["127.0.0.1"; 2],
            Transport::Veth => ADDRESSES,
        }
    }

    /// Returns the addresses for programs that always connect over TCP first.
    pub(super) fn hosts(&self) -> [&'static str; 2] {
        if self.transport == Transport::Veth { ADDRESSES } else { ["127.0.0.1"; 2] }
    }

    /// Returns the network devices of both sides.
    pub(super) fn devices(&self) -> [&'static str; 2] {
        if self.transport == Transport::Veth { ENDS } else { ["lo"; 2] }
    }

    /// Returns a command that starts `program` on one side.
    pub(super) fn command(&self, side: usize, program: &str) -> Command {
        match self.veth {
            Some(veth) => veth::inside(&veth.namespace(side), program),
            None => Command::new(program),
        }
    }
}
