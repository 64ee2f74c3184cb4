//! Which figure of the compiler may be believed, and which two may be compared.
//!
//! The compiler's static profile walks the schedule and counts cycles, waiting for DMAs included. It
//! does not know trip counts that are read from memory, nor that concurrent DMAs share a bandwidth, so a
//! figure can lie below what arithmetic or HBM allow: then it is worthless and is not given as an
//! estimate. Where the profile cannot run, a straight-line kernel's bundles times its grid steps take its
//! place.

use super::cost::Floor;
use super::job::Build;

/// How an estimate came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Cycles of the compiler's static profile, all operations together.
    StaticProfile,
    /// Bundles of the schedule times the steps of the grid.
    Schedule,
}

impl Method {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::StaticProfile => "static profile",
            Self::Schedule => "schedule x grid",
        }
    }
}

/// A figure of the compiler's, judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// What the method gives, whether it may be believed or not.
    pub modelled: Option<u64>,
    /// The estimate: what the method gives, where it may be believed.
    pub cycles: Option<u64>,
    /// The method, where one applies.
    pub method: Option<Method>,
    /// Why there is no estimate.
    pub reason: Option<String>,
}

/// Judges a build. `unmodelled` says why the static profile did not run, where it did not.
pub fn estimate(build: &Build, floor: &Floor, unmodelled: Option<&str>) -> Estimate {
    let none = |reason: String| Estimate {
        modelled: None,
        cycles: None,
        method: None,
        reason: Some(reason),
    };
    let profiled = build
        .launches
        .iter()
        .map(|launch| {
            launch
                .cycles
                .as_ref()
                .map(|cycles| cycles.values().sum::<u64>())
        })
        .sum::<Option<u64>>()
        .filter(|cycles| *cycles > 0);
    let (cycles, method) = match (profiled, schedule(build)) {
        (Some(cycles), _) => (cycles, Method::StaticProfile),
        (None, Ok(cycles)) => (cycles, Method::Schedule),
        (None, Err(reason)) => {
            return none(match unmodelled {
                Some(first) => format!("{first}; {reason}"),
                None => reason,
            });
        }
    };
    let least = floor.cycles();
    // A rounding's worth below is the floor itself.
    let believable = cycles as f64 >= least * 0.995;
    Estimate {
        modelled: Some(cycles),
        cycles: believable.then_some(cycles),
        method: Some(method),
        reason: (!believable).then(|| {
            format!(
                "the {} gives {cycles} cycles, below the {} floor of {least:.0}",
                method.name(),
                floor.bound()
            )
        }),
    }
}

/// Bundles times steps, where the program is one straight-line Pallas call.
fn schedule(build: &Build) -> Result<u64, String> {
    let [launch] = build.launches.as_slice() else {
        return Err("it launches several programs".to_owned());
    };
    let [grid] = launch.pallas.as_slice() else {
        return Err("it is not one Pallas call".to_owned());
    };
    if !grid.straight {
        return Err(
            "its body has loops or branches, so that its bundles do not tell its time".to_owned(),
        );
    }
    let Some(steps) = grid.steps else {
        return Err("its grid is known at run time only".to_owned());
    };
    match launch.operations.as_slice() {
        [operation] => Ok(operation.bundles * steps),
        operations => Err(format!(
            "{} operations surround its Pallas call",
            operations.len().saturating_sub(1)
        )),
    }
}

/// The time of `b` over that of `a`, or why the two cannot be compared.
pub fn ratio(a: &Estimate, b: &Estimate) -> Result<f64, String> {
    match (a.cycles, b.cycles) {
        (Some(a_cycles), Some(b_cycles)) if a.method == b.method => {
            Ok(b_cycles as f64 / a_cycles as f64)
        }
        (Some(_), Some(_)) => Err("the two estimates came by different methods".to_owned()),
        (None, None) if a.modelled.is_some() && b.modelled.is_some() => Err(
            "both figures lie below the floor: the op is bound by the hardware and the model cannot tell them apart"
                .to_owned(),
        ),
        (_, None) => Err(b.reason.clone().unwrap_or_default()),
        (None, _) => Err(a.reason.clone().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Grid, Launch, Operation};
    use super::*;

    const FLOOR: Floor = Floor {
        arithmetic: 1_000.0,
        memory: 400.0,
    };

    fn profiled(cycles: u64) -> Build {
        let launch = Launch {
            cycles: Some([("fusion".to_owned(), cycles)].into()),
            ..Launch::default()
        };
        Build {
            launches: vec![launch],
            torch_ops: Vec::new(),
        }
    }

    fn scheduled(straight: bool, operations: usize) -> Build {
        let grid = Grid {
            steps: Some(10),
            straight,
            scalar_prefetch: false,
        };
        let operation = Operation {
            bundles: 150,
            ..Operation::default()
        };
        let launch = Launch {
            pallas: vec![grid],
            operations: vec![operation; operations],
            ..Launch::default()
        };
        Build {
            launches: vec![launch],
            torch_ops: Vec::new(),
        }
    }

    #[test]
    fn a_figure_below_the_floor_is_shown_and_not_believed() {
        let good = estimate(&profiled(1_500), &FLOOR, None);
        assert_eq!(
            (good.cycles, good.method),
            (Some(1_500), Some(Method::StaticProfile))
        );
        let nonsense = estimate(&profiled(623), &FLOOR, None);
        assert_eq!((nonsense.modelled, nonsense.cycles), (Some(623), None));
        assert!(nonsense.reason.unwrap().contains("MXU floor of 1000"));
    }

    #[test]
    fn bundles_tell_the_time_of_a_straight_line_only() {
        let straight = estimate(&scheduled(true, 1), &FLOOR, Some("aborted"));
        assert_eq!(
            (straight.cycles, straight.method),
            (Some(1_500), Some(Method::Schedule))
        );
        for build in [scheduled(false, 1), scheduled(true, 2)] {
            let none = estimate(&build, &FLOOR, Some("aborted"));
            assert_eq!((none.cycles, none.method), (None, None));
            assert!(none.reason.unwrap().starts_with("aborted; "));
        }
    }

    #[test]
    fn only_figures_of_one_method_that_are_believed_make_a_ratio() {
        let a = estimate(&profiled(1_500), &FLOOR, None);
        assert_eq!(
            ratio(&a, &estimate(&profiled(3_000), &FLOOR, None)),
            Ok(2.0)
        );
        let other = estimate(&scheduled(true, 1), &FLOOR, None);
        assert!(ratio(&a, &other).unwrap_err().contains("different methods"));
        let below = estimate(&profiled(500), &FLOOR, None);
        assert!(
            ratio(&a, &below)
                .unwrap_err()
                .contains("below the MXU floor")
        );
        assert!(
            ratio(&below, &below)
                .unwrap_err()
                .contains("cannot tell them apart")
        );
    }

    #[test]
    fn an_empty_build_has_no_estimate() {
        assert_eq!(estimate(&Build::default(), &FLOOR, None).cycles, None);
    }
}
