//! Functions of numbers (chapter 9.3 of PostgreSQL's manual), and random ones.

use super::{Call, FLOAT4, FLOAT8, Function, INT2, INT4, INT8, NUMERIC, TIMESTAMPTZ, UUID, function, ok};
use crate::{
    error::{Result, SqlError, code},
    types::{Type, Value, numeric::Numeric, out_of_range, time},
};

pub(super) static FUNCTIONS: &[Function] = &[
    function("abs", &[INT2], INT2, abs),
    function("abs", &[INT4], INT4, abs),
    function("abs", &[INT8], INT8, abs),
    function("abs", &[NUMERIC], NUMERIC, abs),
    function("abs", &[FLOAT4], FLOAT4, abs),
    function("abs", &[FLOAT8], FLOAT8, abs),
    function("gen_random_uuid", &[], UUID, random_uuid).volatile(),
    function("mod", &[INT8, INT8], INT8, modulo),
    function("now", &[], TIMESTAMPTZ, |call| Ok(Value::Time(call.context.begun))).stable(),
    function("clock_timestamp", &[], TIMESTAMPTZ, |_| Ok(Value::Time(time::now()))).volatile(),
    function("random", &[], FLOAT8, random).volatile(),
];

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
