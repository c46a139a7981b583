//! Answers `GET /metrics` and nothing else.
//!
//! It is written by hand because its limits matter: a peer that can reach the port must not be able
//! to block the node. A connection gets one request of at most [`MAX_HEAD`] bytes, one answer, and
//! [`WITHIN`] for both together. [`CONNECTIONS`] are served at a time; further ones are closed at
//! once. The node is read at most once every [`FRESH`], however many requests arrive. The answer
//! contains only counts: a request only selects between a few fixed answers.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use plexus_admin::acceptor::Acceptor;

use super::CONTENT_TYPE;

/// The maximum of connections served at a time: one or two scrapers and a person.
const CONNECTIONS: usize = 4;

/// The time that a connection has from its first byte to its last.
const WITHIN: Duration = Duration::from_secs(2);

/// The maximum length of a request's head; scrapers send a few hundred bytes.
const MAX_HEAD: usize = 4096;

/// The time for which an answer is reused before the node is read again.
const FRESH: Duration = Duration::from_millis(100);

type Source = dyn Fn() -> String + Send + Sync;

/// A running server; it serves until dropped.
pub struct Server {
    address: SocketAddr,
    _acceptor: Acceptor,
}

/// A bound port that is not served yet. A node thus learns that the port is taken before it
/// contacts its peers.
pub struct Reserved(TcpListener);

struct Shared {
    source: Box<Source>,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Server {
    /// Binds the port.
    ///
    /// # Errors
    /// The port is in use, or the address is not one of this machine's.
    pub fn reserve(address: SocketAddr) -> io::Result<Reserved> {
        TcpListener::bind(address).map(Reserved)
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Reserved {
    /// Starts to serve the text that `source` returns.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn serve(self, source: impl Fn() -> String + Send + Sync + 'static) -> io::Result<Server> {
        let address = self.0.local_addr()?;
        let shared = Shared { source: Box::new(source), last: Mutex::default() };
        let serve = move |stream| {
            // A peer that disconnected or was too slow needs no error message.
            let _ = answer(&stream, &shared);
        };
        // A connection above the limit is closed: a scraper tries again, a flood gets nothing.
        let acceptor = Acceptor::start("metrics", self.0, CONNECTIONS, serve, drop)?;
        Ok(Server { address, _acceptor: acceptor })
    }
}

fn answer(mut stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let end = Instant::now() + WITHIN;
    let (status, body) = match head(stream, end)? {
        None => ("431 Request Header Fields Too Large", Arc::from("too long\n")),
        Some(head) => respond(&head, shared),
    };
    let kind = if status == OK { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nAllow: GET\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        let sent = stream.write(rest)?;
        rest = &rest[sent..];
    }
    stream.shutdown(std::net::Shutdown::Write)
}

const OK: &str = "200 OK";

/// Returns the status and body for a request.
fn respond(head: &[u8], shared: &Shared) -> (&'static str, Arc<str>) {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let path = target.unwrap_or_default().split(|byte| *byte == b'?').next();
    if !version.is_some_and(|version| version.starts_with(b"HTTP/1.")) || words.next().is_some() {
        return ("400 Bad Request", Arc::from("not a request\n"));
    }
    match (method, path) {
        (Some(b"GET"), Some(b"/metrics")) => (OK, shared.text()),
        (Some(b"GET"), _) => ("404 Not Found", Arc::from("look at /metrics\n")),
        _ => ("405 Method Not Allowed", Arc::from("only GET\n")),
    }
}

impl Shared {
    /// Returns the text of the source, or a fresh earlier one. Requests that arrive meanwhile wait
    /// for the same text.
    fn text(&self) -> Arc<str> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = last.as_ref().filter(|(when, _)| when.elapsed() < FRESH) {
            return Arc::clone(text);
        }
        let text: Arc<str> = (self.source)().into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

/// Reads up to the empty line; `None` if that is too long.
fn head(mut stream: &TcpStream, end: Instant) -> io::Result<Option<Vec<u8>>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        let length = stream.read(&mut piece)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..length]);
        if head.windows(4).any(|four| four == b"\r\n\r\n") {
            return Ok(Some(head));
        }
        if head.len() > MAX_HEAD {
            return Ok(None);
        }
    }
}

/// Returns the time left until `end`; an error if none is left.
fn left(end: Instant) -> io::Result<Duration> {
    match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        thread,
    };

    use super::*;

    /// Returns a server whose text is the number of times that its source was called, and that
    /// counter.
    fn server() -> (Server, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counting = Arc::clone(&asked);
        let reserved = Server::reserve("127.0.0.1:0".parse().unwrap()).unwrap();
        (reserved.serve(move || format!("{}", counting.fetch_add(1, Relaxed) + 1)).unwrap(), asked)
    }

    fn connect(server: &Server) -> TcpStream {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Reads all that arrives, up to the end or a reset of the connection.
    fn rest(mut stream: &TcpStream) -> String {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    /// Returns the answer to a request; retries while all connections are in use.
    fn ask(server: &Server, request: &str) -> String {
        let start = Instant::now();
        loop {
            let mut stream = connect(server);
            // The server may close the connection during the write.
            let _ = stream.write_all(request.as_bytes());
            let answer = rest(&stream);
            if !answer.is_empty() {
                return answer;
            }
            assert!(start.elapsed() < 10 * WITHIN, "no place is ever free");
        }
    }

    #[test]
    fn requests_get_the_answers_they_deserve() {
        let (server, _) = server();
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(MAX_HEAD));
        let cases = [
            ("GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n", OK),
            ("GET /metrics?x=y HTTP/1.0\r\n\r\n", OK),
            ("GET / HTTP/1.1\r\n\r\n", "404 "),
            ("GET /metrics/../x HTTP/1.1\r\n\r\n", "404 "),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 "),
            ("GET /metrics\r\n\r\n", "400 "),
            ("GET /metrics HTTP/1.1 x\r\n\r\n", "400 "),
            ("\0\u{7f} / / / \r\n\r\n", "400 "),
            ("\r\n\r\n", "400 "),
            (&long, "431 "),
        ];
        for (request, status) in cases {
            let answer = ask(&server, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answer}");
        }
    }

    #[test]
    fn an_answer_is_whole_and_a_flood_asks_the_node_once_in_a_while() {
        let (server, asked) = server();
        let start = Instant::now();
        for _ in 0..200 {
            let answer = ask(&server, "GET /metrics HTTP/1.1\r\n\r\n");
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
            assert!(head.contains(&format!("Content-Type: {CONTENT_TYPE}")) && !body.is_empty(), "{answer}");
        }
        let most = 1 + (start.elapsed().as_millis() / FRESH.as_millis()) as u32;
        assert!(asked.load(Relaxed) <= most, "{asked:?} of {most}");
    }

    #[test]
    fn silent_clients_are_disconnected_after_the_timeout() {
        let (server, _) = server();
        // These use all connections: the first send nothing, the last sends a little now and then.
        let silent: Vec<_> = (0..CONNECTIONS - 1).map(|_| connect(&server)).collect();
        let mut slow = connect(&server);
        slow.write_all(b"GET /metr").unwrap();
        let further_client: Vec<_> = (0..100).map(|_| connect(&server)).collect();
        assert!(
            further_client.iter().all(|stream| rest(stream).is_empty()),
            "one too many is closed at once"
        );
        // The server answers again as soon as connections are free, although the slow one tries to
        // keep its own.
        let (asked, keeps) = (AtomicBool::new(false), &mut slow);
        let answer = thread::scope(|scope| {
            scope.spawn(|| {
                // It is so slow that the timeout comes long before the limit on the head.
                while keeps.write_all(b"x").is_ok() && !asked.load(Relaxed) {
                    thread::sleep(WITHIN / 100);
                }
            });
            let answer = ask(&server, "GET /metrics HTTP/1.1\r\n\r\n");
            asked.store(true, Relaxed);
            answer
        });
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(silent.iter().all(|stream| rest(stream).is_empty()));
    }

    #[test]
    fn a_server_that_is_dropped_gives_its_port_back() {
        let (server, _) = server();
        let address = server.address();
        let refused = Server::reserve(address).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
        drop(server);
        assert!(Server::reserve(address).is_ok());
    }
}
