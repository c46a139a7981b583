//! Exact decimal numbers with up to 38 digits.

use std::{cmp::Ordering, fmt};

use dashu_int::IBig;

use crate::error::{Result, SqlError, code, error};

/// The most digits behind the point of a quotient that is not exact.
const DIVISION_SCALE: u16 = 16;

/// The most digits behind the point.
const MOST_SCALE: u16 = 37;

/// A number: `digits` divided by ten to the power of `scale`. It takes 24 bytes and not 32, so a
/// value of any type takes 32 and not 48.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(Rust, packed(8))]
pub(crate) struct Numeric {
    pub(crate) digits: i128,
    pub(crate) scale: u16,
}

fn overflow() -> SqlError {
    SqlError::new(code::NUMERIC_OUT_OF_RANGE, "value overflows numeric format")
        .with_detail("numbers with more than 38 digits are not supported")
}

/// The powers of ten that there are.
const POWERS: [i128; 39] = {
    let mut powers = [1; 39];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

fn power(scale: u16) -> Result<i128> {
    POWERS.get(usize::from(scale)).copied().ok_or_else(overflow)
}

impl Numeric {
    pub(crate) fn from_int(number: i64) -> Self {
        Self { digits: number.into(), scale: 0 }
    }

    /// Returns a number with so many digits.
    pub(crate) fn from_float(number: f64, digits: usize) -> Result<Self> {
        Self::parse(&format!("{number:.0$e}", digits - 1)).map(Self::trimmed)
    }

    /// Returns the number without zeros at its end.
    pub(crate) fn trimmed(mut self) -> Self {
        while self.scale > 0 && self.digits % 10 == 0 {
            self.digits /= 10;
            self.scale -= 1;
        }
        self
    }

    /// Returns the digits in groups of four around the point, as PostgreSQL has them: without
    /// groups of zeros at the begin and at the end. Returns the weight of the first group, too.
    pub(crate) fn groups(self) -> (Vec<u16>, i64) {
        let text = self.to_string();
        let unsigned = text.trim_start_matches('-');
        let (whole, part) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let whole = format!("{:0>1$}", whole, whole.len().div_ceil(4) * 4);
        let part = format!("{:0<1$}", part, part.len().div_ceil(4) * 4);
        let all = whole.clone() + &part;
        let group = |four: &[u8]| four.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        let mut groups: Vec<u16> = all.as_bytes().chunks(4).map(group).collect();
        let leading = groups.iter().take_while(|group| **group == 0).count();
        groups.drain(..leading);
        while groups.last() == Some(&0) {
            groups.pop();
        }
        let weight = if groups.is_empty() { 0 } else { whole.len() as i64 / 4 - 1 - leading as i64 };
        (groups, weight)
    }

    pub(crate) fn to_float(self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    pub(crate) fn to_int(self) -> Option<i64> {
        i64::try_from(self.rounded(0).ok()?.digits).ok()
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let invalid = || error!(INVALID_TEXT, "invalid input syntax for type numeric: \"{text}\"");
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| invalid())?),
            None => (text, 0),
        };
        let (sign, unsigned) = match mantissa.as_bytes() {
            [b'-', ..] => (-1, &mantissa[1..]),
            [b'+', ..] => (1, &mantissa[1..]),
            _ => (1, mantissa),
        };
        let (whole, part) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() && part.is_empty() || !is_digits(whole) || !is_digits(part) {
            return Err(invalid());
        }
        let mut digits = 0i128;
        for byte in whole.bytes().chain(part.bytes()) {
            digits = digits
                .checked_mul(10)
                .and_then(|digits| digits.checked_add((byte - b'0').into()))
                .ok_or_else(overflow)?;
        }
        let scale = i32::try_from(part.len()).ok().and_then(|scale| scale.checked_sub(exponent));
        let scale = scale.ok_or_else(overflow)?;
        let digits = sign * digits;
        if scale < 0 {
            let factor = u16::try_from(scale.unsigned_abs()).map_err(|_| overflow()).and_then(power)?;
            return Ok(Self { digits: digits.checked_mul(factor).ok_or_else(overflow)?, scale: 0 });
        }
        let scale = u16::try_from(scale).map_err(|_| overflow())?;
        let number = Self { digits, scale };
        if scale > MOST_SCALE { Err(overflow()) } else { Ok(number) }
    }

    /// Gives the number another scale, rounding half away from zero.
    pub(crate) fn rounded(self, scale: u16) -> Result<Self> {
        if scale == self.scale {
            return Ok(self);
        }
        if scale > self.scale {
            let digits = self.digits.checked_mul(power(scale - self.scale)?).ok_or_else(overflow)?;
            return Ok(Self { digits, scale });
        }
        let factor = power(self.scale - scale)?;
        let (quotient, rest) = (self.digits / factor, self.digits % factor);
        let up = if rest.abs() >= factor - rest.abs() { rest.signum() } else { 0 };
        Ok(Self { digits: quotient + up, scale })
    }

    /// Checks that the number has at most `precision` digits, `scale` of them behind the point.
    pub(crate) fn within(self, precision: u16, scale: u16) -> Result<Self> {
        let limit = power(precision)?;
        if self.digits.abs() < limit {
            return Ok(self);
        }
        let whole = precision.saturating_sub(scale);
        let detail = format!(
            "A field with precision {precision}, scale {scale} must round to an absolute value less than 10^{whole}."
        );
        Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "numeric field overflow").with_detail(detail))
    }

    fn aligned(self, other: Self) -> Result<(i128, i128, u16)> {
        let scale = self.scale.max(other.scale);
        Ok((self.rounded(scale)?.digits, other.rounded(scale)?.digits, scale))
    }

    pub(crate) fn add(self, other: Self) -> Result<Self> {
        let (one, other, scale) = self.aligned(other)?;
        Ok(Self { digits: one.checked_add(other).ok_or_else(overflow)?, scale })
    }

    pub(crate) fn sub(self, other: Self) -> Result<Self> {
        self.add(Self { digits: -other.digits, ..other })
    }

    pub(crate) fn mul(self, other: Self) -> Result<Self> {
        let digits = self.digits.checked_mul(other.digits).ok_or_else(overflow)?;
        let scale = self.scale + other.scale;
        if scale > MOST_SCALE { Err(overflow()) } else { Ok(Self { digits, scale }) }
    }

    /// Divides, with at least 16 significant digits, as PostgreSQL chooses them.
    pub(crate) fn div(self, other: Self) -> Result<Self> {
        if other.digits == 0 {
            return Err(SqlError::new(code::DIVISION_BY_ZERO, "division by zero"));
        }
        let scale = quotient_scale(self, other);
        let small = self
            .aligned(other)
            .ok()
            .and_then(|(one, other, _)| Some(one.checked_mul(power(scale + 1).ok()?)? / other));
        let number = match small {
            Some(number) => number,
            None => {
                let power = |scale: u16| IBig::from(10).pow(scale.into());
                let one = IBig::from(self.digits) * power(other.scale + scale + 1);
                let quotient = one / (IBig::from(other.digits) * power(self.scale));
                i128::try_from(quotient).map_err(|_| overflow())?
            }
        };
        Self { digits: number, scale: scale + 1 }.rounded(scale)
    }

    pub(crate) fn rem(self, other: Self) -> Result<Self> {
        if other.digits == 0 {
            return Err(SqlError::new(code::DIVISION_BY_ZERO, "division by zero"));
        }
        let (one, other, scale) = self.aligned(other)?;
        Ok(Self { digits: one % other, scale })
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        match self.aligned(*other) {
            Ok((one, other, _)) => one.cmp(&other),
            // One is too large for the scale of the other.
            Err(_) => self.to_float().total_cmp(&other.to_float()),
        }
    }
}

/// Returns the scale of a quotient, by PostgreSQL's rule (`select_div_scale`): 16 significant
/// digits, counted in groups of four, and no fewer digits than either number has.
fn quotient_scale(one: Numeric, other: Numeric) -> u16 {
    let group = |number: Numeric| -> (i32, i128) {
        // The first group of four digits and its weight.
        let digits = number.digits.unsigned_abs();
        if digits == 0 {
            return (0, 0);
        }
        let length = digits.ilog10() as i32 + 1;
        let whole = length - i32::from(number.scale);
        let weight = (whole - 1).div_euclid(4);
        let shown = whole - 4 * weight;
        let first = if length > shown {
            digits / 10u128.pow((length - shown) as u32)
        } else {
            digits * 10u128.pow((shown - length) as u32)
        };
        (weight, first as i128)
    };
    let ((weight, first), (other_weight, other_first)) = (group(one), group(other));
    let quotient = weight - other_weight - i32::from(first <= other_first);
    let scale = i32::from(DIVISION_SCALE) - quotient * 4;
    let scale = scale.max(one.scale.into()).max(other.scale.into()).max(0);
    scale.min(MOST_SCALE.into()) as u16
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = usize::from(self.scale);
        let digits = format!("{:0>1$}", self.digits.unsigned_abs(), scale + 1);
        let (whole, part) = digits.split_at(digits.len() - scale);
        let sign = if self.digits < 0 { "-" } else { "" };
        match part {
            "" => write!(f, "{sign}{whole}"),
            part => write!(f, "{sign}{whole}.{part}"),
        }
    }
}
