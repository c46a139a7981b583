//! What the kernel knows of a connection, and how it is told to watch over it.
//!
//! Guarantees: a connection set up here ends by itself within [`SILENCE`] when the other host no longer answers, also
//! while nothing is sent. It must not know what is sent.
#![allow(unsafe_code, reason = "TCP_INFO has no safe view")]

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use plexus_base::Nanos;
use rustix::net::sockopt;

/// A host that has acknowledged nothing for so long is taken for gone by the kernel. Links notice far sooner; this
/// is for connections that no link looks after any more.
const SILENCE: Duration = Duration::from_secs(30);
/// An idle connection is asked after so long, then every so often.
const IDLE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(5);
const TRIES: u32 = 4;

const _: () = assert!(IDLE.as_secs() + AGAIN.as_secs() * TRIES as u64 == SILENCE.as_secs());

/// What one connection tells of its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Longest packet that the path is known to take.
    pub(super) mtu: u32,
    /// Smoothed.
    pub(super) rtt: Nanos,
    /// Since the other host was last heard, by data or by an acknowledgement.
    pub(super) silent: Nanos,
    /// Segments sent again.
    pub(super) retransmits: u64,
    /// Bytes that the other host has acknowledged, with one or two that stand for the connection's begin and end.
    pub(super) acknowledged: u64,
}

/// Prepares a connection for a rail: it never blocks, sends at once, and ends by itself when the other host is gone.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, TRIES)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
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
    let info = info(stream)?;
    let silent_ms = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
    Ok(Path {
        mtu: info.tcpi_pmtu,
        rtt: Nanos::from_us(info.tcpi_rtt.into()),
        silent: Nanos::from_ms(silent_ms.into()),
        retransmits: info.tcpi_total_retrans.into(),
        acknowledged: info.tcpi_bytes_acked,
    })
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
