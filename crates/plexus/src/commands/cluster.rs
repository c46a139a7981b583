//! The cluster that a command works on.

use std::{
    ffi::OsString,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use plexus_admin::{
    config::{Config, NodeConfig, this_host},
    layout::ClusterDir,
};

/// The option that names the cluster of a command. Every command that works on a cluster has it.
#[derive(clap::Args)]
pub(crate) struct Cluster {
    /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
    #[arg(short = 'C', id = "cluster", value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
}

impl Cluster {
    /// Returns whether the command line names the cluster.
    pub(crate) fn is_named(&self) -> bool {
        self.dir.is_some()
    }

    /// Returns the directory of the named or the default cluster.
    pub(crate) fn dir(&self) -> Option<PathBuf> {
        let set = || std::env::var_os("PLEXUS_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let here = || Path::new("cluster.toml").exists().then(|| PathBuf::from("."));
        self.dir.clone().or_else(set).or_else(here)
    }

    /// Loads the configuration of the cluster.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        let Some(dir) = self.dir() else {
            bail!(
                "which cluster? the current directory is none; name its directory with -C DIR, set PLEXUS_DIR, or \
                 create one with `plexus init DIR`"
            );
        };
        Ok(Config::load(&ClusterDir::new(dir))?)
    }

    /// Loads the configuration for a command that makes files in the cluster's directory.
    ///
    /// # Errors
    /// This is root, and the directory is another user's, whose nodes could not open the files.
    pub(crate) fn load_as_owner(&self) -> anyhow::Result<Config> {
        let config = self.load()?;
        let root = config.dir.root();
        let owner = std::fs::metadata(root).with_context(|| root.display().to_string())?.uid();
        if rustix::process::geteuid().is_root() && owner != 0 {
            bail!(
                "{} belongs to user {owner}, who could not open what root makes there; run this as that user: \
                 `sudo -u '#{owner}' plexus ...`",
                root.display()
            );
        }
        Ok(config)
    }
}

/// The options that most commands share: the cluster and the form of the result.
#[derive(clap::Args)]
pub(crate) struct ClusterOptions {
    #[command(flatten)]
    cluster: Cluster,
    /// Print the result as JSON; each of several outputs has one line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl ClusterOptions {
    /// Loads the configuration of the cluster.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        self.cluster.load()
    }

    /// Loads it for a command that makes files, as [`Cluster::load_as_owner`] does.
    pub(crate) fn load_as_owner(&self) -> anyhow::Result<Config> {
        self.cluster.load_as_owner()
    }
}

/// Moves the options `-C` and `--json` that precede a command or its subcommand behind both, where
/// the command that has them finds them and every other command refuses them.
pub(crate) fn behind_command(
    cli: &clap::Command,
    words: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut words = words.into_iter().peekable();
    let (mut line, mut options, mut command) = (Vec::from_iter(words.next()), Vec::new(), cli);
    while let Some(word) = words.peek() {
        if word == "-C" {
            options.extend(words.by_ref().take(2));
        } else if word == "--json" || word.as_encoded_bytes().starts_with(b"-C") {
            options.extend(words.next());
        } else if let Some(found) = command.find_subcommand(word) {
            command = found;
            line.extend(words.next());
        } else {
            break;
        }
    }
    line.into_iter().chain(options).chain(words).collect()
}

/// Adds the option of today to the error about a command line that names a cluster as earlier
/// versions did: by position, or with `--cluster`.
pub(crate) fn explain_old_form(error: &mut clap::Error, command: &str) {
    if !matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict
    ) {
        return;
    }
    let word = error.get(ContextKind::InvalidArg).or(error.get(ContextKind::InvalidSubcommand));
    let Some(ContextValue::String(word)) = word else { return };
    let had_position = ["up", "status", "down", "locks", "rails", "stat", "metrics", "key", "bench", "node"];
    if word == "--cluster" || !word.starts_with(['-', '[', '<']) && had_position.contains(&command) {
        let tip = format!("a cluster is named with -C, as in `plexus {command} -C DIR`, or by $PLEXUS_DIR");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Returns the nodes that belong on this machine.
pub(crate) fn local_nodes(config: &Config) -> anyhow::Result<Vec<&NodeConfig>> {
    let here = this_host();
    let local: Vec<_> = config.nodes.iter().filter(|node| node.host == here).collect();
    if local.is_empty() {
        let hosts: std::collections::BTreeSet<_> =
            config.nodes.iter().map(|node| node.host.as_str()).collect();
        bail!(
            "{}: no node belongs on this machine, {here}; the nodes belong on {}: correct `host` there, or set PLEXUS_HOST",
            config.dir.config().display(),
            hosts.into_iter().collect::<Vec<_>>().join(", ")
        );
    }
    Ok(local)
}

/// Returns the path of this program, to start it again.
pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding the path of this program")?;
    // After a rebuild the running file still exists under /proc, without its name.
    let nameless = || format!("/proc/{}/exe", std::process::id()).into();
    Ok(Some(program).filter(|program| program.exists()).unwrap_or_else(nameless))
}
