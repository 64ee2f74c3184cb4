//! Ratios with their intervals, one lane each, around the line of "no difference".

use plotters::prelude::{Circle, PathElement, Rectangle};

use super::super::palette::{A, B, INK, MUTED, NOISE};
use super::{ChartError, Room, both, failed, filled, lanes, line, note};
use crate::report::format_ratio;
use crate::statistics::{Ratio, Verdict};

/// Height of a lane in pixels.
const LANE: u32 = 46;

/// One lane.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Interval {
    /// What was compared.
    pub(in super::super) name: String,
    /// Ratio with interval.
    pub(in super::super) ratio: Ratio,
    /// Half the width of the grey band.
    pub(in super::super) noise_floor: f64,
    /// The verdict, in words beside the name.
    pub(in super::super) verdict: Option<Verdict>,
}

/// The chart; `axis` says what over what.
pub(in super::super) fn forest(intervals: &[Interval], axis: &str) -> Result<String, ChartError> {
    let reach = |pick: fn(&Interval) -> f64, fold: fn(f64, f64) -> f64| {
        intervals.iter().map(pick).fold(1.0, fold)
    };
    let low = reach(|i| i.ratio.low.min(1.0 - i.noise_floor), f64::min);
    let high = reach(|i| i.ratio.high.max(1.0 + i.noise_floor), f64::max);
    let margin = ((high - low) * 0.06).max(0.002);
    let range = (low - margin, high + margin);
    let count = intervals.len() as u32;
    let label = intervals
        .iter()
        .map(|i| {
            format!(
                "{}: {} ({} to {})",
                i.name,
                format_ratio(i.ratio.estimate),
                format_ratio(i.ratio.low),
                format_ratio(i.ratio.high)
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    both(
        &format!("{axis}, with intervals. {label}"),
        |_| count * LANE + 52,
        |room, area| draw(room, area, intervals, range, axis),
    )
}

fn draw(
    room: Room,
    area: &super::Area<'_>,
    intervals: &[Interval],
    range: (f64, f64),
    axis: &str,
) -> Result<(), ChartError> {
    let lanes_count = intervals.len() as f64;
    let mut chart = lanes(room, area, range, lanes_count, axis, &|value| {
        format_ratio(*value)
    })?;
    for (index, interval) in intervals.iter().enumerate() {
        let top = lanes_count - index as f64;
        let noise = interval.noise_floor;
        chart
            .draw_series([Rectangle::new(
                [(1.0 - noise, top - 0.45), (1.0 + noise, top - 0.95)],
                filled(NOISE),
            )])
            .map_err(failed)?;
    }
    chart
        .draw_series([PathElement::new(
            vec![(1.0, 0.0), (1.0, lanes_count)],
            line(MUTED, 1),
        )])
        .map_err(failed)?;
    for (index, interval) in intervals.iter().enumerate() {
        let top = lanes_count - index as f64;
        let height = top - 0.7;
        let ratio = &interval.ratio;
        let colour = match interval.verdict {
            Some(Verdict::Faster) => A,
            Some(Verdict::Slower) => B,
            _ => MUTED,
        };
        let upright =
            |x: f64| PathElement::new(vec![(x, height - 0.1), (x, height + 0.1)], line(colour, 2));
        chart
            .draw_series([
                PathElement::new(
                    vec![(ratio.low, height), (ratio.high, height)],
                    line(colour, 2),
                ),
                upright(ratio.low),
                upright(ratio.high),
            ])
            .map_err(failed)?;
        chart
            .draw_series([Circle::new((ratio.estimate, height), 4, filled(colour))])
            .map_err(failed)?;
        let verdict = interval
            .verdict
            .map_or_else(String::new, |verdict| format!(": {verdict}"));
        let words = room.fit(&format!("{}{verdict}", interval.name));
        note(&chart, (range.0, top), (0, 3), &words, INK)?;
    }
    Ok(())
}
