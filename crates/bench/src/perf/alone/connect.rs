//! The client's side: a session with a listener, which carries out one plan after the other.

use std::{
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

use plexus_interconnect::mesh::{Key, check_available};

use super::{
    AloneError, Ask, PORT, RailChoice,
    machine::identity,
    meet::{Answer, AskWire},
    mesh::{End, LISTENER, Pair},
    sealed::Sealed,
};
use crate::perf::{Driving, Live, Measured, Over, Plan, Trial, Until, run};

/// The timeout of a connection to one address.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// The time in which a listener must prove that it has the key.
const PROVED_WITHIN: Duration = Duration::from_secs(5);

/// The time that a listener has to answer; it may be serving another client.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// A session. Its end also ends everything that it started, on both sides.
pub struct PerfSession {
    end: End,
    driving: Driving,
    over: Over,
    // Last: its end tells the listener that the session is over.
    _control: Sealed,
}

impl PerfSession {
    /// Connects to the listener at `target`, a host or `HOST:PORT`. With a `key`, both sides prove
    /// that they have it.
    ///
    /// # Errors
    /// This machine lacks a part that the rail needs, no listener answers, or the listener refuses.
    pub fn open(target: &str, ask: &Ask, key: Option<&Key>) -> Result<Self, AloneError> {
        if let RailChoice::Only(rail) = ask.rail {
            check_available(rail).map_err(AloneError::Machine)?;
        }
        let stream = reach(target)?;
        let talk = |what| move |error| AloneError::Talk { what, error };
        let control = Sealed::call(stream, key, PROVED_WITHIN);
        let mut control = control.map_err(talk("proving the key to the listener"))?;
        control.send(&AskWire::of(ask, identity())).map_err(talk("asking the listener"))?;
        let answer: Result<Answer, String> =
            control.receive(ANSWERED_WITHIN).map_err(talk("waiting for the listener's answer"))?;
        let answer = answer.map_err(AloneError::Refused)?;
        let rail = match answer.rail.parse().map_err(AloneError::Refused)? {
            RailChoice::Only(kind) => kind,
            RailChoice::Auto => return Err(AloneError::Refused("it names no rail".into())),
        };
        let addresses = control.stream().local_addr();
        let addresses = addresses.and_then(|here| Ok((here, control.stream().peer_addr()?)));
        let (here, there) = addresses.map_err(talk("looking at the connection"))?;
        let pair = Pair {
            cluster: answer.cluster,
            rail,
            waiting: ask.waiting,
            key: key.cloned(),
            encrypt: answer.encrypt,
        };
        let end = End::connect(&pair, here.ip(), SocketAddr::new(there.ip(), answer.port))?;
        end.wait(&mut || true)?;
        let encrypted = end.rails().iter().any(|rail| rail.encrypted);
        let over = Over { rail: answer.rail, encrypted, why: answer.why };
        Ok(Self { end, driving: ask.driving, over, _control: control })
    }

    /// Returns the rails between the two sides, and the reason for them.
    pub fn over(&self) -> &Over {
        &self.over
    }

    /// Measures. `tell` receives the progress and returns false to cancel.
    ///
    /// # Errors
    /// See [`PerfError`](crate::perf::PerfError).
    pub fn measure(
        &self,
        trials: Vec<Trial>,
        until: Until,
        tell: &mut dyn FnMut(Live) -> bool,
    ) -> Result<Vec<Measured>, AloneError> {
        let plan = Plan { peer: LISTENER.0, driving: self.driving, trials, until };
        Ok(run(&self.end.place, &plan, tell)?)
    }
}

/// Connects to the first address of `target` that answers.
fn reach(target: &str) -> Result<TcpStream, AloneError> {
    let wrong = |error| AloneError::Reach { address: target.into(), error };
    // An IPv6 address contains colons itself.
    let with_port = match target.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            port.parse::<u16>().map_err(|_| {
                wrong(std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("`{port}` is no port")))
            })?;
            target.to_owned()
        }
        Some(_) => format!("[{}]:{PORT}", target.trim_matches(['[', ']'])),
        None => format!("{target}:{PORT}"),
    };
    let mut refusal = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in with_port.to_socket_addrs().map_err(wrong)? {
        match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => refusal = error,
        }
    }
    Err(wrong(refusal))
}
