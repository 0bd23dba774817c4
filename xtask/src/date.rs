//! The date of a measurement.
//!
//! Main types: none. Neighbours: `probe` and `gpu` name files by it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The day in UTC, as 2026-01-31.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of_day(seconds / 86_400)
}

/// The date of a day counted from 1970-01-01. (Howard Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`, for days from 1970 on.)
fn date_of_day(day: u64) -> String {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::date_of_day;

    #[test]
    fn days_have_the_dates_of_the_calendar() {
        // By `date -u -d @…`: the epoch, a leap day of a century, the day after it, the end of a year.
        let dates = [0, 11_016, 11_017, 20_818].map(date_of_day);
        assert_eq!(dates, ["1970-01-01", "2000-02-29", "2000-03-01", "2026-12-31"]);
    }
}
