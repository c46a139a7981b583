//! `plexus sql`: runs SQL statements on a node, or prints where clients of PostgreSQL find it.

mod prompt;
mod statement;

use std::io::{self, BufRead, IsTerminal};

use anyhow::{anyhow, bail};
use plexus_admin::{
    config::Config,
    keys,
    postgres::{PostgresAnswer, PostgresClient, PostgresNotice, PostgresRows},
    sql::SqlAddress,
};

use self::{
    prompt::Prompt,
    statement::{is_complete, is_exit},
};
use super::cluster::Cluster;
use crate::output;

/// The arguments of `plexus sql`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Run this statement, and end [default: read statements from the standard input].
    #[arg(short = 'c', value_name = "STATEMENT")]
    statement: Vec<String>,
    /// The node [default: the first one that answers].
    #[arg(short = 'n', long, value_name = "NODE")]
    node: Option<String>,
    /// Print the address of the node for psql and drivers instead.
    #[arg(long, conflicts_with = "statement")]
    url: bool,
    /// With --url: the address for TCP, with the first password, for clients that know no Unix
    /// sockets.
    #[arg(long, requires = "url")]
    tcp: bool,
}

/// Runs `plexus sql`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let addresses = addresses(&config, args.node.as_deref())?;
    if args.url {
        if !args.tcp {
            return output::line(&addresses[0].url());
        }
        let password = keys::password(&config.dir)?;
        let password =
            password.ok_or_else(|| anyhow!("{}: not found", config.dir.sql_password().display()))?;
        return output::line(&addresses[0].tcp_url(&password));
    }
    let (mut client, address) = connect(&addresses)?;
    if !args.statement.is_empty() {
        let mut failed = false;
        for statement in &args.statement {
            failed |= !run_all(&mut client, statement)?;
        }
        if failed {
            bail!("a statement has failed");
        }
        return Ok(());
    }
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return converse(&mut client, address.clone());
    }
    run_input(&mut client)
}

/// Returns the addresses of the node that is named, or of all.
fn addresses(config: &Config, node: Option<&str>) -> anyhow::Result<Vec<SqlAddress>> {
    let nodes: Vec<_> = match node {
        Some(name) => vec![config.node(name)?.0],
        None => config.nodes.iter().map(|node| node.number).collect(),
    };
    let mut addresses = Vec::new();
    for node in nodes {
        addresses.extend(SqlAddress::of(config, node).map_err(anyhow::Error::msg)?);
    }
    if addresses.is_empty() {
        bail!("the cluster has no SQL: its cluster.toml has no table `[sql]`; create one without `--no-sql`");
    }
    Ok(addresses)
}

fn connect(addresses: &[SqlAddress]) -> anyhow::Result<(PostgresClient, &SqlAddress)> {
    let mut last = anyhow!("no node");
    for address in addresses {
        match PostgresClient::connect(address, "plexus sql") {
            Ok(client) => return Ok((client, address)),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Runs statements, and prints what they return. Returns whether all succeeded.
fn run_all(client: &mut PostgresClient, statements: &str) -> anyhow::Result<bool> {
    let mut succeeded = true;
    client.ask(statements)?;
    while let Some(answer) = client.answer()? {
        match answer {
            PostgresAnswer::Rows(rows) => print_rows(&rows)?,
            PostgresAnswer::Done(tag) => output::line(&tag)?,
            PostgresAnswer::Copied(line) => output::bytes(&line)?,
            PostgresAnswer::Notice(notice) => {
                succeeded &= !notice.is_error();
                let PostgresNotice { severity, code, message, detail } = notice;
                eprintln!("{severity}: {message} ({code})");
                detail.into_iter().for_each(|detail| eprintln!("DETAIL: {detail}"));
            }
        }
    }
    Ok(succeeded)
}

/// Reads statements at a terminal, and runs them.
fn converse(client: &mut PostgresClient, address: SqlAddress) -> anyhow::Result<()> {
    let mut prompt = Prompt::new(address)?;
    while let Some(statements) = prompt.read()? {
        // The answer shows whether they have succeeded.
        run_all(client, &statements)?;
    }
    Ok(())
}

/// Reads statements up to their semicolons, and runs them.
fn run_input(client: &mut PostgresClient) -> anyhow::Result<()> {
    let (mut statements, mut failed) = (String::new(), false);
    for line in io::stdin().lock().lines() {
        let line = line?;
        if statements.is_empty() && is_exit(&line) {
            break;
        }
        statements.push_str(&line);
        statements.push('\n');
        if line.contains(';') && is_complete(&statements) {
            failed |= !run_all(client, &statements)?;
            statements.clear();
        }
    }
    if !statements.trim().is_empty() {
        failed |= !run_all(client, &statements)?;
    }
    if failed { Err(anyhow!("a statement has failed")) } else { Ok(()) }
}

fn print_rows(rows: &PostgresRows) -> anyhow::Result<()> {
    let shown = |value: &Option<String>| value.clone().unwrap_or_default();
    let width = |at: usize, name: &str| {
        let values = rows.rows.iter().map(|row| row.get(at).map_or(0, |value| shown(value).chars().count()));
        values.chain([name.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = rows.columns.iter().enumerate().map(|(at, (name, _))| width(at, name)).collect();
    let line = |cells: Vec<String>| {
        let padded = cells.iter().zip(&widths).zip(&rows.columns).map(|((cell, width), (_, is_number))| {
            let missing = " ".repeat(width - cell.chars().count().min(*width));
            if *is_number { format!("{missing}{cell}") } else { format!("{cell}{missing}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    output::line(&line(rows.columns.iter().map(|(name, _)| name.clone()).collect()))?;
    for row in &rows.rows {
        output::line(&line(row.iter().map(shown).collect()))?;
    }
    let count = rows.rows.len();
    output::line(&format!("({count} {})", if count == 1 { "row" } else { "rows" }))
}
