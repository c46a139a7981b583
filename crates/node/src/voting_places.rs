//! Where a voting file is that the cluster takes in while it runs: every member is told before any is asked to vote there.
//!
//! All nodes are in one group. Who has a file added says there where it is; each node that must open it looks whether it can, keeps the path, and
//! says so. A node that starts later has the path from `cluster.toml`. What is said, little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | what: 1 open it, 2 it is open, 3 it is not |
//! | 2 | 1 | (1) the node that serves it; 255: every node opens it; else 0 |
//! | 3 | 5 | zero |
//! | 8 | 8 | the file's name |
//! | 16 | | (1) its path, absolute or from the cluster's directory; (3) why not: text |

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

use crate::{body::Body, config::Config, control::ANSWER_WITHIN, grouping::VOTING_PLACES};

const VERSION: u8 = 1;
const OPEN: u8 = 1;
const IS_OPEN: u8 = 2;
const IS_NOT: u8 = 3;
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
    file: U64,
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
    IsOpen(FileId),
    IsNot(FileId, String),
}

impl Said {
    fn encode(&self) -> Vec<u8> {
        let (what, host, file, text) = match self {
            Self::Open(Place { file, host, path }) => {
                (OPEN, host.map_or(ALL, |host| host.0), file, path.as_os_str().as_bytes())
            }
            Self::IsOpen(file) => (IS_OPEN, 0, file, &[][..]),
            Self::IsNot(file, why) => (IS_NOT, 0, file, begin(why).as_bytes()),
        };
        let head = Head { version: VERSION, what, host, zero: [0; 5], file: file.0.into() };
        [head.as_bytes(), text].concat()
    }

    /// `None`: of another version, or nothing that a node says.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, text) = Head::ref_from_prefix(bytes).ok()?;
        if head.version != VERSION || head.zero != [0; 5] || text.len() > TEXT_MAX {
            return None;
        }
        let file = FileId(head.file.get());
        match (head.what, head.host) {
            (OPEN, host) if host == ALL || usize::from(host) < MAX_NODES => {
                let host = (host != ALL).then_some(NodeId(host));
                Some(Self::Open(Place { file, host, path: Path::new(OsStr::from_bytes(text)).into() }))
            }
            (IS_OPEN, 0) if text.is_empty() => Some(Self::IsOpen(file)),
            (IS_NOT, 0) => Some(Self::IsNot(file, std::str::from_utf8(text).ok()?.into())),
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
pub fn places_any(bytes: &[u8]) -> bool {
    let said = Said::decode(bytes);
    said.inspect(|said| assert_eq!(said.encode(), bytes)).is_some()
}

/// How long after it was put out of the group, or not let in, a node tries again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Has a node open the files that others tell it of, until it stops.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn serve(config: &Arc<Config>, me: NodeId, body: &Body) -> io::Result<()> {
    let member = Opener { config: config.clone(), me, membership: Arc::downgrade(body.membership()) };
    let groups = body.groups().clone();
    let run = move || keep_on(AGAIN_AFTER, || member.run(&groups));
    thread::Builder::new().name("voting places".into()).spawn(run).map(drop)
}

/// Has `run` begin again whenever it fails, until the node has stopped.
fn keep_on(pause: Duration, mut run: impl FnMut() -> Result<(), GroupError>) {
    let mut said = None;
    loop {
        match run() {
            Ok(()) | Err(GroupError::Stopped) => return,
            Err(error) if said != Some(error) => {
                tracing::warn!(%error, "this node is not told of voting files that are added, until it can be");
                said = Some(error);
            }
            Err(_) => {}
        }
        thread::sleep(pause);
    }
}

struct Opener {
    config: Arc<Config>,
    me: NodeId,
    membership: Weak<Membership>,
}

impl Opener {
    fn run(&self, groups: &Groups) -> Result<(), GroupError> {
        let mut group = join(groups)?;
        loop {
            let Happened::Message { bytes, .. } = group.next_event()? else { continue };
            let Some(Said::Open(place)) = Said::decode(&bytes) else { continue };
            if place.host.is_some_and(|host| host != self.me) {
                continue;
            }
            let Some(membership) = self.membership.upgrade() else { return Ok(()) };
            let said = match keep(&self.config, &membership, &place) {
                Ok(()) => Said::IsOpen(place.file),
                Err(why) => Said::IsNot(place.file, why),
            };
            group.send(&said.encode())?;
        }
    }
}

fn join(groups: &Groups) -> Result<Group, GroupError> {
    groups.join(Name::new(VOTING_PLACES.as_bytes()).expect("it is short"))
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

/// Has every member that must open a file do so.
///
/// # Errors
/// One line that names those that have not.
pub(crate) fn tell(config: &Config, body: &Body, place: &Place) -> Result<(), String> {
    let mut awaited = openers(place, || body.membership().status())?;
    let mut group = join(body.groups()).map_err(|error| error.to_string())?;
    // On another machine the cluster may lie elsewhere.
    let path = place.path.strip_prefix(config.dir.root()).unwrap_or(&place.path);
    let open = Said::Open(Place { path: path.into(), ..place.clone() });
    group.send(&open.encode()).map_err(|error| error.to_string())?;
    let until = Instant::now() + ANSWER_WITHIN;
    let mut refused = Vec::new();
    let name = |node: NodeId| config.nodes[node.index()].name.as_str();
    while !awaited.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        match group.next_within(left).map_err(|error| error.to_string())? {
            Some(Happened::Message { from, bytes }) => match Said::decode(&bytes) {
                Some(Said::IsOpen(file)) if file == place.file => drop(awaited.remove(&from.node)),
                Some(Said::IsNot(file, why)) if file == place.file && awaited.remove(&from.node) => {
                    refused.push(format!("{}: {why}", name(from.node)));
                }
                _ => {}
            },
            Some(_) => {}
            None => break,
        }
    }
    refused
        .extend(awaited.into_iter().map(|node| format!("{} does not say that it can open it", name(node))));
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
            Said::IsOpen(FileId(u64::MAX)),
            Said::IsNot(FileId(9), "no such file".into()),
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
        let long = Said::IsNot(FileId(9), "\u{e9}".repeat(TEXT_MAX)).encode();
        assert!(long.len() <= size_of::<Head>() + TEXT_MAX && places_any(&long));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good: Vec<_> = said().iter().map(Said::encode).collect();
        assert!(good.iter().all(|bytes| places_any(bytes)));
        let mut taken = 0;
        plexus_sim::hostile(&good, |bytes| taken += u32::from(places_any(bytes)));
        assert!(taken > 10, "{taken}");
    }
}
