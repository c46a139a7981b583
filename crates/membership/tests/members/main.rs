//! Memberships with real voting files, sockets and threads.

mod authentication;
mod common;
mod files;
mod views;
