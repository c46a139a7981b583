//! Functions of angles in degrees, exact where the result is a fraction, as in PostgreSQL's
//! `float.c`.

/// Returns the sine of 0 to 30 degrees.
fn sine_to_30(degrees: f64) -> f64 {
    degrees.to_radians().sin() / 30f64.to_radians().sin() / 2.0
}

/// Returns the cosine of 0 to 60 degrees.
fn cosine_to_60(degrees: f64) -> f64 {
    1.0 - (1.0 - degrees.to_radians().cos()) / (1.0 - 60f64.to_radians().cos()) / 2.0
}

fn sine_to_90(degrees: f64) -> f64 {
    if degrees <= 30.0 { sine_to_30(degrees) } else { cosine_to_60(90.0 - degrees) }
}

fn cosine_to_90(degrees: f64) -> f64 {
    if degrees <= 60.0 { cosine_to_60(degrees) } else { sine_to_30(90.0 - degrees) }
}

/// Returns the angle of the first quadrant with the same sine and cosine but for their signs, and
/// these signs.
fn quadrant(degrees: f64) -> (f64, f64, f64) {
    let (mut angle, mut sine, mut cosine) = (degrees % 360.0, 1.0, 1.0);
    if angle < 0.0 {
        (angle, sine) = (-angle, -sine);
    }
    if angle > 180.0 {
        (angle, sine) = (360.0 - angle, -sine);
    }
    if angle > 90.0 {
        (angle, cosine) = (180.0 - angle, -cosine);
    }
    (angle, sine, cosine)
}

pub(super) fn sind(degrees: f64) -> f64 {
    let (angle, sign, _) = quadrant(degrees);
    sign * sine_to_90(angle)
}

pub(super) fn cosd(degrees: f64) -> f64 {
    let (angle, _, sign) = quadrant(degrees);
    sign * cosine_to_90(angle)
}

pub(super) fn tand(degrees: f64) -> f64 {
    let (angle, sine, cosine) = quadrant(degrees);
    let of_45 = sine_to_90(45.0) / cosine_to_90(45.0);
    // Not a negative zero.
    sine * cosine * (sine_to_90(angle) / cosine_to_90(angle) / of_45) + 0.0
}

pub(super) fn cotd(degrees: f64) -> f64 {
    let (angle, sine, cosine) = quadrant(degrees);
    let of_45 = cosine_to_90(45.0) / sine_to_90(45.0);
    sine * cosine * (cosine_to_90(angle) / sine_to_90(angle) / of_45) + 0.0
}

/// Converts a result of an arc tangent to degrees.
pub(super) fn in_degrees(angle: f64) -> f64 {
    angle / 1f64.atan() * 45.0
}

fn arc_sine_to_1(number: f64) -> f64 {
    match number <= 0.5 {
        true => number.asin() / 0.5f64.asin() * 30.0,
        false => 90.0 - number.acos() / 0.5f64.acos() * 60.0,
    }
}

pub(super) fn asind(number: f64) -> f64 {
    if number >= 0.0 { arc_sine_to_1(number) } else { -arc_sine_to_1(-number) }
}

pub(super) fn acosd(number: f64) -> f64 {
    let to_1 = |number: f64| match number <= 0.5 {
        true => 90.0 - number.asin() / 0.5f64.asin() * 30.0,
        false => number.acos() / 0.5f64.acos() * 60.0,
    };
    if number >= 0.0 { to_1(number) } else { 90.0 + arc_sine_to_1(-number) }
}
