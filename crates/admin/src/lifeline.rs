//! The lifeline of a node that must not outlive its starter: a pipe whose other end only that has.

use std::{fs::File, io, io::Read, os::fd::RawFd, thread};

/// Calls `ended` when every writing end of the pipe at descriptor `fd` is closed. The end of the
/// process that holds it closes it too.
///
/// # Errors
/// There is no such descriptor, or it is not a pipe or file.
/// There is no such descriptor, or it is not a pipe or file.
pub fn watch(fd: RawFd, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // Opened again instead of taken over, because a number from a command line may be in other use.
    let mut pipe = File::open(format!("/proc/self/fd/{fd}"))?;
    thread::Builder::new().name("plexus-lifeline".into()).spawn(move || {
        let mut ignored = [0; 64];
        loop {
            match pipe.read(&mut ignored) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        ended();
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsRawFd, sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn the_end_is_seen_when_the_other_end_closes() {
        let (reader, writer) = io::pipe().unwrap();
        let (sender, ended) = mpsc::channel();
        watch(reader.as_raw_fd(), move || sender.send(()).unwrap()).unwrap();
        assert!(ended.try_recv().is_err());
        drop(writer);
        ended.recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn a_number_that_is_no_descriptor_is_an_error() {
        assert!(watch(987_654, || ()).is_err());
    }
}
