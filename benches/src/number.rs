//! How numbers are written for people: in tables, on pages, in errors.
//!
//! Neighbours: `report` writes them into pages and charts; `cargo xtask` into its tables.

/// Milliseconds of so many nanoseconds, with a decimal as long as it says something.
pub fn milliseconds(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000_000 => format!("{:.1}", nanoseconds as f64 / 1e6),
        _ => count((nanoseconds + 500_000) / 1_000_000),
    }
}

/// A whole number in groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The same in thousands from 100,000 on, where the last digits say nothing any more.
pub fn rough_count(number: u64) -> String {
    match number {
        0..100_000 => count(number),
        _ => format!("{}k", count((number + 500) / 1_000)),
    }
}

/// Bytes in the unit of 1024 that leaves at most four digits before the point.
pub fn bytes(number: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (number.max(1).ilog2() / 10) as usize;
    if unit == 0 {
        return format!("{number} B");
    }
    let value = number as f64 / (1_u64 << (10 * unit)) as f64;
    let text = format!("{value:.2}");
    format!("{} {}", text.trim_end_matches('0').trim_end_matches('.'), units[unit])
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, milliseconds, rough_count};

    #[test]
    fn counts_are_in_groups_of_three() {
        let shown = [0, 7, 999, 1_000, 310_822, 1_234_567].map(count);
        assert_eq!(shown, ["0", "7", "999", "1,000", "310,822", "1,234,567"]);
        let shown = [99_999, 100_000, 310_822, 1_009_806].map(rough_count);
        assert_eq!(shown, ["99,999", "100k", "311k", "1,010k"]);
    }

    #[test]
    fn milliseconds_lose_their_decimal_from_a_second_on() {
        let shown = [0, 1_234_567, 999_900_000, 1_000_000_000, 95_479_899_999].map(milliseconds);
        assert_eq!(shown, ["0.0", "1.2", "999.9", "1,000", "95,480"]);
    }

    #[test]
    fn bytes_keep_two_places_and_their_unit() {
        let shown = [0, 1, 1023, 1024, 1536, 2 << 20, 40_575_084_648, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1 B", "1023 B", "1 KiB", "1.5 KiB", "2 MiB", "37.79 GiB", "16 EiB"]);
    }
}
