//! What every member must know before the cluster takes in a voting file or a node while it runs.
//!
//! All nodes are in one group. Who has a file added says there where it is; each node that must open it looks whether it can, keeps the path, and
//! says so. A node that starts later has the path from `cluster.toml`. Who has a node added says which; each reads its own `cluster.toml` again, and says
//! whether it has the same there. What is said, little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | what: 1 open a file, 2 it is done, 3 it is not, 4 learn of a node |
//! | 2 | 1 | (1) the node that serves the file, 255: every node opens it; (4) the node; else 0 |
//! | 3 | 5 | zero |
//! | 8 | 8 | what it is about: (1) the file's name, (4) the fingerprint of the first node and that one, (2, 3) as it was asked |
//! | 16 | | (1) the file's path, absolute or from the cluster's directory; (3) why not: text |

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use plexus_base::{MAX_NODES, NodeId};
use plexus_membership::{
    groups::{
        Group, GroupError, Groups,
        protocol::{Happened, Name},
    },
    protocol::FileId,
    runtime::{Membership, Status},
    voting::{
        self,
        format::{ClusterId, FileName},
    },
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

use crate::{body::Body, config::Config, control::ANSWER_WITHIN, grouping::NEWCOMERS, settle::Settled};

const VERSION: u8 = 1;
const OPEN: u8 = 1;
const DONE: u8 = 2;
const NOT_DONE: u8 = 3;
const LEARN: u8 = 4;
const ALL: u8 = 255;

/// Bytes of a path or reason, at most: what the system takes for a path.
const TEXT_MAX: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    version: u8,
    what: u8,
    host: u8,
    zero: [u8; 5],
    about: U64,
}

/// A voting file that is to be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) file: FileId,
    /// The node that serves it; none: every node opens it.
    pub(crate) host: Option<NodeId>,
    /// From the cluster's directory, or absolute.
    pub(crate) path: PathBuf,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Open(Place),
    /// A node, and the [fingerprint](Settled::fingerprint) of the first node and that one.
    Learn(NodeId, u64),
    Done(u64),
    NotDone(u64, String),
}

impl Said {
    fn encode(&self) -> Vec<u8> {
        let (what, host, about, text) = match self {
            Self::Open(Place { file, host, path }) => {
                (OPEN, host.map_or(ALL, |host| host.0), file.0, path.as_os_str().as_bytes())
            }
            Self::Learn(node, fingerprint) => (LEARN, node.0, *fingerprint, &[][..]),
            Self::Done(about) => (DONE, 0, *about, &[][..]),
            Self::NotDone(about, why) => (NOT_DONE, 0, *about, begin(why).as_bytes()),
        };
        let head = Head { version: VERSION, what, host, zero: [0; 5], about: about.into() };
        [head.as_bytes(), text].concat()
    }

    /// `None`: of another version, or nothing that a node says.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, text) = Head::ref_from_prefix(bytes).ok()?;
        if head.version != VERSION || head.zero != [0; 5] || text.len() > TEXT_MAX {
            return None;
        }
        let about = head.about.get();
        match (head.what, head.host) {
            (OPEN, host) if host == ALL || usize::from(host) < MAX_NODES => {
                let host = (host != ALL).then_some(NodeId(host));
                let path = Path::new(OsStr::from_bytes(text)).into();
                Some(Self::Open(Place { file: FileId(about), host, path }))
            }
            (LEARN, node) if usize::from(node) < MAX_NODES && text.is_empty() => {
                Some(Self::Learn(NodeId(node), about))
            }
            (DONE, 0) if text.is_empty() => Some(Self::Done(about)),
            (NOT_DONE, 0) => Some(Self::NotDone(about, std::str::from_utf8(text).ok()?.into())),
            _ => None,
        }
    }
}

/// As much of a text as is said.
fn begin(text: &str) -> &str {
    let len = (0..=text.len().min(TEXT_MAX)).rev().find(|len| text.is_char_boundary(*len));
    &text[..len.unwrap_or(0)]
}

/// Reads any bytes as what a node says, as a fuzz target would; whether they are it. What is taken has only this encoding.
#[doc(hidden)]
#[must_use]
pub fn newcomers_any(bytes: &[u8]) -> bool {
    let said = Said::decode(bytes);
    said.inspect(|said| assert_eq!(said.encode(), bytes)).is_some()
}

/// How long after it was put out of the group, or not let in, a node tries again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Has a node open the files and learn of the nodes that others tell it of, until it stops.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn serve(body: &Arc<Body>) -> io::Result<()> {
    let (body, groups) = (Arc::downgrade(body), body.groups().clone());
    let run = move || keep_on(AGAIN_AFTER, || obey(&body, &groups));
    thread::Builder::new().name("newcomers".into()).spawn(run).map(drop)
}

/// Has `run` begin again whenever it fails, until the node has stopped.
fn keep_on(pause: Duration, mut run: impl FnMut() -> Result<(), GroupError>) {
    let mut said = None;
    loop {
        match run() {
            Ok(()) | Err(GroupError::Stopped) => return,
            Err(error) if said != Some(error) => {
                tracing::warn!(%error, "this node is not told of voting files and nodes that are added, until it can be");
                said = Some(error);
            }
            Err(_) => {}
        }
        thread::sleep(pause);
    }
}

fn obey(body: &Weak<Body>, groups: &Groups) -> Result<(), GroupError> {
    let mut group = join(groups)?;
    loop {
        let Happened::Message { bytes, .. } = group.next_event()? else { continue };
        let Some(body) = body.upgrade() else { return Ok(()) };
        let (about, done) = match Said::decode(&bytes) {
            Some(Said::Open(place)) if place.host.is_none_or(|host| host == body.me()) => {
                (place.file.0, keep(body.config(), body.membership(), &place))
            }
            Some(Said::Learn(node, fingerprint)) => (fingerprint, learn(&body, node, fingerprint)),
            _ => continue,
        };
        drop(body);
        let said = match done {
            Ok(()) => Said::Done(about),
            Err(why) => Said::NotDone(about, why),
        };
        group.send(&said.encode())?;
    }
}

fn join(groups: &Groups) -> Result<Group, GroupError> {
    groups.join(Name::new(NEWCOMERS.as_bytes()).expect("it is short"))
}

/// Looks whether a node can open a file, and keeps its path.
pub(crate) fn keep(config: &Config, membership: &Membership, place: &Place) -> Result<(), String> {
    let path = config.dir.root().join(&place.path);
    let name = FileName { cluster: ClusterId(config.id.0), file: place.file };
    voting::look(&path, name).map_err(|error| error.to_string())?;
    membership.place_file(place.file, path);
    Ok(())
}

/// Who must open a file.
fn openers(place: &Place, status: impl FnOnce() -> Option<Status>) -> Result<BTreeSet<NodeId>, String> {
    if let Some(host) = place.host {
        return Ok(BTreeSet::from([host]));
    }
    let status = status().ok_or("this node's membership does not answer; try again")?;
    Ok(status.members.iter().map(|member| NodeId(member.node)).collect())
}

/// Reads `cluster.toml` again, and whether `node` is there as elsewhere.
fn learn(body: &Body, node: NodeId, fingerprint: u64) -> Result<(), String> {
    body.learn()?;
    let config = body.config();
    let path = config.dir.config();
    if config.nodes.get(node.index()).is_none() {
        return Err(format!("{}: there is no node {} yet; copy the file here", path.display(), node.0));
    }
    match Settled::fingerprint(config, NodeId(0), node) == fingerprint {
        true => Ok(()),
        false => Err(format!("{}: not as elsewhere; copy the file here", path.display())),
    }
}

/// Has every member that must open a file do so.
///
/// # Errors
/// One line that names those that have not.
pub(crate) fn tell(config: &Config, body: &Body, place: &Place) -> Result<(), String> {
    let awaited = openers(place, || body.membership().status())?;
    // On another machine the cluster may lie elsewhere.
    let path = place.path.strip_prefix(config.dir.root()).unwrap_or(&place.path);
    let open = Said::Open(Place { path: path.into(), ..place.clone() });
    ask(body, &open, place.file.0, awaited, "does not say that it can open it")
}

/// Has every member learn of the node called `name`; which one that is.
///
/// # Errors
/// One line that names those that have not, or says why this one has not.
pub(crate) fn tell_of_node(body: &Body, name: &str) -> Result<NodeId, String> {
    body.learn()?;
    let config = body.config();
    let (node, _) = config.node(name).map_err(|error| error.to_string())?;
    let status = body.membership().status().ok_or("this node's membership does not answer; try again")?;
    let awaited = status.members.iter().map(|member| NodeId(member.node)).collect();
    let fingerprint = Settled::fingerprint(config, NodeId(0), node);
    ask(body, &Said::Learn(node, fingerprint), fingerprint, awaited, "does not say that it knows it")?;
    Ok(node)
}

/// Asks all members for something, and waits for those that must do it.
fn ask(
    body: &Body,
    what: &Said,
    about: u64,
    mut awaited: BTreeSet<NodeId>,
    silent: &str,
) -> Result<(), String> {
    let mut group = join(body.groups()).map_err(|error| error.to_string())?;
    group.send(&what.encode()).map_err(|error| error.to_string())?;
    let until = Instant::now() + ANSWER_WITHIN;
    let mut refused = Vec::new();
    let name = |node: NodeId| body.config().nodes[node.index()].name.as_str();
    while !awaited.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        match group.next_within(left).map_err(|error| error.to_string())? {
            Some(Happened::Message { from, bytes }) => match Said::decode(&bytes) {
                Some(Said::Done(done)) if done == about => drop(awaited.remove(&from.node)),
                Some(Said::NotDone(done, why)) if done == about && awaited.remove(&from.node) => {
                    refused.push(format!("{}: {why}", name(from.node)));
                }
                _ => {}
            },
            Some(_) => {}
            None => break,
        }
    }
    refused.extend(awaited.into_iter().map(|node| format!("{} {silent}", name(node))));
    group.leave(ANSWER_WITHIN);
    match refused.is_empty() {
        true => Ok(()),
        false => Err(refused.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use plexus_membership::groups::protocol::Why;

    use super::*;

    fn said() -> Vec<Said> {
        let place = |host| Place { file: FileId(7), host, path: "/shared/votes".into() };
        vec![
            Said::Open(place(None)),
            Said::Open(place(Some(NodeId(3)))),
            Said::Learn(NodeId(15), 7),
            Said::Done(u64::MAX),
            Said::NotDone(9, "no such file".into()),
        ]
    }

    #[test]
    fn a_file_for_everybody_is_not_opened_by_nobody_where_members_are_not_known() {
        let place = |host| Place { file: FileId(7), host, path: "votes".into() };
        assert!(openers(&place(None), || None).unwrap_err().contains("does not answer"));
        assert_eq!(openers(&place(Some(NodeId(2))), || None), Ok(BTreeSet::from([NodeId(2)])));
    }

    #[test]
    fn who_is_put_out_or_not_let_in_begins_again_until_the_node_has_stopped() {
        let (full, late) = (GroupError::Impossible(Why::Groups), GroupError::PutOut);
        let mut ends = [full, full, late, full, GroupError::Stopped].into_iter();
        keep_on(Duration::ZERO, || Err(ends.next().expect("not begun again once it has stopped")));
        assert_eq!(ends.len(), 0, "begun again each time");
    }

    #[test]
    fn what_is_said_comes_through() {
        for one in said() {
            assert_eq!(Said::decode(&one.encode()), Some(one));
        }
        let long = Said::NotDone(9, "\u{e9}".repeat(TEXT_MAX)).encode();
        assert!(long.len() <= size_of::<Head>() + TEXT_MAX && newcomers_any(&long));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good: Vec<_> = said().iter().map(Said::encode).collect();
        assert!(good.iter().all(|bytes| newcomers_any(bytes)));
        let mut taken = 0;
        plexus_sim::hostile(&good, |bytes| taken += u32::from(newcomers_any(bytes)));
        assert!(taken > 10, "{taken}");
    }
}
