//! Numbers as readable text.

/// Returns a number with commas between groups of three digits.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a rate per second, rounded to an integer.
pub fn rate(per_second: f64) -> String {
    count(per_second.max(0.0).round() as u64)
}

/// Returns microseconds with about three digits.
pub fn us(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => count(us.round() as u64),
    }
}

/// Returns a ratio with about two digits.
pub fn ratio(ratio: f64) -> String {
    match ratio {
        r if r < 10.0 => format!("{r:.2}x"),
        r if r < 100.0 => format!("{r:.1}x"),
        r => format!("{}x", count(r.round() as u64)),
    }
}

/// Returns a number of bytes in units of 1024.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let counts = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        counts.into_iter().for_each(|(n, text)| assert_eq!(count(n), text));
        let sizes = [
            (8, "8 B"),
            (16384, "16 KiB"),
            (4 << 20, "4 MiB"),
            (1536, "1.5 KiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        sizes.into_iter().for_each(|(n, text)| assert_eq!(bytes(n), text));
        assert_eq!((us(3.456), us(34.56), us(3456.0)), ("3.46".into(), "34.6".into(), "3,456".into()));
        assert_eq!((ratio(4.0), ratio(12.34), ratio(250.4)), ("4.00x".into(), "12.3x".into(), "250x".into()));
        assert_eq!(rate(-1.0), "0");
    }
}
