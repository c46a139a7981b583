//! Real processes, sockets and faults: two members that exchange messages without a pause, in
//! network namespaces whose links are cut, slowed and disturbed.
//!
//! - [`Traffic`] runs in each member. It sends numbered messages on channels of every class, puts
//!   and calls. It checks that each arrives exactly once, in order, with its content, and that no
//!   put comes late.
//! - [`member`] is the process around it: a mesh of the interconnect and a few commands on its
//!   standard input.
//! - [`Net`] creates the namespaces and the faults.
//! - [`Pair`] starts two members, asks for their reports, and checks at the end that everything was
//!   delivered.
//! - [`campaign`] repeats this: counted fail-overs, and a soak.
//!
//! Dropping a [`Pair`] ends it: members end with their standard input, namespaces with this
//! process.

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
