//! `plexus sql`: runs SQL statements on a node, or prints where clients of PostgreSQL find it.

use std::{
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    os::unix::net::UnixStream,
};

use anyhow::{Context, anyhow, bail};
use plexus_admin::{config::Config, keys, sql::SqlAddress};

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
    let mut client = connect(&addresses)?;
    if !args.statement.is_empty() {
        let mut failed = false;
        for statement in &args.statement {
            failed |= !client.run(statement)?;
        }
        if failed {
            bail!("a statement has failed");
        }
        return Ok(());
    }
    prompt(&mut client)
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
        bail!("the cluster has no SQL: create one with `plexus init DIR --sql`");
    }
    Ok(addresses)
}

fn connect(addresses: &[SqlAddress]) -> anyhow::Result<Client> {
    let mut last = anyhow!("no node");
    for address in addresses {
        match UnixStream::connect(address.socket()) {
            Ok(stream) => return Client::start(stream, &address.user),
            Err(error) => last = anyhow!("{}: {error}; does the node run?", address.socket().display()),
        }
    }
    Err(last)
}

/// Reads statements up to their semicolons, and runs them.
fn prompt(client: &mut Client) -> anyhow::Result<()> {
    let is_shown = io::stdin().is_terminal();
    let (mut statement, mut failed) = (String::new(), false);
    let show = |text: &str| -> anyhow::Result<()> {
        if is_shown {
            print!("{text}");
            io::stdout().flush()?;
        }
        Ok(())
    };
    show("plexus=> ")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if statement.is_empty() && matches!(line.trim(), "exit" | "quit" | "\\q") {
            return Ok(());
        }
        statement.push_str(&line);
        statement.push('\n');
        if line.trim_end().ends_with(';') {
            failed |= !client.run(&statement)?;
            statement.clear();
        }
        show(if statement.is_empty() { "plexus=> " } else { "plexus-> " })?;
    }
    if !statement.trim().is_empty() {
        failed |= !client.run(&statement)?;
    }
    if failed && !is_shown { Err(anyhow!("a statement has failed")) } else { Ok(()) }
}

/// A connection to a node, with PostgreSQL's protocol.
struct Client {
    stream: BufReader<UnixStream>,
}

/// The rows of a statement.
#[derive(Default)]
struct Rows {
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<Option<String>>>,
}

impl Client {
    fn start(stream: UnixStream, user: &str) -> anyhow::Result<Self> {
        let mut client = Self { stream: BufReader::new(stream) };
        let mut body = 196_608u32.to_be_bytes().to_vec();
        for text in ["user", user, "database", "postgres", "application_name", "plexus sql", ""] {
            body.extend(text.as_bytes());
            body.push(0);
        }
        client.send(None, &body)?;
        while client.receive(&mut Rows::default(), &mut true)? {}
        Ok(client)
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend((body.len() as u32 + 4).to_be_bytes());
        message.extend(body);
        self.stream.get_mut().write_all(&message)
    }

    /// Runs a statement and prints what it returns. Returns whether it succeeded.
    fn run(&mut self, statement: &str) -> anyhow::Result<bool> {
        self.send(Some(b'Q'), format!("{statement}\0").as_bytes())?;
        let (mut rows, mut succeeded) = (Rows::default(), true);
        while self.receive(&mut rows, &mut succeeded)? {}
        Ok(succeeded)
    }

    /// Handles one message; returns false if the node waits for the next statement.
    fn receive(&mut self, rows: &mut Rows, succeeded: &mut bool) -> anyhow::Result<bool> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).context("the node has ended the connection")?;
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; len.saturating_sub(4)];
        self.stream.read_exact(&mut body).context("the node has ended the connection")?;
        match head[0] {
            b'Z' => return Ok(false),
            b'T' => rows.columns = columns(&body).context("a malformed answer")?,
            b'D' => rows.rows.push(row(&body).context("a malformed answer")?),
            b'C' if !rows.columns.is_empty() => {
                print_rows(&std::mem::take(rows))?;
            }
            b'C' => output::line(text(&body))?,
            b'E' | b'N' => {
                let field = |kind: u8| {
                    let found = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&kind));
                    found.map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
                };
                let [severity, message, code] =
                    [b'S', b'M', b'C'].map(|kind| field(kind).unwrap_or_default());
                eprintln!("{severity}: {message} ({code})");
                field(b'D').into_iter().for_each(|detail| eprintln!("DETAIL: {detail}"));
                *succeeded &= head[0] == b'N';
                if severity == "FATAL" {
                    bail!("{message}");
                }
            }
            b'G' => {
                let why = b"COPY FROM STDIN needs psql\0";
                self.send(Some(b'f'), why)?;
            }
            b'd' => output::bytes(&body)?,
            _ => {}
        }
        Ok(true)
    }
}

fn text(body: &[u8]) -> &str {
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    std::str::from_utf8(&body[..end]).unwrap_or_default()
}

/// Returns the columns of a result: their names, and whether they are numbers.
fn columns(body: &[u8]) -> Option<Vec<(String, bool)>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let name = text(rest).to_owned();
        let (head, more) = rest.get(name.len() + 1..)?.split_first_chunk::<18>()?;
        rest = more;
        let of = u32::from_be_bytes([head[6], head[7], head[8], head[9]]);
        columns.push((name, matches!(of, 20 | 21 | 23 | 700 | 701 | 1700)));
    }
    Some(columns)
}

fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (len, more) = rest.split_first_chunk()?;
        rest = more;
        let Ok(len) = usize::try_from(i32::from_be_bytes(*len)) else {
            row.push(None);
            continue;
        };
        let (value, more) = rest.split_at_checked(len)?;
        rest = more;
        row.push(Some(String::from_utf8_lossy(value).into_owned()));
    }
    Some(row)
}

fn print_rows(rows: &Rows) -> anyhow::Result<()> {
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
