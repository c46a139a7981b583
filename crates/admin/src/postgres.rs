//! A client of PostgreSQL's protocol: simple queries over the Unix socket of a node.

use std::{
    io::{self, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use crate::sql::SqlAddress;

/// A connection to a node.
pub struct PostgresClient {
    stream: BufReader<UnixStream>,
    rows: PostgresRows,
}

/// The reason why a client gets no answer.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// There is no node at this socket.
    #[error("{socket}: {why}; does the node run?")]
    Unreachable {
        /// The path.
        socket: String,
        /// The error of the system.
        why: io::Error,
    },
    /// The connection is lost.
    #[error("the node has ended the connection: {0}")]
    Lost(#[from] io::Error),
    /// The bytes are not of the protocol.
    #[error("a malformed answer")]
    Malformed,
    /// The node refuses a statement, or ends the session.
    #[error("{}", .0.message)]
    Refused(PostgresNotice),
}

/// The rows of a statement.
#[derive(Clone, Default, Debug)]
pub struct PostgresRows {
    /// The names of the columns, and whether they are numbers.
    pub columns: Vec<(String, bool)>,
    /// The rows: a text for each value that is not null.
    pub rows: Vec<Vec<Option<String>>>,
}

/// An answer of the node to a statement.
pub enum PostgresAnswer {
    /// A statement has returned rows.
    Rows(PostgresRows),
    /// A statement without rows has ended.
    Done(String),
    /// An error, or a notice.
    Notice(PostgresNotice),
    /// A line of a copy.
    Copied(Vec<u8>),
}

/// An error or a notice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PostgresNotice {
    /// `ERROR`, `FATAL`, `NOTICE`, and so on.
    pub severity: String,
    /// The SQLSTATE.
    pub code: String,
    /// One line.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
}

impl PostgresNotice {
    /// Returns true if the statement has failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.severity.as_str(), "ERROR" | "FATAL" | "PANIC")
    }
}

impl PostgresClient {
    /// Connects to a node.
    ///
    /// # Errors
    /// The node does not run, or does not let the user in.
    pub fn connect(address: &SqlAddress, application: &str) -> Result<Self, PostgresError> {
        Self::connect_within(address, application, None)
    }

    /// Connects to a node that must not be silent for longer than this.
    ///
    /// # Errors
    /// The node does not run, or does not let the user in.
    pub fn connect_within(
        address: &SqlAddress,
        application: &str,
        silence: Option<Duration>,
    ) -> Result<Self, PostgresError> {
        let socket = address.socket();
        let unreachable = |why| PostgresError::Unreachable { socket: socket.display().to_string(), why };
        let stream = UnixStream::connect(&socket).map_err(unreachable)?;
        stream.set_read_timeout(silence)?;
        stream.set_write_timeout(silence)?;
        let mut client = Self { stream: BufReader::new(stream), rows: PostgresRows::default() };
        let mut body = 196_608u32.to_be_bytes().to_vec();
        let start = ["user", &address.user, "database", "postgres", "application_name", application, ""];
        for text in start {
            body.extend(text.as_bytes());
            body.push(0);
        }
        client.send(None, &body)?;
        while client.answer()?.is_some() {}
        Ok(client)
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend((body.len() as u32 + 4).to_be_bytes());
        message.extend(body);
        self.stream.get_mut().write_all(&message)
    }

    /// Sends statements; [`answer`](Self::answer) returns the answers.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn ask(&mut self, statements: &str) -> Result<(), PostgresError> {
        Ok(self.send(Some(b'Q'), format!("{statements}\0").as_bytes())?)
    }

    /// Waits for the next answer; `None`: the node waits for statements.
    ///
    /// # Errors
    /// The connection is lost, or the node ends the session.
    pub fn answer(&mut self) -> Result<Option<PostgresAnswer>, PostgresError> {
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let mut body = vec![0; len.saturating_sub(4)];
            self.stream.read_exact(&mut body)?;
            match head[0] {
                b'Z' => return Ok(None),
                b'T' => self.rows.columns = columns(&body).ok_or(PostgresError::Malformed)?,
                b'D' => self.rows.rows.push(row(&body).ok_or(PostgresError::Malformed)?),
                b'C' if !self.rows.columns.is_empty() => {
                    return Ok(Some(PostgresAnswer::Rows(std::mem::take(&mut self.rows))));
                }
                b'C' => return Ok(Some(PostgresAnswer::Done(text(&body).to_owned()))),
                b'E' | b'N' => {
                    let notice = notice(&body);
                    if notice.is_error() {
                        self.rows = PostgresRows::default();
                    }
                    if notice.severity == "FATAL" {
                        return Err(PostgresError::Refused(notice));
                    }
                    return Ok(Some(PostgresAnswer::Notice(notice)));
                }
                b'G' => {
                    let why = b"COPY FROM STDIN needs psql\0";
                    self.send(Some(b'f'), why)?;
                }
                b'd' => return Ok(Some(PostgresAnswer::Copied(body))),
                _ => {}
            }
        }
    }

    /// Runs statements; returns the rows of the last one that has some.
    ///
    /// # Errors
    /// The first error of a statement, or the connection is lost.
    pub fn run(&mut self, statements: &str) -> Result<Vec<Vec<Option<String>>>, PostgresError> {
        self.ask(statements)?;
        let (mut rows, mut error) = (Vec::new(), None);
        while let Some(answer) = self.answer()? {
            match answer {
                PostgresAnswer::Rows(found) => rows = found.rows,
                PostgresAnswer::Notice(notice) if notice.is_error() => error = error.or(Some(notice)),
                _ => {}
            }
        }
        error.map_or(Ok(rows), |notice| Err(PostgresError::Refused(notice)))
    }
}

fn notice(body: &[u8]) -> PostgresNotice {
    let field = |kind: u8| {
        let found = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&kind));
        found.map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
    };
    let [severity, code, message] = [b'S', b'C', b'M'].map(|kind| field(kind).unwrap_or_default());
    PostgresNotice { severity, code, message, detail: field(b'D') }
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
