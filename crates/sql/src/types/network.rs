//! Addresses of networks: the types inet and cidr.
//!
//! A value is bytes whose order is that of PostgreSQL: the family, the address without the bits of
//! the host, the number of the other bits, and the whole address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Type, Value};
use crate::error::{Result, SqlError, code};

/// An address, and the number of bits that are those of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    pub(crate) bits: u8,
}

impl Network {
    /// Returns the bytes of an address.
    fn octets(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    fn of_octets(octets: &[u8], bits: u8) -> Option<Self> {
        let address = match octets.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(octets).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(octets).ok()?),
        };
        Some(Self { address, bits }).filter(|network| bits <= network.most_bits())
    }

    /// Returns the address of a value.
    pub(crate) fn of(value: &[u8]) -> Option<Self> {
        let (mark, length) = value.split_first().map(|(family, rest)| (*family, rest.len() / 2))?;
        let (bits, octets) = value.get(length + 1..)?.split_first()?;
        Self::of_octets(octets, *bits).filter(|_| matches!(mark, 4 | 6))
    }

    /// Returns it as a value.
    pub(crate) fn value(self) -> Value {
        let network = Self::octets(self.network().address);
        Value::Bytes([&[self.family()][..], &network, &[self.bits], &Self::octets(self.address)].concat())
    }

    /// Returns 4 or 6.
    pub(crate) fn family(self) -> u8 {
        if self.address.is_ipv4() { 4 } else { 6 }
    }

    fn most_bits(self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns it without the bits of the host.
    pub(crate) fn network(self) -> Self {
        let bits = u32::from(self.bits);
        let address = match self.address {
            IpAddr::V4(v4) => {
                Ipv4Addr::from(v4.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0)).into()
            }
            IpAddr::V6(v6) => {
                Ipv6Addr::from(v6.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0)).into()
            }
        };
        Self { address, bits: self.bits }
    }

    /// Returns whether its network has another one with as many bits or more.
    pub(crate) fn contains(self, other: Self) -> bool {
        let inner = Self { bits: self.bits, ..other };
        self.family() == other.family() && self.bits <= other.bits && self.network() == inner.network()
    }

    /// Reads PostgreSQL's text of it. The octets at the end may be missing if the bits are given.
    /// In a cidr the class of the address decides, too.
    pub(crate) fn parse(text: &str, of: Type) -> Result<Value> {
        let (wrong, is_cidr) = (|| super::text::invalid(of, text), of == Type::Cidr);
        let found = Self::read(text, is_cidr).ok_or_else(wrong)?;
        if is_cidr && found.network() != found {
            let message = format!("invalid cidr value: \"{text}\"");
            let detail = "Value has bits set to right of mask.";
            return Err(SqlError::new(code::INVALID_TEXT, message).with_detail(detail));
        }
        Ok(found.value())
    }

    fn read(text: &str, is_cidr: bool) -> Option<Self> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if bits.is_some_and(|bits| !is_number(bits)) {
            return None;
        }
        let given = bits.map(str::parse::<u8>).transpose().ok()?;
        if address.contains(':') {
            let address = address.parse::<Ipv6Addr>().ok()?;
            let is_short = bits.is_none_or(|bits| bits == "0" || !bits.starts_with('0'));
            return Self::of_octets(&address.octets(), given.unwrap_or(128)).filter(|_| is_short);
        }
        let mut octets = Vec::new();
        for part in address.strip_suffix('.').filter(|_| given.is_some()).unwrap_or(address).split('.') {
            octets.push(part.parse::<u8>().ok().filter(|_| is_number(part))?);
        }
        let count = octets.len() as u8;
        octets.resize(4, 0);
        let bits = match (given, count) {
            (_, 5..) => return None,
            (Some(bits), count) => Some(bits).filter(|bits| is_cidr || bits / 8 <= count)?,
            (None, 4) => 32,
            (None, _) if !is_cidr => return None,
            (None, count) => {
                let class: u8 = match octets[0] {
                    240.. => 32,
                    192..224 => 24,
                    128..192 => 16,
                    _ => 8,
                };
                if octets[0] == 224 && count == 1 { 4 } else { class.max(8 * count) }
            }
        };
        Self::of_octets(&octets, bits)
    }

    /// Returns the text of the address alone.
    pub(crate) fn host(self) -> String {
        match self.address {
            IpAddr::V6(address) => match address.segments() {
                [0, 0, 0, 0, 0, 0, high, _] if high != 0 => {
                    format!("::{}", Ipv4Addr::from(address.to_bits() as u32))
                }
                _ => address.to_string(),
            },
            IpAddr::V4(address) => address.to_string(),
        }
    }

    /// Returns its text, as a cast to text gives it.
    pub(crate) fn whole(self) -> String {
        format!("{}/{}", self.host(), self.bits)
    }

    /// Returns its text. The bits of an inet are left out if all are those of the network.
    pub(crate) fn print(self, of: Type) -> String {
        if of == Type::Cidr || self.bits < self.most_bits() { self.whole() } else { self.host() }
    }

    /// Returns the text of a cidr without what follows from its bits, as PostgreSQL's `abbrev`.
    pub(crate) fn abbreviated(self) -> String {
        let (bits, octets) = (self.bits, Self::octets(self.address));
        let dotted = |octets: &[u8]| octets.iter().map(u8::to_string).collect::<Vec<_>>().join(".");
        let IpAddr::V6(address) = self.address else {
            return format!("{}/{bits}", dotted(&octets[..usize::from(bits.div_ceil(8)).max(1)]));
        };
        let count = usize::from(bits.div_ceil(16)).max(2);
        let words = address.segments();
        let words = &words[..count];
        // The first of the longest runs of zeros.
        let mut zeros = 0..0;
        for start in 0..count {
            let length = words[start..].iter().take_while(|word| **word == 0).count();
            if length > zeros.len() {
                zeros = start..start + length;
            }
        }
        if zeros.len() == count {
            return format!("::/{bits}");
        }
        // They end like an address of version 4.
        let is_mapped = zeros == (0..5) && words.get(5) == Some(&0xffff);
        if count > 6 && (is_mapped || zeros == (0..6)) {
            let end = 16 - usize::from(bits <= 120) - usize::from(count == 7);
            let begin = if is_mapped { "::ffff:" } else { "::" };
            return format!("{begin}{}/{bits}", dotted(&octets[12..end]));
        }
        let hexadecimal =
            |words: &[u16]| words.iter().map(|word| format!("{word:x}")).collect::<Vec<_>>().join(":");
        match zeros.is_empty() {
            true => format!("{}/{bits}", hexadecimal(words)),
            false => {
                format!("{}::{}/{bits}", hexadecimal(&words[..zeros.start]), hexadecimal(&words[zeros.end..]))
            }
        }
    }

    /// Appends PostgreSQL's binary form of a value.
    pub(crate) fn put_binary(self, into: &mut Vec<u8>, of: Type) {
        let octets = Self::octets(self.address);
        let family = if self.address.is_ipv4() { 2 } else { 3 };
        into.extend([family, self.bits, u8::from(of == Type::Cidr), octets.len() as u8]);
        into.extend(octets);
    }

    /// Reads the binary form.
    pub(crate) fn parse_binary(bytes: &[u8], of: Type) -> Option<Value> {
        let [family @ (2 | 3), bits, _, length, octets @ ..] = bytes else { return None };
        let is_fitting = octets.len() == usize::from(*length) && *length == if *family == 2 { 4 } else { 16 };
        let found = Self::of_octets(octets, *bits).filter(|_| is_fitting)?;
        (of != Type::Cidr || found.network() == found).then(|| found.value())
    }
}
