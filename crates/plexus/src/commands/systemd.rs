//! `plexus systemd`: writes or removes the units with which systemd runs the nodes of this machine.
//!
//! One templated service runs a node, and a target wants the nodes of this machine. A node that is
//! told to end by `plexus down` ends with code 0, so systemd does not start it again.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use plexus_admin::{
    config::Config,
    launch::{self, CONFIG_CODE, DOUBLED_CODE, NOT_IN_ORDER_CODE, REMOVED_CODE},
};

use super::cluster::{Cluster, local_nodes, this_program};
use crate::output;

/// The directory of the units of a machine.
const SYSTEM_UNITS: &str = "/etc/systemd/system";

/// The first version of systemd whose pauses between restarts can grow.
const GROWING_PAUSES: u32 = 254;

/// The arguments of `plexus systemd`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: SystemdCommand,
    #[command(flatten)]
    cluster: Cluster,
    /// Use the service manager of this user instead of that of the machine.
    #[arg(long, global = true)]
    user: bool,
    /// The directory of the units [default: that of the administrator, or of the user].
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum SystemdCommand {
    /// Write a service for the nodes of the cluster and a target for those of this machine.
    Install {
        /// Print the units and write nothing.
        #[arg(long)]
        print: bool,
    },
    /// Remove these units. Nodes that run go on.
    Remove,
}

/// Runs `plexus systemd`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let manager = Manager { is_users: args.user };
    let dir = match args.dir {
        Some(dir) => dir,
        None => manager.units().context("there is no home directory for the units; name one with --dir")?,
    };
    match args.command {
        SystemdCommand::Install { print } => install(&config, manager, &dir, print),
        SystemdCommand::Remove => remove(&config, manager, &dir),
    }
}

fn install(config: &Config, manager: Manager, dir: &Path, print: bool) -> anyhow::Result<()> {
    let nodes: Vec<_> = local_nodes(config)?.into_iter().map(|node| node.name.as_str()).collect();
    let program = this_program()?;
    if program.starts_with("/proc") {
        bail!("the program was replaced while it ran; run this command with the new one");
    }
    let root = std::path::absolute(config.dir.root())?;
    let owner = fs::metadata(&root).with_context(|| root.display().to_string())?;
    let user = (owner.uid() != 0 && !manager.is_users).then(|| owner.uid());
    let units = [
        (service_file(config), service(config, &program, &root, user, systemd_version())?),
        (target_file(config), target(config, &nodes, manager)),
    ];
    if print {
        return units
            .iter()
            .try_for_each(|(name, text)| output::line(&format!("# {}\n{text}", dir.join(name).display())));
    }
    let system = rustix::process::geteuid().is_root() && !manager.is_users;
    for node in &nodes {
        // systemd would create the log as root.
        let log = config.dir.log(node);
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&log)
            .and_then(|_| if system { chown(&log, Some(owner.uid()), Some(owner.gid())) } else { Ok(()) })
            .with_context(|| log.display().to_string())?;
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    for (name, text) in &units {
        let path = dir.join(name);
        plexus_base::durable::replace(&path, text.as_bytes())
            .and_then(|()| fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)))
            .with_context(|| format!("{}: writing the unit", path.display()))?;
        output::line(&format!("{}: written", path.display()))?;
    }
    let running = launch::look_at_all(&config.dir, &nodes);
    if running.iter().any(|(_, seen)| seen.alive().is_some()) {
        output::line("nodes of this machine run; `plexus down` ends them, so that systemd can start them")?;
    }
    let systemctl = manager.systemctl();
    let target = target_file(config);
    output::line(&format!("next: {systemctl} daemon-reload && {systemctl} enable --now {target}"))
}

fn remove(config: &Config, manager: Manager, dir: &Path) -> anyhow::Result<()> {
    let link = dir.join(manager.wanted_by().to_owned() + ".wants").join(target_file(config));
    let mut removed = 0;
    for path in [link, dir.join(target_file(config)), dir.join(service_file(config))] {
        match fs::remove_file(&path) {
            Ok(()) => {
                removed += 1;
                output::line(&format!("{}: removed", path.display()))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("{}: removing it", path.display())),
        }
    }
    if removed == 0 {
        bail!("{}: there are no units of {}; see --user and --dir", dir.display(), config.name);
    }
    let systemctl = manager.systemctl();
    output::line(&format!("next: {systemctl} daemon-reload; nodes that run go on until `plexus down`"))
}

/// The service manager of the machine or of a user.
#[derive(Clone, Copy)]
pub(crate) struct Manager {
    is_users: bool,
}

impl Manager {
    /// Returns the manager that runs the nodes of this machine, if units of this cluster are
    /// installed.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let root = std::path::absolute(config.dir.root()).ok().and_then(|root| word(&root).ok())?;
        [false, true].into_iter().map(|is_users| Self { is_users }).find(|manager| {
            let unit = manager.units().map(|dir| dir.join(service_file(config)));
            let text = unit.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
            text.lines().any(|line| line.starts_with("ExecStart=") && line.ends_with(&format!("-C {root}")))
        })
    }

    /// Returns the command that starts these nodes.
    pub(crate) fn start_command(self, config: &Config, names: &[&str]) -> String {
        let units = names.iter().map(|name| format!(" plexus-{}@{name}", config.name));
        format!("{} start{}", self.systemctl(), units.collect::<String>())
    }

    /// Returns the command that stops all nodes of this machine, also those that are to be
    /// restarted.
    pub(crate) fn stop_command(self, config: &Config) -> String {
        format!("{} stop {}", self.systemctl(), target_file(config))
    }

    fn systemctl(self) -> &'static str {
        if self.is_users { "systemctl --user" } else { "systemctl" }
    }

    fn wanted_by(self) -> &'static str {
        if self.is_users { "default.target" } else { "multi-user.target" }
    }

    /// Returns the directory of its units.
    fn units(self) -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        match self.is_users {
            false => Some(SYSTEM_UNITS.into()),
            true => set("XDG_CONFIG_HOME")
                .or_else(|| Some(set("HOME")?.join(".config")))
                .map(|config| config.join("systemd/user")),
        }
    }
}

fn service_file(config: &Config) -> String {
    format!("plexus-{}@.service", config.name)
}

fn target_file(config: &Config) -> String {
    format!("plexus-{}.target", config.name)
}

/// Returns the version of systemd, or 0 if it is unknown.
fn systemd_version() -> u32 {
    let output = Command::new("systemctl").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn service(
    config: &Config,
    program: &Path,
    root: &Path,
    user: Option<u32>,
    version: u32,
) -> anyhow::Result<String> {
    let pauses = match version >= GROWING_PAUSES {
        true => "RestartSec=1\nRestartSteps=6\nRestartMaxDelaySec=60",
        false => "RestartSec=5",
    };
    let user = user.map(|user| format!("User={user}\n")).unwrap_or_default();
    let (name, program, dir) = (&config.name, word(program)?, word(root)?);
    let log = specifiers_escaped(text_of(&config.dir.root().join("log"))?);
    let log = std::path::absolute(log)?;
    Ok(format!(
        "# Made by `plexus systemd install`. Change it with `systemctl edit`.
[Unit]
Description=Node %i of the Plexus cluster {name}
After=network-online.target local-fs.target remote-fs.target
Wants=network-online.target
PartOf=plexus-{name}.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} node %i -C {dir}
{user}StandardOutput=append:{log}/%i.log
StandardError=inherit

# Codes: {CONFIG_CODE} invalid configuration, {REMOVED_CODE} removed from the cluster, {NOT_IN_ORDER_CODE} told to end, and not in order, {DOUBLED_CODE} another process acts as the node.
Restart=on-failure
RestartPreventExitStatus={CONFIG_CODE} {REMOVED_CODE} {NOT_IN_ORDER_CODE} {DOUBLED_CODE}
SuccessExitStatus=130 143
{pauses}

# A node that makes no progress is not a member any more: nothing is left to dump.
WatchdogSec=30
WatchdogSignal=SIGKILL

# A node waits for its peers as long as it takes. Its end takes as long as its blocks need.
TimeoutStartSec=infinity
TimeoutStopSec=11min
KillMode=mixed
LimitMEMLOCK=infinity
LimitNOFILE=524288
LimitRTPRIO=20
",
        log = log.display()
    ))
}

fn target(config: &Config, nodes: &[&str], manager: Manager) -> String {
    let name = &config.name;
    let wants = nodes.iter().map(|node| format!("Wants=plexus-{name}@{node}.service\n"));
    format!(
        "# Made by `plexus systemd install`.
[Unit]
Description=The nodes of the Plexus cluster {name} on this machine
{wants}
[Install]
WantedBy={wanted_by}
",
        wants = wants.collect::<String>(),
        wanted_by = manager.wanted_by()
    )
}

/// Returns a path as one word of a command line in a unit.
fn word(path: &Path) -> anyhow::Result<String> {
    let text = text_of(path)?.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(format!("\"{}\"", specifiers_escaped(&text)))
}

fn specifiers_escaped(text: &str) -> String {
    text.replace('%', "%%")
}

/// Returns a path as text that units can hold.
fn text_of(path: &Path) -> anyhow::Result<&str> {
    match path.to_str().filter(|text| !text.contains(|letter: char| letter.is_control() || letter == '$')) {
        Some(text) => Ok(text),
        None => bail!("{}: a path in a unit has no `$` and no control characters", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_their_meaning_in_a_unit() {
        assert_eq!(word(Path::new("/a b/100%/\"c\\")).unwrap(), r#""/a b/100%%/\"c\\""#);
        assert!(word(Path::new("/a/$HOME")).is_err() && word(Path::new("/a\nExecStart=b")).is_err());
    }
}
