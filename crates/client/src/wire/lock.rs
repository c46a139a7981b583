//! The payloads of lock requests and of their answers, little endian.
//!
//! ```text
//! request (Lock, Convert):  0  1  mode
//!                           1  1  flags: bit 0: wants blocking notices (Lock); bit 1: writes a value (Convert)
//!                           2  2  zero
//!                           4  4  session (Lock): the search for deadlocks treats it as one owner
//!                           8  8  start time of the session (Lock); the youngest is the deadlock victim
//!                          16  8  timeout in nanoseconds; 0: fail at once, all ones: wait forever
//!                          24     the name, 1 to 255 bytes (Lock), or 32 bytes of value if flagged (Convert)
//! Unlock:                   0     32 bytes of value, or nothing
//! answer (Done, status 0):  0  1  mode
//!                           1  1  validity of the value
//!                           2  6  zero
//!                           8 32  value
//! ```
//!
//! The token of a grant is the value of the answer's head. In an answer with
//! [`Status::NotLocked`](super::Status::NotLocked) that value is the reason.

use std::ops::Deref;

use plexus_base::{
    locks::{MAX_NAME, Mode, VALUE_LEN, Validity, Value},
    wire::{self, DecodeError, Fixed, Reader, Zeros, bits, require},
};

/// The bound of session numbers of a program.
pub const SESSIONS: u32 = 1 << 31;

/// The timeout of a request that waits forever.
pub const FOREVER: u64 = u64::MAX;

const NOTIFY: u8 = 1;
const VALUE: u8 = 2;

wire::layout! {
    struct RequestWire: 24 { mode: Mode, flags: u8, zero: Zeros<2>, session: u32, start_time: u64, timeout_ns: u64 }
    struct GrantWire: 40 { mode: Mode, validity: Validity, zero: Zeros<6>, value: [u8; VALUE_LEN] }
}

/// The maximum length of a request.
const MOST: usize = RequestWire::LEN + MAX_NAME;

/// An encoded request.
pub struct Encoded {
    bytes: [u8; MOST],
    len: usize,
}

impl Encoded {
    /// `rest` is no longer than a name.
    fn of(wire: &RequestWire, rest: &[u8]) -> Self {
        const START: usize = RequestWire::LEN;
        let len = START + rest.len();
        let mut bytes = [0; MOST];
        bytes[..START].copy_from_slice(&wire::encode::<_, START>(wire));
        bytes[START..len].copy_from_slice(rest);
        Self { bytes, len }
    }
}

impl Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The payload of [`Verb::Lock`](super::Verb::Lock).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewLockMessage<'a> {
    /// The requested mode.
    pub mode: Mode,
    /// True if the session wants blocking notices.
    pub notify: bool,
    /// The session of the request, below [`SESSIONS`].
    pub session: u32,
    /// The start time of the session; the youngest is the deadlock victim.
    pub start_time: u64,
    /// The timeout in nanoseconds; [`FOREVER`] waits forever.
    pub timeout_ns: u64,
    /// The name of the resource.
    pub name: &'a [u8],
}

/// The payload of [`Verb::Convert`](super::Verb::Convert).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvertRequest {
    /// The requested mode.
    pub mode: Mode,
    /// The timeout in nanoseconds; [`FOREVER`] waits forever.
    pub timeout_ns: u64,
    /// The bytes to write into the value block.
    pub value: Option<[u8; VALUE_LEN]>,
}

impl<'a> NewLockMessage<'a> {
    /// Encodes the request. The name must not exceed the maximum length.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let Self { mode, notify, session, start_time, timeout_ns, name } = *self;
        let flags = bits([(notify, NOTIFY)]);
        Encoded::of(&RequestWire { mode, flags, zero: Zeros, session, start_time, timeout_ns }, name)
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The bytes are malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        wire::decode("request for a lock", bytes, |reader| {
            let RequestWire { mode, flags, session, start_time, timeout_ns, .. } = reader.take()?;
            require(flags & !NOTIFY == 0 && session < SESSIONS, "flags or session")?;
            let name = reader.rest();
            require((1..=MAX_NAME).contains(&name.len()), "length of the name")?;
            Ok(Self { mode, notify: flags == NOTIFY, session, start_time, timeout_ns, name })
        })
    }
}

impl ConvertRequest {
    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let Self { mode, timeout_ns, value } = *self;
        let flags = bits([(value.is_some(), VALUE)]);
        let wire = RequestWire { mode, flags, zero: Zeros, session: 0, start_time: 0, timeout_ns };
        Encoded::of(&wire, value.as_ref().map_or(&[], <[u8; VALUE_LEN]>::as_slice))
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("request to convert a lock", bytes, |reader| {
            let RequestWire { mode, flags, session, start_time, timeout_ns, .. } = reader.take()?;
            require(flags & !VALUE == 0 && session == 0 && start_time == 0, "unused field")?;
            let value = (flags == VALUE).then(|| reader.take()).transpose()?;
            Ok(Self { mode, timeout_ns, value })
        })
    }
}

/// Decodes the value of [`Verb::Unlock`](super::Verb::Unlock), if it has one.
///
/// # Errors
/// The length is wrong.
pub fn unlock_value(bytes: &[u8]) -> Result<Option<[u8; VALUE_LEN]>, DecodeError> {
    wire::decode("request to unlock", bytes, |reader| (!reader.is_empty()).then(|| reader.take()).transpose())
}

/// Encodes the payload of a grant.
#[must_use]
pub fn encode_grant(mode: Mode, value: &Value) -> [u8; 8 + VALUE_LEN] {
    let Value { bytes: value, validity } = *value;
    wire::encode(&GrantWire { mode, validity, zero: Zeros, value })
}

/// Decodes the payload of a grant.
///
/// # Errors
/// The bytes are malformed.
pub fn decode_grant(bytes: &[u8]) -> Result<(Mode, Value), DecodeError> {
    let GrantWire { mode, validity, value, .. } = wire::decode("grant of a lock", bytes, Reader::take)?;
    Ok((mode, Value { bytes: value, validity }))
}

/// Checks that any bytes are either an error or decode to a value that encodes to the same bytes.
pub(super) fn any(bytes: &[u8]) {
    if let Ok(request) = NewLockMessage::decode(bytes) {
        assert_eq!(&*request.encode(), bytes);
    }
    if let Ok(request) = ConvertRequest::decode(bytes) {
        assert_eq!(&*request.encode(), bytes);
    }
    if let Ok((mode, value)) = decode_grant(bytes) {
        assert_eq!(encode_grant(mode, &value), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let (notify, session, start_time, timeout_ns) = (true, SESSIONS - 1, 7, FOREVER);
        for name in [&b"n"[..], &[0xff; MAX_NAME]] {
            let request = NewLockMessage { mode: Mode::PW, notify, session, start_time, timeout_ns, name };
            assert_eq!(NewLockMessage::decode(&request.encode()), Ok(request));
        }
        let name = &[1; MAX_NAME];
        let longest = NewLockMessage { mode: Mode::PW, notify, session, start_time, timeout_ns, name };
        assert!(NewLockMessage::decode(&[&longest.encode(), &b"n"[..]].concat()).is_err());
        assert!(NewLockMessage::decode(&NewLockMessage { name: b"", ..longest }.encode()).is_err());
        for value in [None, Some([9; VALUE_LEN])] {
            let request = ConvertRequest { mode: Mode::CR, timeout_ns: 0, value };
            assert_eq!(ConvertRequest::decode(&request.encode()), Ok(request));
        }
        let value = Value { bytes: [3; VALUE_LEN], validity: Validity::Lost };
        assert_eq!(decode_grant(&encode_grant(Mode::EX, &value)), Ok((Mode::EX, value)));
    }

    #[test]
    fn hostile_bytes_have_one_reading_or_none() {
        let request = NewLockMessage {
            mode: Mode::PW,
            notify: false,
            session: 1,
            start_time: 7,
            timeout_ns: 5,
            name: &[b'x'; VALUE_LEN],
        };
        let convert = ConvertRequest { mode: Mode::CR, timeout_ns: 9, value: Some([1; VALUE_LEN]) };
        let grant = encode_grant(Mode::NL, &Value::default()).to_vec();
        plexus_sim::hostile(&[request.encode().to_vec(), convert.encode().to_vec(), grant], any);
    }
}
