//! Messages to the service manager (systemd) that started this process, as in sd_notify(3): the
//! node is ready, ends, or works.
//!
//! Without `NOTIFY_SOCKET`, or in a process that did not [`connect`], nothing is sent. No message
//! is waited for: one that the manager does not take at once is dropped.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use plexus_base::Nanos;

static MANAGER: OnceLock<ServiceManager> = OnceLock::new();

/// The environment variables of the manager. Processes that a node starts must not have them.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The service manager of this process.
struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// The interval of the watchdog messages, if the manager expects them.
    interval: Option<Nanos>,
    /// The time of the next watchdog message. Only the membership's loop uses it.
    next: AtomicU64,
}

/// Connects to the service manager that started this process, if there is one.
///
/// # Errors
/// `NOTIFY_SOCKET` is not the address of a socket.
pub fn connect() -> io::Result<()> {
    let [path, usec, pid] = VARIABLES.map(|name| env::var(name).ok());
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(()) };
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }?;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let interval = interval(usec.as_deref(), pid.as_deref(), std::process::id());
    let _ = MANAGER.set(ServiceManager { socket, address, interval, next: AtomicU64::new(0) });
    Ok(())
}

/// Returns the interval of the watchdog messages: half of the time after which the manager gives
/// the process up. `pid` is the process that is to send them; without it this one is.
fn interval(usec: Option<&str>, pid: Option<&str>, me: u32) -> Option<Nanos> {
    let usec = usec?.parse::<u64>().ok().filter(|usec| (1..u64::MAX / 1_000).contains(usec))?;
    pid.is_none_or(|pid| pid.parse() == Ok(me)).then_some(Nanos(usec * 1_000 / 2))
}

/// Sends the assignments of sd_notify(3), one on each line.
pub fn notify(assignments: &str) {
    if let Some(manager) = MANAGER.get() {
        // The manager may be restarting; it asks for nothing again.
        let _ = manager.socket.send_to_addr(assignments.as_bytes(), &manager.address);
    }
}

/// Reports the state of the node to users of the manager.
pub fn notify_status(status: &str) {
    notify(&format!("STATUS={}", status.replace('\n', " ")));
}

/// Reports that the node works at time `now`, if such a message is due.
pub fn notify_works(now: Nanos) {
    let Some((manager, interval)) = MANAGER.get().and_then(|manager| Some((manager, manager.interval?)))
    else {
        return;
    };
    if now.0 >= manager.next.load(Relaxed) {
        manager.next.store((now + interval).0, Relaxed);
        notify("WATCHDOG=1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_messages_are_sent_at_half_the_time_by_the_process_that_the_manager_names() {
        assert_eq!(interval(Some("3000000"), None, 7), Some(Nanos::from_ms(1_500)));
        assert_eq!(interval(Some("3000000"), Some("7"), 7), Some(Nanos::from_ms(1_500)));
        assert_eq!(interval(Some("3000000"), Some("8"), 7), None);
        for hostile in ["", "0", "-1", "3s", "18446744073709551615"] {
            assert_eq!(interval(Some(hostile), None, 7), None, "{hostile}");
        }
        assert_eq!(interval(None, None, 7), None);
    }
}
