//! Accesses to a window by message: the request, and its execution by the window's owner.
//!
//! 32 bytes, little endian:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | 0 get, 1 fetch-add, 2 compare-and-swap |
//! | 1 | 1 | zero |
//! | 2 | 2 | window |
//! | 4 | 4 | length in bytes (get) |
//! | 8 | 8 | offset in the window |
//! | 16 | 8 | the number to add, or the expected word |
//! | 24 | 8 | the new word (compare-and-swap) |
//!
//! The answer is a reply with the bytes, or with the earlier word, 8 bytes. An empty reply refuses
//! the access.

use plexus_base::wire::{self, DecodeError, Fault, Fixed, Zeros};
use plexus_fabric::{WindowId, Windows};

use super::MAX_MESSAGE;

/// An access with an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Get { window: WindowId, offset: u64, len: u32 },
    FetchAdd { window: WindowId, offset: u64, add: u64 },
    CompareSwap { window: WindowId, offset: u64, expected: u64, new: u64 },
}

wire::layout! {
    struct Wire: 32 { operation: u8, zero: Zeros<1>, window: WindowId, len: u32, offset: u64, operand: u64, new: u64 }
}

pub(crate) const REQUEST: usize = Wire::LEN;

impl Request {
    pub(crate) fn encode(self) -> [u8; REQUEST] {
        let (operation, window, len, offset, operand, new) = match self {
            Self::Get { window, offset, len } => (0, window, len, offset, 0, 0),
            Self::FetchAdd { window, offset, add } => (1, window, 0, offset, add, 0),
            Self::CompareSwap { window, offset, expected, new } => (2, window, 0, offset, expected, new),
        };
        wire::encode(&Wire { operation, zero: Zeros, window, len, offset, operand, new })
    }

    pub(crate) fn decode(bytes: &[u8; REQUEST]) -> Result<Self, DecodeError> {
        wire::decode("access to a window", bytes, |reader| {
            let Wire { operation, window, len, offset, operand, new, .. } = reader.take()?;
            match operation {
                0 => Ok(Self::Get { window, offset, len }),
                1 => Ok(Self::FetchAdd { window, offset, add: operand }),
                2 => Ok(Self::CompareSwap { window, offset, expected: operand, new }),
                _ => Err(Fault::Field("operation")),
            }
        })
    }

    /// Executes the access on this node's windows and leaves the answer in `answer`, empty if it
    /// does not lie in a window.
    pub(crate) fn execute(self, windows: &Windows, answer: &mut Vec<u8>) {
        answer.clear();
        let word = match self {
            Self::Get { window, offset, len } => {
                let len = len as usize;
                if let Some(window) = windows.find(window)
                    && len <= MAX_MESSAGE
                    && window.span().contains(offset, len as u64)
                {
                    answer.resize(len, 0);
                    match (window.word(offset), <&mut [u8; 8]>::try_from(&mut answer[..])) {
                        // A word is read whole.
                        (Some(word), Ok(bytes)) => {
                            *bytes = word.load(std::sync::atomic::Ordering::Acquire).to_le_bytes();
                        }
                        _ => window.read(offset as usize, answer),
                    }
                }
                return;
            }
            Self::FetchAdd { window, offset, add } => {
                windows.find(window).and_then(|w| w.fetch_add(offset, add))
            }
            Self::CompareSwap { window, offset, expected, new } => {
                windows.find(window).and_then(|w| w.compare_swap(offset, expected, new))
            }
        };
        answer.extend(word.into_iter().flat_map(u64::to_le_bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plexus_fabric::Window;

    use super::*;

    const WINDOW: WindowId = WindowId(3);

    #[test]
    fn requests_are_decoded_as_encoded_and_others_are_refused() {
        let requests = [
            Request::Get { window: WINDOW, offset: 7, len: 9 },
            Request::FetchAdd { window: WINDOW, offset: 8, add: u64::MAX },
            Request::CompareSwap { window: WINDOW, offset: 16, expected: 1, new: 2 },
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for operation in 3..=255 {
            let mut bytes = requests[0].encode();
            bytes[0] = operation;
            assert!(Request::decode(&bytes).is_err());
        }
    }

    #[test]
    fn accesses_change_the_window_and_stay_inside() {
        let windows = Windows::new([Arc::new(Window::create(WINDOW, 4096, 0).unwrap())]);
        let mut answer = Vec::new();
        let mut ask = |request: Request| {
            request.execute(&windows, &mut answer);
            answer.clone()
        };
        let word = |value: u64| value.to_le_bytes().to_vec();
        assert_eq!(ask(Request::FetchAdd { window: WINDOW, offset: 8, add: 5 }), word(0));
        assert_eq!(ask(Request::CompareSwap { window: WINDOW, offset: 8, expected: 5, new: 9 }), word(5));
        assert_eq!(ask(Request::Get { window: WINDOW, offset: 8, len: 8 }), word(9));
        assert_eq!(ask(Request::Get { window: WINDOW, offset: 7, len: 3 }), [0, 9, 0]);
        for offset in [4095, 4096, u64::MAX, u64::MAX - 7] {
            assert!(ask(Request::Get { window: WINDOW, offset, len: 8 }).is_empty());
            assert!(ask(Request::FetchAdd { window: WINDOW, offset, add: 1 }).is_empty());
        }
        assert!(ask(Request::Get { window: WINDOW, offset: 0, len: u32::MAX }).is_empty());
        assert!(ask(Request::FetchAdd { window: WindowId(4), offset: 8, add: 5 }).is_empty());
        assert!(ask(Request::FetchAdd { window: WINDOW, offset: 12, add: 5 }).is_empty(), "not a whole word");
    }
}
