//! The rows of the tables: which figures, how they are written, and which case has the best.
//!
//! Main types: [`Metric`]. Neighbours: `member` has the figures under the keys that `docs/bench.md` defines.

use super::calls_chart;
use super::member::Member;
use crate::number::{bytes, count, milliseconds};

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// A quotient, with four places.
    Ratio,
    Bytes,
    Count,
    /// Nanoseconds, written in milliseconds.
    Milliseconds,
    /// Nanoseconds.
    Nanoseconds,
}

/// Which figure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// That at this JSON pointer.
    At(&'static str),
    /// The sum of the driver calls that change memory.
    MemoryCalls,
}

/// A figure of a case of which less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metric {
    /// What it is called, with its kind where it is not counted.
    pub(super) name: &'static str,
    figure: Figure,
    look: Look,
}

const fn metric(name: &'static str, pointer: &'static str, look: Look) -> Metric {
    Metric { name, figure: Figure::At(pointer), look }
}

/// Mapped over live: what the overview compares.
pub(super) const OVERVIEW: Metric = metric("mapped / live", "/mapped_over_live", Look::Ratio);

/// All rows. Those that no case has are left out.
const METRICS: &[Metric] = &[
    OVERVIEW,
    metric("peak of mapped bytes", "/mapped_peak_bytes", Look::Bytes),
    metric("minimum capacity / live", "/min_capacity_over_live", Look::Ratio),
    metric("minimum capacity", "/min_capacity_bytes", Look::Bytes),
    metric("failures above it", "/failures_above", Look::Count),
    metric("external bytes at the live peak", "/external_at_live_peak_bytes", Look::Bytes),
    metric("internal bytes at the live peak", "/internal_at_live_peak_bytes", Look::Bytes),
    metric("addresses / live", "/address_over_live", Look::Ratio),
    Metric { name: "driver calls that change memory", figure: Figure::MemoryCalls, look: Look::Count },
    metric("driver ms, MODELLED", "/modelled_driver_ns", Look::Milliseconds),
    metric("driver ms, measured", "/measured_driver_ns", Look::Milliseconds),
    metric("allocation p99 ns, MODELLED", "/modelled_allocation_ns/p99", Look::Nanoseconds),
    metric("longest allocation ns, MODELLED", "/modelled_allocation_ns/max", Look::Nanoseconds),
    metric("allocation retries", "/allocation_retries", Look::Count),
    metric("events recorded", "/fences/records", Look::Count),
    metric("waits on the device", "/device_waits", Look::Count),
    metric("waits of the host", "/host_waits", Look::Count),
    metric("device ms, MODELLED", "/modelled_device_ns", Look::Milliseconds),
    metric("device time / unlimited, MODELLED", "/device_ns_over_unlimited", Look::Ratio),
    metric("device time / kernels, MODELLED", "/device_ns_over_kernels", Look::Ratio),
    metric("ns / event of this host, noisy", "/host_ns_per_event", Look::Nanoseconds),
];

/// A cell: the figure, and whether it is the best of its row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figured {
    /// The exact value.
    pub(super) value: f64,
    /// As written.
    pub(super) text: String,
    /// No completed case has less, and one has more.
    pub(super) best: bool,
}

impl Metric {
    /// The rows that at least one of these has.
    pub(super) fn of<'m>(members: &'m [Member<'_>]) -> impl Iterator<Item = &'static Self> + 'm {
        let modelled = members.iter().any(|member| member.number("/measured_driver_ns").is_none());
        METRICS.iter().filter(move |metric| {
            let there = members.iter().any(|member| metric.value(member).is_some());
            // On a GPU nothing is modelled, and the key is there with a 0.
            there && (modelled || metric.figure != Figure::At("/modelled_driver_ns"))
        })
    }

    /// Its name in attributes: the JSON key, or keys with `/` between.
    pub(super) fn key(&self) -> &'static str {
        match self.figure {
            Figure::At(pointer) => &pointer[1..],
            Figure::MemoryCalls => "memory_calls",
        }
    }

    /// The figure of a case, if it has one.
    fn value(&self, member: &Member<'_>) -> Option<f64> {
        match self.figure {
            Figure::At(pointer) => member.number(pointer),
            Figure::MemoryCalls => {
                member.value("/driver_calls")?;
                let calls = calls_chart::kinds()
                    .filter_map(|call| member.whole(&format!("/driver_calls/{}", call.name())));
                Some(calls.sum::<u64>() as f64)
            }
        }
    }

    fn text(&self, value: f64) -> String {
        match self.look {
            Look::Ratio => format!("{value:.4}"),
            Look::Bytes => bytes(value as u64),
            Look::Count => count(value as u64),
            Look::Milliseconds => milliseconds(value as u64),
            Look::Nanoseconds => count(value.round() as u64),
        }
    }

    /// A row: a cell for each of these, in order. Cases that did not complete are never the best; and where all that
    /// did look the same, none is.
    pub(super) fn row(&self, members: &[Member<'_>]) -> Vec<Option<Figured>> {
        let values: Vec<Option<f64>> = members.iter().map(|member| self.value(member)).collect();
        let completed = || {
            let with = members.iter().zip(&values).filter(|(member, _)| member.completed());
            with.filter_map(|(_, value)| *value)
        };
        let least = completed().fold(f64::INFINITY, f64::min);
        let differ = completed().any(|value| self.text(value) != self.text(least));
        let cell = |(member, value): (&Member<'_>, Option<f64>)| {
            let value = value?;
            let text = self.text(value);
            let best = differ && member.completed() && text == self.text(least);
            Some(Figured { value, text, best })
        };
        members.iter().zip(values).map(cell).collect()
    }
}
