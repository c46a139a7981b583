//! The page: the layout of every block, in memory and on disk.
//!
//! All integers are little endian. A block that was never written is all zeros and has version 0.
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `PLXB` |
//! | 4 | 2 | format, 1 |
//! | 6 | 2 | page type ([`PageType`]) |
//! | 8 | 8 | block number |
//! | 16 | 8 | version, strictly increasing for a block over all nodes |
//! | 24 | 8 | incarnation of the last writer |
//! | 32 | 8 | position of the last writer's redo for this version (none yet: 0) |
//! | 40 | 2 | node id of the last writer |
//! | 42 | 18 | zero |
//! | 60 | 4 | CRC-32C of the whole block with this field zero |
//! | 64 | block size - 72 | the user's bytes |
//! | block size - 8 | 8 | version again: it differs from the one in front where a write was torn |
//!
//! [`Page::seal`] sets the checksum just before the block goes to disk; in memory it is not valid.

use std::fmt;

use plexus_base::{
    BlockId, Incarnation, NodeId, crc32c_without,
    wire::{self, Fixed, Reader},
};

/// The bytes in front of the user's.
pub const HEADER: usize = Header::LEN;

/// The bytes after the user's.
pub const TRAILER: usize = 8;

const MAGIC: [u8; 4] = *b"PLXB";
const FORMAT: u16 = 1;
const CRC_AT: usize = 60;

wire::newtypes!(Version(u64));

wire::layout! {
    struct Header: 64 {
        magic: [u8; 4], format: u16, page_type: u16, block: BlockId, version: u64, writer_incarnation: Incarnation, redo: u64,
        writer_node: u16, zero: [u8; 18], crc: u32
    }
}

/// The number of changes of a block; 0 for a block that was never changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.0)
    }
}

/// The last writer of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
}

/// The content of a page, as a number that is on disk. Each user of blocks has numbers of its own;
/// they are never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageType(pub u16);

impl PageType {
    /// A block of a direct user of the cache.
    pub const PLAIN: Self = Self(1);
}

/// The reason why a block is not the page that belongs there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageError {
    /// The block holds data that is no page.
    #[error(
        "{block} is not a page: it starts with {found:02x?}; something else wrote here, restore the block from a copy"
    )]
    NotAPage {
        /// The requested block.
        block: BlockId,
        /// The bytes in place of the magic.
        found: [u8; 4],
    },
    /// The page has a format that this version does not know.
    #[error(
        "{block} has page format {found}, this program reads {FORMAT}; use the version of plexus that wrote it"
    )]
    Format {
        /// The requested block.
        block: BlockId,
        /// The format found.
        found: u16,
    },
    /// The block holds a sound page of another block.
    #[error("{block} holds the page of {found}: a misdirected write, restore the block from a copy")]
    Misplaced {
        /// The requested block.
        block: BlockId,
        /// The block in the header.
        found: BlockId,
    },
    /// Only a part of the last write reached the disk.
    #[error("{block} is torn: it starts as {head} and ends as {tail}; restore the block from a copy")]
    Torn {
        /// The requested block.
        block: BlockId,
        /// The version in front.
        head: Version,
        /// The version at the end.
        tail: Version,
    },
    /// Bits changed after the page was written.
    #[error(
        "{block} is damaged: checksum {found:08x} instead of {expected:08x}; restore the block from a copy"
    )]
    Flipped {
        /// The requested block.
        block: BlockId,
        /// The checksum of the present bytes.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
}

/// A view of one whole block, over `&[u8]` or `&mut [u8]`.
pub struct Page<B>(B);

impl<B: AsRef<[u8]>> Page<B> {
    /// Makes a page view of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is too short for a block.
    #[must_use]
    pub fn of(bytes: B) -> Self {
        assert!(bytes.as_ref().len() > HEADER + TRAILER, "a block is longer than its header and trailer");
        Self(bytes)
    }

    /// Returns the version in the header.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.header().version)
    }

    /// Returns the type of the page; `None` for a block that was never written.
    #[must_use]
    pub fn page_type(&self) -> Option<PageType> {
        let header = self.header();
        (header.version != 0).then_some(PageType(header.page_type))
    }

    /// Returns the last writer, or `None` for a block that was never written.
    #[must_use]
    pub fn writer(&self) -> Option<Writer> {
        let header = self.header();
        (header.version != 0).then_some(Writer {
            node: NodeId(header.writer_node as u8),
            incarnation: header.writer_incarnation,
        })
    }

    /// Returns whether the page has contents. One that was never written has none, and one of which
    /// only the version is [known](Page::forget).
    #[must_use]
    pub fn has_contents(&self) -> bool {
        self.header().magic == MAGIC
    }

    /// Returns the user's bytes.
    #[must_use]
    pub fn user(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[HEADER..bytes.len() - TRAILER]
    }

    /// Checks the bytes read from the place of `block`, which may be anything. Returns the version,
    /// 0 if the block was never written.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn verify(&self, block: BlockId) -> Result<Version, PageError> {
        let header = self.header();
        let (head, tail) = (self.version(), self.tail());
        if header.magic == [0; 4] {
            // A first write of which only the end arrived also starts with zeros.
            return match self.0.as_ref().iter().all(|byte| *byte == 0) {
                true => Ok(Version(0)),
                false if tail != head => Err(PageError::Torn { block, head, tail }),
                false => Err(PageError::NotAPage { block, found: header.magic }),
            };
        }
        if header.magic != MAGIC {
            return Err(PageError::NotAPage { block, found: header.magic });
        }
        let (found, expected) = (self.checksum(), header.crc);
        if found != expected {
            return Err(match head == tail {
                true => PageError::Flipped { block, found, expected },
                false => PageError::Torn { block, head, tail },
            });
        }
        if header.format != FORMAT {
            return Err(PageError::Format { block, found: header.format });
        }
        if header.block != block {
            return Err(PageError::Misplaced { block, found: header.block });
        }
        Ok(head)
    }

    #[inline]
    fn header(&self) -> Header {
        // Cannot fail: `of` checked the length, and any bytes are a header.
        Reader::new(self.0.as_ref()).take().expect("a block is longer than its header")
    }

    fn tail(&self) -> Version {
        let bytes = self.0.as_ref();
        let mut tail = [0; TRAILER];
        tail.copy_from_slice(&bytes[bytes.len() - TRAILER..]);
        Version(u64::from_le_bytes(tail))
    }

    fn checksum(&self) -> u32 {
        crc32c_without(self.0.as_ref(), CRC_AT)
    }
}

impl Page<&[u8]> {
    /// Returns the version in the header of a page.
    #[must_use]
    pub fn version_in(header: &[u8; HEADER]) -> Version {
        Version(Reader::new(header).take::<Header>().expect("the length of a header").version)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Page<B> {
    /// Returns the user's bytes, to be changed.
    #[must_use]
    pub fn user_mut(&mut self) -> &mut [u8] {
        let bytes = self.0.as_mut();
        let end = bytes.len() - TRAILER;
        &mut bytes[HEADER..end]
    }

    /// Gives the page its identity after a change: `version` is set in front and at the end. The
    /// type stays; that of a block that was never written becomes [`PageType::PLAIN`].
    ///
    /// # Panics
    /// If `version` is not above the page's: a version never repeats.
    pub fn stamp(&mut self, block: BlockId, writer: Writer, version: Version) {
        assert!(version > self.version(), "{block}: {version} after {}", self.version());
        let page_type = self.page_type().unwrap_or(PageType::PLAIN);
        self.put_header(&header_of(block, writer, version, page_type, &self.header()));
    }

    /// Makes the page a new one without contents: all its user bytes become zero.
    pub fn blank(&mut self, block: BlockId, writer: Writer, version: Version, page_type: PageType) {
        self.0.as_mut().fill(0);
        self.put_header(&header_of(block, writer, version, page_type, &self.header()));
    }

    /// Makes the page one of which only the version is known. Its user bytes mean nothing.
    pub fn forget(&mut self, version: Version) {
        self.0.as_mut()[..HEADER].fill(0);
        let header = Header { version: version.0, ..self.header() };
        self.put_header(&header);
    }

    fn put_header(&mut self, header: &Header) {
        let bytes = self.0.as_mut();
        bytes[..HEADER].copy_from_slice(&wire::encode::<_, HEADER>(header));
        let tail = bytes.len() - TRAILER;
        bytes[tail..].copy_from_slice(&header.version.to_le_bytes());
    }

    /// Sets the checksum, as the last step before the page is written to disk. A page that was
    /// never stamped stays all zeros.
    pub fn seal(&mut self) {
        if self.version() == Version(0) {
            return;
        }
        wire::seal(self.0.as_mut(), CRC_AT);
    }
}

fn header_of(
    block: BlockId,
    writer: Writer,
    version: Version,
    page_type: PageType,
    before: &Header,
) -> Header {
    Header {
        magic: MAGIC,
        format: FORMAT,
        page_type: page_type.0,
        block,
        version: version.0,
        writer_incarnation: writer.incarnation,
        redo: before.redo,
        writer_node: u16::from(writer.node.0),
        zero: before.zero,
        crc: before.crc,
    }
}

/// Makes a page of `length` bytes of its image in redo: the whole page, or only the header of a
/// [blank](Page::blank) one.
pub fn page_of_image(image: &mut Vec<u8>, length: usize) {
    if image.len() == HEADER {
        let version = Reader::new(image).take::<Header>().expect("the length of a header").version;
        image.resize(length - TRAILER, 0);
        image.extend_from_slice(&version.to_le_bytes());
    }
}

/// Checks any bytes as a page of each size for a fuzz target: as they are, and with a corrected
/// checksum. Returns how many were sound pages of the block that their header names.
#[doc(hidden)]
#[must_use]
pub fn page_any(bytes: &[u8]) -> usize {
    let sizes = crate::BlockSize::KIB.map(|kib| kib as usize * 1024);
    let sound = |size: usize, mend: bool| {
        let mut bytes = bytes.to_vec();
        bytes.resize(size, 0);
        let mut page = Page::of(bytes);
        if mend {
            page.seal();
        }
        let block = page.header().block;
        let _ = (page.writer(), page.user().len());
        page.verify(block).is_ok_and(|version| version == page.version())
    };
    sizes
        .into_iter()
        .flat_map(|size| [false, true].map(|mend| sound(size, mend)))
        .filter(|sound| *sound)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good = sealed(3);
        assert_eq!(page_any(&good), 4, "both ways, and mended where it is too short");
        plexus_sim::hostile(&[good], |bytes| assert!(page_any(bytes) <= 6));
    }

    const BLOCK: BlockId = BlockId(7);
    const WRITER: Writer = Writer { node: NodeId(2), incarnation: Incarnation(99) };

    fn sealed(version: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut page = Page::of(&mut bytes[..]);
        page.user_mut().fill(version as u8);
        page.stamp(BLOCK, WRITER, Version(version));
        page.seal();
        bytes
    }

    #[test]
    fn a_sealed_page_is_found_as_it_was() {
        let bytes = sealed(5);
        let page = Page::of(&bytes);
        assert_eq!(page.verify(BLOCK), Ok(Version(5)));
        assert_eq!(page.writer(), Some(WRITER));
        assert_eq!(page.user().len(), 4096 - HEADER - TRAILER);
    }

    #[test]
    fn a_blank_page_has_its_type_and_is_made_again_of_its_header() {
        let mut bytes = sealed(5);
        let (version, page_type) = (Version(9), PageType(7));
        let mut page = Page::of(&mut bytes[..]);
        page.blank(BLOCK, WRITER, version, page_type);
        assert!(page.user().iter().all(|byte| *byte == 0));
        let mut again = bytes[..HEADER].to_vec();
        page_of_image(&mut again, bytes.len());
        assert_eq!(again, bytes);
        let mut page = Page::of(&mut bytes[..]);
        page.stamp(BLOCK, WRITER, Version(10));
        page.seal();
        assert_eq!((page.verify(BLOCK), page.page_type()), (Ok(Version(10)), Some(page_type)));
    }

    #[test]
    fn zeros_are_a_block_that_was_never_written() {
        let mut bytes = vec![0; 8192];
        Page::of(&mut bytes[..]).seal();
        let page = Page::of(&bytes);
        assert_eq!((page.verify(BLOCK), page.writer()), (Ok(Version(0)), None));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = sealed(3);
        for byte in 0..good.len() {
            let mut bytes = good.clone();
            bytes[byte] ^= 1 << (byte % 8);
            assert!(Page::of(&bytes).verify(BLOCK).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn each_fault_has_its_own_name() {
        let (old, new) = (sealed(3), sealed(4));
        let torn = [&new[..2048], &old[2048..]].concat();
        let first_torn = [&[0; 2048], &new[2048..]].concat();
        let mut flipped = new.clone();
        flipped[1000] ^= 1;
        let cases = [
            (torn, BLOCK, "block 7 is torn: it starts as version 4 and ends as version 3"),
            (first_torn, BLOCK, "block 7 is torn: it starts as version 0 and ends as version 4"),
            (flipped, BLOCK, "block 7 is damaged: checksum"),
            (new, BlockId(8), "block 8 holds the page of block 7"),
            (vec![0xee; 4096], BLOCK, "block 7 is not a page: it starts with [ee, ee, ee, ee]"),
        ];
        for (bytes, block, start) in cases {
            let error = Page::of(&bytes).verify(block).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    #[should_panic(expected = "version 3 after version 3")]
    fn a_version_never_repeats() {
        Page::of(&mut sealed(3)[..]).stamp(BLOCK, WRITER, Version(3));
    }
}
