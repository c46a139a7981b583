//! The end of one node of several: its blocks and locks are void when others may have them, and
//! nothing of it remains.

use std::{sync::Arc, time::Duration};

use crate::cluster::Cluster;
use plexus_admin::state::{self, Phase};
use plexus_fabric::RailKind;
use plexus_locks::{
    LockError,
    protocol::{Mode, Name},
};
use plexus_membership::groups::{self, GroupError};
use plexus_node::lifecycle::Ending;
use plexus_registry::{RegistryError, protocol::Command};

fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

#[test]
fn blocks_of_a_node_are_void_as_soon_as_it_has_left() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (stays, leaves) = (cluster.locks(0), cluster.locks(1));
    let mine = leaves.session();
    let names: Vec<_> = (0..20).map(|number| format!("held {number}")).collect();
    let held: Vec<_> = names.iter().map(|name| mine.lock(named(name), Mode::EX, None).unwrap()).collect();
    let mut group = cluster.groups(1).join(groups::protocol::Name::new(b"g").unwrap()).unwrap();
    group.next_event().unwrap();
    let registry = cluster.registry(1);

    let runtime = cluster.runtime(1);
    runtime.quiesce();
    runtime.hand_back(&mut |_| ()).unwrap();
    runtime.leave(Ending::Leave).unwrap();
    let config = runtime.config();
    let record = state::record(&config.dir, &config.name_of(runtime.me())).unwrap().unwrap();
    assert_eq!(record.phase, Phase::Left, "nothing is lost with it");
    assert!(held.iter().all(plexus_locks::NodeLock::is_lost));
    assert_eq!(leaves.session().lock(named("late"), Mode::EX, None).err(), Some(LockError::Stopped));
    assert_eq!(group.next_event(), Err(GroupError::Stopped));
    let asked = registry.ask(Command::Look).wait(Duration::from_secs(60));
    assert!(matches!(asked, Some(Err(RegistryError::Stopped))));
    for (name, held) in names.iter().zip(&held) {
        assert!(
            stays.session().lock(named(name), Mode::EX, None).unwrap().grant().token > held.grant().token
        );
    }
}

#[test]
fn no_membership_is_left_of_a_node_that_has_ended() {
    let mut cluster = Cluster::start(2, 1, RailKind::Shm);
    let membership = Arc::downgrade(cluster.runtime(1).membership());
    let lease = cluster.runtime(1).membership().lease();
    assert!(lease.is_held());
    cluster.end(1);
    assert!(!lease.is_held());
    assert!(membership.upgrade().is_none());
}
