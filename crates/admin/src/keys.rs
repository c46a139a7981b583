//! The files with the cluster's keys: created, read, and replaced while the cluster runs.
//!
//! `keys/cluster.key` is the key; `keys/next.key`, if present, is the newer of two valid keys. A
//! file has a comment and 64 hexadecimal digits, and only its owner may read it. Only the owner of
//! `keys` may write there. Nodes read the files again at every handshake, so changes apply to all
//! later connections and to no existing ones. A newer key that is unusable (half copied, or
//! readable by others) is reported and ignored: the older one then stays the only one.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use plexus_base::{durable::rename, hex};
use plexus_interconnect::mesh::{KEY, Key, KeySource};

use crate::{layout::ClusterDir, records::durable};

/// The limit for reading a key file: longer than any valid one.
const LONGEST: u64 = 4096;

/// The bits of a file's mode that give access to others.
const OTHERS: u32 = 0o077;

/// The bits of a directory's mode with which others can replace its files. The names of the files
/// are no secret.
const WRITERS: u32 = 0o022;

/// The reason why there is no key, or no new one; each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no key.
    #[error("{path}: not found: every node needs the cluster's key; copy the file from a machine that has it, or, where no machine has, make one with `plexus key create -C {dir}`", path = .0.display(), dir = .1.display())]
    Missing(PathBuf, PathBuf),
    /// Users other than the owner may read or change it.
    #[error("{path}: others than its owner may use it (mode {mode:03o}): run `chmod 600 {path}`, and think about `plexus key rotate`", path = .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The permissions.
        mode: u32,
    },
    /// Users other than the owner may replace the files in the directory.
    #[error("{path}: others than its owner may replace the keys in it (mode {mode:03o}): run `chmod 700 {path}`, and think about `plexus key rotate`", path = .path.display())]
    OpenDirectory {
        /// The directory.
        path: PathBuf,
        /// The permissions.
        mode: u32,
    },
    /// The content is not a key.
    #[error("{path}: not a key: one line of 64 hexadecimal digits is expected; copy the file again", path = .0.display())]
    Malformed(PathBuf),
    /// The file exists already.
    #[error("{path}: exists already; {what}", path = .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// The action for the user.
        what: &'static str,
    },
    /// There is no second key, so none can be retired.
    #[error("{path}: not found: there is only one key; make the next one with `plexus key rotate`", path = .0.display())]
    OnlyOne(PathBuf),
    /// A system call failed.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Creates the cluster's first key.
///
/// # Errors
/// There is one already, or the system refuses.
pub fn create(dir: &ClusterDir) -> Result<PathBuf, KeyError> {
    let keys = dir.keys();
    match DirBuilder::new().mode(0o700).create(&keys) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(KeyError::Io { path: keys, source: error });
        }
        _ => {}
    }
    check_directory(dir)?;
    make(dir.cluster_key(), "to replace it use `plexus key rotate`")
}

/// Creates a second key, which nodes try first from now on; the old one stays valid.
///
/// # Errors
/// There are two already, or the system refuses.
pub fn rotate(dir: &ClusterDir) -> Result<PathBuf, KeyError> {
    read(dir, &dir.cluster_key())?;
    make(dir.next_key(), "copy it to every machine, then end the old key with `plexus key retire`")
}

/// Ends the validity of the older of two keys.
///
/// # Errors
/// There is only one, or the system refuses.
pub fn retire(dir: &ClusterDir) -> Result<PathBuf, KeyError> {
    let (next, key) = (dir.next_key(), dir.cluster_key());
    match read(dir, &next) {
        Ok(_) => {}
        Err(KeyError::Missing(..)) => return Err(KeyError::OnlyOne(next)),
        Err(error) => return Err(error),
    }
    rename(&next, &key).map_err(|source| KeyError::Io { path: next, source })?;
    Ok(key)
}

fn make(path: PathBuf, if_there: &'static str) -> Result<PathBuf, KeyError> {
    let refused = |source| KeyError::Io { path: path.clone(), source };
    let mut key = [0; KEY];
    getrandom::fill(&mut key).map_err(|error| refused(io::Error::other(error)))?;
    let digits = hex::digits(&key);
    let text = format!(
        "# A key of a Plexus cluster: who has it can join and read everything. Copy it to the cluster's machines only.\n{digits}\n"
    );
    match durable::create(&path, text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(KeyError::Exists { path, what: if_there })
        }
        made => made.map_err(refused).map(|()| path),
    }
}

/// Creates the first password for SQL.
///
/// # Errors
/// There is one already, or the system refuses.
pub fn create_password(dir: &ClusterDir) -> Result<(), KeyError> {
    let path = dir.sql_password();
    let refused = |source| KeyError::Io { path: path.clone(), source };
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| refused(io::Error::other(error)))?;
    durable::create(&path, format!("{}\n", hex::digits(&bytes)).as_bytes()).map_err(refused)
}

/// Creates the certificate for SQL, which signs itself, for these host names and addresses.
///
/// # Errors
/// There is one already, or the system refuses.
pub fn create_certificate(dir: &ClusterDir, names: Vec<String>) -> Result<(), KeyError> {
    let made = rcgen::generate_simple_self_signed(names);
    let certificate = dir.sql_certificate();
    let made =
        made.map_err(|error| KeyError::Io { path: certificate.clone(), source: io::Error::other(error) })?;
    for (path, text) in [(certificate, made.cert.pem()), (dir.sql_key(), made.signing_key.serialize_pem())] {
        durable::create(&path, text.as_bytes()).map_err(|source| KeyError::Io { path, source })?;
    }
    Ok(())
}

/// Reads the certificate for SQL and its key, in PEM; `None` if one of the files is missing.
///
/// # Errors
/// Others may read the key, or the system refuses.
pub fn certificate(dir: &ClusterDir) -> Result<Option<(String, String)>, KeyError> {
    check_directory(dir)?;
    let path = dir.sql_certificate();
    let certificate = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|source| KeyError::Io { path, source })?,
    };
    match contents(&dir.sql_key()) {
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        key => key.map(|key| Some((certificate, key))),
    }
}

/// Reads the first password for SQL; `None` if there is no file.
///
/// # Errors
/// Others may read it, or the system refuses.
pub fn password(dir: &ClusterDir) -> Result<Option<String>, KeyError> {
    check_directory(dir)?;
    match contents(&dir.sql_password()) {
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(|text| Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
    }
}

/// Checks that only its owner may replace the files in the directory of the keys.
fn check_directory(dir: &ClusterDir) -> Result<(), KeyError> {
    let path = dir.keys();
    match fs::metadata(&path).map(|found| found.mode() & 0o777) {
        Ok(mode) if mode & WRITERS != 0 => Err(KeyError::OpenDirectory { path, mode }),
        // Of a directory that cannot be examined, the error of its files is reported.
        _ => Ok(()),
    }
}

fn read(dir: &ClusterDir, path: &Path) -> Result<Key, KeyError> {
    check_directory(dir)?;
    file(path).map_err(|error| match error {
        KeyError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
            KeyError::Missing(path, dir.root().into())
        }
        other => other,
    })
}

/// Reads the key from a file.
///
/// # Errors
/// There is none, others have access to it, or its content is not a key.
pub fn file(path: &Path) -> Result<Key, KeyError> {
    parse(&contents(path)?).ok_or_else(|| KeyError::Malformed(path.into()))
}

/// Reads a file that only its owner may read.
fn contents(path: &Path) -> Result<String, KeyError> {
    let refused = |source| KeyError::Io { path: path.into(), source };
    let file = File::open(path).map_err(refused)?;
    let mode = file.metadata().map_err(refused)?.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(KeyError::Open { path: path.into(), mode });
    }
    let mut text = String::new();
    match file.take(LONGEST).read_to_string(&mut text) {
        Err(error) if error.kind() != io::ErrorKind::InvalidData => Err(refused(error)),
        _ => Ok(text),
    }
}

fn parse(text: &str) -> Option<Key> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let bytes = hex::bytes(lines.next().filter(|_| lines.next().is_none())?)?;
    bytes.try_into().ok().map(Key::new)
}

/// Decodes any bytes as a key file, for fuzzing; returns true if they are one.
#[doc(hidden)]
pub fn key_any(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| parse(text).is_some())
}

/// The keys that are valid at one moment.
#[derive(Debug)]
pub struct Keys {
    /// The keys, the newest first.
    pub valid: Vec<Key>,
    /// The reason why an existing `keys/next.key` is not among them, for example a copy under way.
    pub unusable: Option<KeyError>,
}

/// The key files of a cluster, read again for each use.
#[derive(Debug)]
pub struct KeyFiles {
    dir: ClusterDir,
    /// The last message in the log about the newer key.
    said: Mutex<Option<String>>,
}

impl KeyFiles {
    /// Returns the key files of the cluster in `dir`.
    pub fn new(dir: ClusterDir) -> Self {
        Self { dir, said: Mutex::default() }
    }

    /// Reads the valid keys.
    ///
    /// # Errors
    /// The cluster's key is missing or unusable.
    pub fn read(&self) -> Result<Keys, KeyError> {
        // In this order, a file that is renamed meanwhile is found under one of its names.
        let (next, unusable) = match read(&self.dir, &self.dir.next_key()) {
            Ok(key) => (Some(key), None),
            Err(KeyError::Missing(..)) => (None, None),
            Err(error) => (None, Some(error)),
        };
        let key = read(&self.dir, &self.dir.cluster_key())?;
        let same = next.as_ref() == Some(&key);
        let valid = next.filter(|_| !same).into_iter().chain([key]).collect();
        Ok(Keys { valid, unusable })
    }

    /// Returns a warning about the keys for the administrator, if there is one.
    pub fn problem(&self) -> Option<String> {
        match self.read() {
            Ok(keys) => keys.unusable.map(not_taken),
            Err(error) => Some(error.to_string()),
        }
    }
}

fn not_taken(error: KeyError) -> String {
    format!("{error}; until then the key before it is the only one")
}

impl KeySource for KeyFiles {
    fn keys(&self) -> Result<Vec<Key>, String> {
        let keys = self.read().map_err(|error| error.to_string())?;
        let line = keys.unusable.map(not_taken);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != line {
            line.iter().for_each(|line| tracing::warn!("{line}"));
            *said = line;
        }
        Ok(keys.valid)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn cluster() -> (tempfile::TempDir, ClusterDir) {
        let directory = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(directory.path());
        (directory, dir)
    }

    #[test]
    fn hostile_files_do_no_harm() {
        let good = format!("# A key.\n{}\n", "0f".repeat(KEY)).into_bytes();
        assert!(key_any(&good) && !key_any(&good[..40]));
        plexus_sim::hostile(&[good], |bytes| assert!(!key_any(bytes) || bytes.len() >= 2 * KEY));
    }

    #[test]
    fn a_key_is_replaced_by_way_of_two() {
        let (_directory, dir) = cluster();
        let files = KeyFiles::new(dir.clone());
        create(&dir).unwrap();
        let [old] = &files.read().unwrap().valid[..] else { panic!("one key") };
        assert!(matches!(retire(&dir), Err(KeyError::OnlyOne(_))));
        rotate(&dir).unwrap();
        let [first, second] = &files.read().unwrap().valid[..] else { panic!("two keys") };
        assert!(second == old && first != old, "the newest first");
        assert!(rotate(&dir).unwrap_err().to_string().contains("plexus key retire"));
        retire(&dir).unwrap();
        assert_eq!(files.read().unwrap().valid, std::slice::from_ref(first));
        assert!(create(&dir).unwrap_err().to_string().contains("plexus key rotate"));
        assert_eq!(fs::metadata(dir.cluster_key()).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_newer_key_that_cannot_be_used_leaves_the_older_one_valid() {
        let (_directory, dir) = cluster();
        let files = KeyFiles::new(dir.clone());
        create(&dir).unwrap();
        let old = files.keys().unwrap();
        let half = "0f".repeat(KEY / 2);
        for (text, mode, what) in [
            (half.as_str(), 0o600, "not a key"),
            (&"0f".repeat(KEY), 0o644, "chmod 600"),
            ("", 0o600, "not a key"),
        ] {
            fs::write(dir.next_key(), text).unwrap();
            fs::set_permissions(dir.next_key(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(files.keys().unwrap(), old);
            let problem = files.problem().unwrap();
            assert!(problem.contains("next.key") && problem.contains(what), "{problem}");
        }
        fs::write(dir.next_key(), "0f".repeat(KEY)).unwrap();
        assert_eq!((files.keys().unwrap().len(), files.problem()), (2, None));
        fs::write(dir.cluster_key(), half).unwrap();
        assert!(files.keys().is_err() && files.problem().unwrap().contains("cluster.key"));
    }

    #[test]
    fn of_two_who_rotate_at_once_one_does() {
        let (_directory, dir) = cluster();
        create(&dir).unwrap();
        for _ in 0..50 {
            let start = std::sync::Barrier::new(4);
            let made: Vec<_> = std::thread::scope(|scope| {
                let rotate = || {
                    start.wait();
                    rotate(&dir)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(rotate)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
            let refused = made.into_iter().filter_map(Result::err);
            assert!(refused.into_iter().all(|error| matches!(error, KeyError::Exists { .. })));
            retire(&dir).unwrap();
        }
        let files: Vec<_> =
            fs::read_dir(dir.keys()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["cluster.key"], "nothing else is left");
    }

    #[test]
    fn a_cluster_without_a_key_is_told_how_to_get_one() {
        let (_directory, dir) = cluster();
        let line = KeyFiles::new(dir.clone()).keys().unwrap_err();
        assert!(line.contains(&format!("plexus key create -C {}", dir.root().display())), "{line}");
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let (_directory, dir) = cluster();
        create(&dir).unwrap();
        fs::set_permissions(dir.cluster_key(), fs::Permissions::from_mode(0o640)).unwrap();
        let line = KeyFiles::new(dir).keys().unwrap_err();
        assert!(line.contains("mode 640") && line.contains("chmod 600"), "{line}");
    }

    #[test]
    fn a_creation_that_was_interrupted_behind_the_directory_is_repeated() {
        let (_directory, dir) = cluster();
        DirBuilder::new().mode(0o700).create(dir.keys()).unwrap();
        create(&dir).unwrap();
        assert_eq!(KeyFiles::new(dir).read().unwrap().valid.len(), 1);
    }

    #[test]
    fn keys_in_a_directory_that_others_may_write_are_refused() {
        let (_directory, dir) = cluster();
        create(&dir).unwrap();
        let files = KeyFiles::new(dir.clone());
        for mode in [0o777, 0o770, 0o720, 0o1702] {
            fs::set_permissions(dir.keys(), fs::Permissions::from_mode(mode)).unwrap();
            let line = files.keys().unwrap_err();
            let chmod = format!("chmod 700 {}`", dir.keys().display());
            assert!(line.contains(&format!("mode {:03o}", mode & 0o777)) && line.contains(&chmod), "{line}");
            for refused in [create(&dir), rotate(&dir), retire(&dir)] {
                assert!(matches!(refused, Err(KeyError::OpenDirectory { .. })), "{refused:?}");
            }
            assert_eq!(files.problem(), Some(line));
        }
        fs::set_permissions(dir.keys(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(files.keys().unwrap().len(), 1);
    }

    #[test]
    fn malformed_key_is_refused() {
        let (_directory, dir) = cluster();
        create(&dir).unwrap();
        let good = fs::read_to_string(dir.cluster_key()).unwrap();
        let digits = good.lines().last().unwrap();
        assert_eq!(digits.len(), 64);
        for bad in [
            String::new(),
            "# nothing\n".into(),
            digits[1..].into(),
            format!("{digits}0"),
            format!("{digits}\n{digits}"),
            digits.replace(&digits[..1], "g"),
            format!("+{}", &digits[1..]),
            "\u{e9}".repeat(32),
        ] {
            fs::write(dir.cluster_key(), &bad).unwrap();
            assert!(matches!(KeyFiles::new(dir.clone()).read(), Err(KeyError::Malformed(_))), "{bad:?}");
        }
        fs::write(dir.cluster_key(), [0xff; 64]).unwrap();
        assert!(matches!(KeyFiles::new(dir.clone()).read(), Err(KeyError::Malformed(_))));
        fs::write(dir.cluster_key(), format!("\n{digits}")).unwrap();
        assert!(KeyFiles::new(dir).read().is_ok());
    }
}
