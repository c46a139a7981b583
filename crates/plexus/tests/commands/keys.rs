//! The keys of a cluster from the command line, and encryption between nodes on different hosts.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

use crate::common::Cluster;
use serde_json::Value;

/// The hosts that the two nodes of a cluster are said to be on.
const HOSTS: [&str; 2] = ["earth", "mars"];

/// Starts the node that ended last first. It has the newest copies, so that no start waits for
/// them.
fn up(cluster: &Cluster) {
    for host in HOSTS.into_iter().rev() {
        cluster.run("up").env("PLEXUS_HOST", host).said().ok();
    }
}

fn down(cluster: &Cluster) {
    for host in HOSTS {
        cluster.run("down").env("PLEXUS_HOST", host).said().ok();
    }
}

fn key(cluster: &Cluster, does: &str) -> crate::common::CommandOutput {
    let dir = cluster.dir();
    crate::common::run(["key", does, "-C", dir.to_str().unwrap()]).said()
}

fn rails(cluster: &Cluster) -> Value {
    cluster.run("rails").args(["--json"]).said().json()["rails"].take()
}

/// Returns the key files and their contents.
fn keys(cluster: &Cluster) -> Vec<(PathBuf, String)> {
    let files = std::fs::read_dir(cluster.dir().join("keys")).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|path| {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
            let text = std::fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect()
}

#[test]
fn a_key_is_replaced_in_two_steps() {
    let cluster = Cluster::new(2);
    let [(first, old)] = &keys(&cluster)[..] else { panic!("one key") };
    let refusal = key(&cluster, "create").refusal();
    assert!(refusal.contains("exists already; to replace it use `plexus key rotate`"), "{refusal}");
    let refusal = key(&cluster, "retire").refusal();
    assert!(
        refusal.contains("there is only one key; make the next one with `plexus key rotate`"),
        "{refusal}"
    );

    let said = key(&cluster, "rotate").ok();
    assert!(said.contains("next.key: created, valid beside the old key; copy it to every machine"), "{said}");
    let [(_, still), (_, new)] = &keys(&cluster)[..] else { panic!("two keys") };
    assert!(still == old && new != old);
    let refusal = key(&cluster, "rotate").refusal();
    assert!(refusal.contains("next.key: exists already"), "{refusal}");

    assert!(key(&cluster, "retire").ok().contains("cluster.key: the only valid key now"));
    assert_eq!(keys(&cluster), [(first.clone(), new.clone())]);
    let dir = cluster.dir();
    let said = crate::common::run(["key", "rotate", "-C", dir.to_str().unwrap(), "--json"]).said().json();
    assert_eq!(said["key"].as_str().unwrap(), keys(&cluster)[1].0.to_str().unwrap());
}

#[test]
fn nodes_of_different_hosts_encrypt_and_take_each_key_that_is_valid() {
    let cluster = Cluster::on_hosts(&HOSTS);
    let joined_and_encrypted = || {
        let rails = rails(&cluster);
        let rails = rails.as_array().unwrap();
        assert!(!rails.is_empty());
        for rail in rails {
            for node in ["n1", "n2"] {
                for end in rail["ends"][node].as_array().unwrap() {
                    let says = (&end["kind"], &end["state"], &end["encrypted"]);
                    assert_eq!(says, (&"tcp".into(), &"active".into(), &true.into()), "{rail}");
                }
            }
        }
        let table = cluster.run("rails").said().ok();
        let [head, row, ..] = &table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
        let end = head.find("encrypted").unwrap() + "encrypted".len();
        assert!(row[..end].ends_with("yes"), "{table}");
    };
    up(&cluster);
    joined_and_encrypted();
    key(&cluster, "rotate").ok();
    down(&cluster);
    up(&cluster);
    joined_and_encrypted();
    key(&cluster, "retire").ok();
    joined_and_encrypted();
    // A newer key that is half copied: said, and passed over.
    let next = cluster.dir().join("keys/next.key");
    std::fs::write(&next, "0123").unwrap();
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).unwrap();
    down(&cluster);
    up(&cluster);
    joined_and_encrypted();
    let status = cluster.run("status").said().ok();
    assert!(status.contains("n1: keys: ") && status.contains("next.key: not a key"), "{status}");
}
