//! Functions of exact numbers, with as many digits as PostgreSQL's `numeric.c` chooses.

use std::cmp::Ordering;

use dashu_float::DBig;
use dashu_int::IBig;

use crate::{
    error::{Result, SqlError, code, error, fail},
    types::numeric::Numeric,
};

/// The significant digits of a result that is not exact.
const SIGNIFICANT: i64 = 16;

/// The digits with which results are computed: a few more than a number can have.
const PRECISION: usize = 64;

const ZERO: Numeric = Numeric { digits: 0, scale: 0 };

fn overflow() -> SqlError {
    SqlError::new(code::NUMERIC_OUT_OF_RANGE, "value overflows numeric format")
}

fn scaled(digits: i128, scale: i64) -> Result<Numeric> {
    Ok(Numeric { digits, scale: u16::try_from(scale).map_err(|_| overflow())? })
}

fn power_of_ten(exponent: i64) -> Result<i128> {
    u32::try_from(exponent).ok().and_then(|exponent| 10i128.checked_pow(exponent)).ok_or_else(overflow)
}

fn negative(number: Numeric) -> bool {
    number.compare(&ZERO).is_lt()
}

fn is_zero(number: Numeric) -> bool {
    number.compare(&ZERO).is_eq()
}

/// Cuts off what is behind a number of decimal places, of which a negative one is before the point.
pub(super) fn trunc(number: Numeric, scale: i64) -> Result<Numeric> {
    scaled_to(number, scale, false)
}

/// Rounds to a number of decimal places, of which a negative one is before the point.
pub(super) fn round(number: Numeric, scale: i64) -> Result<Numeric> {
    scaled_to(number, scale, true)
}

fn scaled_to(number: Numeric, scale: i64, rounds: bool) -> Result<Numeric> {
    let scale = scale.clamp(-2000, 2000);
    let gone = i64::from(number.scale) - scale;
    if gone <= 0 {
        return number.rounded(u16::try_from(scale).map_err(|_| overflow())?);
    }
    let Ok(factor) = power_of_ten(gone) else { return Ok(ZERO) };
    let (quotient, rest) = (number.digits / factor, number.digits % factor);
    let up = if rounds && rest.abs() >= factor - rest.abs() { rest.signum() } else { 0 };
    let unit = power_of_ten((-scale).max(0))?;
    scaled((quotient + up).checked_mul(unit).ok_or_else(overflow)?, scale.max(0))
}

/// Returns the next whole number in a direction, 1 or -1.
pub(super) fn toward(number: Numeric, direction: i64) -> Result<Numeric> {
    let whole = trunc(number, 0)?;
    let order = if direction > 0 { Ordering::Greater } else { Ordering::Less };
    if number.compare(&whole) == order { whole.add(Numeric::from_int(direction)) } else { Ok(whole) }
}

/// Returns the whole part of a quotient.
pub(super) fn quotient(one: Numeric, other: Numeric) -> Result<Numeric> {
    let rest = one.rem(other)?;
    let scale = one.scale.max(other.scale);
    let (one, other) = (one.sub(rest)?.rounded(scale)?, other.rounded(scale)?);
    Ok(Numeric { digits: one.digits / other.digits, scale: 0 })
}

pub(super) fn gcd(mut one: Numeric, mut other: Numeric) -> Result<Numeric> {
    let scale = one.scale.max(other.scale);
    while !is_zero(other) {
        (one, other) = (other, one.rem(other)?);
    }
    (if negative(one) { ZERO.sub(one)? } else { one }).rounded(scale)
}

pub(super) fn lcm(one: Numeric, other: Numeric) -> Result<Numeric> {
    let scale = one.scale.max(other.scale);
    if is_zero(one) || is_zero(other) {
        return ZERO.rounded(scale);
    }
    let found = quotient(one, gcd(one, other)?)?.mul(other)?;
    (if negative(found) { ZERO.sub(found)? } else { found }).rounded(scale)
}

fn big(number: Numeric) -> DBig {
    let exact = DBig::from_parts(IBig::from(number.digits), -(number.scale as isize));
    exact.with_precision(PRECISION).value()
}

/// Returns a number with so many digits behind the point.
fn rounded(number: &DBig, scale: i64) -> Result<Numeric> {
    let scale = scale.clamp(0, 1000);
    let repr = number.repr();
    let shift = i64::try_from(repr.exponent()).map_err(|_| overflow())? + scale;
    let digits = match shift {
        200.. => return Err(overflow()),
        0.. => repr.significand() * IBig::from(10).pow(shift as usize),
        -2000..0 => {
            let factor = IBig::from(10).pow(shift.unsigned_abs() as usize);
            let half = &factor / IBig::from(2);
            let significand = repr.significand();
            match *significand < IBig::ZERO {
                true => (significand - half) / factor,
                false => (significand + half) / factor,
            }
        }
        _ => IBig::ZERO,
    };
    let digits = i128::try_from(digits).map_err(|_| overflow())?;
    scaled(digits, scale)
}

/// Estimates the place of the first digit of a natural logarithm (`estimate_ln_dweight`).
fn logarithm_weight(number: Numeric) -> Result<i64> {
    let one = Numeric::from_int(1);
    let is_near = number.compare(&Numeric { digits: 9, scale: 1 }).is_ge()
        && number.compare(&Numeric { digits: 11, scale: 1 }).is_le();
    if is_near {
        let (groups, weight) = number.sub(one)?.groups();
        return Ok(groups.first().map_or(0, |first| weight * 4 + f64::from(*first).log10() as i64));
    }
    let (groups, weight) = number.groups();
    let (mut digits, mut weight) = (f64::from(groups.first().copied().unwrap_or(0)), weight * 4);
    if let Some(second) = groups.get(1) {
        digits = digits * 10_000.0 + f64::from(*second);
        weight -= 4;
    }
    let estimate: f64 = digits.ln() + weight as f64 * std::f64::consts::LN_10;
    Ok(estimate.abs().log10() as i64)
}

fn check_logarithm(number: Numeric) -> Result<()> {
    let of = match number.compare(&ZERO) {
        Ordering::Greater => return Ok(()),
        Ordering::Equal => "zero",
        Ordering::Less => "a negative number",
    };
    Err(error!("2201E", "cannot take logarithm of {of}"))
}

fn logarithm(number: Numeric) -> DBig {
    match number.compare(&Numeric::from_int(1)) {
        Ordering::Equal => DBig::ZERO,
        _ => big(number).ln(),
    }
}

pub(super) fn ln(number: Numeric) -> Result<Numeric> {
    check_logarithm(number)?;
    let scale = (SIGNIFICANT - logarithm_weight(number)?).max(number.scale.into());
    rounded(&logarithm(number), scale)
}

pub(super) fn log(base: Numeric, number: Numeric) -> Result<Numeric> {
    check_logarithm(base)?;
    check_logarithm(number)?;
    let weight = logarithm_weight(number)? - logarithm_weight(base)?;
    let scale = (SIGNIFICANT - weight).max(base.scale.into()).max(number.scale.into());
    let below = logarithm(base);
    if below == DBig::ZERO {
        return Err(SqlError::new(code::DIVISION_BY_ZERO, "division by zero"));
    }
    rounded(&(logarithm(number) / below), scale)
}

pub(super) fn exp(number: Numeric) -> Result<Numeric> {
    let places = number.to_float() * std::f64::consts::LOG10_E;
    if places > 40.0 {
        return Err(overflow());
    }
    let scale = (SIGNIFICANT - places.max(-2000.0) as i64).max(number.scale.into());
    match is_zero(number) {
        true => rounded(&DBig::ONE, scale),
        _ if places < -100.0 => Err(overflow()),
        _ => rounded(&big(number).exp(), scale),
    }
}

pub(super) fn sqrt(number: Numeric) -> Result<Numeric> {
    if negative(number) {
        return Err(SqlError::new("2201F", "cannot take square root of a negative number"));
    }
    let (_, weight) = number.groups();
    let scale = (SIGNIFICANT - ((weight + 1) * 4 / 2 - 1)).max(number.scale.into());
    match is_zero(number) {
        true => ZERO.rounded(u16::try_from(scale).map_err(|_| overflow())?),
        false => {
            use dashu_float::ops::SquareRoot;
            rounded(&big(number).sqrt(), scale)
        }
    }
}

pub(super) fn power(base: Numeric, exponent: Numeric) -> Result<Numeric> {
    if is_zero(base) && negative(exponent) {
        return Err(SqlError::new("2201F", "zero raised to a negative power is undefined"));
    }
    let whole = trunc(exponent, 0)?;
    let is_whole = whole.compare(&exponent).is_eq();
    if negative(base) && !is_whole {
        fail!("2201F", "a negative number raised to a non-integer power yields a complex result");
    }
    if let Some(times) = whole.to_int().and_then(|times| i32::try_from(times).ok()).filter(|_| is_whole) {
        return whole_power(base, times, base.scale.into());
    }
    let least = i64::from(base.scale.max(exponent.scale));
    if is_zero(base) {
        return ZERO.rounded(16.max(least as u16));
    }
    let product = logarithm(base) * big(exponent);
    let places = product.to_f64().value() * std::f64::consts::LOG10_E;
    if !(-100.0..=40.0).contains(&places) {
        return Err(overflow());
    }
    let scale = (SIGNIFICANT - places as i64).max(least);
    rounded(&if product == DBig::ZERO { DBig::ONE } else { product.exp() }, scale)
}

/// Returns the power of a whole number.
fn whole_power(base: Numeric, times: i32, scale: i64) -> Result<Numeric> {
    let scale = scale.max(SIGNIFICANT);
    if is_zero(base) {
        let result = if times == 0 { Numeric::from_int(1) } else { ZERO };
        return result.rounded(u16::try_from(scale).map_err(|_| overflow())?);
    }
    let places = f64::from(times) * base.to_float().abs().log10();
    match places {
        40.0.. => Err(overflow()),
        ..-100.0 => ZERO.rounded(u16::try_from(scale).map_err(|_| overflow())?),
        _ => rounded(&big(base).powi(IBig::from(times)), scale),
    }
}
