//! Real processes, real sockets, real faults: two members that talk without a pause, in network namespaces whose links
//! are cut, slowed and made to lie.
//!
//! - [`Traffic`] runs in each member: numbered messages on channels of every class, puts, calls; and the check that each
//!   arrives exactly once, in order, with its content, and that no put comes late.
//! - [`member`] is the process around it: a mesh of the interconnect and a few commands on its standard input.
//! - [`Net`] makes the namespaces and the faults.
//! - [`Pair`] starts two members, asks them how they are, and says in the end whether all was delivered.
//! - [`campaign`] does it many times over: fail-overs that are counted, and a soak.
//!
//! Whoever uses a [`Pair`] ends it by dropping it: members end with their standard input, namespaces with this process.

pub mod campaign;
pub mod member;
mod net;
mod pair;
mod report;
mod traffic;

pub use net::{Net, Side};
pub use pair::{Holds, Pair, Spec};
pub use report::{Report, Seen};
pub use traffic::{Observed, Task, Traffic};
