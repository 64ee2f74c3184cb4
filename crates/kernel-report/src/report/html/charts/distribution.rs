//! Where the samples of both arms lie: a histogram, the quartiles, and every far outlier.

use plotters::prelude::{Circle, PathElement, Polygon, Rectangle};

use super::super::palette::{A, B, INK, PAPER, Role};
use super::{ChartError, Room, both, failed, filled, lanes, line, note};
use crate::report::format_seconds;
use crate::statistics::{Summary, quantile_of_sorted};

/// Steps of a histogram.
const BINS: usize = 60;
/// Height of a lane in pixels.
const LANE: u32 = 78;
/// Outliers that are drawn; more would be one blot.
const MOST_DOTS: usize = 200;

struct Arm<'a> {
    name: &'static str,
    role: Role,
    samples: &'a [f64],
    summary: Summary,
}

/// The chart of a workload; empty where there are no samples.
pub(in super::super) fn distribution(
    workload: &str,
    a: &[f64],
    b: &[f64],
) -> Result<String, ChartError> {
    let arm = |name, role, samples| {
        let summary = Summary::of(samples)?;
        Some(Arm {
            name,
            role,
            samples,
            summary,
        })
    };
    let (Some(a), Some(b)) = (arm("A", A, a), arm("B", B, b)) else {
        return Ok(String::new());
    };
    let arms = [a, b];
    let mut all: Vec<f64> = arms.iter().flat_map(|arm| arm.samples).copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    let at = |q| quantile_of_sorted(&all, q).unwrap_or_default();
    // The axis ends where nearly all samples lie; what is beyond is said in words.
    let (low, high) = (at(0.0), at(0.985));
    let margin = ((high - low) * 0.03).max(low * 1e-3);
    let range = (low - margin, high + margin);
    let label = arms
        .iter()
        .map(|arm| {
            format!(
                "{}: median {}, 90% between {} and {}, {} far outliers, greatest {}",
                arm.name,
                format_seconds(arm.summary.median),
                format_seconds(arm.summary.p05),
                format_seconds(arm.summary.p95),
                arm.summary.outliers,
                format_seconds(arm.summary.maximum)
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    both(
        &format!("Times of {workload}. {label}"),
        |_| 2 * LANE + 52,
        |room, area| draw(room, area, &arms, range),
    )
}

fn draw(
    room: Room,
    area: &super::Area<'_>,
    arms: &[Arm<'_>; 2],
    range: (f64, f64),
) -> Result<(), ChartError> {
    let mut chart = lanes(room, area, range, 2.0, "time of a call", &|value| {
        format_seconds(*value)
    })?;
    for (index, arm) in arms.iter().enumerate() {
        let base = 1.0 - index as f64 + 0.12;
        let summary = &arm.summary;
        chart
            .draw_series([Polygon::new(
                outline(arm.samples, range, base, 0.55),
                filled(arm.role),
            )])
            .map_err(failed)?;
        let below = |from: f64, to: f64, width| {
            PathElement::new(
                vec![(from, base - 0.06), (to, base - 0.06)],
                line(arm.role, width),
            )
        };
        chart
            .draw_series([
                below(summary.p05, summary.p95.min(range.1), 1),
                below(summary.p25, summary.p75.min(range.1), 5),
            ])
            .map_err(failed)?;
        chart
            .draw_series([Rectangle::new(
                [
                    (summary.median - (range.1 - range.0) * 1e-3, base - 0.1),
                    (summary.median + (range.1 - range.0) * 1e-3, base - 0.02),
                ],
                filled(PAPER),
            )])
            .map_err(failed)?;
        let reach = 3.0 * (summary.p75 - summary.p25);
        let far = arm
            .samples
            .iter()
            .filter(|time| **time > summary.p75 + reach || **time < summary.p25 - reach);
        let beyond = arm.samples.iter().filter(|time| **time > range.1).count();
        chart
            .draw_series(
                far.filter(|time| **time <= range.1)
                    .take(MOST_DOTS)
                    .map(|time| Circle::new((*time, base - 0.06), 2, filled(arm.role))),
            )
            .map_err(failed)?;
        let beyond = match beyond {
            0 => String::new(),
            count => format!(
                ", {count} beyond, up to {}",
                format_seconds(summary.maximum)
            ),
        };
        let words = format!(
            "{}: median {}{beyond}",
            arm.name,
            format_seconds(summary.median)
        );
        note(
            &chart,
            (range.0, base + 0.85),
            (0, 2),
            &room.fit(&words),
            INK,
        )?;
    }
    Ok(())
}

/// The histogram as a closed line of steps.
fn outline(samples: &[f64], (low, high): (f64, f64), base: f64, height: f64) -> Vec<(f64, f64)> {
    let mut counts = [0_usize; BINS];
    let width = (high - low) / BINS as f64;
    for sample in samples.iter().filter(|sample| **sample <= high) {
        counts[(((sample - low) / width) as usize).min(BINS - 1)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut points = vec![(low, base)];
    for (bin, count) in counts.iter().enumerate() {
        let y = base + height * *count as f64 / most;
        points.push((low + bin as f64 * width, y));
        points.push((low + (bin + 1) as f64 * width, y));
    }
    points.push((high, base));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_is_as_high_as_its_fullest_step() {
        let points = outline(&[1.0, 1.0, 1.5], (0.0, 6.0), 0.0, 2.0);
        let highest = points.iter().map(|(_, y)| *y).fold(0.0, f64::max);
        assert!((highest - 2.0).abs() < 1e-12);
        // 1.0 lies in the step from 1.0 to 1.1.
        assert!(
            points
                .iter()
                .any(|(x, y)| (*x - 1.0).abs() < 1e-9 && (*y - 2.0).abs() < 1e-9)
        );
    }
}
