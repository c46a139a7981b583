//! What the kernel knows of a connection, and how it is told to watch over it.
//!
//! Guarantees: a connection set up here on which nothing is under way ends by itself within [`SILENCE`] when the other host
//! no longer answers; none ends while that answers, however long its process takes nothing. It must not know what is sent.
//!
//! While something is under way the judgement is with whoever asks for [`Path::heard`] and [`Path::owes`]. The kernel's own
//! (`TCP_USER_TIMEOUT`, tcp(7)) is not used: it also ends connections whose other end says again and again that it has no
//! room now, as the system of a stopped process does. Without it, an end that nobody looks after gives up what is not
//! acknowledged after `tcp_retries2`, a quarter of an hour.
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

/// A host that has not answered for so long while nothing was sent is taken for gone. Links, which send, notice far sooner.
const SILENCE: Duration = Duration::from_secs(30);
/// An idle connection is asked after so long, then every so often.
const IDLE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(5);
const TRIES: u32 = 4;

/// One question may be on its way; when a second is asked, the first has no answer.
const UNANSWERED: u8 = 2;

const _: () = assert!(IDLE.as_secs() + AGAIN.as_secs() * TRIES as u64 == SILENCE.as_secs());

/// What one connection tells of its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Longest packet that the path is known to take.
    pub(super) mtu: u32,
    /// Smoothed.
    pub(super) rtt: Nanos,
    /// Since the other host was last heard, by data or by an acknowledgement.
    pub(super) heard: Nanos,
    /// Whether it owes an answer.
    pub(super) owes: bool,
    /// Segments with data that were sent, and those of them that were sent again.
    pub(super) segments: u64,
    pub(super) retransmits: u64,
    /// Bytes acknowledged with one or two that stand for the connection's begin and end, those on the path by segments, each
    /// counted as a whole one.
    pub(super) flow: Flow,
}

/// Prepares a connection for a rail: it never blocks, sends at once, and ends by itself when the other host is gone.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, TRIES)?;
    Ok(())
}

/// Has what arrives next acknowledged at once. The kernel takes it back by itself (tcp(7)), so it is asked for again and again.
pub(super) fn acknowledge_at_once(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::set_tcp_quickack(stream, true)?)
}

/// Limits the segments of a connection that is about to be made, in both directions: this end sends no longer ones, and
/// tells the other that it takes no longer ones.
///
/// For a path that loses long packets without saying so: small frames pass, large ones are sent again until the
/// connection ends. Whoever connects anew calls this on the socket *before* it connects; on a connection that stands
/// the kernel takes the value and does nothing. The end that accepts need not know.
///
/// # Errors
/// The kernel refuses the value: fewer than 88 bytes, or more than 32767 (tcp(7), `TCP_MAXSEG`).
pub fn clamp(socket: impl AsFd, mss: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(mss).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is borrowed for the call; the option takes an int, which is where and as long as is said.
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
/// The kernel does not tell.
pub fn segment_len(socket: impl AsFd) -> io::Result<u32> {
    Ok(info(socket)?.tcpi_snd_mss)
}

/// Asks the kernel.
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

/// The kernel counts in ticks: what happened a moment ago may be said to be one old.
fn kernel_tick() -> Nanos {
    static TICK: OnceLock<Nanos> = OnceLock::new();
    // The coarse clock moves with them.
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
        // Nothing was sent, or there is no room for it: then the kernel asks now and then, and counts until it is answered.
        info.tcpi_probes >= UNANSWERED
    } else {
        // What was on its way when the room ended is sent again, ever more rarely, and answered without being taken.
        info.tcpi_snd_wnd > 0 || heard_ms(info) > info.tcpi_last_data_sent
    }
}

fn info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: integers only, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `len` bytes to where `info` is, and an
    // older one fewer, which leaves zeros.
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

    /// Whether an answer is owed by what the kernel says: segments under way, probes without an answer, room at the other
    /// end, and the times since something was heard and since data were sent.
    fn owed(unacked: u32, probes: u8, room: u32, heard: u32, sent: u32) -> bool {
        // SAFETY: integers only, for which zero is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        (info.tcpi_unacked, info.tcpi_probes, info.tcpi_snd_wnd) = (unacked, probes, room);
        (info.tcpi_last_ack_recv, info.tcpi_last_data_recv, info.tcpi_last_data_sent) = (heard, 70_000, sent);
        owes(&info)
    }

    #[test]
    fn an_answer_is_owed_for_what_is_under_way_or_was_asked() {
        assert!(!owed(0, 0, 9000, 60_000, 60_000), "idle");
        assert!(owed(1, 0, 9000, 500, 20), "under way");
        assert!(owed(1, 0, 9000, 500, 600), "under way, and older than what was heard");
        assert!(!owed(0, 1, 0, 1600, 1700), "no room, asked for, not answered yet");
        assert!(owed(0, 2, 0, 1600, 1700), "no room, not answered");
        assert!(!owed(3, 0, 0, 500, 500), "no room for what was under way, answered");
        assert!(owed(3, 0, 0, 900, 500), "no room for what was under way, not answered");
    }

    #[test]
    fn segments_under_way_count_whole_and_a_tick_is_given_to_the_kernel() {
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

    /// A connection whose other end is stopped must stay, see the module documentation.
    #[test]
    fn the_kernel_asks_idle_hosts_and_leaves_the_others_to_us() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        prepare(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0);
    }
}
