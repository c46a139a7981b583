//! The frame or put of one call of a rail, and the split of a put that the adapter must not write
//! into messages.
//!
//! Only its owner's processor writes a wordwise window, so a put into it travels in messages: all
//! of its data, in pieces that cut no word in two, the last one together with the frame.

use plexus_fabric::{MAX_FRAME, Put};

use crate::offer::RemoteWindow;

/// The frame or put of one call, see the [module documentation](self).
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) put: Option<(Put<'a>, RemoteWindow)>,
    /// True if the put has no frame.
    pub(crate) silent: bool,
    /// True for a piece of a put that is not the last one; it is silent too.
    pub(crate) more: bool,
}

impl<'a> Outgoing<'a> {
    /// The put, if its data must travel in messages.
    pub(crate) fn wordwise(&self) -> Option<(Put<'a>, RemoteWindow)> {
        self.put.filter(|(_, window)| window.span.wordwise)
    }

    /// Splits the put into messages that hold all of its data.
    pub(crate) fn pieces(self) -> Pieces<'a> {
        Pieces { rest: Some(self) }
    }

    /// The bytes of frame and data.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len() + self.put.map_or(0, |(put, _)| put.data.len())
    }
}

/// The pieces of a put, see [`Outgoing::pieces`]. Each is no longer than [`MAX_FRAME`].
#[derive(Clone)]
pub(crate) struct Pieces<'a> {
    rest: Option<Outgoing<'a>>,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Outgoing<'a>;

    fn next(&mut self) -> Option<Outgoing<'a>> {
        let rest = self.rest.take()?;
        let Some((put, window)) = rest.put.filter(|_| rest.len() > MAX_FRAME) else { return Some(rest) };
        let whole_words = MAX_FRAME - ((put.offset % 8) as usize + MAX_FRAME) % 8;
        let (data, behind) = put.data.split_at(put.data.len().min(whole_words));
        let offset = put.offset + data.len() as u64;
        self.rest = Some(Outgoing { put: Some((Put { offset, data: behind, ..put }, window)), ..rest });
        let put = Some((Put { data, ..put }, window));
        Some(Outgoing { head: &[], body: &[], put, silent: true, more: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_fabric::{MAX_WORDWISE, WindowId, WindowSpan};

    #[test]
    fn pieces_make_up_the_put_and_cut_no_word() {
        let span = WindowSpan { id: WindowId(3), len: 1 << 20, granule: 0, wordwise: true };
        let window = RemoteWindow { span, base: 0, keys: [0; 2] };
        let bytes: Vec<u8> = (0..MAX_WORDWISE).map(|at| (at % 251) as u8).collect();
        let lens = [0, 1, 100, MAX_FRAME - 1, MAX_FRAME, MAX_FRAME + 1, 2 * MAX_FRAME, MAX_WORDWISE];
        for (len, offset, frame) in lens.into_iter().flat_map(|len| {
            (0..9).flat_map(move |offset| [0, 1, 300, MAX_FRAME].map(|frame| (len, offset, frame)))
        }) {
            let put = Put { window: span.id, offset, generation: 7, data: &bytes[..len] };
            let (head, body) = bytes[..frame].split_at(frame / 3);
            let whole = Outgoing { head, body, put: Some((put, window)), silent: false, more: false };
            let pieces: Vec<_> = whole.pieces().collect();
            let (last, before) = pieces.split_last().unwrap();
            let mut landed = Vec::new();
            for piece in &pieces {
                let (put, _) = piece.put.unwrap();
                assert!(piece.len() <= MAX_FRAME && put.generation == 7);
                assert_eq!(put.offset, offset + landed.len() as u64);
                landed.extend_from_slice(put.data);
                let end = put.offset + put.data.len() as u64;
                assert!(end.is_multiple_of(8) || landed.len() == len, "{len} bytes at {offset}");
            }
            assert!(landed == bytes[..len]);
            assert!(before.iter().all(|piece| piece.silent && piece.more && piece.head.is_empty()));
            assert!(!last.silent && !last.more && (last.head, last.body) == (head, body));
        }
    }
}
