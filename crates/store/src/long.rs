//! Long contents of rows: pieces in a tree of their own.
//!
//! Contents that would leave little room in a leaf, alone or beside other versions of their row,
//! are divided into pieces, and the row has their number (8 bytes) and their length (4). The key of
//! a piece is the number of the tree (8), the number of the contents (8) and the place of the piece
//! (4), all big-endian. The transaction that sets the contents inserts the pieces, and the one that
//! replaces them removes them. So rollbacks, snapshots and cleaning need nothing else.

use plexus_base::{
    BlockId,
    wire::{self, Fixed},
};
use plexus_cache::Blocks;

use crate::{
    StoreError, Transaction, layout,
    store::malformed,
    transactions::rows::{self, Contents, Decided, VERSION_BYTES},
    tree::OwnedEntry,
    tree::page::most_bytes,
};

wire::layout! {
    struct LongWire: 12 {
        number: u64, bytes: u32
    }
}

/// More pieces than fit into a leaf.
const PIECES_OF_LEAF: usize = 8;

/// The bytes of the key of a piece.
const KEY: usize = 20;

/// The place of long contents, which a row has instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LongContents {
    number: u64,
    bytes: u32,
}

impl LongContents {
    pub(crate) fn encode(self) -> [u8; LongWire::LEN] {
        let Self { number, bytes } = self;
        wire::encode(&LongWire { number, bytes })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let read = |reader: &mut wire::Reader<'_>| reader.take::<LongWire>();
        let LongWire { number, bytes } = wire::decode("long contents", bytes, read).ok()?;
        Some(Self { number, bytes })
    }
}

/// Returns the most bytes of a piece in pages with so many user bytes: it has room for the version
/// that removes it.
fn piece_bytes(user: usize) -> usize {
    most_bytes(user) - KEY - 2 * VERSION_BYTES
}

/// Returns the most bytes of key and versions of a row of which one has contents that could be
/// long: several long ones fit beside them.
pub(crate) fn most_wide(user: usize) -> usize {
    most_bytes(user) * 7 / 8
}

/// Returns the most bytes of key and contents of a row that is not long: two versions fit.
pub(crate) fn most_short(user: usize) -> usize {
    most_bytes(user) / 2 - VERSION_BYTES
}

/// The most bytes of contents that are never long.
const MOST_NARROW: usize = 64;

fn key_of(tree: u64, number: u64, piece: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY);
    key.extend_from_slice(&tree.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key.extend_from_slice(&(piece as u32).to_be_bytes());
    key
}

impl<B: Blocks + Send + Sync + 'static> Transaction<B> {
    fn piece_bytes(&self) -> usize {
        piece_bytes(self.store().shared().user())
    }

    /// Returns contents, wherever they are. `None`: they are gone.
    pub(crate) async fn load(
        &self,
        tree: BlockId,
        long: LongContents,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let number = self.store().tree(tree).number().await?;
        let (piece, all) = (self.piece_bytes(), long.bytes as usize);
        let mut contents = Vec::with_capacity(all.min(1 << 24));
        for index in 0..all.div_ceil(piece) {
            let value = self.store().tree(layout::LONG).get(&key_of(number, long.number, index)).await?;
            let Some(value) = value else { return Ok(None) };
            let found = rows::any_contents(&value).map_err(|_| malformed(layout::LONG))?;
            match found {
                Some(Contents::Here(bytes)) => contents.extend_from_slice(bytes),
                _ => return Ok(None),
            }
        }
        match contents.len() == all {
            true => Ok(Some(contents)),
            false => Err(malformed(layout::LONG)),
        }
    }

    /// Inserts the pieces of contents.
    pub(crate) async fn insert_long(
        &mut self,
        tree: BlockId,
        contents: &[u8],
    ) -> Result<LongContents, StoreError> {
        let too_long = StoreError::TooLong { bytes: contents.len(), most: u32::MAX as usize };
        let bytes = u32::try_from(contents.len()).map_err(|_| too_long)?;
        let of = self.store().tree(tree).number().await?;
        let number = self.store().fresh_id().await?;
        let pieces = contents.chunks(self.piece_bytes()).enumerate();
        let pieces: Vec<OwnedEntry> =
            pieces.map(|(index, piece)| (key_of(of, number, index), piece.to_vec())).collect();
        let mut rest = &pieces[..];
        while let Some(((key, piece), others)) = rest.split_first() {
            self.store().shared().refill().await?;
            let count = self.insert_pieces(&rest[..rest.len().min(PIECES_OF_LEAF)]).await?;
            rest = &rest[count..];
            if count == 0 {
                let (id, step) = self.begin_change().await?;
                self.has_changed = true;
                self.store().tree(layout::LONG).put(key, &rows::new(id, step, piece)).await?;
                self.note_change(layout::LONG, key);
                rest = others;
            }
        }
        Ok(LongContents { number, bytes })
    }

    /// Removes the pieces of contents.
    pub(crate) async fn remove_long(&mut self, tree: BlockId, long: LongContents) -> Result<(), StoreError> {
        let number = self.store().tree(tree).number().await?;
        let pieces = (long.bytes as usize).div_ceil(self.piece_bytes());
        for index in 0..pieces {
            let key = key_of(number, long.number, index);
            self.change_row(layout::LONG, &key, None, None, &mut |_| Decided::Remove).await?;
        }
        Ok(())
    }
}

/// The need of a change of a row before it can be made.
pub(crate) enum Wanted {
    Nothing,
    /// The contents that it has.
    Old(LongContents),
    /// The pieces of its new contents.
    New(Vec<u8>),
}

/// A change of a row whose contents may be long.
pub(crate) struct LongChange<'a> {
    pub(crate) decide: &'a mut dyn FnMut(Option<&[u8]>) -> Decided,
    /// The most bytes of contents that are not long.
    pub(crate) most: usize,
    pub(crate) loaded: Option<(LongContents, Vec<u8>)>,
    pub(crate) inserted: Option<(LongContents, Vec<u8>)>,
    /// The result of the last decision.
    pub(crate) wanted: Wanted,
    /// Long contents that the decision replaces.
    pub(crate) replaced: Option<LongContents>,
    pub(crate) uses_inserted: bool,
    /// The last decision gives the row another version.
    pub(crate) changes: bool,
    pub(crate) removes: bool,
}

impl<'a> LongChange<'a> {
    pub(crate) fn new(most: usize, decide: &'a mut dyn FnMut(Option<&[u8]>) -> Decided) -> Self {
        Self {
            decide,
            most,
            loaded: None,
            inserted: None,
            wanted: Wanted::Nothing,
            replaced: None,
            uses_inserted: false,
            changes: false,
            removes: false,
        }
    }

    /// Lets its contents be long, because the versions that the row has leave no room for them.
    /// Returns false if they are already.
    pub(crate) fn use_less_room(&mut self) -> bool {
        let uses_less = self.most > MOST_NARROW;
        self.most = self.most.min(MOST_NARROW);
        uses_less
    }

    /// Decides about a row, under the latch of its leaf. Keeps it as it is if something is wanted
    /// first.
    pub(crate) fn decide(&mut self, old: Option<Contents<'_>>) -> Decided {
        (self.wanted, self.replaced, self.uses_inserted) = (Wanted::Nothing, None, false);
        (self.changes, self.removes) = (false, false);
        let (contents, long) = match (old, &self.loaded) {
            (None, _) => (None, None),
            (Some(Contents::Here(bytes)), _) => (Some(bytes), None),
            (Some(Contents::Long(long)), Some((known, bytes))) if *known == long => {
                (Some(&bytes[..]), Some(long))
            }
            (Some(Contents::Long(long)), _) => {
                self.wanted = Wanted::Old(long);
                return Decided::Keep;
            }
        };
        let decided = match (self.decide)(contents) {
            Decided::Set(new) if new.len() > self.most => match &self.inserted {
                Some((long, bytes)) if *bytes == new => {
                    self.uses_inserted = true;
                    Decided::SetLong(*long)
                }
                _ => {
                    self.wanted = Wanted::New(new);
                    return Decided::Keep;
                }
            },
            other => other,
        };
        self.removes = decided == Decided::Remove && contents.is_some();
        self.changes = !matches!(decided, Decided::Keep | Decided::Lock);
        self.replaced = long.filter(|_| self.changes);
        decided
    }
}
