//! Memory that two processes share: a sealed memfd, mapped and populated at set-up.
//!
//! Guarantees: missing memory is an error that names sizes, never a signal later. The free memory
//! is checked first, then reserved (`fallocate`) before it is mapped. `MADV_POPULATE_WRITE` then
//! touches every page and reports what a plain store would answer with SIGBUS. The seals prevent
//! the file from shrinking and growing, so a mapping stays whole whatever the other side does. The
//! file has no name in any file system.
//!
//! This module does not know what the memory is used for, and never hands out a reference into it.
#![allow(unsafe_code, reason = "maps memory that two processes share")]

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags},
    mm::{Advice, MapFlags, ProtFlags},
    process::Resource,
};

/// The seals of shared memory: neither its size nor its seals can change.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// The reason why memory or a descriptor that a rail needs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is not enough memory.
    #[error(
        "{what} needs {} but {limit} leaves {}: make it smaller, free memory or raise the limit",
        Size(*.bytes),
        Size(*.available)
    )]
    NoRoom {
        /// The purpose of the memory.
        what: &'static str,
        /// The bytes requested.
        bytes: u64,
        /// The bytes available.
        available: u64,
        /// The limit that applies.
        limit: &'static str,
    },
    /// A system call failed.
    #[error("cannot {doing} for {what} ({}): {source}", Size(*.bytes))]
    System {
        /// The purpose of the memory.
        what: &'static str,
        /// The step that failed.
        doing: &'static str,
        /// The bytes requested.
        bytes: u64,
        /// The error of the system call.
        source: io::Error,
    },
    /// A peer's memory does not have the announced size.
    #[error("refused the {what} of the peer: it is {actual} bytes long, but {announced} were announced")]
    WrongSize {
        /// The purpose of the memory.
        what: &'static str,
        /// The bytes announced.
        announced: u64,
        /// The bytes found.
        actual: u64,
    },
    /// A peer's memory could change its size while it is mapped.
    #[error("refused the {what} of the peer: it is not a memory file sealed against a change of its size")]
    NotSealed {
        /// The purpose of the memory.
        what: &'static str,
    },
    /// The requested size is invalid.
    #[error("a {what} of {bytes} bytes is not possible: {why}")]
    Shape {
        /// The purpose of the memory.
        what: &'static str,
        /// The bytes requested.
        bytes: u64,
        /// The reason.
        why: &'static str,
    },
}

/// A number of bytes, shown exactly and in a readable unit.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        write!(f, "{} bytes", self.0)?;
        let Some(unit) = (self.0.checked_ilog2().unwrap_or(0) as usize / 10).checked_sub(1) else {
            return Ok(());
        };
        let unit = unit.min(UNITS.len() - 1);
        write!(f, " ({:.1} {})", self.0 as f64 / 1024f64.powi(unit as i32 + 1), UNITS[unit])
    }
}

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; nothing is read or written through
// this type itself.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates zeroed memory of `len` bytes and the sealed file to hand to a peer.
    pub(crate) fn create(what: &'static str, len: usize) -> Result<(Self, OwnedFd), SetupError> {
        Self::sealed(what, len, SEALS)
    }

    /// As [`create`](Self::create), but only this mapping can ever write to it, however the file is
    /// opened or mapped.
    pub(crate) fn publish(what: &'static str, len: usize) -> Result<(Self, OwnedFd), SetupError> {
        Self::sealed(what, len, SEALS.union(SealFlags::FUTURE_WRITE))
    }

    fn sealed(what: &'static str, len: usize, seals: SealFlags) -> Result<(Self, OwnedFd), SetupError> {
        verify_len(what, len)?;
        let bytes = len as u64;
        let (available, limit) = room();
        if bytes > available {
            return Err(SetupError::NoRoom { what, bytes, available, limit });
        }
        let system = |doing| {
            move |errno: rustix::io::Errno| SetupError::System { what, doing, bytes, source: errno.into() }
        };
        let fd = rustix::fs::memfd_create(
            "plexus",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
        )
        .or_else(|_| rustix::fs::memfd_create("plexus", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))
        .map_err(system("create a memory file"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(system("size a memory file"))?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes).map_err(system("reserve memory"))?;
        // The mapping comes first: a seal may forbid all later writable mappings.
        let memory = Self::of(what, fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("seal a memory file"))?;
        Ok((memory, fd))
    }

    /// Maps a peer's memory, which must be sealed and `announced` bytes long.
    pub(crate) fn map(what: &'static str, fd: BorrowedFd<'_>, announced: u64) -> Result<Self, SetupError> {
        Self::announced(what, fd, announced, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`map`](Self::map), but read-only: a write by mistake faults.
    pub(crate) fn map_to_read(
        what: &'static str,
        fd: BorrowedFd<'_>,
        announced: u64,
    ) -> Result<Self, SetupError> {
        Self::announced(what, fd, announced, ProtFlags::READ)
    }

    fn announced(
        what: &'static str,
        fd: BorrowedFd<'_>,
        announced: u64,
        access: ProtFlags,
    ) -> Result<Self, SetupError> {
        // The seals are checked first: only sealed files keep the size that is then found.
        let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SEALS) {
            return Err(SetupError::NotSealed { what });
        }
        let stat = rustix::fs::fstat(fd).map_err(|errno| SetupError::System {
            what,
            doing: "examine the memory file",
            bytes: announced,
            source: errno.into(),
        })?;
        let actual = stat.st_size as u64;
        if actual != announced {
            return Err(SetupError::WrongSize { what, announced, actual });
        }
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        Self::of(what, fd, len, access)
    }

    fn of(what: &'static str, fd: BorrowedFd<'_>, len: usize, access: ProtFlags) -> Result<Self, SetupError> {
        verify_len(what, len)?;
        let system = |doing| {
            move |errno: rustix::io::Errno| SetupError::System {
                what,
                doing,
                bytes: len as u64,
                source: errno.into(),
            }
        };
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory that is in use.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }
            .map_err(system("map memory"))?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(system("map memory")(rustix::io::Errno::NOMEM));
        };
        let memory = Self { start, len };
        let writes = access.contains(ProtFlags::WRITE);
        let populate = if writes { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: the range is the mapping just made; populating changes no contents.
        match unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, populate) } {
            // The kernel is older than Linux 5.14. `fallocate` reserved the memory already; only
            // the page tables are filled later.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(memory),
            Err(errno) => Err(system("populate memory")(errno)),
        }
    }

    /// The first byte.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every pointer into it was held through this
        // owner.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn verify_len(what: &'static str, len: usize) -> Result<(), SetupError> {
    if len == 0 || len > isize::MAX as usize {
        return Err(SetupError::Shape {
            what,
            bytes: len as u64,
            why: "it must be more than 0 and fit into the address space",
        });
    }
    Ok(())
}

/// Opens the memory file again for reading only. A process that gets the result can open the file
/// again for writing, as far as the seals permit.
pub(crate) fn to_read(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The bytes that can be taken now, and the limit that applies. Limits that cannot be read are
/// ignored.
fn room() -> (u64, &'static str) {
    let mut room = (u64::MAX, "the machine");
    let mut limit = |bytes: Option<u64>, name| {
        if let Some(bytes) = bytes.filter(|bytes| *bytes < room.0) {
            room = (bytes, name);
        }
    };
    limit(rustix::process::getrlimit(Resource::Fsize).current, "the limit on file sizes (ulimit -f)");
    limit(rustix::process::getrlimit(Resource::As).current, "the limit on address space (ulimit -v)");
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    limit(
        meminfo.as_deref().and_then(|text| field(text, "MemAvailable:")).map(|kib| kib * 1024),
        "the free memory of the machine",
    );
    limit(control_group_room(), "the memory limit of the control group");
    room
}

/// The bytes that the control groups (version 2) of this process leave it. File pages in them count
/// as free, since the kernel can drop them.
fn control_group_room() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut group = std::path::Path::new("/sys/fs/cgroup").join(path);
    let mut room = None;
    while group.starts_with("/sys/fs/cgroup") {
        let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        if let (Some(max), Some(current)) = (number("memory.max"), number("memory.current")) {
            let stat = read("memory.stat").unwrap_or_default();
            let files = field(&stat, "inactive_file").unwrap_or(0) + field(&stat, "active_file").unwrap_or(0);
            let left = max.saturating_sub(current.saturating_sub(files));
            room = Some(room.map_or(left, |room: u64| room.min(left)));
        }
        if !group.pop() {
            break;
        }
    }
    room
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_an_error_that_names_sizes() {
        let error = Memory::create("window", 1 << 46).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, SetupError::NoRoom { bytes: 70_368_744_177_664, .. }), "{error:?}");
        assert!(
            text.contains("70368744177664 bytes (64.0 TiB)") && text.contains("raise the limit"),
            "{text}"
        );
    }

    #[test]
    fn memory_is_shared_between_its_mappings() {
        let (ours, fd) = Memory::create("window", 8192).unwrap();
        let theirs = Memory::map("window", fd.as_fd(), 8192).unwrap();
        // SAFETY: both mappings are 8192 bytes long and alive.
        unsafe {
            theirs.start().as_ptr().add(8191).write_volatile(7);
            assert_eq!(ours.start().as_ptr().add(8191).read_volatile(), 7);
        }
        assert_eq!(ours.len(), theirs.len());
    }

    #[test]
    fn published_memory_can_only_be_read() {
        let (ours, fd) = Memory::publish("notice", 4096).unwrap();
        let seen = Memory::map_to_read("notice", fd.as_fd(), 4096).unwrap();
        // SAFETY: both mappings are 4096 bytes long and alive.
        unsafe {
            ours.start().as_ptr().write_volatile(7);
            assert_eq!(seen.start().as_ptr().read_volatile(), 7);
        }
        assert!(matches!(Memory::map("notice", fd.as_fd(), 4096), Err(SetupError::System { .. })));
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for fd in [&fd, &again] {
            assert!(rustix::io::pwrite(fd, &[1], 0).is_err());
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(rustix::fs::fallocate(fd, hole, 0, 4096).is_err());
        }
        // SAFETY: it is mapped to be read, and stays so.
        let changed = unsafe {
            rustix::mm::mprotect(
                seen.start().as_ptr().cast(),
                4096,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        };
        assert!(changed.is_err());
    }

    #[test]
    fn sizes_and_seals_are_verified() {
        let (_ours, fd) = Memory::create("window", 8192).unwrap();
        let announced = Memory::map("window", fd.as_fd(), 8193).unwrap_err();
        assert!(matches!(announced, SetupError::WrongSize { announced: 8193, actual: 8192, .. }));
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err() && rustix::fs::ftruncate(&fd, 16384).is_err());

        let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(matches!(Memory::map("window", open.as_fd(), 8192), Err(SetupError::NotSealed { .. })));

        let not_memory = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(Memory::map("window", not_memory.as_fd(), 8192), Err(SetupError::NotSealed { .. })));
    }

    #[test]
    fn sizes_are_shown_in_readable_units() {
        let shown: Vec<_> =
            [0, 1023, 1024, 1536 * 1024].iter().map(|bytes| Size(*bytes).to_string()).collect();
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1024 bytes (1.0 KiB)", "1572864 bytes (1.5 MiB)"]);
    }
}
