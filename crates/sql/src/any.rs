//! The decoders of what clients send and pages hold, over any bytes, for fuzz targets and tests.
//! They are not part of the crate's interface.

use crate::{
    copy::{CopyColumn, CopyFormat, CopyOptions, CopyReader},
    parse,
    types::{Type, Value, encode, text},
    wire,
};

/// Reads any bytes as a first message, as a message of each kind, and as a part of a log-in.
/// Returns how many are accepted.
#[doc(hidden)]
pub fn message_any(bytes: &[u8]) -> usize {
    let first = usize::from(wire::read_start(bytes).is_ok());
    let log_in = std::str::from_utf8(bytes).is_ok_and(|text| wire::scram::Verifier::parse(text).is_some());
    first + usize::from(log_in) + (0..=u8::MAX).filter(|kind| wire::read(*kind, bytes).is_ok()).count()
}

/// Reads any bytes as a value of each type, as text and in binary form, and as a row of a page.
/// Returns how many are accepted. A value that is accepted survives both of its forms.
#[doc(hidden)]
pub fn value_any(bytes: &[u8]) -> usize {
    let is_same = |left: &Value, right: &Value| left.is_null() || left.compare(right).is_eq();
    let mut taken = 0;
    for of in Type::all() {
        let typed = text::parse_binary(bytes, of).ok();
        let written = std::str::from_utf8(bytes).ok().and_then(|bytes| text::parse(bytes, of).ok());
        for value in typed.iter().chain(&written) {
            let (mut binary, printed) = (Vec::new(), text::print(value, of));
            text::put_binary(&mut binary, value, of);
            if let Ok(again) = text::parse_binary(&binary, of) {
                assert!(is_same(value, &again), "{of:?}: {value:?} is {again:?} after its binary form");
            }
            if let Ok(again) = text::parse(&printed, of) {
                assert!(is_same(value, &again), "{of:?}: {value:?} is {again:?} after {printed:?}");
            }
            taken += 1;
        }
    }
    if let Ok(row) = encode::read_all(bytes) {
        let again = encode::read_all(&encode::row(&row)).expect("a row that was encoded");
        assert!(row.iter().zip(&again).all(|(left, right)| is_same(left, right)), "{row:?}: {again:?}");
        taken += 1;
    }
    taken
}

/// Reads any bytes as the data of a COPY of each format, in two pieces. Returns the number of rows.
#[doc(hidden)]
pub fn copied_any(bytes: &[u8]) -> usize {
    let mut rows = 0;
    let csv = CopyOptions {
        format: CopyFormat::Csv,
        delimiter: b',',
        null: String::new(),
        ..CopyOptions::default()
    };
    let binary = CopyOptions { format: CopyFormat::Binary, ..CopyOptions::default() };
    for options in [CopyOptions::default(), csv, binary] {
        let columns = [("a", Type::Int4), ("b", Type::Text)];
        let columns = columns.map(|(name, of)| CopyColumn { name: name.into(), of }).into();
        let mut reader = CopyReader::new(&options, columns);
        let (begin, end) = bytes.split_at(bytes.len() / 2);
        for (piece, is_last) in [(begin, false), (end, true)] {
            if reader.add(piece).is_err() {
                break;
            }
            if is_last {
                reader.complete();
            }
            while let Ok(Some(_)) = reader.next() {
                rows += 1;
            }
        }
    }
    rows
}

/// Parses any text. Returns the number of statements.
#[doc(hidden)]
pub fn statement_any(bytes: &[u8]) -> usize {
    std::str::from_utf8(bytes).ok().and_then(|text| parse::parse(text).ok()).map_or(0, |found| found.len())
}

#[cfg(test)]
mod tests {
    use plexus_sim::hostile;

    use super::*;

    /// Passes the samples and damaged ones to `take`, which accepts each sample.
    fn damaged(samples: &[&[u8]], take: fn(&[u8]) -> usize) {
        let samples: Vec<_> = samples.iter().map(|sample| sample.to_vec()).collect();
        for sample in &samples {
            assert!(take(sample) > 0, "{:?} is refused", sample.escape_ascii().to_string());
        }
        hostile(&samples, |bytes| _ = take(bytes));
    }

    #[test]
    fn damaged_bytes_do_no_harm() {
        damaged(
            &[
                b"\0\x03\0\0user\0a\0options\0-c x=1\0\0",
                b"\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02",
                b"name\0select $1\0\0\x01\0\0\0\x17",
                b"portal\0name\0\0\x01\0\x01\0\x02\0\0\0\x04\0\0\0\x01\xff\xff\xff\xff\0\0",
                b"SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5",
            ],
            message_any,
        );
        damaged(
            &[
                b"2024-02-29 23:59:60.5+01:30 BC",
                b"P1Y2M3DT4H5M6.7S",
                b"-1 mons +3 days 04:05:06",
                b"{{1,2},{NULL,\"a \\\" b\"}}",
                b"{\"a\": [1, -2.5e10, \"\\u00e9\", null, true]}",
                b"12345678901234567890.123456789e-5",
                b"192.168.0.1/24",
                // In binary form: an array, numeric, NaN, and an interval.
                b"\0\0\0\x01\0\0\0\0\0\0\0\x17\0\0\0\x01\0\0\0\x01\0\0\0\x04\0\0\0\x07",
                b"\0\x02\0\0\0\0\0\x02\0\x01\x0d\x80",
                b"\x7f\xf8\0\0\0\0\0\0",
                b"\0\0\0\0\0\0\0\x05\0\0\0\x06\0\0\0\x07",
                &encode::row(&[Value::Int(8), Value::Null, Value::Text("a".into())]),
            ],
            value_any,
        );
        damaged(
            &[
                b"1\ta\\tb\\x41\\n\n\\N\t\\N\n\\.\n",
                b"1,\"a \"\"b\"\", c\"\r\n2,\r\n",
                b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x01a\xff\xff",
            ],
            copied_any,
        );
        damaged(
            &[
                b"select a, (select max(b) from t where c = $1) from s join u using (d) where x in (1, 2)",
                b"insert into t (a, b) values (1, 'x''y'), (default, E'\\n') on conflict (a) do nothing",
                b"create table t (a int primary key, b numeric(10, 2) default 1.5 check (b > 0))",
                b"with recursive r as (select 1 union all select n + 1 from r) select * from r limit 3",
                b"copy t (a, b) from stdin with (format csv, delimiter ';'); select $$a$$ /* /* */ */ -- b",
                b"alter table t add foreign key (a) references u deferrable; declare c cursor for table t",
            ],
            statement_any,
        );
    }
}
