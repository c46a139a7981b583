//! The loop: takes what happens, hands it to the protocol with the time, and carries out what that says, in its order.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::UdpSocket,
    sync::{
        Arc,
        mpsc::{self, SyncSender},
    },
    thread,
};

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId};
use plexus_interconnect::mesh::Key;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    ConfigChangeError, Guest, Priority, Settings,
    clock::{self, timespec},
    courier::News,
    fate::FileFates,
    files::Files,
    history::History,
    inbox::{Answer, Inbox, Input},
    post::{Letter, Post, datagram::Kind},
    priority,
    served::{Asker, Server},
    status::FencingState,
    watchdog::{Ending, Watchdog},
};
use crate::{
    protocol::{Action, ConfigChange, Event, Member, Refused, Report, View},
    voting::{
        Done,
        format::{self, ClusterId},
    },
};

/// The last report of a node that leaves saves the others a lease; one may be lost.
const FAREWELLS: usize = 3;

/// Between two helpings of datagrams when there are more.
const PAUSE: Nanos = Nanos::from_ms(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Nothing is left but to say so.
    Leaving,
    Over {
        left: bool,
    },
}

/// Where the loop is connected.
pub(super) struct Wires {
    pub(super) guest: Arc<dyn Guest>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) ending: Arc<Ending>,
    pub(super) watchdog: Watchdog,
    pub(super) views: mpsc::Sender<News>,
    /// Dropped to end the thread that asks for keys.
    pub(super) _keys: mpsc::Sender<()>,
}

pub(super) struct Driver {
    pub(super) me: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) cluster: ClusterId,
    pub(super) lease_time: Nanos,
    pub(super) member: Member,
    pub(super) wires: Wires,
    pub(super) post: Post,
    pub(super) files: Files,
    pub(super) asker: Asker,
    pub(super) server: Server,
    pub(super) fates: FileFates,
    pub(super) history: History,
    pub(super) priority: Priority,
    /// By node, a lease that is not the one of this node, of which was warned.
    warned_of: BTreeMap<NodeId, Nanos>,
    /// By node, the last incarnation that said it leaves.
    leavers: [Incarnation; MAX_NODES],
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
        wires: Wires,
    ) -> io::Result<Self> {
        let Settings { me, incarnation, clean, profile, first, cluster, peers, files, .. } = settings;
        let mut session = [0; 16];
        getrandom::fill(&mut session).map_err(io::Error::other)?;
        let mut post = Post::new((me, incarnation), cluster, session, keys, sockets)?;
        peers.into_iter().for_each(|(node, addresses)| post.place(node, addresses));
        let (cluster, limit) = (ClusterId(u128::from_le_bytes(cluster)), profile.lease);
        let now = clock::now();
        Ok(Self {
            me,
            incarnation,
            cluster,
            lease_time: limit,
            member: Member::new(me, incarnation, profile, Arc::new(first), now),
            files: Files::new(cluster, limit, Arc::clone(&wires.inbox), files),
            wires,
            post,
            asker: Asker::new(Nanos(profile.heartbeat.0 / 2), limit),
            server: Server::new(cluster),
            fates: FileFates::default(),
            history: History::default(),
            priority: Priority::Ordinary,
            warned_of: BTreeMap::new(),
            leavers: [Incarnation(0); MAX_NODES],
            config_change: None,
            leaving: Vec::new(),
            remembering: Vec::new(),
            events: clean.into_iter().map(|(node, clean)| Event::Clean(node, clean)).collect(),
            wake: now,
            phase: Phase::Running,
        })
    }

    pub(super) fn run(mut self) {
        self.priority = priority::raise();
        self.tell_guest(News::Note(format!("membership starts; its threads run as: {}", self.priority)));
        let mut more = false;
        while !self.is_over() {
            self.handle(Event::Tick);
            self.rest(more);
            for input in self.wires.inbox.take() {
                self.take(input);
            }
            let mut letters = Vec::new();
            let strangers = self.post.strangers();
            more = self.post.receive(clock::now(), &mut letters);
            if strangers == 0 && self.post.strangers() > 0 {
                let what = "a datagram came that is not for this node, or that no key of the cluster opens: of a node with \
                            another key, or of a stranger";
                self.tell_guest(News::Warning(what.into()));
            }
            for letter in letters {
                self.read(letter);
            }
            self.give_up();
        }
        self.close();
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. }) || self.wires.ending.is_over()
    }

    /// Until there is something to do.
    fn rest(&self, more: bool) {
        let wakes = [Some(self.wake), self.asker.wake(), self.files.wake()];
        let wake = wakes.into_iter().flatten().min().unwrap_or(self.wake);
        // Whoever floods the sockets must not have the processor.
        match more {
            true => self.sleep(wake.min(clock::now() + PAUSE), &[]),
            false => self.sleep(wake, self.post.sockets()),
        }
    }

    /// Until then, or until something comes to these sockets, or from another thread.
    fn sleep(&self, until: Nanos, sockets: &[UdpSocket]) {
        let time = until.since(clock::now());
        let sockets = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN));
        let mut watched: Vec<PollFd<'_>> = sockets.collect();
        watched.push(PollFd::new(&self.wires.inbox.bell, PollFlags::IN));
        // Interrupted or not: everything is looked at.
        let _ = poll(&mut watched, Some(&timespec(time)));
    }

    /// Hands an event to the protocol, and all that comes of it at once.
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
                self.wires.watchdog.stop(true);
                self.leaving.drain(..).for_each(|whose| tell(&whose, Ok(())));
            }
        }
    }

    fn act(&mut self, action: Action, before: &View) {
        let now = clock::now();
        match action {
            Action::Send { to, report } => {
                if self.phase == Phase::Leaving || self.wires.guest.is_well() {
                    let message = format::message(&report);
                    let times = if self.phase == Phase::Leaving { FAREWELLS } else { 1 };
                    for node in (0..times).flat_map(|_| to.iter()) {
                        self.post.send(node, Kind::Report, &message);
                    }
                }
            }
            Action::Turn { file, writes } => self.turn(file, writes, now),
            Action::Wake(time) => self.wake = time,
            Action::Decided(view) => {
                self.history.decided(before, &view, |node| self.post.heard(node), now);
                self.tell_guest(News::Decided(view));
            }
            Action::Opened(view) => {
                let transition = self.history.opened(&view, now);
                self.tell_guest(News::Opened(view, transition));
            }
            Action::Lease(until) => {
                if self.wires.ending.hold(until) {
                    self.wires.watchdog.look();
                }
            }
            Action::Fence(node, incarnation) => self.fence(node, incarnation),
            Action::Stopped { node, incarnation, proved } => {
                let how = if proved { FencingState::Told } else { FencingState::WaitedOut };
                self.history.ended(node, incarnation, how);
                self.history.stopped(now);
            }
            Action::SetAside(file) => {
                let what = "is an older copy of itself: it is set aside, and taken in again in a later view";
                self.tell_guest(News::Warning(format!("voting file {file} {what}")));
                self.fates.set_aside(file);
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
            Action::Die(reason) => {
                self.phase = Phase::Over { left: false };
                self.wires.ending.die(reason);
            }
            Action::Left => {
                self.phase = match self.has_stopped() {
                    true => Phase::Leaving,
                    false => Phase::Over { left: false },
                };
            }
        }
    }

    /// Has the guest stop, and waits for it; false: nobody can say that it has.
    ///
    /// Not on this thread: what the guest waits for may be held by an ordinary one, which does not get past one of real time that only
    /// gives way.
    fn has_stopped(&self) -> bool {
        if !self.wires.ending.begin() {
            return false;
        }
        let (tell, told) = mpsc::sync_channel(1);
        self.tell_guest(News::Left(tell));
        told.recv().is_ok()
    }

    /// Nobody takes it any more only when the guest has panicked, which was reported.
    pub(super) fn tell_guest(&self, news: News) {
        let _ = self.wires.views.send(news);
    }

    pub(super) fn note_leaver(&mut self, report: &Report) {
        if report.leaving {
            let leaver = &mut self.leavers[report.node.index()];
            *leaver = (*leaver).max(report.incarnation);
        }
    }

    /// Nodes whose leases differ do not take each other in.
    fn note_lease(&mut self, report: &Report) {
        let (node, lease) = (report.node, report.lease);
        if lease == self.lease_time {
            self.warned_of.remove(&node);
        } else if self.warned_of.insert(node, lease) != Some(lease) {
            let mine = self.lease_time;
            let what = "neither takes the other in until their settings are alike";
            self.tell_guest(News::Warning(format!(
                "{node} has a lease of {lease}, this node of {mine}: {what}"
            )));
        }
    }

    fn fence(&mut self, node: NodeId, incarnation: Incarnation) {
        self.history.fencing(node, incarnation);
        if self.leavers[node.index()] == incarnation {
            // It says itself when it has stopped; if not, its lease is waited for.
            return;
        }
        let (guest, inbox) = (Arc::clone(&self.wires.guest), Arc::clone(&self.wires.inbox));
        let thread = thread::Builder::new().name(format!("plexus-fence-{}", node.0));
        let fence = move || inbox.post(Input::Fenced(node, incarnation, guest.fence(node, incarnation)));
        if let Err(error) = thread.spawn(fence) {
            self.tell_guest(News::Warning(format!(
                "no thread to fence {node} on, its lease is waited for: {error}"
            )));
        }
    }

    fn take(&mut self, input: Input) {
        let event = match input {
            Input::Turned(file, Done { number, result }) => {
                if let Some(owner) = self.files.ended(file, number, clock::now()) {
                    self.turned(file, owner, result.map_err(|error| error.to_string()));
                }
                return self.handle(Event::Tick);
            }
            Input::Lost(node, incarnation) => Event::Lost(node, incarnation),
            Input::Dead(node, incarnation) => Event::Dead(node, incarnation),
            Input::Clean(node, clean) => Event::Clean(node, clean),
            Input::Fenced(node, incarnation, Some(proof)) => {
                self.history.ended(node, incarnation, FencingState::Proved(proof));
                Event::Dead(node, incarnation)
            }
            Input::Fenced(_, _, None) => return,
            Input::ConfigChange(ConfigChange::Leave, answer) => {
                self.leaving.push(answer);
                Event::ConfigChange(ConfigChange::Leave)
            }
            Input::ConfigChange(_, answer) if self.config_change.is_some() => {
                return tell(&answer, Err(Refused::Busy.into()));
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
            Input::File(file, path) => return self.files.place(file, path),
            Input::Peer(node, addresses) => return self.post.place(node, addresses),
            Input::Keys(keys) => return self.post.rekey(keys),
            Input::Trouble(what) => return self.tell_guest(News::Warning(what)),
            Input::Entered(epoch) => Event::Entered(epoch),
            Input::Rebuilt(epoch) => return self.history.rebuilt(epoch, clock::now()),
            Input::Stop => return self.phase = Phase::Over { left: false },
        };
        self.handle(event);
    }

    fn read(&mut self, letter: Letter) {
        let Letter { from, incarnation, kind, body, way } = letter;
        match kind {
            Kind::Hello => {}
            Kind::Report => {
                let Ok(report) = format::message_decoded(&body) else { return };
                if (report.node, report.incarnation) == (from, incarnation) {
                    if self.member.listens(from, incarnation) {
                        self.note_leaver(&report);
                    }
                    self.note_lease(&report);
                    self.handle(Event::Heard(Arc::new(report)));
                }
            }
            Kind::Ask => self.asked((from, incarnation), &body, way),
            Kind::Answer => {
                if let Some((file, read)) = self.asker.answered(from, &body, clock::now()) {
                    self.answered(from, file, read);
                    self.handle(Event::Tick);
                }
            }
            Kind::Missing => {
                for piece in self.server.missing((from, incarnation), &body) {
                    self.post.send(from, Kind::Answer, &piece);
                }
            }
        }
    }

    /// Nothing of this incarnation goes on after this, except at disks that hang.
    fn close(mut self) {
        self.wires.ending.stop();
        self.wires.watchdog.stop(self.phase == Phase::Over { left: true });
        self.files.stop();
        while let Some(until) = self.files.wake() {
            // Nobody takes from the sockets any more what would wake it time and again.
            self.sleep(until, &[]);
            for input in self.wires.inbox.take() {
                if let Input::Turned(file, done) = input {
                    self.files.ended(file, done.number, clock::now());
                }
            }
            self.files.give_up(clock::now());
        }
        self.wires.inbox.close();
        for thread in self.files.close() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Who asked may have gone; else there is room for the answer.
fn tell<T>(whom: &SyncSender<T>, what: T) {
    let _ = whom.send(what);
}
