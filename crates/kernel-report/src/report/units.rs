//! Numbers as people read them.

/// A time in the unit that leaves one to three digits before the point.
pub fn format_seconds(seconds: f64) -> String {
    match seconds.abs() {
        s if s < 1e-6 => format!("{:.0} ns", seconds * 1e9),
        s if s < 1e-3 => format!("{:.1} us", seconds * 1e6),
        s if s < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// A ratio with so many digits that a difference of a thousandth is seen, and no more than four
/// significant ones.
pub fn format_ratio(ratio: f64) -> String {
    match ratio.abs() {
        r if r < 0.1 => format!("{ratio:.4}"),
        r if r < 10.0 => format!("{ratio:.3}"),
        r if r < 100.0 => format!("{ratio:.2}"),
        _ => format!("{ratio:.0}"),
    }
}

/// A large count with an SI prefix, such as a rate.
pub fn format_count(count: f64) -> String {
    const PREFIXES: [(f64, &str); 5] =
        [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    for (size, prefix) in PREFIXES {
        if count.abs() >= size {
            return format!("{:.3} {prefix}", count / size);
        }
    }
    format!("{count:.0} ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_matter() {
        assert_eq!(format_seconds(3.21e-7), "321 ns");
        assert_eq!(format_seconds(1.234e-3), "1.23 ms");
        assert_eq!(format_ratio(0.98765), "0.988");
        assert_eq!(format_ratio(123.4), "123");
        assert_eq!(format_count(1.5e9), "1.500 G");
    }
}
