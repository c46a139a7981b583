//! Servers whose disks are block devices.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, symlink},
};

use plexus_namespaces::LoopDevice;

use crate::{
    common::run,
    mirrored::{HOSTS, Servers},
};

#[test]
fn block_devices_with_sectors_of_both_sizes_serve_a_cluster_and_are_kept_from_others() {
    let place = tempfile::tempdir().unwrap();
    let device = |name: &str, mib, sector_bytes| LoopDevice::new(&place.path().join(name), mib, sector_bytes);
    let [a, b] = match (device("a", 400, 512), device("b", 600, 4096)) {
        (Ok(a), Ok(b)) => [a, b],
        (Err(why), _) | (_, Err(why)) => return eprintln!("skipped: {why}"),
    };
    let link = place.path().join("link");
    symlink(b.path(), &link).unwrap();
    let disks = [format!("a={}", a.path().display()), format!("b={}", link.display())];
    let servers = Servers::init(&["--disk", &disks[0], "--disk", &disks[1]]);
    let config = fs::read_to_string(servers.dir("a").join("cluster.toml")).unwrap();
    assert!(config.contains("size_mib = 384"), "at most what the device has: {config}");

    // The first start on another host looks at its device, too.
    let behind = OpenOptions::new().write(true).open(b.path()).unwrap();
    behind.write_all_at(b"XFSB", 0).unwrap();
    behind.sync_all().unwrap();
    let why = servers.on("b", "up").said().refusal();
    assert!(why.contains("link: has an XFS file system; choose another path"), "{why}");
    std::thread::scope(|scope| {
        scope.spawn(|| servers.start(&["a", "w"]));
        servers.on("b", "up").args(["--force"]).said().ok();
    });
    servers.sql("a", "create table t (id int primary key, item text)").ok();
    servers.sql("b", "insert into t values (1, 'one'), (2, 'two')").ok();

    // A device that is open is not given away, by any of its names.
    for (path, force) in [(&a.path(), true), (&link.as_path(), true), (&a.path(), false)] {
        let other = place.path().join("other");
        let disk = format!("a={}", path.display());
        let hosts = ["--host", "a=127.0.0.1", "--host", "b=127.0.0.2", "--disk", &disk];
        let init = run(["init", other.to_str().unwrap()]).args(hosts).args(force.then_some("--force"));
        let why = init.env("PLEXUS_HOST", "a").said().refusal();
        assert!(why.contains("is in use") && !other.exists(), "{why}");
    }

    servers.lose(&["b"]);
    servers.sql("a", "insert into t values (3, 'three')").ok();
    servers.start(&["b"]);
    servers.until_whole();
    let before = servers.count("b");
    servers.on("a", "down").args(["--all"]).said().ok();
    servers.start(&HOSTS);
    assert!(before.contains('3') && servers.count("a") == before, "{before}");
    let checked = run(["store", "check", "-C", servers.dir("a").to_str().unwrap()]);
    let checked = checked.env("PLEXUS_HOST", "a").said().ok();
    assert!(checked.contains("no fault"), "{checked}");
}
