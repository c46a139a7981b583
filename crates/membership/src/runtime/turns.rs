//! Turns at voting files: of this node at its own and other nodes' files, and of other nodes at
//! files of this node.

use std::sync::Arc;

use plexus_base::{Incarnation, Nanos, NodeId};

use super::{
    clock,
    driver::Driver,
    files::Owner,
    network::{Route, datagram::Kind},
    notifier::ObserverNotice,
    served::TurnRequest,
};
use crate::{
    protocol::{Contents, Event, FileId, TurnFailed, VotingFile, Writes},
    voting::{
        TurnContents,
        format::{self, FileName},
    },
};

impl Driver {
    pub(super) fn turn(&mut self, file: VotingFile, writes: Writes, now: Nanos) {
        if writes.ballot.as_ref().is_some_and(|(_, ballot)| ballot.mbal > 0) {
            self.history.balloted(now);
        }
        self.files_health.began(file, now);
        if !self.parts.observer.is_well() {
            return self.failed(file.id, "this node is not well: it makes no progress".into());
        }
        let blocks = format::writes(FileName { cluster: self.cluster, file: file.id }, self.me, &writes);
        match file.host.filter(|host| *host != self.me) {
            Some(host) => {
                let mut out = Vec::new();
                self.requester.request(host, file.id, &blocks, now, &mut out);
                out.iter().for_each(|(to, kind, body)| self.network.send(*to, *kind, body));
            }
            None => {
                let owner = Owner { node: self.me, incarnation: self.incarnation, turn: 0 };
                if let Err(why) = self.files.begin(file.id, owner, false, blocks, now) {
                    self.failed(file.id, why);
                }
            }
        }
    }

    fn failed(&mut self, file: FileId, why: String) {
        if self.files_health.failed(file, &why) {
            self.notify(ObserverNotice::Warning(format!("voting file {file} does not answer: {why}")));
        }
        self.events.push_back(Event::Finished { file, result: Err(TurnFailed) });
    }

    fn finished(&mut self, file: FileId, contents: Box<Contents>) {
        let now = clock::now();
        if self.files_health.finished(file, now) {
            self.notify(ObserverNotice::Note(format!("voting file {file} answers")));
        }
        let epoch = self.member.decided().epoch;
        let reports = contents.nodes.iter().filter_map(|blocks| blocks.heartbeat.good());
        reports.for_each(|report| self.note_leaver(report));
        let ballots = contents.nodes.iter().filter_map(|blocks| blocks.ballot());
        if ballots.clone().any(|ballot| ballot.decided.epoch == epoch && ballot.mbal > 0) {
            self.history.balloted(now);
        }
        self.events.push_back(Event::Finished { file, result: Ok(contents) });
    }

    /// Handles the end of a turn at a file of this node.
    pub(super) fn turned(&mut self, file: FileId, owner: Owner, result: Result<TurnContents, String>) {
        match result {
            Ok(TurnContents::Contents(contents)) => self.finished(file, contents),
            Err(why) if owner.node == self.me => self.failed(file, why),
            Ok(TurnContents::Packed(read)) => self.serve(file, owner, Some(read)),
            Err(_) => self.serve(file, owner, None),
        }
    }

    fn serve(&mut self, file: FileId, owner: Owner, read: Option<Arc<[u8]>>) {
        let Owner { node, incarnation, turn } = owner;
        if let Some((route, pieces)) = self.server.over((node, incarnation), file, turn, read) {
            pieces.iter().for_each(|piece| self.network.reply(node, Kind::Answer, piece, route));
        }
    }

    /// Handles a piece of another node's request.
    pub(super) fn handle_request(
        &mut self,
        (from, incarnation): (NodeId, Incarnation),
        body: &[u8],
        route: Route,
    ) {
        let (mut out, files) = (Vec::new(), &self.files);
        let is_served = |file| files.path(file).is_some();
        let request = self.server.handle_piece((from, incarnation), body, route, is_served, &mut out);
        // The path of the request may be cut in the other direction, so the answer to a repeated
        // request takes all paths.
        out.iter().for_each(|piece| self.network.send(from, Kind::Answer, piece));
        if let Some(TurnRequest { file, turn, writes }) = request {
            let owner = Owner { node: from, incarnation, turn };
            if self.files.begin(file, owner, true, writes, clock::now()).is_err() {
                self.serve(file, owner, None);
            }
        }
    }

    /// Handles the end of a turn at a file of another node.
    pub(super) fn answered(&mut self, host: NodeId, file: FileId, read: Option<Vec<u8>>) {
        let name = FileName { cluster: self.cluster, file };
        match read.map(|bytes| format::contents(name, &bytes)) {
            Some(Ok(contents)) => self.finished(file, Box::new(contents)),
            Some(Err(error)) => self.failed(file, error.to_string()),
            None => {
                let host = self.parts.observer.name(host);
                self.failed(file, format!("{host}, which serves it, could not read or write it"));
            }
        }
    }

    /// Gives up turns that have taken too long.
    pub(super) fn give_up(&mut self) {
        let now = clock::now();
        for file in self.files_health.stalled(self.lease_time, now) {
            let limit = self.disk_timeout;
            self.notify(ObserverNotice::Warning(format!(
                "voting file {file} stalls; members that all hear each other go on without it for up to {limit}"
            )));
        }
        for (file, owner) in self.files.give_up(now) {
            self.turned(file, owner, Err("the turn takes longer than the disk timeout".into()));
        }
        let mut out = Vec::new();
        for file in self.requester.remind(now, &mut out) {
            self.failed(file, "the node that serves it does not answer".into());
        }
        out.iter().for_each(|(to, kind, body)| self.network.send(*to, *kind, body));
    }
}
