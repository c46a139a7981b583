//! Functions of numbers (chapter 9.3 of PostgreSQL's manual), and random ones.

use super::{
    ANYCOMPATIBLE, ANYCOMPATIBLEARRAY, Call, FLOAT4, FLOAT8, Function, INT2, INT4, INT8, NUMERIC, UUID,
    function, ok, precise, trigonometry,
};
use crate::{
    error::{Result, SqlError, code},
    types::{Type, Value, numeric::Numeric, out_of_range},
};

pub(super) static FUNCTIONS: &[Function] = &[
    function("abs", &[INT2], INT2, |call| abs(&call.values[0], call.result)),
    function("abs", &[INT4], INT4, |call| abs(&call.values[0], call.result)),
    function("abs", &[INT8], INT8, |call| abs(&call.values[0], call.result)),
    function("abs", &[NUMERIC], NUMERIC, |call| abs(&call.values[0], call.result)),
    function("abs", &[FLOAT4], FLOAT4, |call| abs(&call.values[0], call.result)),
    function("abs", &[FLOAT8], FLOAT8, |call| abs(&call.values[0], call.result)),
    function("acos", &[FLOAT8], FLOAT8, |call| within_1(call, f64::acos)),
    function("acosd", &[FLOAT8], FLOAT8, |call| within_1(call, trigonometry::acosd)),
    function("acosh", &[FLOAT8], FLOAT8, |call| in_domain(call, |x| x < 1.0, f64::acosh)),
    function("asin", &[FLOAT8], FLOAT8, |call| within_1(call, f64::asin)),
    function("asind", &[FLOAT8], FLOAT8, |call| within_1(call, trigonometry::asind)),
    function("asinh", &[FLOAT8], FLOAT8, |call| ok(call.float(0).asinh())),
    function("atan", &[FLOAT8], FLOAT8, |call| ok(call.float(0).atan())),
    function("atan2", &[FLOAT8, FLOAT8], FLOAT8, |call| ok(call.float(0).atan2(call.float(1)))),
    function("atan2d", &[FLOAT8, FLOAT8], FLOAT8, |call| {
        ok(trigonometry::in_degrees(call.float(0).atan2(call.float(1))))
    }),
    function("atand", &[FLOAT8], FLOAT8, |call| ok(trigonometry::in_degrees(call.float(0).atan()))),
    function("atanh", &[FLOAT8], FLOAT8, |call| within_1(call, f64::atanh)),
    function("cbrt", &[FLOAT8], FLOAT8, |call| ok(call.float(0).cbrt())),
    function("ceil", &[FLOAT8], FLOAT8, |call| ok(call.float(0).ceil())),
    function("ceil", &[NUMERIC], NUMERIC, |call| ok(precise::toward(call.numeric(0), 1)?)),
    function("ceiling", &[FLOAT8], FLOAT8, |call| ok(call.float(0).ceil())),
    function("ceiling", &[NUMERIC], NUMERIC, |call| ok(precise::toward(call.numeric(0), 1)?)),
    function("cos", &[FLOAT8], FLOAT8, |call| finite(call, f64::cos)),
    function("cosd", &[FLOAT8], FLOAT8, |call| finite(call, trigonometry::cosd)),
    function("cosh", &[FLOAT8], FLOAT8, |call| ok(call.float(0).cosh())),
    function("cot", &[FLOAT8], FLOAT8, |call| finite(call, |x| 1.0 / x.tan())),
    function("cotd", &[FLOAT8], FLOAT8, |call| finite(call, trigonometry::cotd)),
    function("degrees", &[FLOAT8], FLOAT8, |call| fitting(call.float(0).to_degrees(), &[call.float(0)])),
    function("div", &[NUMERIC, NUMERIC], NUMERIC, |call| {
        ok(precise::quotient(call.numeric(0), call.numeric(1))?)
    }),
    function("exp", &[FLOAT8], FLOAT8, exp),
    function("exp", &[NUMERIC], NUMERIC, |call| ok(precise::exp(call.numeric(0))?)),
    function("factorial", &[INT8], NUMERIC, factorial),
    function("floor", &[FLOAT8], FLOAT8, |call| ok(call.float(0).floor())),
    function("floor", &[NUMERIC], NUMERIC, |call| ok(precise::toward(call.numeric(0), -1)?)),
    function("gcd", &[INT4, INT4], INT4, gcd),
    function("gcd", &[INT8, INT8], INT8, gcd),
    function("gcd", &[NUMERIC, NUMERIC], NUMERIC, |call| ok(precise::gcd(call.numeric(0), call.numeric(1))?)),
    function("lcm", &[INT4, INT4], INT4, lcm),
    function("lcm", &[INT8, INT8], INT8, lcm),
    function("lcm", &[NUMERIC, NUMERIC], NUMERIC, |call| ok(precise::lcm(call.numeric(0), call.numeric(1))?)),
    function("ln", &[FLOAT8], FLOAT8, |call| logarithm(call, f64::ln)),
    function("ln", &[NUMERIC], NUMERIC, |call| ok(precise::ln(call.numeric(0))?)),
    function("log", &[FLOAT8], FLOAT8, |call| logarithm(call, f64::log10)),
    function("log", &[NUMERIC], NUMERIC, |call| ok(precise::log(Numeric::from_int(10), call.numeric(0))?)),
    function("log", &[NUMERIC, NUMERIC], NUMERIC, |call| ok(precise::log(call.numeric(0), call.numeric(1))?)),
    function("log10", &[FLOAT8], FLOAT8, |call| logarithm(call, f64::log10)),
    function("log10", &[NUMERIC], NUMERIC, |call| ok(precise::log(Numeric::from_int(10), call.numeric(0))?)),
    function("min_scale", &[NUMERIC], INT4, |call| ok(i64::from(call.numeric(0).trimmed().scale))),
    function("mod", &[INT2, INT2], INT2, modulo),
    function("mod", &[INT4, INT4], INT4, modulo),
    function("mod", &[INT8, INT8], INT8, modulo),
    function("mod", &[NUMERIC, NUMERIC], NUMERIC, |call| ok(call.numeric(0).rem(call.numeric(1))?)),
    function("pi", &[], FLOAT8, |_| ok(std::f64::consts::PI)),
    function("pow", &[FLOAT8, FLOAT8], FLOAT8, |call| power(call.float(0), call.float(1))),
    function("pow", &[NUMERIC, NUMERIC], NUMERIC, |call| {
        ok(precise::power(call.numeric(0), call.numeric(1))?)
    }),
    function("power", &[FLOAT8, FLOAT8], FLOAT8, |call| power(call.float(0), call.float(1))),
    function("power", &[NUMERIC, NUMERIC], NUMERIC, |call| {
        ok(precise::power(call.numeric(0), call.numeric(1))?)
    }),
    function("radians", &[FLOAT8], FLOAT8, |call| {
        fitting(call.float(0) * (std::f64::consts::PI / 180.0), &[call.float(0)])
    }),
    function("random", &[], FLOAT8, random).volatile(),
    function("round", &[FLOAT8], FLOAT8, |call| ok(call.float(0).round_ties_even())),
    function("round", &[NUMERIC, INT4], NUMERIC, |call| ok(precise::round(call.numeric(0), call.int(1))?))
        .optional(1),
    function("scale", &[NUMERIC], INT4, |call| ok(i64::from(call.numeric(0).scale))),
    function("sign", &[FLOAT8], FLOAT8, |call| match call.float(0) {
        zero if zero == 0.0 || zero.is_nan() => ok(zero.abs()),
        number => ok(number.signum()),
    }),
    function("sign", &[NUMERIC], NUMERIC, |call| {
        ok(Numeric::from_int(call.numeric(0).compare(&Numeric::from_int(0)) as i64))
    }),
    function("sin", &[FLOAT8], FLOAT8, |call| finite(call, f64::sin)),
    function("sind", &[FLOAT8], FLOAT8, |call| finite(call, trigonometry::sind)),
    function("sinh", &[FLOAT8], FLOAT8, |call| ok(call.float(0).sinh())),
    function("sqrt", &[FLOAT8], FLOAT8, |call| sqrt(call.float(0))),
    function("sqrt", &[NUMERIC], NUMERIC, |call| ok(precise::sqrt(call.numeric(0))?)),
    function("tan", &[FLOAT8], FLOAT8, |call| finite(call, f64::tan)),
    function("tand", &[FLOAT8], FLOAT8, |call| finite(call, trigonometry::tand)),
    function("tanh", &[FLOAT8], FLOAT8, |call| ok(call.float(0).tanh())),
    function("trim_scale", &[NUMERIC], NUMERIC, |call| ok(call.numeric(0).trimmed())),
    function("trunc", &[FLOAT8], FLOAT8, |call| ok(call.float(0).trunc())),
    function("trunc", &[NUMERIC, INT4], NUMERIC, |call| ok(precise::trunc(call.numeric(0), call.int(1))?))
        .optional(1),
    function("width_bucket", &[ANYCOMPATIBLE, ANYCOMPATIBLEARRAY], INT4, bucket_of_array),
    function("width_bucket", &[FLOAT8, FLOAT8, FLOAT8, INT4], INT4, bucket_of_float),
    function("width_bucket", &[NUMERIC, NUMERIC, NUMERIC, INT4], INT4, bucket_of_numeric),
    function("gen_random_uuid", &[], UUID, random_uuid).volatile(),
];

/// Returns a number of a type without its sign.
pub(crate) fn abs(number: &Value, of: Type) -> Result<Value> {
    match number {
        Value::Int(number) => {
            let positive = number.checked_abs().ok_or_else(|| out_of_range(of))?;
            Value::Int(positive).fit(of, false)
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
        let message = "factorial of a negative number is undefined";
        return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, message));
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
    Err(SqlError::new("2201E", format!("cannot take logarithm of {of}")))
}

pub(crate) fn sqrt(number: f64) -> Result<Value> {
    match number {
        ..0.0 => Err(SqlError::new("2201F", "cannot take square root of a negative number")),
        number => ok(number.sqrt()),
    }
}

pub(crate) fn power(base: f64, exponent: f64) -> Result<Value> {
    if base == 0.0 && exponent < 0.0 {
        return Err(SqlError::new("2201F", "zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.is_finite() && exponent.fract() != 0.0 {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(SqlError::new("2201F", message));
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
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; 16];
    let failed = |_| SqlError::new(code::SYSTEM_ERROR, "the system gives no random bytes");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    ok(bytes.to_vec())
}
