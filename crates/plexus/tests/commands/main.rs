//! The commands as a user runs them: real node processes, their output, exit codes and ends.
//!
//! One binary for all of them, because each binary is linked with the whole workspace.

mod bad_input;
mod block_devices;
mod clock;
mod common;
mod demo;
mod fencing;
mod full_disk;
mod groups;
mod hosts;
mod keys;
mod lifecycle;
mod locks;
mod lost;
mod measure;
mod mirrored;
mod newcomers;
mod observe;
mod one_node;
mod perf;
mod pid_namespaces;
mod programs;
mod read_only;
mod readme;
mod recovery;
mod redo;
mod registry;
mod several_hosts;
mod soak;
mod sql;
mod starters;
mod supervision;
mod temporary;
mod views;
mod votes;
