//! Copies of windows: how a node gets one, piece by piece, and how the copy ends on both sides.

use std::collections::BTreeSet;

use super::{
    super::{
        Checked, ClientId, Head, NodeId, ProgramCore, ProgramDriver, Status, Use, Verb, Violation, limits,
    },
    Copy, OutgoingCopy, PIECE, PIECES, State, head, say_changed, say_gone,
};

impl ProgramCore {
    /// Handles a program's request to read a window in place.
    pub(in super::super) fn map(
        &mut self,
        world: &mut impl ProgramDriver,
        from: ClientId,
        asked: Head,
    ) -> Checked {
        let me = self.place.me;
        let Some(view) = self.mine(from)?.views.get(&asked.port) else {
            world.tell(from, Head::done(Use::Windows, asked.id, Status::NoWindow), &[]);
            return Ok(());
        };
        let (key, len, user) = ((view.home, view.window), view.len, (from, view.number));
        let done = |status, value| Head { value, ..Head::done(Use::Windows, asked.id, status) };
        if key.0 == me {
            let at = self.windows.homes.get_mut(&key.1).map(|home| {
                home.readers.insert(user);
                home.at
            });
            world.tell(from, at.map_or(done(Status::NoWindow, 0), |at| done(Status::Ok, at)), &[]);
            return Ok(());
        }
        if let Some(copy) = self.windows.copies.get_mut(&key) {
            match &mut copy.state {
                State::Complete => {
                    copy.users.insert(user);
                    world.tell(from, done(Status::Ok, copy.at), &[]);
                }
                State::Joining(waiting) | State::Leaving(waiting) => {
                    if waiting.len() >= limits::MAX_ACCESSES {
                        return Err(Violation("too many requests for one copy"));
                    }
                    copy.users.insert(user);
                    waiting.push((from, asked.id));
                }
            }
            return Ok(());
        }
        let Some(at) = self.windows.arena.take(len) else {
            world.tell(from, done(Status::NoRoom, 0), &[]);
            return Ok(());
        };
        let copy = Copy {
            at,
            len,
            state: State::Joining(vec![(from, asked.id)]),
            users: BTreeSet::from([user]),
            watchers: BTreeSet::new(),
        };
        self.windows.copies.insert(key, copy);
        self.begin_copy(world, key, at);
        Ok(())
    }

    fn begin_copy(&mut self, world: &mut impl ProgramDriver, key: (NodeId, u32), at: u64) {
        if !world.send(key.0, Head { port: key.1, value: at, ..head(Verb::Join) }, &[]) {
            self.end_copy(world, key, Status::NodeGone);
        }
    }

    /// Handles another node's request for a copy of a window of ours.
    pub(in super::super) fn join(&mut self, world: &mut impl ProgramDriver, from: NodeId, asked: Head) {
        let joined = |status| Head { status, port: asked.port, ..head(Verb::Joined) };
        let Some(home) = self.windows.homes.get_mut(&asked.port) else {
            world.send(from, joined(Status::NoWindow), &[]);
            return;
        };
        home.members.insert(from, asked.value);
        let number = self.windows.next();
        let sending = OutgoingCopy { to: from, window: asked.port, there: asked.value, sent: 0 };
        self.windows.sending.insert(number, sending);
        for _ in 0..PIECES {
            self.send_piece(world, number);
        }
    }

    /// Sends the next piece of a copy and, after the last, the notice that it is complete.
    pub(super) fn send_piece(&mut self, world: &mut impl ProgramDriver, number: u64) {
        let Some(sending) = self.windows.sending.get_mut(&number) else { return };
        let Some(home) = self.windows.homes.get(&sending.window) else { return };
        let piece = &mut [0; PIECE as usize][..(home.len - sending.sent).min(PIECE) as usize];
        world.read(home.at + sending.sent, piece);
        let (to, at) = (sending.to, sending.there + sending.sent);
        sending.sent += piece.len() as u64;
        let complete = sending.sent == home.len;
        let window = Head { port: sending.window, ..head(Verb::Joined) };
        // Without a link, the coming loss of that node ends everything that is for it.
        world.copy(to, at, piece, Head { verb: Verb::Copied, id: number, ..window });
        if complete {
            self.windows.sending.remove(&number);
            world.send(to, window, &[]);
        }
    }

    /// Handles the notice that a copy of ours is complete or cannot be had.
    pub(in super::super) fn joined(&mut self, world: &mut impl ProgramDriver, from: NodeId, said: Head) {
        let key = (from, said.port);
        if said.status != Status::Ok {
            return self.end_copy(world, key, said.status);
        }
        let Some(copy) = self.windows.copies.get_mut(&key) else { return };
        let State::Joining(waiting) = std::mem::replace(&mut copy.state, State::Complete) else { return };
        for (program, id) in waiting {
            world.tell(program, Head { value: copy.at, ..Head::done(Use::Windows, id, Status::Ok) }, &[]);
        }
        self.leave_unused(world, key);
    }

    /// Gives up a copy that no program uses, or lets it become complete first.
    pub(super) fn leave_unused(&mut self, world: &mut impl ProgramDriver, key: (NodeId, u32)) {
        let Some(copy) = self.windows.copies.get_mut(&key) else { return };
        if copy.state == State::Complete && copy.users.is_empty() {
            copy.state = State::Leaving(Vec::new());
            // Without a link, the loss of the node ends the copy.
            world.send(key.0, Head { port: key.1, ..head(Verb::Leave) }, &[]);
        }
    }

    /// Handles a node's notice that it gives up its copy.
    pub(in super::super) fn leave(&mut self, world: &mut impl ProgramDriver, from: NodeId, said: Head) {
        // A node without the window was told that it is gone, and gets no further message about it.
        if let Some(home) = self.windows.homes.get_mut(&said.port) {
            home.members.remove(&from);
            world.send(from, Head { port: said.port, ..head(Verb::Left) }, &[]);
        }
    }

    /// Handles the home's notice that it writes nothing more to a copy of ours.
    pub(in super::super) fn left(&mut self, world: &mut impl ProgramDriver, from: NodeId, said: Head) {
        let key = (from, said.port);
        let Some(copy) = self.windows.copies.get_mut(&key) else { return };
        let State::Leaving(waiting) = &mut copy.state else { return };
        if copy.users.is_empty() {
            return self.end_copy(world, key, Status::NoWindow);
        }
        let (waiting, at) = (std::mem::take(waiting), copy.at);
        copy.state = State::Joining(waiting);
        self.begin_copy(world, key, at);
    }

    /// Handles the end of a window of another node.
    pub(in super::super) fn window_gone(&mut self, world: &mut impl ProgramDriver, from: NodeId, said: Head) {
        self.end_copy(world, (from, said.port), Status::NoWindow);
    }

    pub(super) fn end_copy(&mut self, world: &mut impl ProgramDriver, key: (NodeId, u32), status: Status) {
        let Some(Copy { at, len, state, users, .. }) = self.windows.copies.remove(&key) else { return };
        let readers = match state {
            State::Complete => users.clone(),
            // The programs that wait for it do not know yet where it is.
            State::Joining(waiting) | State::Leaving(waiting) => {
                for (program, id) in waiting {
                    world.tell(program, Head::done(Use::Windows, id, status), &[]);
                }
                BTreeSet::new()
            }
        };
        say_gone(world, &users, status);
        self.windows.give(at, len, readers);
    }

    /// Acknowledges a piece of a copy of ours that was written.
    pub(in super::super) fn copied(&mut self, world: &mut impl ProgramDriver, from: NodeId, said: Head) {
        world.send(from, Head { id: said.id, ..head(Verb::Landed) }, &[]);
        if let Some(copy) = self.windows.copies.get_mut(&(from, said.port)) {
            say_changed(world, &mut copy.watchers);
        }
    }
}
