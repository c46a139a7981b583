//! Times as text in UTC, so that logs of several machines and days can be compared.

const DAY_S: u64 = 86_400;

/// Returns the time of day of a time in milliseconds since 1970: `13:07:59`.
pub fn time(unix_ms: u64) -> String {
    let second = unix_ms / 1000 % DAY_S;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Returns its date: `2026-11-21`.
pub fn date(unix_ms: u64) -> String {
    let mut days = unix_ms / 1000 / DAY_S;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}

/// Returns a number of seconds as text: `3.5s`, `2m05s`, `4h10m`, `3d02h`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..DAY_S => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / DAY_S, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        // The expected values are from `date -u -d @N`.
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (951_782_399_999, "2000-02-28 23:59:59"),
            (951_868_799_000, "2000-02-29 23:59:59"),
            (4_107_542_400_000, "2100-03-01 00:00:00"),
            (1_795_266_479_000, "2026-11-21 13:07:59"),
        ];
        for (unix_ms, text) in cases {
            assert_eq!(format!("{} {}", date(unix_ms), time(unix_ms)), text);
        }
        assert_eq!([3.52, 125.0, 15_000.0, 266_400.0].map(duration), ["3.5s", "2m05s", "4h10m", "3d02h"]);
    }
}
