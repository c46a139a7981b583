//! Creation of a cluster, atomically, and of what the nodes of a further host need.
//!
//! Everything is made in a directory beside the requested one, which is renamed at the end. So a
//! directory with a `cluster.toml` is a complete cluster.
//!
//! Each host of a cluster has a directory of its own. On a further host it begins with only
//! `cluster.toml` and the key, and [`complete`] makes the rest. It makes voting files only before
//! anything ran there. A voting file that was lost later must not come back empty, because the
//! votes in it may count. The same holds for the disks that the nodes of a host serve.

use std::{
    collections::BTreeSet,
    fs::{DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use plexus_base::durable::rewrite;
use plexus_disks::{
    DiskError, Group, GroupId,
    mirror::{self, DiskPlace, NewDisk, ZeroProgress},
};
use plexus_membership::{
    protocol::FileId,
    voting::{FileError, format::FileName},
};

use crate::{
    config::{ClusterId, Config, ConfigError, NodeConfig, ServedDiskConfig, Voting},
    keys::{self, KeyError},
    layout::ClusterDir,
};

/// The number of voting files of a cluster on one host: one of them may be damaged.
const SHARED_FILES: usize = 3;

/// The reason why a cluster was not created. No file of it remains.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The directory has a cluster already.
    #[error("{dir}: is already a cluster; start it with `plexus up -C {dir}`, or choose another directory", dir = .0.display())]
    IsCluster(PathBuf),
    /// The directory has other content.
    #[error("{dir}: exists and is not an empty directory; choose another", dir = .0.display())]
    NotEmpty(PathBuf),
    /// A value of the requested configuration cannot be used.
    #[error("no cluster is made: {0}")]
    Value(String),
    /// The requested configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The key cannot be created.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A voting file cannot be created.
    #[error(transparent)]
    Voting(#[from] FileError),
    /// A disk cannot be created.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A system call failed.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The path of the object.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl CreateError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

/// Returns a new, random identifier for a cluster.
///
/// # Errors
/// The system has no random bytes.
pub fn new_id() -> io::Result<ClusterId> {
    plexus_disks::GroupId::random().map(|id| ClusterId(id.0))
}

/// Describes the voting files of a new cluster: three that every node opens if all nodes share a
/// host, else one on each node's own disk.
///
/// # Errors
/// The system has no random bytes.
pub fn voting_files(dir: &ClusterDir, nodes: &[NodeConfig]) -> io::Result<Vec<Voting>> {
    let one_host = nodes.windows(2).all(|pair| pair[0].host == pair[1].host);
    let homes: Vec<Option<&str>> = match one_host {
        true => vec![None; SHARED_FILES],
        false => nodes.iter().map(|node| Some(node.name.as_str())).collect(),
    };
    let file = |(number, home): (usize, Option<&str>)| {
        let name = home.map_or_else(|| (number + 1).to_string(), str::to_owned);
        let id = FileId(getrandom::u64().map_err(io::Error::other)?);
        Ok(Voting { id, path: dir.voting().join(name), node: home.map(str::to_owned) })
    };
    homes.into_iter().enumerate().map(file).collect()
}

/// Describes the voting files of a new cluster of several hosts: one on each, which its first node
/// serves, and one more in `shared`, the directory that all hosts share, if there is one and the
/// number of hosts is even.
///
/// # Errors
/// The system has no random bytes.
pub fn voting_files_of_hosts(
    dir: &ClusterDir,
    nodes: &[NodeConfig],
    shared: Option<&Path>,
) -> io::Result<Vec<Voting>> {
    let mut hosts = BTreeSet::new();
    let first: Vec<_> = nodes.iter().filter(|node| hosts.insert(&node.host)).cloned().collect();
    let mut files = voting_files(dir, &first)?;
    if let Some(shared) = shared.filter(|_| files.len().is_multiple_of(2)) {
        let id = FileId(getrandom::u64().map_err(io::Error::other)?);
        files.push(Voting { id, path: shared.join("votes"), node: None });
    }
    Ok(files)
}

/// Creates one more voting file of a cluster, at `path`. Returns its identifier, and true if it is
/// new. One of this cluster that is there already is used, because an interrupted command may have
/// left it.
///
/// # Errors
/// Something else is at the path, or the system refuses.
pub fn voting_file(config: &Config, path: &Path) -> Result<(FileId, bool), CreateError> {
    let found = plexus_membership::voting::name_at(path)?;
    if let Some(name) = found.filter(|name| name.cluster.0 == config.id.0) {
        return Ok((name.file, false));
    }
    let id = getrandom::u64().map_err(io::Error::other);
    let id = FileId(id.map_err(CreateError::io("naming a voting file", path))?);
    make_voting_file(config, id, path)?;
    Ok((id, true))
}

fn make_voting_file(config: &Config, id: FileId, path: &Path) -> Result<(), CreateError> {
    let name = FileName { cluster: plexus_membership::voting::format::ClusterId(config.id.0), file: id };
    Ok(plexus_membership::voting::create(path, name, &config.first_view())?)
}

/// Replaces the text of a configuration durably and keeps the permissions of the file.
///
/// # Errors
/// The system refuses; the old text is unchanged.
pub fn replace_config(dir: &ClusterDir, text: &str) -> io::Result<()> {
    rewrite(&dir.config(), text.as_bytes())
}

/// Removes a file that [`voting_file`] created, before any node was asked to use it.
///
/// # Errors
/// The system refuses.
pub fn discard_voting_file(path: &Path) -> Result<(), CreateError> {
    Ok(plexus_membership::voting::discard(path)?)
}

/// The way in which the disks that nodes serve are created.
#[derive(Clone, Copy)]
pub struct DiskCreation<'a> {
    /// What is at their paths is overwritten, unless it is in use.
    pub force: bool,
    /// Gets the progress of those that take long.
    pub progress: ZeroProgress<'a>,
}

impl Default for DiskCreation<'_> {
    fn default() -> Self {
        Self { force: false, progress: &|_, _| () }
    }
}

/// Creates the cluster that `config` describes, in `config.dir`, with the voting files and disks of
/// all hosts.
///
/// # Errors
/// See [`CreateError`]; no file remains.
pub fn create(config: &Config) -> Result<(), CreateError> {
    create_with(config, &|_| true, &DiskCreation::default())
}

/// Creates the cluster that `config` describes, with what belongs to `host` and what all hosts
/// share.
///
/// # Errors
/// See [`CreateError`]; no file remains.
pub fn create_on(config: &Config, host: &str, disks: &DiskCreation<'_>) -> Result<(), CreateError> {
    create_with(config, &|node| node.is_none_or(|node| config.host_of(node) == Some(host)), disks)
}

/// Creates what is missing on a host on which nothing of the cluster ran: directories, and the
/// voting files and disks that its nodes serve. Repeating it changes nothing.
///
/// # Errors
/// The system refuses, or another file is at the path of a disk; repeat it then.
pub fn complete(config: &Config, host: &str, disks: &DiskCreation<'_>) -> Result<(), CreateError> {
    let dir = &config.dir;
    let make = |directory: PathBuf| match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(CreateError::io("making a directory", &directory)(error))
        }
        _ => Ok(()),
    };
    [dir.voting(), dir.run(), dir.logs()].into_iter().try_for_each(make)?;
    if dir.state().exists() {
        return Ok(());
    }
    let _lock = lock_directory(dir)?;
    // Again, as another command may have come first.
    if dir.state().exists() {
        return Ok(());
    }
    let is_here = |node: &str| config.host_of(node) == Some(host);
    let places = disk_places(config, &is_here, &PathBuf::clone, disks)?;
    for file in config.voting.iter().filter(|file| file.node.as_deref().is_some_and(is_here)) {
        if !file.path.exists() {
            make_voting_file(config, file.id, &file.path)?;
        }
    }
    places.into_iter().try_for_each(|place| make_disk(place, disks))?;
    // Last, because it shows that the files are complete.
    make(dir.state())
}

/// Checks the places of the disks of some nodes. `placed` returns the path at which a disk is
/// created.
fn disk_places(
    config: &Config,
    is_of: &dyn Fn(&str) -> bool,
    placed: &dyn Fn(&PathBuf) -> PathBuf,
    disks: &DiskCreation<'_>,
) -> Result<Vec<DiskPlace>, CreateError> {
    let of_nodes = config.served_disks.iter().enumerate().filter(|(_, disk)| is_of(&disk.node));
    let place = |(number, disk): (usize, &ServedDiskConfig)| {
        let new = NewDisk {
            group: GroupId(config.id.0),
            id: disk.id,
            number: u8::try_from(number).expect("a configuration has few disks"),
            block_size: config.block_size,
            chunk_mib: config.chunk_mib,
            slots: u32::try_from(disk.slots(config.chunk_mib)).unwrap_or(u32::MAX),
        };
        Ok(DiskPlace::check(&placed(&disk.path), &new, disks.force)?)
    };
    of_nodes.map(place).collect()
}

/// Makes a disk that a node of this host serves, and the directory around it.
fn make_disk(place: DiskPlace, disks: &DiskCreation<'_>) -> Result<(), CreateError> {
    make_directory_of(place.path())?;
    Ok(place.create(disks.progress)?)
}

/// Makes a disk that is given to a mirrored group which exists. Returns its identifier.
///
/// # Errors
/// Something else is at the path, the room does not suffice, or the system refuses.
pub fn added_disk(
    config: &Config,
    path: &Path,
    (chunk_mib, slots): (u32, u32),
    disks: &DiskCreation<'_>,
) -> Result<u128, CreateError> {
    let id = GroupId::random().map_err(CreateError::io("making an identifier for", path))?.0;
    let (group, block_size, number) = (GroupId(config.id.0), config.block_size, 0);
    let new = NewDisk { group, id, number, block_size, chunk_mib, slots };
    make_disk(DiskPlace::check(path, &new, disks.force)?, disks)?;
    Ok(id)
}

/// Makes the directory of a disk.
fn make_directory_of(disk: &Path) -> Result<(), CreateError> {
    let Some(directory) = disk.parent() else { return Ok(()) };
    let made = DirBuilder::new().mode(0o700).recursive(true).create(directory);
    made.map_err(CreateError::io("making the directory of the disks", directory))
}

/// Locks a cluster's directory against other commands that complete it.
fn lock_directory(dir: &ClusterDir) -> Result<File, CreateError> {
    let refused = CreateError::io("locking the directory", dir.root());
    File::open(dir.root()).and_then(|file| file.lock().map(|()| file)).map_err(refused)
}

/// Creates a cluster. `has` returns true for the nodes whose files are made, and for `None` if the
/// files that every node opens are made.
fn create_with(
    config: &Config,
    has: &dyn Fn(Option<&str>) -> bool,
    disks: &DiskCreation<'_>,
) -> Result<(), CreateError> {
    let root = config.dir.root();
    let text = config.to_text();
    Config::parse(&config.dir, &text).map_err(|why| match why {
        // The file that the error names does not exist yet.
        ConfigError::Value { what, .. } => CreateError::Value(what),
        why => why.into(),
    })?;
    check_place(&config.dir)?;
    // The lock shows other commands that this one still runs.
    let (building, _lock) = beside(root)?;
    let result = fill(config, &text, &ClusterDir::new(&building), has, disks).and_then(|()| {
        std::fs::rename(&building, root).map_err(CreateError::io("putting the cluster in place", root))
    });
    if result.is_err() {
        // The earlier error is the one to report.
        let _ = std::fs::remove_dir_all(&building);
    }
    result
}

/// Checks that a cluster may be created here.
fn check_place(dir: &ClusterDir) -> Result<(), CreateError> {
    let root = dir.root();
    match std::fs::read_dir(root).map(Iterator::count) {
        Ok(0) => Ok(()),
        Ok(_) if dir.config().exists() => Err(CreateError::IsCluster(root.into())),
        Ok(_) => Err(CreateError::NotEmpty(root.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(CreateError::NotEmpty(root.into())),
        Err(error) => Err(CreateError::io("looking at the directory", root)(error)),
    }
}

/// Creates and locks a directory that can be renamed to `root`, and removes those of commands that
/// were killed.
fn beside(root: &Path) -> Result<(PathBuf, File), CreateError> {
    let refused = CreateError::io("making the directory", root);
    let Some(name) = root.file_name() else {
        return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a name")));
    };
    let start = format!(".{}.plexus-init-", name.to_string_lossy());
    let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let locked = |path: &Path| {
        let directory = File::open(path)?;
        directory.try_lock()?;
        Ok::<_, io::Error>(directory)
    };
    let others = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for other in others.filter(|other| other.file_name().to_string_lossy().starts_with(&start)) {
        if locked(&other.path()).is_ok() {
            // What stays takes only room.
            let _ = std::fs::remove_dir_all(other.path());
        }
    }
    let building = root.with_file_name(format!("{start}{}", std::process::id()));
    let refused = |error| CreateError::io("making the directory", root)(error);
    DirBuilder::new().mode(0o700).create(&building).map_err(refused)?;
    let lock = locked(&building).map_err(refused)?;
    Ok((building, lock))
}

fn fill(
    config: &Config,
    text: &str,
    dir: &ClusterDir,
    has: &dyn Fn(Option<&str>) -> bool,
    served: &DiskCreation<'_>,
) -> Result<(), CreateError> {
    let moved = |disk: &PathBuf| match disk.strip_prefix(config.dir.root()) {
        Ok(inside) => dir.root().join(inside),
        Err(_) => disk.clone(),
    };
    let places = disk_places(config, &|node| has(Some(node)), &moved, served)?;
    for directory in [dir.disks(), dir.voting(), dir.run(), dir.logs(), dir.state()] {
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(CreateError::io("making a directory", &directory))?;
    }
    keys::create(dir)?;
    if config.sections.contains_key(crate::sql::SECTION) {
        keys::create_password(dir)?;
        let hosts = config.nodes.iter().flat_map(|node| [node.host.clone(), node.address.ip().to_string()]);
        let names: std::collections::BTreeSet<_> =
            hosts.chain(["localhost".into(), "127.0.0.1".into()]).filter(|name| name.is_ascii()).collect();
        keys::create_certificate(dir, names.into_iter().collect())?;
    }
    let disks: Vec<_> = config.disks.iter().map(moved).collect();
    disks.iter().try_for_each(|disk| make_directory_of(disk))?;
    if !config.is_served() {
        Group::create(&disks, &config.shape())?;
    }
    let (mut made, mut made_disks) = (disks, Vec::new());
    let finish = || {
        for place in places {
            let path = place.path().to_owned();
            make_disk(place, served)?;
            made_disks.push(path);
        }
        for file in config.voting.iter().filter(|file| has(file.node.as_deref())) {
            let path = moved(&file.path);
            make_voting_file(config, file.id, &path)?;
            made.push(path);
        }
        let path = dir.config();
        let written = std::fs::write(&path, text).and_then(|()| File::open(&path)?.sync_all());
        written.map_err(CreateError::io("writing", &path))
    };
    let result = finish();
    if result.is_err() {
        // Those outside of the directory are not removed with it.
        made.iter().for_each(|path| drop(std::fs::remove_file(path)));
        made_disks.iter().for_each(|path| drop(mirror::discard_disk(path)));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::fs;

    use plexus_fabric::RailKind;

    use super::*;
    use crate::{config::Redundancy, keys::KeyFiles};

    fn config(root: &Path) -> Config {
        let dir = ClusterDir::new(root);
        let node = NodeConfig::new(0, "n1", "127.0.0.1:7400".parse().unwrap(), vec![RailKind::Shm]);
        let disks = vec![dir.disks().join("0"), dir.disks().join("1")];
        Config { cache_mib: 4, blocks: 600, disks, ..Config::new(dir, "c", vec![node]).unwrap() }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_interrupted_creation_names_the_disk_that_it_left_and_can_be_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("shared/0");
        let config = Config { disks: vec![disk.clone()], ..config(&directory.path().join("c1")) };
        fs::create_dir(directory.path().join(".c1.plexus-init-1")).unwrap();
        fs::create_dir(directory.path().join("shared")).unwrap();
        fs::write(&disk, "half").unwrap();
        let refused = create(&config).unwrap_err().to_string();
        assert!(refused.contains(&disk.display().to_string()), "{refused}");
        fs::remove_file(disk).unwrap();
        create(&config).unwrap();
    }

    #[test]
    fn created_cluster_can_be_loaded_and_opened() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(&directory.path().join("c1"));
        create(&config).unwrap();
        assert_eq!(Config::load(&config.dir).unwrap(), config);
        Group::open(&config.disks, &config.shape()).unwrap();
        assert_eq!(KeyFiles::new(config.dir.clone()).read().unwrap().valid.len(), 1);
        assert_eq!(names(directory.path()), ["c1"]);

        let line = create(&config).unwrap_err().to_string();
        assert!(line.contains("is already a cluster; start it with `plexus up"), "{line}");
        assert_eq!(Config::load(&config.dir).unwrap(), config);
    }

    #[test]
    fn a_host_gets_its_own_files_once_and_a_lost_voting_file_does_not_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let place = |host: &str| directory.path().join(host).join("c");
        let shared = directory.path().join("shared");
        let node = |number: u8, host: &str| NodeConfig {
            host: host.into(),
            ..NodeConfig::new(
                number,
                &format!("n{}", number + 1),
                ([127, 0, 0, 1], 7400 + u16::from(number)).into(),
                vec![RailKind::Tcp],
            )
        };
        let (dir, nodes) = (ClusterDir::new(place("a")), vec![node(0, "a"), node(1, "a"), node(2, "b")]);
        let voting = voting_files_of_hosts(&dir, &nodes, Some(&shared)).unwrap();
        let homes: Vec<_> = voting.iter().map(|file| file.node.as_deref()).collect();
        assert_eq!(homes, [Some("n1"), Some("n3"), None]);
        assert_eq!(
            voting_files_of_hosts(&dir, &[node(0, "a"), node(1, "b"), node(2, "c")], Some(&shared))
                .unwrap()
                .len(),
            3
        );
        let config =
            Config { voting, disks: vec![shared.join("0")], ..Config::new(dir, "c", nodes).unwrap() };
        for path in ["a", "b/c/keys"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        create_on(&config, "a", &DiskCreation::default()).unwrap();
        assert_eq!(names(&place("a").join("voting")), ["n1"]);
        assert_eq!(names(&shared), ["0", "votes"]);

        // The other host has only the configuration and the key, and what an interrupted command
        // left.
        for file in ["cluster.toml", "keys/cluster.key"] {
            fs::copy(place("a").join(file), place("b").join(file)).unwrap();
        }
        fs::create_dir(place("b").join("voting")).unwrap();
        fs::write(place("b").join("voting/n3.new"), "a part").unwrap();
        let there = Config::load(&ClusterDir::new(place("b"))).unwrap();
        assert_eq!((&there.disks, &there.voting[2].path), (&config.disks, &shared.join("votes")));
        for _ in 0..2 {
            complete(&there, "b", &DiskCreation::default()).unwrap();
            assert_eq!(names(&place("b")), ["cluster.toml", "keys", "log", "run", "state", "voting"]);
            assert_eq!(names(&place("b").join("voting")), ["n3"]);
        }
        let name = FileName {
            cluster: plexus_membership::voting::format::ClusterId(config.id.0),
            file: there.voting[1].id,
        };
        plexus_membership::voting::look(&there.voting[1].path, name).unwrap();
        fs::remove_file(&there.voting[1].path).unwrap();
        complete(&there, "b", &DiskCreation::default()).unwrap();
        assert!(names(&place("b").join("voting")).is_empty());
    }

    #[test]
    fn a_host_gets_only_the_disks_that_its_nodes_serve() {
        let directory = tempfile::tempdir().unwrap();
        let place = |host: &str| directory.path().join(host).join("c");
        let nodes: Vec<_> = (0..)
            .zip(["a", "b"])
            .map(|(number, host)| NodeConfig {
                host: host.into(),
                ..NodeConfig::new(
                    number,
                    &format!("n{}", number + 1),
                    ([127, 0, 0, 1], 7400 + u16::from(number)).into(),
                    vec![RailKind::Tcp],
                )
            })
            .collect();
        let dir = ClusterDir::new(place("a"));
        let voting = voting_files_of_hosts(&dir, &nodes, None).unwrap();
        assert_eq!(voting.len(), 2, "nothing is shared");
        let mut config = Config { voting, redo_mib: 16, ..Config::new(dir, "c", nodes).unwrap() };
        config.redundancy = Redundancy::Mirror2;
        config.disks.clear();
        let outside = directory.path().join("srv/disk");
        let places = [
            ("n1".into(), "disks/0".into()),
            ("n2".into(), "disks/0".into()),
            ("n2".into(), outside.clone()),
        ];
        config.served_disks = config.new_served_disks(&places).unwrap();
        fs::create_dir_all(place("b").join("keys")).unwrap();
        fs::create_dir_all(directory.path().join("a")).unwrap();
        create_on(&config, "a", &DiskCreation::default()).unwrap();
        assert_eq!(Config::load(&config.dir).unwrap(), config);
        assert_eq!(
            (names(&place("a").join("disks")), names(&place("a").join("voting"))),
            (vec!["0".into()], vec!["n1".into()])
        );
        assert!(!outside.exists());
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        assert!(length(&config.served_disks[0].path) >= config.served_disks[0].size_mib << 20);

        for file in ["cluster.toml", "keys/cluster.key"] {
            fs::copy(place("a").join(file), place("b").join(file)).unwrap();
        }
        let there = Config::load(&ClusterDir::new(place("b"))).unwrap();
        fs::create_dir(directory.path().join("srv")).unwrap();
        fs::write(&outside, "another file").unwrap();
        let line = complete(&there, "b", &DiskCreation::default()).unwrap_err().to_string();
        assert!(line.contains(outside.to_str().unwrap()) && !there.dir.state().exists(), "{line}");
        assert_eq!(fs::read(&outside).unwrap(), b"another file");
        assert!(!there.served_disks[1].path.exists(), "a refusal changes nothing");
        fs::remove_file(&outside).unwrap();
        for _ in 0..2 {
            complete(&there, "b", &DiskCreation::default()).unwrap();
            assert_eq!(names(&place("b").join("disks")), ["0"]);
            assert!(length(&outside) >= there.served_disks[2].size_mib << 20);
        }
        fs::remove_file(&outside).unwrap();
        complete(&there, "b", &DiskCreation::default()).unwrap();
        assert!(!outside.exists(), "a lost disk does not come back empty");
    }

    #[test]
    fn nothing_is_left_outside_of_a_cluster_that_could_not_be_created() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path().join("shared");
        let good = config(&directory.path().join("c1"));
        let taken = directory.path().join("votes");
        fs::write(&taken, "").unwrap();
        let mut voting = good.voting.clone();
        voting[2].path = taken;
        let refused = Config { disks: vec![shared.join("0")], voting, ..good };
        assert!(create(&refused).unwrap_err().to_string().contains("create"));
        assert_eq!(
            (names(directory.path()), names(&shared).len()),
            (vec!["shared".into(), "votes".into()], 0)
        );
    }

    #[test]
    fn an_empty_directory_will_do_and_another_will_not() {
        let directory = tempfile::tempdir().unwrap();
        create(&config(directory.path())).unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("letter"), "dear").unwrap();
        let line = create(&config(other.path())).unwrap_err().to_string();
        assert!(line.contains("not an empty directory"), "{line}");
        assert_eq!(names(other.path()), ["letter"]);
    }

    #[test]
    fn nothing_is_left_of_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let good = config(&directory.path().join("c1"));
        let huge = Config { blocks: plexus_cache::MAX_BLOCKS, ..good.clone() };
        assert!(create(&huge).unwrap_err().to_string().contains("needed for the disk group"));
        let wrong = Config { workers: 9, ..good.clone() };
        assert!(create(&wrong).unwrap_err().to_string().contains("workers = 9"));
        let nowhere = Config { dir: ClusterDir::new(directory.path().join("no/where")), ..good };
        assert!(create(&nowhere).unwrap_err().to_string().contains("making the directory"));
        assert!(names(directory.path()).is_empty());
    }
}
