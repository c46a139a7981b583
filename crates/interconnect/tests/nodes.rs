//! Nodes in one process: their messages, calls and puts over every rail, their incarnations, lost
//! connections, and threads that wait.

#[path = "nodes/incarnations.rs"]
mod incarnations;
#[path = "nodes/mesh.rs"]
mod mesh;
#[path = "common/meshes.rs"]
mod meshes;
#[allow(dead_code, reason = "the suite of the rails uses the rest")]
#[path = "../../fabric/tests/conformance/pairs.rs"]
mod pairs;
#[path = "nodes/reconnection.rs"]
mod reconnection;
#[path = "nodes/waiting.rs"]
mod waiting;
#[allow(dead_code, reason = "the benchmark uses the rest")]
#[path = "common/workers.rs"]
mod workers;
