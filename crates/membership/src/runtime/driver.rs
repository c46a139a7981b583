//! The loop: passes events with the time to the protocol, and executes its actions in order.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::UdpSocket,
    sync::{
        Arc,
        mpsc::{self, SyncSender},
    },
};

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId};
use plexus_interconnect::mesh::Key;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    ConfigChangeError, MembershipObserver, Priority, Settings,
    clock::{self, timespec},
    fences::Fence,
    file_health::FilesHealth,
    files::Files,
    history::History,
    inbox::{Answer, Inbox, Input},
    network::{Network, ReceivedDatagram, datagram::Kind},
    notifier::ObserverNotice,
    priority,
    served::{TurnRequester, TurnServer},
    status::FencingState,
    watchdog::{Ending, Watchdog},
};
use crate::{
    protocol::{Action, ConfigChange, ConfigChangeRefusal, Event, Member, Report, View},
    voting::{
        FinishedTurn,
        format::{self, ClusterId},
    },
};

/// The number of times a leaving node sends its last report. It saves the other nodes a lease time,
/// and datagrams may be lost.
const LEAVE_ANNOUNCEMENTS: usize = 3;

/// The pause between two batches of datagrams when more are waiting.
const PAUSE: Nanos = Nanos::from_ms(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The observer has stopped; only the leave announcement is left to send.
    Leaving,
    Over {
        left: bool,
    },
}

/// The other parts of the membership that the loop uses.
pub(super) struct DriverParts {
    pub(super) observer: Arc<dyn MembershipObserver>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) ending: Arc<Ending>,
    pub(super) watchdog: Watchdog,
    pub(super) views: mpsc::Sender<ObserverNotice>,
    /// Ends the thread that reads keys when it is dropped.
    pub(super) _keys: mpsc::Sender<()>,
}

pub(super) struct Driver {
    pub(super) me: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) cluster: ClusterId,
    pub(super) lease_time: Nanos,
    pub(super) disk_timeout: Nanos,
    pub(super) member: Member,
    pub(super) parts: DriverParts,
    pub(super) network: Network,
    pub(super) files: Files,
    pub(super) requester: TurnRequester,
    pub(super) server: TurnServer,
    pub(super) files_health: FilesHealth,
    pub(super) history: History,
    pub(super) priority: Priority,
    /// For each node, a lease and disk timeout that differ from this node's and were warned of.
    warned_of: BTreeMap<NodeId, (Nanos, Nanos)>,
    /// The time after which a removed incarnation without a lease has stopped.
    pub(super) wait: Nanos,
    /// The time that a node waits before it opens its first view.
    pub(super) wait_as_new: Nanos,
    pub(super) fences: Vec<Fence>,
    /// For each node, the last incarnation that announced its leave.
    pub(super) leavers: [Incarnation; MAX_NODES],
    config_change: Option<Answer>,
    leaving: Vec<Answer>,
    remembering: Vec<SyncSender<u64>>,
    pub(super) events: VecDeque<Event>,
    wake: Nanos,
    phase: Phase,
}

impl Driver {
    pub(super) fn new(
        settings: Settings,
        keys: Vec<Key>,
        sockets: Vec<UdpSocket>,
        parts: DriverParts,
    ) -> io::Result<Self> {
        let Settings { me, incarnation, profile, first, must_prove, cluster, peers, files, .. } = settings;
        let mut session = [0; 16];
        getrandom::fill(&mut session).map_err(io::Error::other)?;
        let mut network = Network::new((me, incarnation), cluster, session, keys, sockets)?;
        peers.into_iter().for_each(|(node, addresses)| network.set_addresses(node, addresses));
        let cluster = ClusterId(u128::from_le_bytes(cluster));
        let now = clock::now();
        Ok(Self {
            me,
            incarnation,
            cluster,
            lease_time: profile.lease,
            disk_timeout: profile.disk_timeout,
            member: Member::new(me, incarnation, profile, Arc::new(first), now).requiring_proofs(must_prove),
            files: Files::new(
                cluster,
                [profile.disk_timeout, profile.lease],
                Arc::clone(&parts.inbox),
                files,
            ),
            parts,
            network,
            requester: TurnRequester::new(Nanos(profile.heartbeat.0 / 2), profile.disk_timeout),
            server: TurnServer::new(cluster),
            files_health: FilesHealth::default(),
            history: History::default(),
            priority: Priority::Ordinary,
            warned_of: BTreeMap::new(),
            wait: profile.wait(),
            wait_as_new: profile.wait_as_new(),
            fences: Vec::new(),
            leavers: [Incarnation(0); MAX_NODES],
            config_change: None,
            leaving: Vec::new(),
            remembering: Vec::new(),
            events: VecDeque::new(),
            wake: now,
            phase: Phase::Running,
        })
    }

    pub(super) fn run(mut self) {
        self.priority = priority::raise();
        self.notify(ObserverNotice::Note(format!(
            "membership starts; its threads run as: {}",
            self.priority
        )));
        let mut more = false;
        while !self.is_over() {
            self.handle(Event::Tick);
            let (now, lease) = (clock::now(), self.parts.ending.lease());
            lease.note(self.member.renewed().unwrap_or(now), self.member.silent(now), now);
            self.rest(more);
            for input in self.parts.inbox.take() {
                self.take(input);
            }
            let mut received = Vec::new();
            let unauthenticated = self.network.unauthenticated();
            more = self.network.receive(clock::now(), &mut received);
            if unauthenticated == 0 && self.network.unauthenticated() > 0 {
                let what = "unauthenticated datagram: it is not for this node, or its key is not a key of this cluster; \
                            check the key and cluster identifier of all nodes";
                self.notify(ObserverNotice::Warning(what.into()));
            }
            for datagram in received {
                self.read(datagram);
            }
            self.give_up();
            self.retry_fences();
        }
        self.close();
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. }) || self.parts.ending.is_over()
    }

    /// Waits until there is work.
    fn rest(&self, more: bool) {
        let wakes = [Some(self.wake), self.requester.wake(), self.files.wake(), self.next_fence()];
        let wake = wakes.into_iter().flatten().min().unwrap_or(self.wake);
        // A flood of datagrams must not occupy the processor.
        match more {
            true => self.sleep(wake.min(clock::now() + PAUSE), &[]),
            false => self.sleep(wake, self.network.sockets()),
        }
    }

    /// Waits until the time, a datagram on one of these sockets, or input of another thread.
    fn sleep(&self, until: Nanos, sockets: &[UdpSocket]) {
        let time = until.since(clock::now());
        let sockets = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN));
        let mut watched: Vec<PollFd<'_>> = sockets.collect();
        watched.push(PollFd::new(&self.parts.inbox.bell, PollFlags::IN));
        // The result does not matter, because the loop checks all sources.
        let _ = poll(&mut watched, Some(&timespec(time)));
    }

    /// Passes an event, and all events that result from it, to the protocol.
    fn handle(&mut self, event: Event) {
        self.events.push_back(event);
        let mut actions = Vec::new();
        while let Some(event) = self.events.pop_front().filter(|_| self.phase == Phase::Running) {
            let before = Arc::clone(self.member.decided());
            self.member.handle(clock::now(), event, &mut actions);
            for action in actions.drain(..) {
                self.act(action, &before);
                if matches!(self.phase, Phase::Over { .. }) {
                    return;
                }
            }
            if self.phase == Phase::Leaving {
                self.phase = Phase::Over { left: true };
                self.parts.watchdog.stop(true);
                self.leaving.drain(..).for_each(|whose| tell(&whose, Ok(())));
            }
        }
    }

    fn act(&mut self, action: Action, before: &View) {
        let now = clock::now();
        match action {
            Action::Send { to, report } => {
                if self.phase == Phase::Leaving || self.parts.observer.is_well() {
                    let message = format::message(&report);
                    let times = if self.phase == Phase::Leaving { LEAVE_ANNOUNCEMENTS } else { 1 };
                    for node in (0..times).flat_map(|_| to.iter()) {
                        self.network.send(node, Kind::Report, &message);
                    }
                }
            }
            Action::Turn { file, writes } => self.turn(file, writes, now),
            Action::Wake(time) => self.wake = time,
            Action::Decided(view) => {
                self.history.decided(before, &view, |node| self.network.heard(node), now);
                self.notify(ObserverNotice::Decided(view));
            }
            Action::Opened(view) => {
                let transition = self.history.opened(&view, now);
                self.notify(ObserverNotice::Opened(view, transition));
            }
            Action::Lease(until) => {
                if self.parts.ending.hold(until) {
                    self.parts.watchdog.check();
                }
            }
            Action::Fence(node, incarnation) => self.fence(node, incarnation),
            Action::Stopped { node, incarnation, proved } => {
                let how = if proved { FencingState::Reported } else { FencingState::LeaseEnded };
                self.history.ended(node, incarnation, how);
                self.history.stopped(now);
                self.end_fences(node, incarnation);
            }
            Action::SetAside(file) => {
                let what = "is an older copy of itself; it is set aside and added again in a later view";
                self.notify(ObserverNotice::Warning(format!("voting file {file} {what}")));
                self.files_health.set_aside(file);
            }
            Action::Remembered(generation) => {
                self.remembering.drain(..).for_each(|whose| tell(&whose, generation));
            }
            Action::Answer(ConfigChange::Leave, answer) => {
                let answer = answer.map_err(ConfigChangeError::from);
                self.leaving.drain(..).for_each(|whose| tell(&whose, answer));
            }
            Action::Answer(_, answer) => {
                if let Some(whose) = self.config_change.take() {
                    tell(&whose, answer.map_err(ConfigChangeError::from));
                }
            }
            Action::LeaveToo(leavers) => self.notify(ObserverNotice::LeaveToo(leavers)),
            Action::Die(reason) => {
                self.phase = Phase::Over { left: false };
                self.parts.ending.die(reason);
            }
            Action::Left => {
                self.phase = match self.has_stopped() {
                    true => Phase::Leaving,
                    false => Phase::Over { left: false },
                };
            }
        }
    }

    /// Stops the observer and waits for it. Returns false if it cannot be known to have stopped.
    ///
    /// The observer runs on another thread. It may wait for an ordinary thread, which would not get
    /// a processor while a real-time thread yields in a loop.
    fn has_stopped(&self) -> bool {
        if !self.parts.ending.begin() {
            return false;
        }
        let (tell, told) = mpsc::sync_channel(1);
        self.notify(ObserverNotice::Left(tell));
        told.recv() == Ok(true)
    }

    /// Sends a notice. The receiver is gone only after a panic of the observer, which
    /// was reported.
    pub(super) fn notify(&self, notice: ObserverNotice) {
        let _ = self.parts.views.send(notice);
    }

    pub(super) fn note_leaver(&mut self, report: &Report) {
        if report.leaving {
            let leaver = &mut self.leavers[report.node.index()];
            *leaver = (*leaver).max(report.incarnation);
        }
    }

    /// Warns of a node with a different lease or disk timeout, because the two nodes never accept
    /// each other as members.
    fn note_times(&mut self, report: &Report) {
        let (node, times) = (report.node, (report.lease, report.disk_timeout));
        let mine = (self.lease_time, self.disk_timeout);
        if times == mine {
            self.warned_of.remove(&node);
        } else if self.warned_of.insert(node, times) != Some(times) {
            let what = "the nodes do not accept each other as members until their settings agree";
            self.notify(ObserverNotice::Warning(format!(
                "{} has a lease of {} and a disk timeout of {}, this node has {} and {}: {what}",
                self.parts.observer.name(node),
                times.0,
                times.1,
                mine.0,
                mine.1
            )));
        }
    }

    fn take(&mut self, input: Input) {
        let event = match input {
            Input::Turned(file, FinishedTurn { number, result }) => {
                if let Some(owner) = self.files.ended(file, number, clock::now()) {
                    self.turned(file, owner, result.map_err(|error| error.to_string()));
                }
                return self.handle(Event::Tick);
            }
            Input::Lost(node, incarnation) => Event::Lost(node, incarnation),
            Input::Dead(node, incarnation) => Event::Dead(node, incarnation),
            Input::Fenced(node, incarnation, result) => match self.fenced(node, incarnation, result) {
                Some(event) => event,
                None => return,
            },
            Input::ConfigChange(ConfigChange::Leave, answer) => {
                self.leaving.push(answer);
                Event::ConfigChange(ConfigChange::Leave)
            }
            Input::ConfigChange(_, answer) if self.config_change.is_some() => {
                return tell(&answer, Err(ConfigChangeRefusal::Busy.into()));
            }
            Input::ConfigChange(config_change, answer) => {
                self.config_change = Some(answer);
                Event::ConfigChange(config_change)
            }
            Input::Registry(generation, None) => Event::Registry(generation),
            Input::Registry(generation, Some(answer)) => {
                self.remembering.push(answer);
                Event::Remember(generation)
            }
            Input::Status(answer) => return tell(&answer, self.status()),
            Input::File(file, path) => return self.files.set_path(file, path),
            Input::Peer(node, addresses) => return self.network.set_addresses(node, addresses),
            Input::Keys(keys) => return self.network.rekey(keys),
            Input::Trouble(what) => return self.notify(ObserverNotice::Warning(what)),
            Input::Entered(epoch) => Event::Entered(epoch),
            Input::Rebuilt(epoch) => return self.history.rebuilt(epoch, clock::now()),
            Input::Stop => return self.phase = Phase::Over { left: false },
        };
        self.handle(event);
    }

    fn read(&mut self, datagram: ReceivedDatagram) {
        let ReceivedDatagram { from, incarnation, kind, body, route } = datagram;
        match kind {
            Kind::Hello => {}
            Kind::Report => {
                let Ok(report) = format::message_decoded(&body) else { return };
                if (report.node, report.incarnation) == (from, incarnation) {
                    if self.member.accepts_from(from, incarnation) {
                        self.note_leaver(&report);
                    }
                    self.note_times(&report);
                    self.handle(Event::Heard(Arc::new(report)));
                }
            }
            Kind::TurnRequest => self.handle_request((from, incarnation), &body, route),
            Kind::Answer => {
                if let Some((file, read)) = self.requester.answered(from, &body, clock::now()) {
                    self.answered(from, file, read);
                    self.handle(Event::Tick);
                }
            }
            Kind::Missing => {
                for piece in self.server.missing((from, incarnation), &body) {
                    self.network.send(from, Kind::Answer, &piece);
                }
            }
        }
    }

    /// Ends all activity of this incarnation, except I/O at disks that hang.
    fn close(mut self) {
        self.parts.ending.stop();
        self.parts.watchdog.stop(self.phase == Phase::Over { left: true });
        self.fences.clear();
        self.files.stop(clock::now() + self.lease_time);
        while let Some(until) = self.files.wake() {
            // The sockets are not read any more, and datagrams would wake the thread again and
            // again.
            self.sleep(until, &[]);
            for input in self.parts.inbox.take() {
                if let Input::Turned(file, done) = input {
                    self.files.ended(file, done.number, clock::now());
                }
            }
            self.files.give_up(clock::now());
        }
        self.parts.inbox.close();
        for thread in self.files.close() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Sends an answer. The channel has room for it, and the receiver may be gone.
fn tell<T>(whom: &SyncSender<T>, what: T) {
    let _ = whom.send(what);
}
