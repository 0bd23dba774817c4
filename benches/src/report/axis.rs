//! Where values lie on a chart, and which of them are written beside it.
//!
//! Main types: [`Scale`]. Neighbours: the charts.

use crate::number;

/// A straight way from values to coordinates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// `from` lies at the coordinate `start`, and `to`, which is another value, at `end`.
    pub(super) fn new((from, to): (f64, f64), (start, end): (f64, f64)) -> Self {
        let to = if to == from { from + 1.0 } else { to };
        Self { from, to, start, end }
    }

    /// The coordinate of a value, to a tenth.
    pub(super) fn at(self, value: f64) -> f64 {
        let share = (value - self.from) / (self.to - self.from);
        ((self.start + share * (self.end - self.start)) * 10.0).round() / 10.0
    }
}

/// 1, 2 or 5 times a power of ten, so that about `wanted` of them make `span`.
fn step(span: f64, wanted: f64) -> f64 {
    let rough = span / wanted;
    let power = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| nice * power >= rough * 0.999);
    nice.unwrap_or(10.0) * power
}

/// Multiples of a round step from `from` to `to`.
pub(super) fn ticks(from: f64, to: f64, wanted: f64) -> Vec<f64> {
    if to <= from || !(to - from).is_finite() {
        return vec![from];
    }
    let step = step(to - from, wanted);
    let first = (from / step - 1e-9).ceil() as i64;
    (first..).map(|n| n as f64 * step).take_while(|tick| *tick <= to + step * 1e-9).collect()
}

/// The same for bytes: round numbers of the unit that `most` has, each with its text.
pub(super) fn byte_ticks(most: u64, wanted: f64) -> Vec<(f64, String)> {
    let unit = 1_u64 << (most.max(1).ilog2() / 10 * 10);
    let ticks = ticks(0.0, most as f64 / unit as f64, wanted);
    ticks.into_iter().map(|tick| tick * unit as f64).map(|at| (at, number::bytes(at as u64))).collect()
}

/// The same for whole numbers.
pub(super) fn count_ticks(most: u64, wanted: f64) -> Vec<(f64, String)> {
    let whole = ticks(0.0, most as f64, wanted).into_iter().filter(|tick| tick.fract() == 0.0);
    whole.map(|tick| (tick, number::count(tick as u64))).collect()
}

#[cfg(test)]
mod tests {
    use super::{Scale, byte_ticks, count_ticks, ticks};

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(1.0, 1.0, 5.0), [1.0]);
        let shown = ticks(1.0, 1.35, 4.0).iter().map(|tick| format!("{tick:.2}")).collect::<Vec<_>>();
        assert_eq!(shown, ["1.00", "1.10", "1.20", "1.30"]);
        let texts = |ticks: Vec<(f64, String)>| ticks.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(byte_ticks(40 << 30, 4.0)), ["0 B", "10 GiB", "20 GiB", "30 GiB", "40 GiB"]);
        assert_eq!(texts(count_ticks(3, 9.0)), ["0", "1", "2", "3"]);
        assert_eq!(texts(count_ticks(700_399, 4.0)), ["0", "200,000", "400,000", "600,000"]);
        assert_eq!(
            (texts(byte_ticks(0, 4.0)), texts(count_ticks(0, 4.0))),
            (vec!["0 B".into()], vec!["0".into()])
        );
        assert_eq!(ticks(0.0, u64::MAX as f64, 4.0).len(), 4);
    }

    #[test]
    fn a_scale_goes_both_ways() {
        let down = Scale::new((0.0, 200.0), (100.0, 0.0));
        assert_eq!([0.0, 50.0, 200.0].map(|value| down.at(value)), [100.0, 75.0, 0.0]);
        assert_eq!(Scale::new((5.0, 5.0), (0.0, 10.0)).at(5.0), 0.0);
    }
}
