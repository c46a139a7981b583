//! The connection over which a client and a listener speak: nothing of it is read that was not sealed by who has the key.
//!
//! The handshake is Noise `NNpsk0`, as between the nodes of a cluster. Its first message can be made only with the key, and
//! may be a replayed one; what is said after it cannot be, so whoever is called acts only on that. Without a key both take the one of
//! everybody, which is zero: then nobody is proved to be anybody, and who only listens on the way still learns nothing.
//!
//! | message | bytes | from | what |
//! |---|---|---|---|
//! | 1 | 48 | client | its ephemeral key (32), nothing, sealed (16) |
//! | 2 | 48 | listener | its ephemeral key (32), nothing, sealed (16) |
//! | then | 2 | either | how many bytes follow, little endian: 16 to 4112 |
//! | | 16 to 4112 | | what is said, as JSON, sealed |
//!
//! Everything comes soon, or the connection is given up. A stranger is answered nothing.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use plexus_interconnect::mesh::{KEY, Key};
use serde::{Serialize, de::DeserializeOwned};
use snow::{Builder, HandshakeState, TransportState};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// What both must mean by the rest.
const PROLOGUE: &[u8] = b"plexus perf";

/// What sealing adds.
const TAG: usize = 16;

/// Bytes of each message of the handshake.
const GREETING: usize = 32 + TAG;

/// Longest that is said.
const WORDS: usize = 4096;

/// A connection whose other end has the same key.
pub(super) struct Sealed {
    stream: TcpStream,
    noise: TransportState,
}

impl Sealed {
    /// The end that calls.
    ///
    /// # Errors
    /// The other end has another key, or says nothing in time, or the system's.
    pub(super) fn call(stream: TcpStream, key: Option<&Key>, within: Duration) -> io::Result<Self> {
        let until = begin(&stream, within)?;
        let mut noise = state(key, true);
        (&stream).write_all(&written(&mut noise))?;
        let answer = read_exact::<GREETING>(&stream, until).map_err(unproven)?;
        read(&mut noise, &answer)?;
        Self::new(stream, noise)
    }

    /// The end that is called.
    ///
    /// # Errors
    /// The other end has another key, or says nothing in time, or the system's.
    pub(super) fn answer(stream: TcpStream, key: Option<&Key>, within: Duration) -> io::Result<Self> {
        let until = begin(&stream, within)?;
        let mut noise = state(key, false);
        read(&mut noise, &read_exact::<GREETING>(&stream, until)?)?;
        (&stream).write_all(&written(&mut noise))?;
        Self::new(stream, noise)
    }

    fn new(stream: TcpStream, noise: HandshakeState) -> io::Result<Self> {
        let noise = noise.into_transport_mode().map_err(io::Error::other)?;
        Ok(Self { stream, noise })
    }

    /// The connection itself, to look at.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Says something.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn say(&mut self, words: &impl Serialize) -> io::Result<()> {
        let words = serde_json::to_vec(words)?;
        if words.len() > WORDS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too long to be said"));
        }
        let mut message = vec![0; 2 + words.len() + TAG];
        let sealed = self.noise.write_message(&words, &mut message[2..]).map_err(io::Error::other)?;
        message[..2].copy_from_slice(&(sealed as u16).to_le_bytes());
        self.stream.set_nonblocking(false)?;
        self.stream.write_all(&message)
    }

    /// Waits for what the other end says, at most so long.
    ///
    /// # Errors
    /// It says nothing in time, or what makes no sense.
    pub(super) fn hear<T: DeserializeOwned>(&mut self, within: Duration) -> io::Result<T> {
        let until = Instant::now() + within;
        let length = usize::from(u16::from_le_bytes(read_exact(&self.stream, until)?));
        if !(TAG..=WORDS + TAG).contains(&length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut sealed = vec![0; length];
        fill(&self.stream, &mut sealed, until)?;
        let mut words = vec![0; length];
        let length = self.noise.read_message(&sealed, &mut words).map_err(|_| unproven_here())?;
        Ok(serde_json::from_slice(&words[..length])?)
    }
}

fn begin(stream: &TcpStream, within: Duration) -> io::Result<Instant> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(within))?;
    Ok(Instant::now() + within)
}

fn state(key: Option<&Key>, calls: bool) -> HandshakeState {
    let everybodys = Key::new([0; KEY]);
    let pattern = PATTERN.parse().expect("a pattern of the specification");
    let made = Builder::new(pattern)
        .prologue(PROLOGUE)
        .and_then(|builder| builder.psk(0, key.unwrap_or(&everybodys).bytes()))
        .and_then(|builder| if calls { builder.build_initiator() } else { builder.build_responder() });
    made.expect("the pattern needs nothing else")
}

fn written(noise: &mut HandshakeState) -> [u8; GREETING] {
    let mut message = [0; GREETING];
    let length = noise.write_message(&[], &mut message).expect("it is this side's turn, and there is room");
    assert_eq!(length, GREETING, "a message of another length than the table's");
    message
}

fn read(noise: &mut HandshakeState, message: &[u8; GREETING]) -> io::Result<()> {
    match noise.read_message(message, &mut [0; GREETING]) {
        Ok(0) => Ok(()),
        _ => Err(unproven_here()),
    }
}

fn unproven_here() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "it does not prove that it has the same key")
}

/// Who is called and hears no proof hangs up without a word.
fn unproven(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it hangs up without a word: name the same file with --key on both sides, or on none",
        ),
        _ => error,
    }
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

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    fn key(byte: u8) -> Key {
        Key::new([byte; KEY])
    }

    fn met(ours: Option<&Key>, theirs: Option<&Key>) -> (io::Result<Sealed>, io::Result<Sealed>) {
        let (here, there) = connected();
        thread::scope(|scope| {
            let calling = scope.spawn(|| Sealed::call(here, ours, SOON));
            (Sealed::answer(there, theirs, SOON), calling.join().unwrap())
        })
    }

    #[test]
    fn who_has_the_same_key_is_understood_and_nobody_else() {
        for same in [None, Some(key(1))] {
            let (there, here) = met(same.as_ref(), same.as_ref());
            let (mut there, mut here) = (there.unwrap(), here.unwrap());
            here.say(&"to there").unwrap();
            there.say(&"to here").unwrap();
            assert_eq!(there.hear::<String>(SOON).unwrap(), "to there");
            assert_eq!(here.hear::<String>(SOON).unwrap(), "to here");
            assert!(here.say(&"x".repeat(WORDS)).is_err(), "two quotes too many");
        }
        let (one, other) = (key(1), key(2));
        for (ours, theirs) in [(Some(&one), Some(&other)), (None, Some(&one)), (Some(&one), None)] {
            let (there, here) = met(ours, theirs);
            assert_eq!(there.err().unwrap().kind(), io::ErrorKind::PermissionDenied);
            assert!(here.err().unwrap().to_string().contains("name the same file with --key"));
        }
    }

    #[test]
    fn what_a_stranger_says_is_answered_nothing() {
        for bytes in [&b""[..], b"GET / HTTP/1.0\r\n\r\n", &[0; GREETING], &[0xff; 3 * GREETING]] {
            let (mut here, there) = connected();
            here.write_all(bytes).unwrap();
            here.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(Sealed::answer(there, Some(&key(1)), SOON).is_err());
            let mut said = Vec::new();
            // Reset where it had said more than was read.
            let _ = here.read_to_end(&mut said);
            assert!(said.is_empty(), "{bytes:?}");
        }
        let (_here, there) = connected();
        let waited = Sealed::answer(there, None, Duration::from_millis(10)).err().unwrap();
        assert_eq!(waited.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_was_changed_on_the_way_or_is_no_message_is_refused() {
        for change in [[1, 0, 0], [0, 0x80, 0], [0, 0, 1]] {
            let (there, here) = met(None, None);
            let (mut there, mut here) = (there.unwrap(), here.unwrap());
            let mut message = vec![0; 64];
            let sealed = here.noise.write_message(b"7", &mut message[2..]).unwrap();
            message[0] = sealed as u8;
            message.iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
            here.stream.write_all(&message).unwrap();
            assert!(there.hear::<u32>(SOON).is_err(), "{change:?}");
        }
    }

    #[test]
    fn a_recorded_greeting_leads_to_nothing_that_is_heard() {
        let key = key(1);
        let mut first = state(Some(&key), true);
        let recorded = written(&mut first);
        let (mut here, there) = connected();
        here.write_all(&recorded).unwrap();
        let mut there = Sealed::answer(there, Some(&key), SOON).unwrap();
        let mut sealed = vec![17, 0];
        sealed.extend([0; 17]);
        here.write_all(&sealed).unwrap();
        assert_eq!(there.hear::<u32>(SOON).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
