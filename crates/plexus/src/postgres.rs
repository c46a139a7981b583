//! A client of PostgreSQL's protocol: simple queries over the Unix socket of a node.

use std::{
    io::{self, BufReader, Read, Write},
    os::unix::net::UnixStream,
};

use anyhow::Context;
use plexus_admin::sql::SqlAddress;

/// A connection to a node.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

/// The rows of a statement.
#[derive(Default)]
pub(crate) struct Rows {
    /// The names of the columns, and whether they are numbers.
    pub(crate) columns: Vec<(String, bool)>,
    pub(crate) rows: Vec<Vec<Option<String>>>,
}

/// Words of the node about a statement.
pub(crate) enum Answer {
    /// A statement has returned rows.
    Rows(Rows),
    /// A statement without rows has ended.
    Done(String),
    /// An error, or a notice.
    Notice(Notice),
    /// A line of a copy.
    Copied(Vec<u8>),
}

/// An error or a notice.
pub(crate) struct Notice {
    pub(crate) severity: String,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) detail: Option<String>,
}

impl Client {
    /// Connects to a node. `on_notice` gets what it says at the start.
    ///
    /// # Errors
    /// The node does not run, or does not let the user in.
    pub(crate) fn connect(address: &SqlAddress, application: &str) -> anyhow::Result<Self> {
        let socket = address.socket();
        let stream = UnixStream::connect(&socket)
            .with_context(|| format!("{}: does the node run?", socket.display()))?;
        let mut client = Self { stream: BufReader::new(stream) };
        let mut body = 196_608u32.to_be_bytes().to_vec();
        let start = ["user", &address.user, "database", "postgres", "application_name", application, ""];
        for text in start {
            body.extend(text.as_bytes());
            body.push(0);
        }
        client.send(None, &body)?;
        client.answers(&mut |_| Ok(()))?;
        Ok(client)
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend((body.len() as u32 + 4).to_be_bytes());
        message.extend(body);
        self.stream.get_mut().write_all(&message)
    }

    /// Runs statements. `hear` gets each answer. Returns whether all succeeded.
    ///
    /// # Errors
    /// The connection is lost, the node ends the session, or `hear` fails.
    pub(crate) fn run(
        &mut self,
        statements: &str,
        hear: &mut dyn FnMut(Answer) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        self.send(Some(b'Q'), format!("{statements}\0").as_bytes())?;
        self.answers(hear)
    }

    /// Handles messages until the node waits for the next statement.
    fn answers(&mut self, hear: &mut dyn FnMut(Answer) -> anyhow::Result<()>) -> anyhow::Result<bool> {
        let (mut rows, mut succeeded) = (Rows::default(), true);
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head).context("the node has ended the connection")?;
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let mut body = vec![0; len.saturating_sub(4)];
            self.stream.read_exact(&mut body).context("the node has ended the connection")?;
            match head[0] {
                b'Z' => return Ok(succeeded),
                b'T' => rows.columns = columns(&body).context("a malformed answer")?,
                b'D' => rows.rows.push(row(&body).context("a malformed answer")?),
                b'C' if !rows.columns.is_empty() => hear(Answer::Rows(std::mem::take(&mut rows)))?,
                b'C' => hear(Answer::Done(text(&body).to_owned()))?,
                b'E' | b'N' => {
                    succeeded &= head[0] == b'N';
                    let notice = notice(&body);
                    let end = (notice.severity == "FATAL").then(|| notice.message.clone());
                    hear(Answer::Notice(notice))?;
                    if let Some(why) = end {
                        anyhow::bail!("{why}");
                    }
                }
                b'G' => {
                    let why = b"COPY FROM STDIN needs psql\0";
                    self.send(Some(b'f'), why)?;
                }
                b'd' => hear(Answer::Copied(body))?,
                _ => {}
            }
        }
    }
}

fn notice(body: &[u8]) -> Notice {
    let field = |kind: u8| {
        let found = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&kind));
        found.map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
    };
    let [severity, code, message] = [b'S', b'C', b'M'].map(|kind| field(kind).unwrap_or_default());
    Notice { severity, code, message, detail: field(b'D') }
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
