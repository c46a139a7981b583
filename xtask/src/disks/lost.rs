//! A host is lost under load, with its disk: how long no change is committed on another one.

use std::{fs, process::Command, thread};

use anyhow::{Context, Result, anyhow};

use super::{
    cluster::{Cluster, Plexus},
    rows::{LOST_VIEW, LOST_WRITE},
};
use crate::{
    command::{number, run},
    compare::figure::Measured,
    sql::{
        killed::{KILL_AFTER, commits, longest_pause},
        work::{Server, pgbench, psql, rate},
    },
};

/// Kills the second host under load.
pub(super) fn measure(plexus: &Plexus) -> Measured {
    let cluster = plexus.start("shm,tcp", "--size-mib 512")?;
    let server = server(&cluster)?;
    pgbench(&server, "-i -q -s 3")?;
    psql(&server, "create table own (a int primary key, b int)")?;
    psql(&server, "insert into own values (1, 0)")?;
    let place = tempfile::tempdir()?;
    let times = thread::scope(|scope| {
        let load = server.clone();
        scope.spawn(move || rate(&load, "-n -c 4 -j 1 -T 10"));
        let own = scope.spawn(|| commits(&server, place.path(), "update own set b = b + 1 where a = 1"));
        thread::sleep(KILL_AFTER);
        kill(&cluster)?;
        own.join().map_err(|_| anyhow!("a thread has panicked"))?
    })?;
    let status = cluster.status()?;
    let views = status["nodes"][0]["membership"]["transitions"].as_array().context("no views")?;
    let without =
        views.iter().rev().find(|view| view["gone"].as_array().is_some_and(|gone| !gone.is_empty()));
    let without = without.context("no view without the host")?;
    let phases =
        ["detect", "decide", "fence", "open"].map(|phase| number(without, &format!("phases/{phase}")));
    let view = phases.into_iter().sum::<Result<f64>>()?;
    Ok(vec![(LOST_VIEW, view), (LOST_WRITE, longest_pause(&times)?)])
}

/// Returns the server of SQL of the first node.
pub(super) fn server(cluster: &Cluster<'_>) -> Result<Server> {
    let text = fs::read_to_string(cluster.path().join("cluster.toml"))?;
    let sql = text.split("[sql]").nth(1).context("no table [sql]")?;
    let port = sql.lines().find_map(|line| line.strip_prefix("port = ")).context("no port for SQL")?;
    let pid = number(&cluster.status()?, "nodes/0/pid")? as u32;
    Ok(Server {
        directory: cluster.path().join("run"),
        port: port.split(' ').next().unwrap_or(port).parse()?,
        pid,
        core: None,
    })
}

/// Kills the second node and its supervisor.
fn kill(cluster: &Cluster<'_>) -> Result<()> {
    let node = number(&cluster.status()?, "nodes/1/pid")? as u32;
    let status = fs::read_to_string(format!("/proc/{node}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).context("no parent")?;
    run(Command::new("kill").args(["-9", parent.trim(), &node.to_string()]))
}
