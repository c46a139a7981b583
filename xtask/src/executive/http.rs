//! A minimal HTTP/1.1 client for a JSON gateway: sequential requests over one connection.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The largest response body in bytes.
const MAX_BODY: usize = 1 << 20;

/// A persistent connection to an HTTP server.
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    server: SocketAddr,
}

impl Http {
    /// Connects to `server`; responses must come within `timeout`.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub(super) fn connect(server: SocketAddr, timeout: Duration) -> Result<Self> {
        let stream = TcpStream::connect(server).with_context(|| format!("cannot connect to {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(stream), server })
    }

    /// Posts `body` to `path` and returns the response.
    ///
    /// # Errors
    /// The server refuses the request, or its response is malformed.
    pub(super) fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        // One write: the server starts with the first packet.
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.server,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (status, body) = answer(&mut self.stream)?;
        ensure!(status == 200, "{path}: {status}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).with_context(|| format!("{path}: the response is not JSON"))
    }
}

/// Reads a response and returns its status and body.
fn answer(stream: &mut impl BufRead) -> Result<(u16, Vec<u8>)> {
    let read = |stream: &mut dyn BufRead| -> Result<String> {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line)? > 0, "the server has closed the connection");
        Ok(line.trim_end().to_owned())
    };
    let first = read(stream)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("malformed status line: {first:?}"))?;
    let (mut length, mut chunked) = (None, false);
    loop {
        let header = read(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) =
            header.split_once(':').with_context(|| format!("malformed header: {header:?}"))?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.trim().parse::<usize>()?),
            "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
            _ => {}
        }
    }
    let mut body = Vec::new();
    let mut take = |stream: &mut dyn BufRead, length: usize| -> Result<()> {
        ensure!(body.len() + length <= MAX_BODY, "the response is longer than {MAX_BODY} bytes");
        let from = body.len();
        body.resize(from + length, 0);
        Ok(stream.read_exact(&mut body[from..])?)
    };
    match length {
        Some(length) => take(stream, length)?,
        None if chunked => loop {
            let length = usize::from_str_radix(&read(stream)?, 16)?;
            take(stream, length)?;
            read(stream)?;
            if length == 0 {
                break;
            }
        },
        None => bail!("the response has no length"),
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_with_a_length_or_in_chunks_are_read() {
        let read = |text: &str| answer(&mut text.as_bytes());
        let plain = read("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}rest").expect("a response");
        assert_eq!(plain, (200, b"{}".to_vec()));
        let chunks =
            "HTTP/1.1 404 Not\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{\"\r\n3\r\na\":\r\n0\r\n\r\n";
        assert_eq!(read(chunks).expect("a response"), (404, b"{\"a\":".to_vec()));
        for bad in
            ["", "hello\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"]
        {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
