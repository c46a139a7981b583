//! The smallest subsystem, as an example: a thread of a node asks another node to return some
//! bytes.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{NodeId, WorkerId};
use plexus_interconnect::{Channel, Message, Net, Reply};
use plexus_membership::{
    partitions::Members,
    subsystem::{Subsystem, WorkerPort},
};

use crate::subsystems::{Install, Installed, Making};

/// A request that is never answered.
const UNANSWERED: &[u8] = b"keep this";

/// The returned bytes; `None` if the peer is lost.
type Answer = Option<Vec<u8>>;

pub enum EchoTask {
    Call(NodeId, Vec<u8>, Reply<Answer>),
    /// Asks for the number of members in the last view.
    Members(Reply<usize>),
}

#[derive(Default)]
pub struct EchoService {
    calls: BTreeMap<u64, Reply<Answer>>,
    last: u64,
    members: usize,
}

impl Subsystem for EchoService {
    const NAME: &'static str = "echo";
    const CHANNELS: &'static [Channel] = &[Channel::Application3];
    type Task = EchoTask;

    fn view(&mut self, _: &mut Net, view: &Members) {
        self.members = view.members.len();
    }

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if message.payload != UNANSWERED {
            // Without a link, the caller learns that the call has failed.
            let _ = net.answer(message, message.payload);
        }
    }

    fn task(&mut self, net: &mut Net, task: EchoTask) {
        match task {
            EchoTask::Call(to, bytes, reply) => {
                self.last += 1;
                match net.call(to, Self::CHANNELS[0], &bytes, self.last) {
                    Ok(()) => drop(self.calls.insert(self.last, reply)),
                    Err(_) => reply.send(None),
                }
            }
            EchoTask::Members(reply) => reply.send(self.members),
        }
    }

    fn reply(&mut self, _: &mut Net, _: NodeId, token: u64, payload: &[u8]) {
        self.calls.remove(&token).into_iter().for_each(|reply| reply.send(Some(payload.to_vec())));
    }

    fn call_failed(&mut self, _: &mut Net, _: NodeId, token: u64) {
        self.calls.remove(&token).into_iter().for_each(|reply| reply.send(None));
    }
}

/// The interface of the subsystem to threads.
pub(crate) struct Echo(Arc<dyn WorkerPort<EchoService>>);

impl Install for EchoService {
    type Handle = Echo;

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let parts = (0..node.parts.config.workers).map(|_| Self::default()).collect();
        Ok(Installed { parts, windows: Vec::new(), handle: Echo(port) })
    }
}

#[path = "../tests/cluster/mod.rs"]
mod cluster;

mod tests {
    use std::time::{Duration, Instant};

    use plexus_fabric::RailKind;

    use super::{
        cluster::{Cluster, TIMEOUT},
        *,
    };

    /// Submits a task to worker 1 of node `from`; returns the receiver of the answer.
    fn submit<T>(
        cluster: &Cluster,
        from: usize,
        task: impl FnOnce(Reply<T>) -> EchoTask,
    ) -> plexus_interconnect::Answer<T> {
        let (reply, told) = Reply::new();
        cluster.runtime(from).echo().0.submit(WorkerId(1), task(reply));
        told
    }

    fn call(cluster: &Cluster, to: u8, bytes: &[u8]) -> plexus_interconnect::Answer<Answer> {
        submit(cluster, 0, |reply| EchoTask::Call(NodeId(to), bytes.to_vec(), reply))
    }

    #[test]
    fn bytes_come_back_through_a_change_of_view_and_a_lost_peer_fails_the_call() {
        for rail in [RailKind::Shm, RailKind::Tcp] {
            let mut cluster = Cluster::start(3, 2, rail);
            let come_back = |cluster: &Cluster, bytes: &[u8]| {
                let answer = call(cluster, 1, bytes).wait_for(TIMEOUT).ok().flatten();
                assert_eq!(answer, Some(Some(bytes.to_vec())), "{rail}");
            };
            come_back(&cluster, b"before");
            let unanswered = call(&cluster, 1, UNANSWERED);
            cluster.end(2);
            let start = Instant::now();
            while submit(&cluster, 0, EchoTask::Members).wait_for(TIMEOUT).ok().flatten() != Some(2) {
                assert!(start.elapsed() < TIMEOUT, "the view without the third has not come");
            }
            come_back(&cluster, b"after");
            let still = unanswered.wait_for(Duration::ZERO).err();
            let unanswered = still.expect("its peer is still there");
            cluster.end(1);
            assert_eq!(unanswered.wait_for(TIMEOUT).ok().flatten(), Some(None), "{rail}");
        }
    }
}
