//! Memberships with real voting files, sockets and threads.

mod common;
mod files;
mod strangers;
mod views;
