//! Windows: named memory of one node, its *home*, of which other nodes may keep copies.
//!
//! Every access goes to the home, which carries out one after the other. The home then puts each
//! change into every copy, in the same order for all. So copies may lag, but no two nodes ever see
//! two changes in different orders. A change is answered when it has arrived in every copy.
//!
//! A node that starts to keep a copy first becomes a member; then the home sends it the memory
//! piece by piece, with new changes between the pieces. A node that ends its copy waits for
//! [`Verb::Left`] before it reuses the memory, because the home may still write there until then.
//! All messages of a home to members are of one kind (forwards), so they arrive in order.
//!
//! Programs read copies in place and learn of the end of a window, but not at once. What a program
//! has mapped, it keeps until it closes its view, and until then the memory is not reused.

mod copies;
mod ended;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ended::{Ended, Reader};

use super::{
    Checked, ClientId, Head, NodeId, ProgramCore, ProgramDriver, ProgramMessage, Status, Use, Verb,
    Violation, arena::Arena, limits,
};

/// The number of bytes of a copy that one message carries.
pub(super) const PIECE: u64 = 16 << 10;

/// The most pieces of one copy that are under way.
pub(super) const PIECES: u64 = 16;

/// The most bytes of new windows that are cleared in one turn.
pub(super) const CLEARED: u64 = 256 << 10;

/// The windows of a worker's share, and the programs' views of the windows of other workers.
pub(super) struct Windows {
    arena: Arena,
    names: BTreeMap<Box<[u8]>, u32>,
    homes: BTreeMap<u32, Home>,
    /// Our programs' windows that are being cleared: they have names but cannot be found yet.
    making: VecDeque<NewWindow>,
    /// Copies of our windows that are being sent, by the number that their pieces have.
    sending: BTreeMap<u64, OutgoingCopy>,
    copies: BTreeMap<(NodeId, u32), Copy>,
    ended: Vec<Ended>,
    /// The operations that programs wait for.
    asked: BTreeMap<u64, PendingAccess>,
    /// Changes of our windows that have not arrived in every copy yet.
    changes: BTreeMap<u64, Change>,
    last_window: u32,
    last: u64,
}

/// A window whose home is this node.
struct Home {
    name: Box<[u8]>,
    at: u64,
    len: u64,
    members: BTreeMap<NodeId, u64>,
    /// This node's programs that have a view of it, with their numbers for it.
    users: BTreeSet<Reader>,
    /// The users that asked to map it.
    readers: BTreeSet<Reader>,
    watchers: BTreeSet<Reader>,
}

/// A window whose memory is being cleared.
struct NewWindow {
    window: u32,
    cleared: u64,
    home: Home,
    creator: ClientId,
    /// The program's number of the operation.
    id: u64,
}

/// A copy that is being sent to another node.
struct OutgoingCopy {
    to: NodeId,
    window: u32,
    /// The offset of the copy in the arena of that node.
    there: u64,
    sent: u64,
}

/// A copy of another node's window.
struct Copy {
    at: u64,
    len: u64,
    state: State,
    users: BTreeSet<Reader>,
    watchers: BTreeSet<Reader>,
}

#[derive(PartialEq, Eq)]
enum State {
    /// Part of it is missing. These operations of programs wait for the rest.
    Joining(Vec<(ClientId, u64)>),
    Complete,
    /// Given up, but its home may still write to it. These operations then want a new copy.
    Leaving(Vec<(ClientId, u64)>),
}

/// One program's view of one window.
pub(super) struct View {
    home: NodeId,
    window: u32,
    len: u64,
    number: u32,
    creator: bool,
}

/// An operation of a program that another node carries out.
struct PendingAccess {
    program: ClientId,
    /// The program's number of the operation.
    id: u64,
    home: NodeId,
    /// The program's number for the window, if the operation looks for one.
    opens: Option<u32>,
}

/// A program's request to the home of a window.
struct WindowRequest {
    program: ClientId,
    /// The program's number of the request.
    id: u64,
    home: NodeId,
    /// See [`PendingAccess::opens`].
    opens: Option<u32>,
    request: Head,
}

struct Change {
    missing: BTreeSet<NodeId>,
    asker: NodeId,
    id: u64,
    old: u64,
}

impl Windows {
    pub(super) fn new(share: std::ops::Range<u64>) -> Self {
        Self {
            arena: Arena::new(share),
            names: BTreeMap::new(),
            homes: BTreeMap::new(),
            making: VecDeque::new(),
            sending: BTreeMap::new(),
            copies: BTreeMap::new(),
            ended: Vec::new(),
            asked: BTreeMap::new(),
            changes: BTreeMap::new(),
            last_window: 0,
            last: 0,
        }
    }

    /// Returns the number of windows and copies here, and the bytes that they take.
    pub(super) fn here(&self) -> (usize, u64) {
        (self.homes.len() + self.making.len() + self.copies.len(), self.arena.taken())
    }

    /// Returns true if nothing is left of any window.
    #[cfg(test)]
    pub(super) fn are_all_given_back(&mut self, arena: u64) -> bool {
        self.names.is_empty()
            && self.homes.is_empty()
            && self.making.is_empty()
            && self.sending.is_empty()
            && self.copies.is_empty()
            && self.asked.is_empty()
            && self.changes.is_empty()
            && self.arena.take(arena).is_some()
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

fn head(verb: Verb) -> Head {
    Head::new(verb, Use::Windows)
}

impl ProgramCore {
    /// Handles a program's request to create a window.
    pub(super) fn create(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head: asked, payload: name } = message;
        self.check_new_view(from, asked.port, name)?;
        let len = asked.value;
        if len == 0 || !len.is_multiple_of(8) {
            return Err(Violation("a window whose length is not a number of whole words"));
        }
        let (status, at) = if self.mine(from)?.views.len() >= limits::MAX_WINDOWS {
            (Status::Busy, 0)
        } else if self.windows.names.contains_key(name) {
            (Status::InUse, 0)
        } else {
            self.windows.arena.take(len).map_or((Status::NoRoom, 0), |at| (Status::Ok, at))
        };
        if status != Status::Ok {
            world.tell(from, Head::done(Use::Windows, asked.id, status), &[]);
            return Ok(());
        }
        self.windows.last_window += 1;
        let window = self.windows.last_window;
        self.windows.names.insert(name.into(), window);
        let home = Home {
            name: name.into(),
            at,
            len,
            members: BTreeMap::new(),
            users: BTreeSet::from([(from, asked.port)]),
            readers: BTreeSet::new(),
            watchers: BTreeSet::new(),
        };
        self.windows.making.push_back(NewWindow { window, cleared: 0, home, creator: from, id: asked.id });
        let view = View { home: self.place.me, window, len, number: asked.port, creator: true };
        self.mine(from)?.views.insert(asked.port, view);
        Ok(())
    }

    /// Clears a piece of a new window; returns true if there was one.
    pub(super) fn clear(&mut self, world: &mut impl ProgramDriver) -> bool {
        let Some(making) = self.windows.making.front_mut() else { return false };
        let end = making.home.len.min(making.cleared + CLEARED);
        let zeros = [0; PIECE as usize];
        while making.cleared < end {
            let piece = (end - making.cleared).min(PIECE);
            world.write(making.home.at + making.cleared, &zeros[..piece as usize]);
            making.cleared += piece;
        }
        if making.cleared == making.home.len
            && let Some(NewWindow { window, home, creator, id, .. }) = self.windows.making.pop_front()
        {
            let done = Head { value: home.at, ..Head::done(Use::Windows, id, Status::Ok) };
            self.windows.homes.insert(window, home);
            world.tell(creator, done, &[]);
        }
        true
    }

    /// Returns true if a window is being cleared.
    pub(super) fn is_clearing(&self) -> bool {
        !self.windows.making.is_empty()
    }

    /// Handles a program's request to open a window of some node.
    pub(super) fn open(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head: asked, payload: name } = message;
        self.check_new_view(from, asked.port, name)?;
        if self.mine(from)?.views.len() >= limits::MAX_WINDOWS {
            world.tell(from, Head::done(Use::Windows, asked.id, Status::Busy), &[]);
            return Ok(());
        }
        let opens = Some(asked.port);
        let request =
            WindowRequest { program: from, id: asked.id, home: asked.node, opens, request: head(Verb::Open) };
        self.ask(world, request, name)
    }

    fn check_new_view(&mut self, from: ClientId, number: u32, name: &[u8]) -> Checked {
        if name.is_empty() || name.len() > limits::MAX_NAME {
            return Err(Violation("a window whose name is empty or too long"));
        }
        if self.mine(from)?.views.contains_key(&number) {
            return Err(Violation("two windows of one number"));
        }
        Ok(())
    }

    /// Sends a program's request to the window's home.
    fn ask(&mut self, world: &mut impl ProgramDriver, request: WindowRequest, payload: &[u8]) -> Checked {
        let WindowRequest { program, id, home, opens, request } = request;
        let mine = self.mine(program)?;
        if mine.accesses >= limits::MAX_ACCESSES {
            return Err(Violation("more accesses under way than it may have"));
        }
        if world.is_choked(home) {
            world.tell(program, Head::done(Use::Windows, id, Status::Busy), &[]);
            return Ok(());
        }
        mine.accesses += 1;
        let number = self.windows.next();
        self.windows.asked.insert(number, PendingAccess { program, id, home, opens });
        if !world.send(home, Head { id: number, ..request }, payload) {
            self.end_asked(world, number, Head::done(Use::Windows, 0, Status::NodeGone), &[]);
        }
        Ok(())
    }

    /// Ends an operation of a program with the result in `result` and `payload`.
    fn end_asked(&mut self, world: &mut impl ProgramDriver, number: u64, result: Head, payload: &[u8]) {
        let Some(asked) = self.windows.asked.remove(&number) else { return };
        let Some(program) = self.programs.get_mut(&asked.program) else { return };
        program.accesses -= 1;
        if let (Some(number), Status::Ok) = (asked.opens, result.status) {
            let (window, len) = (result.port, result.value);
            let view = View { home: asked.home, window, len, number, creator: false };
            if let Some(older) = program.views.insert(number, view) {
                // The program opened two windows under one number.
                self.drop_view(world, asked.program, older);
            }
            if let Some(home) = self.windows.homes.get_mut(&window).filter(|_| asked.home == self.place.me) {
                home.users.insert((asked.program, number));
            }
        }
        let done = Head { value: result.value, ..Head::done(Use::Windows, asked.id, result.status) };
        world.tell(asked.program, done, payload);
    }

    /// Handles the answer of a home to an operation of one of our programs.
    pub(super) fn finished(
        &mut self,
        world: &mut impl ProgramDriver,
        from: NodeId,
        result: Head,
        payload: &[u8],
    ) {
        if self.windows.asked.get(&result.id).is_some_and(|asked| asked.home == from) {
            self.end_asked(world, result.id, result, payload);
        }
    }

    pub(super) fn forget_accesses(&mut self, program: ClientId) {
        self.windows.asked.retain(|_, asked| asked.program != program);
    }

    /// Handles another node's search for a window of ours.
    pub(super) fn find(&mut self, world: &mut impl ProgramDriver, from: NodeId, asked: Head, name: &[u8]) {
        let found =
            self.windows.names.get(name).and_then(|window| Some((*window, self.windows.homes.get(window)?)));
        let done = match found {
            Some((window, home)) => {
                Head { port: window, value: home.len, ..Head::done(Use::Windows, asked.id, Status::Ok) }
            }
            None => Head::done(Use::Windows, asked.id, Status::NoWindow),
        };
        world.send(from, done, &[]);
    }

    /// Closes a program's view of a window.
    pub(super) fn drop_view(&mut self, world: &mut impl ProgramDriver, program: ClientId, view: View) {
        let user = (program, view.number);
        if view.home != self.place.me {
            let key = (view.home, view.window);
            if let Some(copy) = self.windows.copies.get_mut(&key) {
                copy.users.remove(&user);
                copy.watchers.remove(&user);
                self.leave_unused(world, key);
            }
        } else if view.creator {
            self.destroy(world, view.window);
        } else if let Some(home) = self.windows.homes.get_mut(&view.window) {
            home.users.remove(&user);
            home.readers.remove(&user);
            home.watchers.remove(&user);
        }
        self.windows.let_go(user);
    }

    fn destroy(&mut self, world: &mut impl ProgramDriver, window: u32) {
        let making = self.windows.making.iter().position(|making| making.window == window);
        let unmade = making.and_then(|place| self.windows.making.remove(place)).map(|making| making.home);
        let Some(home) = unmade.or_else(|| self.windows.homes.remove(&window)) else { return };
        self.windows.sending.retain(|_, sending| sending.window != window);
        self.windows.names.remove(&home.name);
        self.windows.give(home.at, home.len, home.readers);
        for node in home.members.into_keys() {
            world.send(node, Head { port: window, ..head(Verb::Gone) }, &[]);
        }
        say_gone(world, &home.users, Status::NoWindow);
    }

    /// Handles a request to be told of the next change. The answer says that the watch has started;
    /// the program sees earlier changes in the window itself.
    pub(super) fn watch(&mut self, world: &mut impl ProgramDriver, from: ClientId, asked: Head) -> Checked {
        let me = self.place.me;
        // The program has been told of a window that is gone.
        let Some(view) = self.mine(from)?.views.get(&asked.port) else { return Ok(()) };
        let (home, window) = (view.home, view.window);
        let watchers = if home == me {
            self.windows.homes.get_mut(&window).map(|home| &mut home.watchers)
        } else {
            self.windows.copies.get_mut(&(home, window)).map(|copy| &mut copy.watchers)
        };
        if let Some(watchers) = watchers {
            watchers.insert((from, asked.port));
        }
        world.tell(from, Head::done(Use::Windows, asked.id, Status::Ok), &[]);
        Ok(())
    }

    /// Handles a program's read or change of a window.
    pub(super) fn access(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head: asked, payload } = message;
        let fits = match asked.verb {
            Verb::Put => payload.len() <= limits::MAX_MESSAGE,
            Verb::Get => word(payload).is_some_and(|len| len <= limits::MAX_MESSAGE as u64),
            Verb::Add => payload.len() == 8,
            _ => payload.len() == 16,
        };
        if !fits {
            return Err(Violation("an access of the wrong length"));
        }
        let Some(view) = self.mine(from)?.views.get(&asked.port) else {
            world.tell(from, Head::done(Use::Windows, asked.id, Status::NoWindow), &[]);
            return Ok(());
        };
        let (home, window) = (view.home, view.window);
        let request = Head { port: window, value: asked.value, ..head(asked.verb) };
        self.ask(world, WindowRequest { program: from, id: asked.id, home, opens: None, request }, payload)
    }

    /// Carries out another node's access to a window of ours.
    pub(super) fn execute(
        &mut self,
        world: &mut impl ProgramDriver,
        from: NodeId,
        asked: Head,
        payload: &[u8],
    ) {
        let mut done = Head::done(Use::Windows, asked.id, Status::Ok);
        let Some(home) = self.windows.homes.get_mut(&asked.port) else {
            world.send(from, Head { status: Status::NoWindow, ..done }, &[]);
            return;
        };
        let words = matches!(asked.verb, Verb::Add | Verb::Swap);
        let len = match asked.verb {
            Verb::Put => payload.len() as u64,
            Verb::Get => word(payload).unwrap_or(u64::MAX),
            _ => 8,
        };
        let inside = asked.value.checked_add(len).is_some_and(|end| end <= home.len);
        let whole = !words || asked.value.is_multiple_of(8);
        if !inside || !whole || len > limits::MAX_MESSAGE as u64 {
            world.send(from, Head { status: Status::OutOfRange, ..done }, &[]);
            return;
        }
        if asked.verb != Verb::Get && home.members.keys().any(|node| world.is_choked(*node)) {
            world.send(from, Head { status: Status::Busy, ..done }, &[]);
            return;
        }
        let at = home.at + asked.value;
        if asked.verb == Verb::Get {
            let mut bytes = vec![0; len as usize];
            world.read(at, &mut bytes);
            world.send(from, done, &bytes);
            return;
        }
        let new: [u8; 8];
        let changed = if words {
            let mut old = [0; 8];
            world.read(at, &mut old);
            let (old, operand) = (u64::from_le_bytes(old), word(payload).unwrap_or(0));
            done.value = old;
            let result = match (asked.verb, payload.get(8..)) {
                (Verb::Add, _) => old.wrapping_add(operand),
                (_, Some(new)) if old == operand => word(new).unwrap_or(old),
                _ => old,
            };
            new = result.to_le_bytes();
            if result == old { &[][..] } else { &new[..] }
        } else {
            payload
        };
        if changed.is_empty() {
            world.send(from, done, &[]);
            return;
        }
        world.write(at, changed);
        say_changed(world, &mut home.watchers);
        let (members, number) = (home.members.clone(), self.windows.next());
        let mut missing = BTreeSet::new();
        for (node, there) in members {
            let behind = Head { id: number, port: asked.port, ..head(Verb::Copied) };
            if world.copy(node, there + asked.value, changed, behind) {
                missing.insert(node);
            }
        }
        if missing.is_empty() {
            world.send(from, done, &[]);
        } else {
            self.windows
                .changes
                .insert(number, Change { missing, asker: from, id: asked.id, old: done.value });
        }
    }

    /// Handles the arrival of a change, or of a piece of a new copy, in one copy: the next may
    /// follow.
    pub(super) fn landed(&mut self, world: &mut impl ProgramDriver, from: NodeId, said: Head) {
        if self.windows.sending.get(&said.id).is_some_and(|sending| sending.to == from) {
            return self.send_piece(world, said.id);
        }
        let Some(change) = self.windows.changes.get_mut(&said.id) else { return };
        change.missing.remove(&from);
        if change.missing.is_empty()
            && let Some(Change { asker, id, old, .. }) = self.windows.changes.remove(&said.id)
        {
            world.send(asker, Head { value: old, ..Head::done(Use::Windows, id, Status::Ok) }, &[]);
        }
    }

    pub(super) fn windows_gone(&mut self, world: &mut impl ProgramDriver, peer: NodeId) {
        for home in self.windows.homes.values_mut() {
            home.members.remove(&peer);
        }
        self.windows.sending.retain(|_, sending| sending.to != peer);
        let changes: Vec<u64> = self.windows.changes.keys().copied().collect();
        for id in changes {
            self.landed(world, peer, Head { id, ..head(Verb::Landed) });
        }
        let asked = self.windows.asked.iter().filter(|(_, asked)| asked.home == peer);
        for number in asked.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end_asked(world, number, Head::done(Use::Windows, 0, Status::NodeGone), &[]);
        }
        let copies: Vec<_> = self.windows.copies.keys().filter(|(home, _)| *home == peer).copied().collect();
        for key in copies {
            self.end_copy(world, key, Status::NodeGone);
        }
    }
}

/// Returns the first eight bytes as a number, if there are so many.
fn word(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|word| u64::from_le_bytes(*word))
}

fn say_changed(world: &mut impl ProgramDriver, watchers: &mut BTreeSet<Reader>) {
    while let Some((program, port)) = watchers.pop_first() {
        world.tell(program, Head { port, ..head(Verb::Changed) }, &[]);
    }
}

fn say_gone(world: &mut impl ProgramDriver, users: &BTreeSet<Reader>, status: Status) {
    for (program, port) in users {
        world.tell(*program, Head { port: *port, status, ..head(Verb::Gone) }, &[]);
    }
}
