//! Functions of numbers (chapter 9.3 of PostgreSQL's manual), and random ones.

use super::{Call, Declared, function, ok, precise, trigonometry};
use crate::{
    error::{Result, SqlError, code, error, fail},
    types::{Type, Value, numeric::Numeric, out_of_range},
    wire::scram,
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("abs @(int2/int4/int8/numeric/float4/float8) int2/int4/int8/numeric/float4/float8", abs),
    function("acos(float8) float8", |call| within_1(call, f64::acos)),
    function("acosd(float8) float8", |call| within_1(call, trigonometry::acosd)),
    function("acosh(float8) float8", |call| in_domain(call, |x| x < 1.0, f64::acosh)),
    function("asin(float8) float8", |call| within_1(call, f64::asin)),
    function("asind(float8) float8", |call| within_1(call, trigonometry::asind)),
    function("asinh(float8) float8", |call| ok(call.float(0).asinh())),
    function("atan(float8) float8", |call| ok(call.float(0).atan())),
    function("atan2(float8, float8) float8", |call| ok(call.float(0).atan2(call.float(1)))),
    function("atan2d(float8, float8) float8", |call| {
        ok(trigonometry::in_degrees(call.float(0).atan2(call.float(1))))
    }),
    function("atand(float8) float8", |call| ok(trigonometry::in_degrees(call.float(0).atan()))),
    function("atanh(float8) float8", |call| within_1(call, f64::atanh)),
    function("cbrt ||/(float8) float8", |call| ok(call.float(0).cbrt())),
    function("ceil ceiling(float8) float8", |call| ok(call.float(0).ceil())),
    function("ceil ceiling(numeric) numeric", |call| ok(precise::toward(call.numeric(0), 1)?)),
    function("cos(float8) float8", |call| finite(call, f64::cos)),
    function("cosd(float8) float8", |call| finite(call, trigonometry::cosd)),
    function("cosh(float8) float8", |call| ok(call.float(0).cosh())),
    function("cot(float8) float8", |call| finite(call, |x| 1.0 / x.tan())),
    function("cotd(float8) float8", |call| finite(call, trigonometry::cotd)),
    function("degrees(float8) float8", |call| fitting(call.float(0).to_degrees(), &[call.float(0)])),
    function("div(numeric, numeric) numeric", |call| {
        ok(precise::quotient(call.numeric(0), call.numeric(1))?)
    }),
    function("exp(float8) float8", exp),
    function("exp(numeric) numeric", |call| ok(precise::exp(call.numeric(0))?)),
    function("factorial(int8) numeric", factorial),
    function("floor(float8) float8", |call| ok(call.float(0).floor())),
    function("floor(numeric) numeric", |call| ok(precise::toward(call.numeric(0), -1)?)),
    function("gcd(int4/int8, int4/int8) int4/int8", gcd),
    function("gcd(numeric, numeric) numeric", |call| ok(precise::gcd(call.numeric(0), call.numeric(1))?)),
    function("ln(float8) float8", |call| logarithm(call, f64::ln)),
    function("lcm(int4/int8, int4/int8) int4/int8", lcm),
    function("lcm(numeric, numeric) numeric", |call| ok(precise::lcm(call.numeric(0), call.numeric(1))?)),
    function("ln(numeric) numeric", |call| ok(precise::ln(call.numeric(0))?)),
    function("log log10(float8) float8", |call| logarithm(call, f64::log10)),
    function("log log10(numeric) numeric", |call| ok(precise::log(Numeric::from_int(10), call.numeric(0))?)),
    function("log(numeric, numeric) numeric", |call| ok(precise::log(call.numeric(0), call.numeric(1))?)),
    function("min_scale(numeric) int4", |call| ok(i64::from(call.numeric(0).trimmed().scale))),
    function("mod(int2/int4/int8, int2/int4/int8) int2/int4/int8", modulo),
    function("mod(numeric, numeric) numeric", |call| ok(call.numeric(0).rem(call.numeric(1))?)),
    function("pi() float8", |_| ok(std::f64::consts::PI)),
    function("pow power ^(float8, float8) float8", |call| power(call.float(0), call.float(1))),
    function("pow power ^(numeric, numeric) numeric", |call| {
        ok(precise::power(call.numeric(0), call.numeric(1))?)
    }),
    function("radians(float8) float8", |call| {
        fitting(call.float(0) * (std::f64::consts::PI / 180.0), &[call.float(0)])
    }),
    function("random() float8 volatile", random),
    function("round(float8) float8", |call| ok(call.float(0).round_ties_even())),
    function("round(numeric, [int4]) numeric", |call| ok(precise::round(call.numeric(0), call.int(1))?)),
    function("scale(numeric) int4", |call| ok(i64::from(call.numeric(0).scale))),
    function("sign(float8) float8", |call| match call.float(0) {
        zero if zero == 0.0 || zero.is_nan() => ok(zero.abs()),
        number => ok(number.signum()),
    }),
    function("sign(numeric) numeric", |call| {
        ok(Numeric::from_int(call.numeric(0).compare(&Numeric::from_int(0)) as i64))
    }),
    function("sin(float8) float8", |call| finite(call, f64::sin)),
    function("sind(float8) float8", |call| finite(call, trigonometry::sind)),
    function("sinh(float8) float8", |call| ok(call.float(0).sinh())),
    function("sqrt |/(float8) float8", |call| sqrt(call.float(0))),
    function("sqrt(numeric) numeric", |call| ok(precise::sqrt(call.numeric(0))?)),
    function("tan(float8) float8", |call| finite(call, f64::tan)),
    function("tand(float8) float8", |call| finite(call, trigonometry::tand)),
    function("tanh(float8) float8", |call| ok(call.float(0).tanh())),
    function("trim_scale(numeric) numeric", |call| ok(call.numeric(0).trimmed())),
    function("trunc(float8) float8", |call| ok(call.float(0).trunc())),
    function("trunc(numeric, [int4]) numeric", |call| ok(precise::trunc(call.numeric(0), call.int(1))?)),
    function("width_bucket(anycompatible, anycompatiblearray) int4", bucket_of_array),
    function("width_bucket(float8, float8, float8, int4) int4", bucket_of_float),
    function("width_bucket(numeric, numeric, numeric, int4) int4", bucket_of_numeric),
    function("gen_random_uuid() uuid volatile", random_uuid),
    function("&(int2/int4/int8, int2/int4/int8) int2/int4/int8", |call| ok(call.int(0) & call.int(1))),
    function("|(int2/int4/int8, int2/int4/int8) int2/int4/int8", |call| ok(call.int(0) | call.int(1))),
    function("#(int2/int4/int8, int2/int4/int8) int2/int4/int8", |call| ok(call.int(0) ^ call.int(1))),
    function("~(int2/int4/int8) int2/int4/int8", |call| ok(!call.int(0))),
    function("<<(int2, int4) int2", |call| ok(((call.int(0) as i32) << (call.int(1) & 31)) as i16)),
    function("<<(int4, int4) int4", |call| ok((call.int(0) as i32) << (call.int(1) & 31))),
    function("<<(int8, int4) int8", |call| ok(call.int(0) << (call.int(1) & 63))),
    function(">>(int2/int4, int4) int2/int4", |call| ok((call.int(0) as i32) >> (call.int(1) & 31))),
    function(">>(int8, int4) int8", |call| ok(call.int(0) >> (call.int(1) & 63))),
];

/// Returns a number of a type without its sign.
fn abs(call: &Call<'_>) -> Result<Value> {
    match &call.values[0] {
        Value::Int(number) => {
            let positive = number.checked_abs().ok_or_else(|| out_of_range(call.result))?;
            Value::Int(positive).fit(call.result, false)
        }
        Value::Float(number) => ok(number.abs()),
        Value::Numeric(number) => ok(Numeric { digits: number.digits.abs(), ..*number }),
        other => Ok(other.clone()),
    }
}

fn modulo(call: &Call<'_>) -> Result<Value> {
    match call.int(1) {
        0 => Err(SqlError::new(code::DIVISION_BY_ZERO, "division by zero")),
        other => ok(call.int(0).wrapping_rem(other)),
    }
}

fn gcd(call: &Call<'_>) -> Result<Value> {
    let (mut one, mut other) = (call.int(0).unsigned_abs(), call.int(1).unsigned_abs());
    while other != 0 {
        (one, other) = (other, one % other);
    }
    let found = i64::try_from(one).map_err(|_| out_of_range(call.result))?;
    Value::Int(found).fit(call.result, false)
}

fn lcm(call: &Call<'_>) -> Result<Value> {
    let (one, other) = (call.int(0), call.int(1));
    if one == 0 || other == 0 {
        return ok(0i64);
    }
    let Value::Int(divisor) = gcd(call)? else { return Ok(Value::Null) };
    let found = (one / divisor).checked_mul(other).and_then(i64::checked_abs);
    Value::Int(found.ok_or_else(|| out_of_range(call.result))?).fit(call.result, false)
}

fn factorial(call: &Call<'_>) -> Result<Value> {
    if call.int(0) < 0 {
        fail!(NUMERIC_OUT_OF_RANGE, "factorial of a negative number is undefined");
    }
    let mut product = Numeric::from_int(1);
    for factor in 2..=call.int(0) {
        product = product.mul(Numeric::from_int(factor))?;
    }
    ok(product)
}

/// Returns a result, unless finite arguments have made it infinite.
fn fitting(result: f64, arguments: &[f64]) -> Result<Value> {
    match result.is_infinite() && arguments.iter().all(|argument| argument.is_finite()) {
        true => Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "value out of range: overflow")),
        false => ok(result),
    }
}

fn underflow() -> SqlError {
    SqlError::new(code::NUMERIC_OUT_OF_RANGE, "value out of range: underflow")
}

fn in_domain(call: &Call<'_>, is_outside: fn(f64) -> bool, act: fn(f64) -> f64) -> Result<Value> {
    match is_outside(call.float(0)) {
        true => Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "input is out of range")),
        false => ok(act(call.float(0))),
    }
}

fn within_1(call: &Call<'_>, act: fn(f64) -> f64) -> Result<Value> {
    in_domain(call, |number| number.abs() > 1.0, act)
}

fn finite(call: &Call<'_>, act: fn(f64) -> f64) -> Result<Value> {
    in_domain(call, f64::is_infinite, act)
}

fn exp(call: &Call<'_>) -> Result<Value> {
    match call.float(0).exp() {
        0.0 if call.float(0).is_finite() => Err(underflow()),
        result => fitting(result, &[call.float(0)]),
    }
}

fn logarithm(call: &Call<'_>, act: fn(f64) -> f64) -> Result<Value> {
    let of = match call.float(0) {
        0.0 => "zero",
        ..0.0 => "a negative number",
        number => return ok(act(number)),
    };
    Err(error!("2201E", "cannot take logarithm of {of}"))
}

fn sqrt(number: f64) -> Result<Value> {
    match number {
        ..0.0 => Err(SqlError::new("2201F", "cannot take square root of a negative number")),
        number => ok(number.sqrt()),
    }
}

fn power(base: f64, exponent: f64) -> Result<Value> {
    if base == 0.0 && exponent < 0.0 {
        return Err(SqlError::new("2201F", "zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.is_finite() && exponent.fract() != 0.0 {
        fail!("2201F", "a negative number raised to a non-integer power yields a complex result");
    }
    match base.powf(exponent) {
        0.0 if base != 0.0 && base.is_finite() && exponent.is_finite() => Err(underflow()),
        result => fitting(result, &[base, exponent]),
    }
}

fn bucket_error(message: &str) -> SqlError {
    SqlError::new("2201G", message)
}

fn bucket_of_float(call: &Call<'_>) -> Result<Value> {
    let (of, low, high, count) = (call.float(0), call.float(1), call.float(2), call.int(3));
    if count <= 0 {
        return Err(bucket_error("count must be greater than zero"));
    }
    if of.is_nan() || low.is_nan() || high.is_nan() {
        return Err(bucket_error("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(bucket_error("lower and upper bounds must be finite"));
    }
    let bucket = |of: f64, low: f64, high: f64| {
        if of < low {
            0
        } else if of >= high {
            count + 1
        } else {
            // Halves, since the difference of the bounds may be infinite.
            let share = (of / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
            ((share * count as f64) as i64).min(count - 1) + 1
        }
    };
    let found = match low.total_cmp(&high) {
        _ if low == high => return Err(bucket_error("lower bound cannot equal upper bound")),
        std::cmp::Ordering::Less => bucket(of, low, high),
        _ => bucket(-of, -low, -high),
    };
    Value::Int(found).fit(Type::Int4, false)
}

fn bucket_of_numeric(call: &Call<'_>) -> Result<Value> {
    let (of, low, high, count) = (call.numeric(0), call.numeric(1), call.numeric(2), call.int(3));
    if count <= 0 {
        return Err(bucket_error("count must be greater than zero"));
    }
    let found = match low.compare(&high) {
        std::cmp::Ordering::Equal => return Err(bucket_error("lower bound cannot equal upper bound")),
        order => {
            // The order of the bounds decides on which side of them a number is outside.
            if of.compare(&low) == order {
                0
            } else if of.compare(&high) != order {
                count + 1
            } else {
                let share = of.sub(low)?.mul(Numeric::from_int(count))?;
                let whole = precise::quotient(share, high.sub(low)?)?;
                whole.to_int().unwrap_or(0) + 1
            }
        }
    };
    Value::Int(found).fit(Type::Int4, false)
}

fn bucket_of_array(call: &Call<'_>) -> Result<Value> {
    let bounds = call.array(1);
    if bounds.dimensions.len() > 1 {
        return Err(SqlError::new(code::ARRAY_SUBSCRIPT, "thresholds must be one-dimensional array"));
    }
    if bounds.values.iter().any(Value::is_null) {
        return Err(SqlError::new("22004", "thresholds array must not contain NULLs"));
    }
    ok(bounds.values.partition_point(|bound| bound.compare(&call.values[0]).is_le()) as i64)
}

/// Returns a number from 0 to 1 that is different each time; it is no secret.
fn random(_: &Call<'_>) -> Result<Value> {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0) >> 11;
    ok(bits as f64 / (1u64 << 53) as f64)
}

/// Returns a uuid of version 4.
fn random_uuid(_: &Call<'_>) -> Result<Value> {
    let mut bytes = scram::random::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    ok(bytes.to_vec())
}
