//! Reads the kernel's view of a connection and sets its timers.
//!
//! Guarantees: a connection prepared here that has nothing in flight ends by itself within
//! [`SILENCE`] when the other host no longer answers. No connection ends while the other host
//! answers, even if its process reads nothing. This module does not know what is sent.
//!
//! While something is in flight the caller judges by [`Path::heard`] and [`Path::owes`]. The
//! kernel's own timeout (`TCP_USER_TIMEOUT`, tcp(7)) is not used: it also ends connections whose
//! other end keeps answering that it has no room, as the system of a stopped process does. Without
//! it, a connection that no caller watches gives up unacknowledged data after `tcp_retries2`, about
//! a quarter of an hour.
#![allow(unsafe_code, reason = "TCP_INFO has no safe view")]

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, AsRawFd},
    sync::OnceLock,
    time::Duration,
};

use plexus_base::Nanos;
use rustix::net::sockopt;

use crate::Flow;

/// The time after which the kernel declares an idle connection dead if the other host does not
/// answer. Links, which send, notice far sooner.
const SILENCE: Duration = Duration::from_secs(30);
/// The idle time before the first probe, and the time between probes.
const IDLE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(5);
const TRIES: u32 = 4;

/// The number of probes without an answer that shows silence: one may be in flight, so the second
/// shows that the first has no answer.
const UNANSWERED: u8 = 2;

const _: () = assert!(IDLE.as_secs() + AGAIN.as_secs() * TRIES as u64 == SILENCE.as_secs());

/// The kernel's view of the path of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// The longest packet that the path is known to take.
    pub(super) mtu: u32,
    /// The smoothed round-trip time.
    pub(super) rtt: Nanos,
    /// The time since the other host was last heard, by data or by an acknowledgement.
    pub(super) heard: Nanos,
    /// True if the other host owes an answer.
    pub(super) owes: bool,
    /// The segments with data that were sent, and those of them that were sent again.
    pub(super) segments: u64,
    pub(super) retransmits: u64,
    /// The flow: acknowledged bytes include one or two for the begin and end of the connection;
    /// bytes on the path are counted by segments, each as a whole one.
    pub(super) flow: Flow,
}

/// Prepares a connection for a rail: it never blocks, sends at once, and ends by itself when the
/// other host is gone.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, TRIES)?;
    Ok(())
}

/// Makes the kernel acknowledge the next data at once. The kernel resets this mode by itself
/// (tcp(7)), so the rail requests it again and again.
pub(super) fn acknowledge_at_once(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::set_tcp_quickack(stream, true)?)
}

/// Limits the segments of a connection that is not yet connected, in both directions: this end
/// sends no longer ones, and tells the other end not to.
///
/// This is for a path that drops long packets silently: small frames pass, large ones are sent
/// again until the connection ends. The connecting end calls this on the socket *before* it
/// connects again. On an established connection the kernel accepts the value without effect. The
/// accepting end does nothing.
///
/// # Errors
/// The kernel refuses the value: fewer than 88 bytes, or more than 32767 (tcp(7), `TCP_MAXSEG`).
pub fn clamp(socket: impl AsFd, mss: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(mss).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is borrowed for the call; the option takes an int, which is where and
    // as long as is said.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The longest segment that this end of a connection sends now, in bytes of payload.
///
/// # Errors
/// The kernel does not support the query.
pub fn segment_len(socket: impl AsFd) -> io::Result<u32> {
    Ok(info(socket)?.tcpi_snd_mss)
}

/// Reads the kernel's view of the connection.
pub(super) fn look(stream: &TcpStream) -> io::Result<Path> {
    Ok(read(&info(stream)?))
}

fn read(info: &libc::tcp_info) -> Path {
    Path {
        mtu: info.tcpi_pmtu,
        rtt: Nanos::from_us(info.tcpi_rtt.into()),
        heard: Nanos::from_ms(heard_ms(info).into()).since(kernel_tick()),
        owes: owes(info),
        segments: info.tcpi_data_segs_out.into(),
        retransmits: info.tcpi_total_retrans.into(),
        flow: Flow {
            acknowledged: info.tcpi_bytes_acked,
            on_path: u64::from(info.tcpi_unacked) * u64::from(info.tcpi_snd_mss),
            rtt: Nanos::from_us(info.tcpi_rtt.into()),
            least_rtt: Nanos::from_us(info.tcpi_min_rtt.into()),
        },
    }
}

/// The kernel counts in ticks, so a recent event may be reported as one tick old.
fn kernel_tick() -> Nanos {
    static TICK: OnceLock<Nanos> = OnceLock::new();
    // The resolution of the coarse clock is one tick.
    *TICK.get_or_init(|| {
        let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
        Nanos(tick.tv_nsec.unsigned_abs().next_multiple_of(1_000_000))
    })
}

fn heard_ms(info: &libc::tcp_info) -> u32 {
    info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv)
}

fn owes(info: &libc::tcp_info) -> bool {
    if info.tcpi_unacked == 0 {
        // Nothing is in flight, or the other end has no room: the kernel probes now and then, and
        // counts the probes until one is answered.
        info.tcpi_probes >= UNANSWERED
    } else {
        // Data in flight when the room ended are sent again, ever more rarely, and answered without
        // being taken.
        info.tcpi_snd_wnd > 0 || heard_ms(info) > info.tcpi_last_data_sent
    }
}

fn info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: integers only, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `len` bytes to
    // where `info` is, and an older one fewer, which leaves zeros.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns true if an answer is owed, from the kernel's numbers: segments in flight, probes
    /// without an answer, room at the other end, and the times since something was heard and since
    /// data were sent.
    fn owed(unacked: u32, probes: u8, room: u32, heard: u32, sent: u32) -> bool {
        // SAFETY: integers only, for which zero is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        (info.tcpi_unacked, info.tcpi_probes, info.tcpi_snd_wnd) = (unacked, probes, room);
        (info.tcpi_last_ack_recv, info.tcpi_last_data_recv, info.tcpi_last_data_sent) = (heard, 70_000, sent);
        owes(&info)
    }

    #[test]
    fn an_answer_is_owed_for_data_in_flight_and_for_probes() {
        assert!(!owed(0, 0, 9000, 60_000, 60_000), "idle");
        assert!(owed(1, 0, 9000, 500, 20), "in flight");
        assert!(owed(1, 0, 9000, 500, 600), "in flight, and sent before something was heard");
        assert!(!owed(0, 1, 0, 1600, 1700), "no room, probed once, not answered yet");
        assert!(owed(0, 2, 0, 1600, 1700), "no room, not answered");
        assert!(!owed(3, 0, 0, 500, 500), "no room for data in flight, answered");
        assert!(owed(3, 0, 0, 900, 500), "no room for data in flight, not answered");
    }

    #[test]
    fn segments_in_flight_count_whole_and_times_are_a_tick_lower() {
        // SAFETY: integers only, for which zero is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        (info.tcpi_unacked, info.tcpi_snd_mss) = (3, 1448);
        (info.tcpi_last_ack_recv, info.tcpi_last_data_recv) = (50, 70);
        let path = read(&info);
        assert_eq!(path.flow.on_path, 4344);
        assert!((Nanos::from_ms(40)..Nanos::from_ms(50)).contains(&path.heard), "{path:?}");
        info.tcpi_last_ack_recv = 0;
        assert_eq!(read(&info).heard, Nanos(0));
    }

    /// A connection whose other end is stopped must stay open, see the module documentation.
    #[test]
    fn the_kernel_probes_idle_hosts_and_sets_no_timeout_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        prepare(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0);
    }
}
