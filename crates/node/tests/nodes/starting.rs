//! The start of nodes beside processes of other users.

use std::os::{
    linux::net::SocketAddrExt,
    unix::{
        fs::PermissionsExt,
        net::{SocketAddr, UnixListener},
    },
};

use plexus_admin::{config::Config, create};
use plexus_fabric::RailKind;

use crate::cluster::{config, start_all};

#[test]
fn no_name_that_any_user_can_take_keeps_a_node_from_starting() {
    let place = tempfile::tempdir().unwrap();
    // Deeper than a socket address is long.
    let deep = place.path().join("d".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    let config: Config = config(&deep, 2, RailKind::Shm, 30_000);
    create::create(&config).unwrap();
    let cluster = plexus_base::hex::digits(&config.id.0.to_le_bytes());
    let taken: Vec<UnixListener> = (0..2)
        .map(|node| {
            let name = format!("plexus/{cluster}/{node}");
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
        })
        .collect();
    let socket = config.dir.run().join("0.peers");
    std::fs::write(&socket, "of a node that was killed").unwrap();
    let nodes = start_all(&config);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    drop((nodes, taken));
    assert!(!socket.exists());
}
