//! The status of the loop's state.

use std::collections::BTreeSet;

use plexus_base::NodeId;

use super::{
    Status, clock,
    driver::Driver,
    history::ms,
    status::{FileStatus, MemberStatus, Quorum},
};
use crate::protocol::FileId;

impl Driver {
    pub(super) fn status(&self) -> Status {
        let (now, decided) = (clock::now(), self.member.decided());
        let member = |node: NodeId| MemberStatus {
            node: node.0,
            incarnation: decided.incarnation(node).map_or(0, |incarnation| incarnation.0),
            heard_ms: self.network.heard(node).map(|at| now.since(at).0 / 1_000_000),
        };
        let file = |file: FileId| {
            let (health, of_view) = (self.files_health.of(file), decided.file(file));
            let answered = health.and_then(|health| health.answered);
            FileStatus {
                id: file.to_string(),
                votes: of_view.is_some(),
                host: of_view
                    .or(health.map(|health| &health.file))
                    .and_then(|file| file.host)
                    .map(|host| host.0),
                path: self.files.path(file).map(|path| path.display().to_string()),
                answered_ms: answered.map(|turn| now.since(turn.at).0 / 1_000_000),
                turn_ms: answered.map(|turn| ms(turn.took)),
                set_aside: health.is_some_and(|health| health.is_set_aside),
                error: health.and_then(|health| health.error.clone()),
            }
        };
        let known =
            decided.files.iter().map(|file| file.id).chain(self.files_health.all().map(|(file, _)| *file));
        let answers = |file: FileId| {
            let answered = self.files_health.of(file).and_then(|health| health.answered);
            answered.is_some_and(|turn| now.since(turn.at) < self.lease_time)
        };
        Status {
            opened: self.member.opened().map_or(0, |view| view.epoch.0),
            decided: decided.epoch.0,
            members: decided.members().iter().map(member).collect(),
            lease_ms: ms(self.parts.ending.lease().left()),
            differing_times: self
                .member
                .differing_times(now)
                .map(|(node, lease, disk_timeout)| (node.0, ms(lease), ms(disk_timeout)))
                .collect(),
            quorum: Quorum {
                files: decided.files.len(),
                needed: decided.majority(),
                answering: decided.files.iter().filter(|file| answers(file.id)).count(),
            },
            files: known.collect::<BTreeSet<_>>().into_iter().map(file).collect(),
            fencing: self.history.fences(),
            awaited_proofs: self.awaited_proofs(now),
            transitions: self.history.transitions(),
            priority: self.priority,
            keys: self.network.keys().map(|key| format!("{key:016x}")).collect(),
            unauthenticated: self.network.unauthenticated(),
        }
    }
}
