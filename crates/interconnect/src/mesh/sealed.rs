//! A connection of two programs that have the same key, outside of any mesh: the handshake of
//! `noise.rs`, then sealed messages.
//!
//! The handshake consists of messages 1 and 2. The purpose of the connection takes the place of the
//! cluster's identifier, and the hellos are zero. The first message may be a replayed one, but a
//! later one cannot be. So the accepting end acts only on later messages.
//!
//! | message | bytes | from | content |
//! |---|---|---|---|
//! | 1, 2 | 128 | caller, listener | as in `noise.rs` |
//! | then | 2 | either | the number of bytes that follow, little endian: 16 to 4112 |
//! | | 16 to 4112 | | the message, sealed |
//!
//! Every call has a timeout. An end without the key is not answered.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{
    hello::HELLO,
    keys::Key,
    noise::{self, GREETING, NoiseSession, TAG, Unproven},
};

/// The longest message.
const MAX_MESSAGE: usize = 4096;

/// A blocking connection whose other end has proved the same key.
pub struct SealedStream {
    stream: TcpStream,
    session: NoiseSession,
}

impl SealedStream {
    /// Builds the calling end. Both ends name the same `purpose`.
    ///
    /// # Errors
    /// `PermissionDenied` if the other end has another key, `TimedOut` if it is too slow, or the
    /// error of a system call.
    pub fn call(stream: TcpStream, key: &Key, purpose: [u8; 16], within: Duration) -> io::Result<Self> {
        let until = begin(&stream, within)?;
        let (calling, first) = noise::call(key, purpose, &[0; HELLO]);
        (&stream).write_all(&first)?;
        let (_, session) = calling.answered(&read_exact::<GREETING>(&stream, until)?).map_err(denied)?;
        Ok(Self { stream, session })
    }

    /// Builds the accepting end.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn answer(stream: TcpStream, key: &Key, purpose: [u8; 16], within: Duration) -> io::Result<Self> {
        let until = begin(&stream, within)?;
        let first = read_exact::<GREETING>(&stream, until)?;
        let (called, _) = noise::called(std::slice::from_ref(key), purpose, &first).map_err(denied)?;
        let (second, session) = called.answer(&[0; HELLO]);
        (&stream).write_all(&second)?;
        Ok(Self { stream, session })
    }

    /// The connection itself, to inspect.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The message is longer than 4096 bytes, or a system call fails.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > MAX_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is longer than 4096 bytes"));
        }
        let sealed = self.session.seal(message);
        self.stream.set_nonblocking(false)?;
        self.stream.write_all(&[&(sealed.len() as u16).to_le_bytes()[..], &sealed].concat())
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// `TimedOut` if none comes in time, `PermissionDenied` if the other end did not seal it, or
    /// the error of a system call.
    pub fn receive(&mut self, within: Duration) -> io::Result<Vec<u8>> {
        let until = Instant::now() + within;
        let length = usize::from(u16::from_le_bytes(read_exact(&self.stream, until)?));
        if !(TAG..=MAX_MESSAGE + TAG).contains(&length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut sealed = vec![0; length];
        fill(&self.stream, &mut sealed, until)?;
        Ok(self.session.open(&mut sealed).map_err(denied)?.to_vec())
    }
}

fn begin(stream: &TcpStream, within: Duration) -> io::Result<Instant> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(within))?;
    Ok(Instant::now() + within)
}

fn denied(_: Unproven) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the other end does not prove that it has the same key")
}

fn read_exact<const N: usize>(stream: &TcpStream, until: Instant) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(stream, &mut bytes, until)?;
    Ok(bytes)
}

fn fill(mut stream: &TcpStream, mut into: &mut [u8], until: Instant) -> io::Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => into = &mut into[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::{super::KEY, *};

    const SOON: Duration = Duration::from_secs(20);
    const PURPOSE: [u8; 16] = [5; 16];

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    fn key(byte: u8) -> Key {
        Key::new([byte; KEY])
    }

    /// Builds the accepting end and the calling end.
    fn both_ends(
        ours: (&Key, [u8; 16]),
        theirs: (&Key, [u8; 16]),
    ) -> (io::Result<SealedStream>, io::Result<SealedStream>) {
        let (here, there) = connected();
        thread::scope(|scope| {
            let calling = scope.spawn(|| SealedStream::call(here, ours.0, ours.1, SOON));
            (SealedStream::answer(there, theirs.0, theirs.1, SOON), calling.join().unwrap())
        })
    }

    #[test]
    fn only_ends_with_the_same_key_and_purpose_connect() {
        let key_one = key(1);
        let (there, here) = both_ends((&key_one, PURPOSE), (&key_one, PURPOSE));
        let (mut there, mut here) = (there.unwrap(), here.unwrap());
        here.send(b"to there").unwrap();
        there.send(b"to here").unwrap();
        assert_eq!(there.receive(SOON).unwrap(), b"to there");
        assert_eq!(here.receive(SOON).unwrap(), b"to here");
        here.send(&[7; MAX_MESSAGE]).unwrap();
        assert_eq!(there.receive(SOON).unwrap(), [7; MAX_MESSAGE]);
        assert!(here.send(&[7; MAX_MESSAGE + 1]).is_err());
        for other in [(&key(2), PURPOSE), (&key_one, [6; 16])] {
            let (there, here) = both_ends((&key_one, PURPOSE), other);
            assert_eq!(there.err().unwrap().kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(here.err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn an_end_without_the_key_is_not_answered() {
        for bytes in [&b""[..], b"GET / HTTP/1.0\r\n\r\n", &[0; GREETING], &[0xff; 3 * GREETING]] {
            let (mut here, there) = connected();
            here.write_all(bytes).unwrap();
            here.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(SealedStream::answer(there, &key(1), PURPOSE, SOON).is_err());
            let mut answer = Vec::new();
            // The connection is reset if more was written than was read.
            let _ = here.read_to_end(&mut answer);
            assert!(answer.is_empty(), "{bytes:?}");
        }
        let (_here, there) = connected();
        let waited = SealedStream::answer(there, &key(1), PURPOSE, Duration::from_millis(10)).err().unwrap();
        assert_eq!(waited.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn changed_and_malformed_messages_are_refused() {
        for change in [[1, 0, 0], [0, 0x80, 0], [0, 0, 1]] {
            let (there, here) = both_ends((&key(1), PURPOSE), (&key(1), PURPOSE));
            let (mut there, mut here) = (there.unwrap(), here.unwrap());
            let sealed = here.session.seal(b"7");
            let mut message = [&(sealed.len() as u16).to_le_bytes()[..], &sealed, &[0; 45]].concat();
            message.iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
            here.stream.write_all(&message).unwrap();
            assert!(there.receive(SOON).is_err(), "{change:?}");
        }
    }

    #[test]
    fn a_replayed_greeting_delivers_no_message() {
        let (_, recorded) = noise::call(&key(1), PURPOSE, &[0; HELLO]);
        let (mut here, there) = connected();
        here.write_all(&recorded).unwrap();
        let mut there = SealedStream::answer(there, &key(1), PURPOSE, SOON).unwrap();
        here.write_all(&[&[17, 0][..], &[0; 17]].concat()).unwrap();
        assert_eq!(there.receive(SOON).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
